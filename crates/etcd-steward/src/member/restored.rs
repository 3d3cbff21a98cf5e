//! Counts the keys of a restored cluster, for the one who has to prove that the right snapshot was restored.

use api::v1alpha1::{EtcdMemberStatus, RestorationStatus, RestorationType};
use jiff::{SignedDuration, Timestamp};
use tracing::debug;

use super::Status;
use crate::etcd::Connector;

/// For so long the history is surely there, unless somebody compacts it, which is no fault.
const TRIED: SignedDuration = SignedDuration::from_mins(1);

/// Counts once, as soon as the etcd that starts from the restored data answers.
pub(super) async fn count(connector: &Connector, status: &Status) {
    let Some(revision) = status.read(uncounted) else {
        return;
    };
    match connector.count_keys(revision).await {
        Ok(keys) => status.update(|member| {
            if let Some(restoration) = &mut member.last_restoration {
                restoration.keys = Some(keys);
            }
        }),
        Err(error) => debug!(%error, "the restored keys aren't counted"),
    }
}

/// The revision that was restored just now.
fn uncounted(member: &EtcdMemberStatus) -> Option<i64> {
    let restoration = member.last_restoration.as_ref()?;
    let is_new = restoration
        .end_time
        .as_ref()
        .is_some_and(|end| Timestamp::now().duration_since(end.0) < TRIED);
    let is_whole = restoration.status == RestorationStatus::Success
        && restoration.type_ == RestorationType::FromSnapshot;
    // Raised, all before it is compacted, and the state at it is the restored one.
    restoration
        .raised_to
        .or(restoration.revision)
        .filter(|_| is_new && is_whole && restoration.keys.is_none())
}
