//! What can be done about etcd's alarms without anybody's decision: room is made in a full database, and NOSPACE is cleared
//! once there is some on every member.

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client};
use tracing::{info, warn};

use super::{Maintenance, MaintenanceError, Threshold, defragmentation::Target};
use crate::{
    etcd::{CALL_TIMEOUT, call},
    server::operations::Run,
};

/// etcd's quota where the configuration has none.
const DEFAULT_QUOTA: u64 = 2 << 30;
/// NOSPACE is cleared when at least this part of the quota is free: 1/ROOM.
const ROOM: u64 = 20;
/// In a full database every page counts, but for the few that etcd itself keeps free.
const FULL: Threshold = Threshold {
    bytes: 1 << 20,
    percent: 0,
};

/// Alarms that are raised, by the members' IDs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Alarms {
    pub(super) no_space: Vec<u64>,
    pub(super) corrupt: Vec<u64>,
}

/// What became of a full database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Room {
    /// There is room again, and the alarm is cleared.
    Made,
    /// The data itself is too much: the largest database, and the quota, in bytes.
    None { size: u64, quota: u64 },
}

impl Maintenance {
    /// The alarms that are raised at the moment.
    pub(super) async fn alarms(&self) -> Result<Alarms, MaintenanceError> {
        let mut client = self.connector.local().await?;
        let asked = client.alarm(AlarmAction::Get, AlarmType::None, None);
        let answer = call("list alarms", CALL_TIMEOUT, asked).await?;
        let of = |wanted: AlarmType| {
            let raised = answer
                .alarms()
                .iter()
                .filter(move |raised| raised.alarm() == wanted);
            raised.map(etcd_client::AlarmMember::member_id).collect()
        };
        Ok(Alarms {
            no_space: of(AlarmType::Nospace),
            corrupt: of(AlarmType::Corrupt),
        })
    }

    /// Drops history up to `revision` if it is known that it may go (0: all), defragments, and clears the alarm if that has
    /// helped.
    pub(super) async fn make_room(
        &self,
        raised: &[u64],
        revision: Option<i64>,
        run: &Run,
    ) -> Result<Room, MaintenanceError> {
        if let Some(revision) = revision
            && let Err(error) = self.compact(revision).await
        {
            // Most often it is compacted up to there already; if not, defragmentation may still help.
            info!(%error, revision, "the history can't be compacted any further");
        }
        self.defragment(FULL, run).await?;
        let quota = self.quota();
        let members = self.settled_members().await?;
        let size = members.iter().map(Target::size).max().unwrap_or(0);
        if !has_room(size, quota) {
            return Ok(Room::None { size, quota });
        }
        let mut client = self.connector.local().await?;
        for member in raised {
            disarm(&mut client, *member, AlarmType::Nospace).await?;
        }
        Ok(Room::Made)
    }

    /// Size at which etcd refuses writes, as it was started with.
    pub(super) fn quota(&self) -> u64 {
        let configured = self.running.option("quota-backend-bytes");
        let configured = configured.and_then(|quota| quota.as_u64());
        configured.filter(|quota| *quota > 0).unwrap_or(DEFAULT_QUOTA)
    }
}

fn has_room(size: u64, quota: u64) -> bool {
    size <= quota - quota / ROOM
}

pub(super) async fn disarm(
    client: &mut Client,
    member: u64,
    alarm: AlarmType,
) -> Result<(), MaintenanceError> {
    let mut options = AlarmOptions::new();
    options.with_member(member);
    let disarming = client.alarm(AlarmAction::Deactivate, alarm, Some(options));
    call("clear an alarm", CALL_TIMEOUT, disarming).await?;
    warn!(member = crate::etcd::hex_id(member), ?alarm, "cleared an alarm");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alarm_stays_until_there_is_room() {
        assert!(has_room(95, 100));
        assert!(!has_room(96, 100));
        assert!(!has_room(200, 100));
    }
}
