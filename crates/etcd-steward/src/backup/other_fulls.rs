//! Full snapshots of this cluster that its owner hasn't stored itself: those of compaction Jobs, or of a person with the
//! command line. The newest one takes the place of the one that the owner knows, if it is shown to be of this cluster's
//! history.

use std::collections::HashSet;

use snapstore::{Kind, Listing, SnapshotName, StoredSnapshot};
use tracing::{info, warn};

use super::{
    BackupError, Known,
    history::{self, Lineage},
    owner::Owner,
};

/// Looks for them in listings.
#[derive(Debug, Default)]
pub(super) struct OtherFulls {
    /// Those that were looked at and aren't to be used.
    refused: HashSet<SnapshotName>,
}

impl OtherFulls {
    /// A full snapshot that is newer than the known one. What the manifests say of the listed ones was looked at.
    pub(super) async fn newest(
        &mut self,
        owner: &Owner,
        listing: &Listing,
        cluster: &str,
    ) -> Result<Option<StoredSnapshot>, BackupError> {
        let listed: HashSet<_> = listing.snapshots.iter().map(|stored| &stored.name).collect();
        self.refused.retain(|name| listed.contains(name));
        let known = owner.known();
        let is_own = |name: &SnapshotName| {
            let origin = owner.origins.of(name);
            origin.is_some_and(|origin| origin.cluster == cluster)
        };
        for full in newer(&known, listing, is_own) {
            if self.refused.contains(&full.name) {
                continue;
            }
            match lineage(owner, &known, full).await? {
                Lineage::Ours => return Ok(Some(full.clone())),
                Lineage::Other(why) => {
                    warn!(name = %full.name, why, "a full snapshot of another history is left alone");
                }
                Lineage::Unproven(why) => {
                    info!(name = %full.name, why, "nothing shows that a full snapshot is of this history");
                }
            }
            self.refused.insert(full.name.clone());
        }
        Ok(None)
    }
}

/// Full snapshots of this cluster beyond the known one, newest first. What lies beyond the cluster's revision can't be its own.
fn newer<'a>(
    known: &Known,
    listing: &'a Listing,
    is_own: impl Fn(&SnapshotName) -> bool,
) -> impl Iterator<Item = &'a StoredSnapshot> {
    let newest = known.full.as_ref().map(|full| full.name.clone());
    let current = known.current;
    listing.snapshots.iter().rev().filter(move |stored| {
        let name = &stored.name;
        // A final one ends a chain, which goes on here.
        let may_follow = name.kind == Kind::Full && !name.is_final && stored.is_usable();
        let is_newer = newest.as_ref().is_some_and(|newest| name > newest);
        may_follow && is_newer && name.last_revision <= current && is_own(name)
    })
}

async fn lineage(owner: &Owner, known: &Known, full: &StoredSnapshot) -> Result<Lineage, BackupError> {
    let lineage = Box::pin(history::check(owner, full, full)).await?;
    if !matches!(lineage, Lineage::Unproven(_)) {
        return Ok(lineage);
    }
    let end = full.name.last_revision;
    let ends_there = |stored: &&StoredSnapshot| stored.name.last_revision == end;
    let same = known.deltas.iter().chain(&known.full).find(ends_there);
    match same {
        Some(same) if Box::pin(history::ends_like(owner, full, same)).await? => Ok(Lineage::Ours),
        _ => Ok(lineage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::testing::stored;

    const KNOWN: &str = "Full-00000000-00000005-1700000000";
    const COMPACTED: &str = "Full-00000000-00000020-1700000100";
    const LATER: &str = "Full-00000000-00000030-1700000200";
    const AGAIN: &str = "Full-00000000-00000005-1700000100";
    const OLDER: &str = "Full-00000000-00000004-1700000100";
    const FINAL: &str = "Full-00000000-00000020-1700000100.final";
    const DELTA: &str = "Incr-00000006-00000020-1700000100";

    #[test]
    fn only_newer_ones_of_this_cluster_count() {
        let own = |_: &SnapshotName| true;
        let none = |_: &SnapshotName| false;
        let not_later = |name: &SnapshotName| name.last_revision < 30;
        for (current, names, is_own, expected) in [
            (30, vec![KNOWN], own as fn(&SnapshotName) -> bool, vec![]),
            (30, vec![KNOWN, COMPACTED, LATER], own, vec![LATER, COMPACTED]),
            // Not of this cluster, or not known to be.
            (30, vec![KNOWN, COMPACTED, LATER], none, vec![]),
            (30, vec![KNOWN, COMPACTED, LATER], not_later, vec![COMPACTED]),
            // Beyond what the cluster has written.
            (29, vec![KNOWN, COMPACTED, LATER], own, vec![COMPACTED]),
            (19, vec![KNOWN, COMPACTED], own, vec![]),
            // The same chain, compacted.
            (5, vec![KNOWN, AGAIN], own, vec![AGAIN]),
            (30, vec![OLDER, KNOWN], own, vec![]),
            (30, vec![KNOWN, DELTA], own, vec![]),
            (30, vec![KNOWN, FINAL], own, vec![]),
        ] {
            let known = Known {
                full: Some(stored(KNOWN)),
                current,
                ..Known::default()
            };
            let listing = Listing {
                snapshots: names.iter().copied().map(stored).collect(),
                ..Listing::default()
            };
            let found: Vec<_> = newer(&known, &listing, is_own)
                .map(|full| full.name.to_string())
                .collect();
            assert_eq!(found, expected, "{current} {names:?}");
        }
    }

    #[test]
    fn what_can_not_be_used_does_not_count() {
        let mut excluded = stored(COMPACTED);
        excluded.excluded = true;
        let mut torn = stored(COMPACTED);
        torn.object.size = 20;
        let known = |full| Known {
            full,
            current: 30,
            ..Known::default()
        };
        for unusable in [excluded, torn] {
            let listing = Listing {
                snapshots: vec![unusable],
                ..Listing::default()
            };
            assert_eq!(newer(&known(Some(stored(KNOWN))), &listing, |_| true).count(), 0);
        }
        // The first one of a chain is the owner's own to take.
        let listing = Listing {
            snapshots: vec![stored(COMPACTED)],
            ..Listing::default()
        };
        assert_eq!(newer(&known(None), &listing, |_| true).count(), 0);
    }
}
