//! A pass over all members. Before each member all of them are looked at: none is touched while another one doesn't serve,
//! learns, is behind, or is still at work on a defragmentation that its caller has lost.

use std::{
    collections::BTreeSet,
    pin::pin,
    time::{Duration, Instant},
};

use etcd_client::{Client, GetOptions, Member, StatusResponse};
use futures::future::try_join_all;
use steward_proto::v1::{DefragmentResult, MemberDefragmentation};
use tokio::time::{sleep, timeout};
use tonic::Code;
use tracing::{info, warn};

use super::{Maintenance, MaintenanceError};
use crate::{
    etcd::{CALL_TIMEOUT, Connector, Consistency, EtcdError, call, hex_id, list_members},
    server::operations::Run,
};

/// Shortest deadline of one member's defragmentation; a disk rewrites at least this much a second.
const FIRST_DEADLINE: Duration = Duration::from_mins(1);
const BYTES_PER_SECOND: u64 = 8 << 20;
/// How long a member may take to catch up.
pub(super) const SETTLE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);
/// How long an election may last, which is waited for wherever it comes in between.
const ELECTION: Duration = Duration::from_secs(30);
/// How often a member that leads again hands over in one pass.
const HAND_OVERS: usize = 5;
/// A member that has so few entries to apply has caught up.
pub(super) const SETTLED: u64 = 1000;

/// What makes a member worth it: both must be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    /// Bytes that would be won.
    pub bytes: u64,
    /// Share of the database file that would be won, in percent.
    pub percent: u64,
}

impl Threshold {
    /// Whether a database of `size` bytes, of which `in_use` hold data, is worth it.
    pub fn is_reached(self, size: u64, in_use: u64) -> bool {
        let won = size.saturating_sub(in_use);
        won >= self.bytes && won.saturating_mul(100) >= size.saturating_mul(self.percent)
    }
}

/// A member, with a connection to it alone, and how it was a moment ago.
pub(super) struct Target {
    pub(super) name: String,
    pub(super) id: u64,
    pub(super) status: StatusResponse,
    url: String,
    client: Client,
}

impl Target {
    pub(super) fn size(&self) -> u64 {
        u64::try_from(self.status.db_size()).unwrap_or(0)
    }

    fn in_use(&self) -> u64 {
        u64::try_from(self.status.raft_used_db_size()).unwrap_or(0)
    }

    pub(super) fn leads(&self) -> bool {
        self.id == self.status.leader()
    }

    fn failed(&self, source: EtcdError) -> MaintenanceError {
        MaintenanceError::Member {
            member: self.name.clone(),
            source,
        }
    }

    fn still_running(&self, after: Duration) -> MaintenanceError {
        MaintenanceError::StillRunning {
            member: self.name.clone(),
            after,
        }
    }

    async fn size_now(&self) -> Result<i64, MaintenanceError> {
        let mut client = self.client.clone();
        let status = call("status", CALL_TIMEOUT, client.status()).await;
        Ok(status.map_err(|source| self.failed(source))?.db_size())
    }

    /// While etcd defragments its database, nobody reads it.
    async fn until_it_reads(&self, limit: Duration) -> Result<(), MaintenanceError> {
        let begun = Instant::now();
        while let Err(source) = read(&mut self.client.clone()).await {
            match source {
                _ if begun.elapsed() < limit => sleep(LOOK).await,
                EtcdError::Timeout { .. } => return Err(self.still_running(begun.elapsed())),
                source => return Err(self.failed(source)),
            }
        }
        Ok(())
    }
}

/// A read of the member's own database.
async fn read(client: &mut Client) -> Result<(), EtcdError> {
    let options = GetOptions::new().with_serializable().with_count_only();
    let asked = client.get("\0", Some(options));
    call("read the database", CALL_TIMEOUT, asked).await.map(|_| ())
}

impl Maintenance {
    /// Defragments all members that are worth it: followers by name, then the leader, which hands over first. Goes on after
    /// an election.
    pub async fn defragment(
        &self,
        worth: Threshold,
        run: &Run,
    ) -> Result<DefragmentResult, MaintenanceError> {
        let _turn = self.turn.lock().await;
        let (mut done, mut result) = (BTreeSet::new(), DefragmentResult::default());
        let mut hand_overs = 0;
        loop {
            let mut targets = self.sound_members().await?;
            let total = i64::try_from(targets.len()).unwrap_or(i64::MAX);
            let progress = i64::try_from(done.len()).unwrap_or(i64::MAX);
            // The leadership may have moved since: whoever leads now is the last.
            targets.sort_by_key(|target| (done.contains(&target.id), target.leads(), target.name.clone()));
            let successor = targets.iter().find(|other| !other.leads()).map(|other| other.id);
            let Some(next) = targets.first_mut().filter(|target| !done.contains(&target.id)) else {
                run.progress("done", total, total, "members");
                return Ok(result);
            };
            run.progress(&next.name, progress, total, "members");
            if !worth.is_reached(next.size(), next.in_use()) {
                done.insert(next.id);
                result.members.push(skipped(next, worth));
                continue;
            }
            if let (true, Some(successor)) = (next.leads(), successor) {
                hand_overs += 1;
                match hand_over(next, successor).await {
                    // Who leads now is looked at again.
                    Ok(()) if hand_overs <= HAND_OVERS => continue,
                    Err(error) if error.is_election() && hand_overs <= HAND_OVERS => continue,
                    Ok(()) => return Err(MaintenanceError::LeadsAgain(next.name.clone())),
                    Err(error) => return Err(error),
                }
            }
            done.insert(next.id);
            let tell =
                |what: &str| run.progress(&format!("{}: {what}", next.name), progress, total, "members");
            result.members.push(self.one(next, tell).await?);
        }
    }

    /// All members, settled, while none of them is said to have other data than the others.
    async fn sound_members(&self) -> Result<Vec<Target>, MaintenanceError> {
        let begun = Instant::now();
        loop {
            match self.settle_sound().await {
                Err(error) if is_worth_waiting(&error, begun) => sleep(LOOK).await,
                found => return found,
            }
        }
    }

    /// The alarm is looked at first: while it is raised some versions of etcd refuse reads.
    async fn settle_sound(&self) -> Result<Vec<Target>, MaintenanceError> {
        let corrupt = self.alarms().await?.corrupt;
        if corrupt.is_empty() {
            return self.settle().await;
        }
        let mut local = self.connector.local().await?;
        let listed = list_members(&mut local, Consistency::Quorum).await?;
        let name = |id: &u64| {
            let known = listed.members().iter().find(|member| member.id() == *id);
            known.map_or_else(|| hex_id(*id), |member| member.name().to_owned())
        };
        let names = corrupt.iter().map(name).collect::<Vec<_>>();
        Err(MaintenanceError::Corrupt(names.join(", ")))
    }

    /// All members, once each of them serves and has caught up.
    pub(super) async fn settled_members(&self) -> Result<Vec<Target>, MaintenanceError> {
        let begun = Instant::now();
        loop {
            match self.settle().await {
                Err(error) if is_worth_waiting(&error, begun) => sleep(LOOK).await,
                found => return found,
            }
        }
    }

    async fn settle(&self) -> Result<Vec<Target>, MaintenanceError> {
        let begun = Instant::now();
        loop {
            let targets = self.members().await?;
            let newest = targets
                .iter()
                .map(|target| target.status.raft_index())
                .max()
                .unwrap_or(0);
            let behind =
                |target: &&Target| newest.saturating_sub(target.status.raft_applied_index()) >= SETTLED;
            let Some(late) = targets.iter().find(behind) else {
                return Ok(targets);
            };
            if begun.elapsed() > SETTLE {
                return Err(MaintenanceError::NotSettled(late.name.clone()));
            }
            sleep(LOOK).await;
        }
    }

    /// All members; an error if one of them doesn't serve.
    async fn members(&self) -> Result<Vec<Target>, MaintenanceError> {
        let mut local = self.connector.local().await?;
        let listed = list_members(&mut local, Consistency::Quorum).await?;
        let targets = listed
            .members()
            .iter()
            .map(|member| target(&self.connector, member));
        try_join_all(targets).await
    }

    async fn one(
        &self,
        target: &Target,
        tell: impl Fn(&str),
    ) -> Result<MemberDefragmentation, MaintenanceError> {
        let before = target.size();
        let begun = Instant::now();
        let defragmented = self.ask_once(target, tell).await;
        let duration = begun.elapsed();
        self.metrics
            .defragmented(&target.url, defragmented.is_ok(), duration);
        let after = defragmented?;
        info!(member = target.name, before, after, ?duration, "defragmented");
        Ok(MemberDefragmentation {
            member: target.name.clone(),
            db_size_before_bytes: target.status.db_size(),
            db_size_after_bytes: after,
            duration: duration.try_into().ok(),
            ..MemberDefragmentation::default()
        })
    }

    /// etcd goes on when its caller has left, and a second call would only wait for the first one: so there is one call,
    /// however long it takes. Returns the size of the database after it.
    async fn ask_once(&self, target: &Target, tell: impl Fn(&str)) -> Result<i64, MaintenanceError> {
        let enough = deadline(target.size());
        let expected = self.deadline.unwrap_or(enough);
        let mut client = target.client.clone();
        let mut asked = pin!(client.defragment());
        let answered = if let Ok(answered) = timeout(expected, &mut asked).await {
            answered
        } else {
            tell(&format!(
                "not done within {expected:?}, and still running at the server"
            ));
            warn!(
                member = target.name,
                ?expected,
                "the defragmentation takes longer than expected"
            );
            let longer = enough.saturating_sub(expected).max(CALL_TIMEOUT);
            timeout(longer, &mut asked)
                .await
                .map_err(|_| target.still_running(expected + longer))?
        };
        let Err(error) = answered else {
            return target.size_now().await;
        };
        let failed = |error| {
            target.failed(EtcdError::Call {
                call: "defragment",
                source: Box::new(error),
            })
        };
        if !is_cut_off(&error) {
            return Err(failed(error));
        }
        tell("the connection is lost; it may be running at the server");
        target.until_it_reads(enough).await?;
        // What has become of it is told by the result alone.
        let after = target.size_now().await?;
        if after < target.status.db_size() {
            Ok(after)
        } else {
            Err(failed(error))
        }
    }
}

/// Whether a leader is being elected, which has not taken too long yet.
fn is_worth_waiting(error: &MaintenanceError, begun: Instant) -> bool {
    error.is_election() && begun.elapsed() < ELECTION
}

/// Whether an error says nothing about what became of the call at the server.
fn is_cut_off(error: &etcd_client::Error) -> bool {
    match error {
        etcd_client::Error::GRpcStatus(status) => matches!(
            status.code(),
            Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded | Code::Unknown | Code::Internal
        ),
        _ => true,
    }
}

fn deadline(size: u64) -> Duration {
    FIRST_DEADLINE + Duration::from_secs(size / BYTES_PER_SECOND)
}

pub(super) async fn target(connector: &Connector, member: &Member) -> Result<Target, MaintenanceError> {
    let Some(url) = member.client_urls().first().cloned() else {
        return Err(MaintenanceError::NotStarted(hex_id(member.id())));
    };
    let name = member.name().to_owned();
    if member.is_learner() {
        return Err(MaintenanceError::Learner(name));
    }
    let failed = |source| MaintenanceError::Member {
        member: name.clone(),
        source,
    };
    let mut client = connector.remote(member.client_urls()).await.map_err(failed)?;
    let status = call("status", CALL_TIMEOUT, client.status())
        .await
        .map_err(failed)?;
    if status.leader() == 0 {
        return Err(MaintenanceError::NoLeader(name));
    }
    match read(&mut client).await {
        Err(EtcdError::Timeout { after, .. }) => {
            return Err(MaintenanceError::StillRunning { member: name, after });
        }
        read => read.map_err(failed)?,
    }
    Ok(Target {
        id: member.id(),
        client,
        status,
        url,
        name,
    })
}

pub(super) async fn hand_over(leader: &mut Target, successor: u64) -> Result<(), MaintenanceError> {
    info!(
        from = leader.name,
        to = hex_id(successor),
        "moving the leadership"
    );
    let moving = leader.client.move_leader(successor);
    let moved = call("move the leadership", CALL_TIMEOUT, moving).await;
    moved.map(|_| ()).map_err(|source| leader.failed(source))
}

fn skipped(target: &Target, worth: Threshold) -> MemberDefragmentation {
    let (size, in_use) = (target.size(), target.in_use());
    MemberDefragmentation {
        member: target.name.clone(),
        db_size_before_bytes: target.status.db_size(),
        db_size_after_bytes: target.status.db_size(),
        skipped: true,
        reason: format!(
            "{} of {size} bytes would be won; it is worth it from {} bytes and {} % on",
            size.saturating_sub(in_use),
            worth.bytes,
            worth.percent
        ),
        duration: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_must_be_worth_its_pause() {
        let both = Threshold {
            bytes: 8,
            percent: 10,
        };
        for (size, in_use, expected) in [
            (100, 100, false),
            (100, 92, false), // 8 bytes, 8 percent
            (100, 90, true),
            (20, 13, false), // 35 percent, 7 bytes
            (20, 12, true),
            (10, 20, false), // the numbers of a moment each
        ] {
            assert_eq!(both.is_reached(size, in_use), expected, "{in_use} of {size}");
        }
        assert!(Threshold { bytes: 0, percent: 0 }.is_reached(0, 0));
    }

    #[test]
    fn large_databases_get_more_time() {
        assert_eq!(deadline(0), Duration::from_mins(1));
        assert_eq!(deadline(8 << 30), Duration::from_secs(60 + 1024));
    }
}
