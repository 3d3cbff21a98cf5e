//! What is reported of the backups while this steward owns them: status, metrics, and what the API answers from.

use std::{collections::BTreeMap, time::Duration};

use api::{quantity, v1alpha1::SnapshotInfo};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use snapstore::{Kind, StoredSnapshot};
use tracing::info;

use super::{owner::Owner, upload::Stored};
use crate::member::whole_seconds;

pub(super) struct Report {
    owner: Owner,
    /// Bytes before compression of the deltas since the newest full snapshot, by their last revisions.
    sizes: BTreeMap<i64, u64>,
    /// When the newest snapshot held everything.
    as_of: Option<Timestamp>,
    /// When the store was last seen to hold everything.
    covered_until: Option<Timestamp>,
}

impl Report {
    /// Begins with what the store holds.
    pub(super) fn begin(owner: &Owner) -> Self {
        let known = owner.known();
        let newest = || known.full.iter().chain(known.deltas.last());
        for newest in newest() {
            owner.metrics.snapshot_stored(&newest.name);
        }
        let mut this = Self {
            owner: owner.clone(),
            // What they had before compression isn't known: a lower bound.
            sizes: known
                .deltas
                .iter()
                .map(|delta| (delta.name.last_revision, delta.object.size))
                .collect(),
            as_of: newest().last().map(|newest| newest.name.created_on),
            covered_until: None,
        };
        this.publish();
        this
    }

    /// One more snapshot is stored.
    pub(super) async fn stored(&mut self, stored: &Stored, took: Duration) {
        let Stored {
            snapshot,
            size,
            as_of,
        } = stored;
        let (kind, revision) = (snapshot.name.kind, snapshot.name.last_revision);
        info!(name = %snapshot.name, revision, bytes = snapshot.object.size, ?took, "stored a snapshot");
        self.owner.metrics.snapshot_stored(&snapshot.name);
        let is_newest = match kind {
            Kind::Full => {
                self.begins_with(snapshot);
                true
            }
            Kind::Delta => self.adds(snapshot, *size),
        };
        self.as_of = self.as_of.max(Some(*as_of));
        if is_newest {
            let info = Some(info_of(snapshot, *size));
            self.owner.status.update(|status| match kind {
                Kind::Full => status.snapshots.last_full = info,
                Kind::Delta => status.snapshots.last_delta = info,
            });
        }
        self.publish();
        self.owner.works(kind).await;
    }

    /// A full snapshot that this owner hasn't stored takes the place of the newest one.
    pub(super) fn found(&mut self, full: &StoredSnapshot) {
        info!(name = %full.name, "a full snapshot of this cluster was stored by something else than this owner");
        self.owner.metrics.snapshot_stored(&full.name);
        self.begins_with(full);
        self.publish();
    }

    /// The newest chain begins with another full snapshot.
    fn begins_with(&mut self, full: &StoredSnapshot) {
        let revision = full.name.last_revision;
        self.owner.learn(|known| {
            known.full = Some(full.clone());
            known.deltas.retain(|delta| delta.name.last_revision > revision);
            known.covered = known.covered.max(revision);
        });
        self.sizes = self.sizes.split_off(&(revision + 1));
    }

    /// One more delta. False of one that a full snapshot has overtaken: it only completes the chain before that.
    fn adds(&mut self, delta: &StoredSnapshot, size: u64) -> bool {
        let revision = delta.name.last_revision;
        let mut is_newest = true;
        self.owner.learn(|known| {
            let full = known.full.as_ref().map_or(0, |full| full.name.last_revision);
            is_newest = revision > full;
            known.deltas.extend(is_newest.then(|| delta.clone()));
            known.covered = known.covered.max(revision);
        });
        self.sizes.extend(is_newest.then_some((revision, size)));
        is_newest
    }

    /// The cluster's revision was looked at.
    pub(super) fn current(&mut self, revision: i64) {
        self.owner
            .learn(|known| known.current = known.current.max(revision));
        self.publish();
    }

    fn publish(&mut self) {
        let known = self.owner.known();
        let uncovered = known.current.saturating_sub(known.covered).max(0);
        let seen = match self.as_of {
            Some(_) if uncovered == 0 => Some(Timestamp::now()),
            as_of => as_of,
        };
        // Once everything was covered up to then, it stays so, whatever comes later.
        self.covered_until = self.covered_until.max(seen);
        self.owner.metrics.uncovered(uncovered, self.covered_until);
        self.owner.metrics.deltas(&known.deltas);
        let covered = self.covered_until.map(|time| Time(whole_seconds(time)));
        let accumulated = quantity::from_bytes(self.sizes.values().sum());
        self.owner.status.update(|status| {
            let snapshots = &mut status.snapshots;
            snapshots.uncovered_revisions = Some(uncovered);
            snapshots.covered_until = covered;
            snapshots.accumulated_delta_size = Some(accumulated);
            refresh(&mut snapshots.last_full, known.full.as_ref());
            refresh(&mut snapshots.last_delta, known.deltas.last());
        });
    }
}

/// Tells the snapshot that is known now. What was told of the same one before stays: it has its size too.
fn refresh(told: &mut Option<SnapshotInfo>, known: Option<&StoredSnapshot>) {
    let name = known.map(|known| known.name.to_string());
    if told.as_ref().map(|told| &told.name) != name.as_ref() {
        *told = known.map(stored_info);
    }
}

fn info_of(snapshot: &StoredSnapshot, size: u64) -> SnapshotInfo {
    SnapshotInfo {
        size: Some(quantity::from_bytes(size)),
        ..stored_info(snapshot)
    }
}

fn stored_info(snapshot: &StoredSnapshot) -> SnapshotInfo {
    SnapshotInfo {
        timestamp: Some(Time(snapshot.name.created_on)),
        name: snapshot.name.to_string(),
        size: None,
        start_revision: snapshot.name.start_revision,
        end_revision: snapshot.name.last_revision,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::testing::stored;

    /// A member that leads again may have told of snapshots that are old by now.
    #[test]
    fn what_is_told_follows_what_is_known() {
        let (old, new) = (
            stored("Full-00000000-00000005-1700000000.gz"),
            stored("Full-00000000-00000009-1700003600.gz"),
        );
        let mut told = Some(info_of(&old, 4096));
        refresh(&mut told, Some(&old));
        assert!(
            told.as_ref().unwrap().size.is_some(),
            "the size of the same one stays"
        );
        refresh(&mut told, Some(&new));
        assert_eq!(told.as_ref().unwrap().end_revision, 9);
        refresh(&mut told, None);
        assert_eq!(told, None);
    }
}
