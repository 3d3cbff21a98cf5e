//! The backups of a cluster that was restored from them: a new chain begins.

use api::v1alpha1::{EtcdMemberStatus, RestorationStatus, RestorationType};
use snapstore::StoredSnapshot;

use super::snapshotter::NewestSet;

/// Last revision of a full snapshot and the deltas beyond it; 0 without any.
pub(super) fn end_of(full: Option<&StoredSnapshot>, deltas: &[StoredSnapshot]) -> i64 {
    let newest = deltas.last().or(full);
    newest.map_or(0, |snapshot| snapshot.name.last_revision)
}

/// The revision that this cluster began at, if it was restored from the newest set, behind which nothing was stored since.
/// The store has all of it, but of another cluster, and by other revisions if the revision was raised.
pub(super) fn began_at(status: &EtcdMemberStatus, (full, deltas): &NewestSet) -> Option<i64> {
    let last = status.last_restoration.as_ref()?;
    let is_whole = last.status == RestorationStatus::Success && last.type_ == RestorationType::FromSnapshot;
    let base = full.as_ref()?.name.to_string();
    let is_newest =
        last.snapshot.as_ref() == Some(&base) && last.revision == Some(end_of(full.as_ref(), deltas));
    last.raised_to.or(last.revision).filter(|_| is_whole && is_newest)
}

#[cfg(test)]
mod tests {
    use api::v1alpha1::Restoration;

    use super::*;
    use crate::backup::testing::stored;

    #[test]
    fn only_a_restore_from_the_newest_snapshots_counts() {
        const FULL: &str = "Full-00000000-00000005-1700000000.gz";
        let full = Some(stored(FULL));
        let deltas = vec![stored("Incr-00000006-00000011-1700000010.gz")];
        let status = |status: RestorationStatus, snapshot: &str, revision, raised_to| EtcdMemberStatus {
            last_restoration: Some(Restoration {
                type_: RestorationType::FromSnapshot,
                status,
                reason: None,
                message: None,
                start_time: None,
                end_time: None,
                snapshot: Some(snapshot.to_owned()),
                snapshot_sha256: None,
                deltas: None,
                covered_until: None,
                cluster_id: None,
                revision: Some(revision),
                raised_to,
                keys: None,
            }),
            ..EtcdMemberStatus::default()
        };
        let (success, failed) = (RestorationStatus::Success, RestorationStatus::Failed);
        for (status, expected) in [
            (EtcdMemberStatus::default(), None),
            (
                status(success.clone(), FULL, 11, Some(1_000_000_011)),
                Some(1_000_000_011),
            ),
            (status(success.clone(), FULL, 11, None), Some(11)),
            (status(success.clone(), FULL, 10, Some(1_000_000_010)), None),
            (
                status(success, "Full-00000000-00000005-1700000001.gz", 11, None),
                None,
            ),
            (status(failed, FULL, 11, Some(7)), None),
        ] {
            assert_eq!(
                began_at(&status, &(full.clone(), deltas.clone())),
                expected,
                "{:?}",
                status.last_restoration
            );
        }
    }
}
