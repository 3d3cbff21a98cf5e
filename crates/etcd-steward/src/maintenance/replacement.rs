//! Replaces a member whose data differs from the majority's: it is removed from the cluster, and its own steward has it
//! join anew. The old data stays on its volume, moved aside.

use tracing::{info, warn};

use super::{
    Maintenance, MaintenanceError,
    alarms::disarm,
    defragmentation::{Target, hand_over},
};
use crate::etcd::{CALL_TIMEOUT, call, hex_id};

/// What was done about a member that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Replacement {
    /// It leads no more; the new leader goes on.
    HandedOver,
    /// It is removed, with its alarm.
    Removed(String),
}

impl Maintenance {
    /// Replaces the first of the members that differ. All members must serve, so that a quorum of the others is left.
    pub(super) async fn replace(
        &self,
        differing: &[String],
    ) -> Result<Option<Replacement>, MaintenanceError> {
        let _turn = self.turn.lock().await;
        let mut targets = self.settled_members().await?;
        let differs = |target: &Target| differing.contains(&target.name);
        let successor = targets
            .iter()
            .find(|target| !differs(target))
            .map(|target| target.id);
        let Some(odd) = targets.iter_mut().find(|target| differs(target)) else {
            return Ok(None);
        };
        if let (true, Some(successor)) = (odd.leads(), successor) {
            hand_over(odd, successor).await?;
            return Ok(Some(Replacement::HandedOver));
        }
        let (name, id) = (odd.name.clone(), odd.id);
        let mut client = self.connector.local().await?;
        warn!(
            member = name,
            id = hex_id(id),
            "removing a member whose data differs"
        );
        call("remove the member", CALL_TIMEOUT, client.member_remove(id)).await?;
        if self.alarms().await?.corrupt.contains(&id) {
            disarm(&mut client, id, etcd_client::AlarmType::Corrupt).await?;
        }
        info!(member = name, "it joins anew");
        Ok(Some(Replacement::Removed(name)))
    }
}
