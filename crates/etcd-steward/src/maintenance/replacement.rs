//! Replaces a member whose data differs from the majority's: it is removed from the cluster, and its own steward has it
//! join anew. The old data stays on its volume, moved aside.

use etcd_client::AlarmType;
use futures::future::join_all;
use tracing::warn;

use super::{
    Maintenance, MaintenanceError,
    alarms::disarm,
    comparison::Named,
    defragmentation::{SETTLED, Target, hand_over, target},
};
use crate::{
    etcd::{CALL_TIMEOUT, Consistency, call, hex_id, list_members},
    quorum::Voters,
};

/// What was done about a member that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Replacement {
    /// It leads no more; the new leader goes on.
    HandedOver,
    /// It is removed.
    Removed(String),
}

impl Maintenance {
    /// Replaces the first of the members that differ, if it still does, and if the others have a quorum without it.
    pub(super) async fn replace(&self, differing: &[Named]) -> Result<Option<Replacement>, MaintenanceError> {
        let _turn = self.turn.lock().await;
        let (mut targets, total) = self.serving_voters().await?;
        require_one_version(&targets)?;
        // Something else may have been at work since.
        let Some(now) = self.compare().await? else {
            return Ok(None);
        };
        let differs = |target: &Target| {
            let is_it = |named: &Named| named.id == target.id;
            differing.iter().any(is_it) && now.differing.iter().any(is_it)
        };
        let successor = targets
            .iter()
            .find(|target| !now.differing.iter().any(|named| named.id == target.id))
            .map(|target| target.id);
        let Some(odd) = targets.iter_mut().find(|target| differs(target)) else {
            return Ok(None);
        };
        if let (true, Some(successor)) = (odd.leads(), successor) {
            hand_over(odd, successor).await?;
            return Ok(Some(Replacement::HandedOver));
        }
        let (name, id) = (odd.name.clone(), odd.id);
        let others = Voters {
            total: total - 1,
            serving: targets.len() - 1,
        };
        if !others.have_quorum() {
            return Err(MaintenanceError::NoQuorumWithout { member: name, others });
        }
        let mut client = self.connector.local().await?;
        warn!(
            member = name,
            id = hex_id(id),
            "removing a member whose data differs"
        );
        call("remove the member", CALL_TIMEOUT, client.member_remove(id)).await?;
        Ok(Some(Replacement::Removed(name)))
    }

    /// The voters that serve and lag little, and how many there are in all. A learner may become a voter at any moment: with
    /// one of them it can't be said how many are needed.
    async fn serving_voters(&self) -> Result<(Vec<Target>, usize), MaintenanceError> {
        let mut local = self.connector.local().await?;
        let listed = list_members(&mut local, Consistency::Quorum).await?;
        if let Some(learner) = listed.members().iter().find(|member| member.is_learner()) {
            return Err(MaintenanceError::Learner(learner.name().to_owned()));
        }
        let asked = listed
            .members()
            .iter()
            .map(|member| target(&self.connector, member));
        let mut serving: Vec<_> = join_all(asked).await.into_iter().filter_map(Result::ok).collect();
        let newest = serving.iter().map(|target| target.status.raft_index()).max();
        serving.retain(|target| {
            newest
                .unwrap_or(0)
                .saturating_sub(target.status.raft_applied_index())
                < SETTLED
        });
        Ok((serving, listed.members().len()))
    }

    /// Clears the alarm that data is corrupt, whomever it blames: of members that have been replaced, of others that etcd
    /// took for the odd one, or of none, as etcd 3.5 does. Only for who has seen that all data is the same.
    pub(super) async fn clear_corrupt(&self) -> Result<bool, MaintenanceError> {
        let raised = self.alarms().await?.corrupt;
        let mut client = self.connector.local().await?;
        for member in &raised {
            disarm(&mut client, *member, AlarmType::Corrupt).await?;
        }
        Ok(!raised.is_empty())
    }
}

/// Hashes are only promised to be the same among members of one version.
fn require_one_version(targets: &[Target]) -> Result<(), MaintenanceError> {
    let mut versions: Vec<_> = targets
        .iter()
        .map(|target| target.status.version().to_owned())
        .collect();
    versions.sort();
    versions.dedup();
    if versions.len() > 1 {
        return Err(MaintenanceError::MixedVersions(versions.join(" and ")));
    }
    Ok(())
}
