//! The steward's metrics, under the names of etcd-backup-restore where it had them. Names and label values are API: they
//! are listed in docs/reference/metrics.md.

mod network;
mod optional;

use std::{sync::atomic::AtomicU64, time::Duration};

use jiff::Timestamp;
use operator::metrics::Metrics as Registry;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};
use snapstore::{Kind, SnapshotName, StoredSnapshot, retention::Collected};

use self::optional::OptionalGauge;

/// Seconds that the steward's works may take: from a small delta to a large full snapshot.
const BUCKETS: [f64; 14] = [
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0,
];
/// What etcd-backup-restore calls pieces of an upload.
const CHUNK: &str = "Chunk";

type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindOutcome {
    kind: &'static str,
    succeeded: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failure {
    error: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    succeeded: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RestoreOutcome {
    restore: &'static str,
    succeeded: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointOutcome {
    endpoint: String,
    succeeded: &'static str,
}

/// A step of a member into or out of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It is added as a learner.
    AddLearner,
    /// It is made a voter.
    Promote,
    /// Its lost predecessor is removed.
    Remove,
}

/// What is measured.
#[derive(Debug, Clone)]
pub struct Metrics {
    latest_revision: Family<OfKind, Gauge>,
    latest_timestamp: Family<OfKind, Gauge>,
    required: Family<OfKind, Gauge>,
    snapshots: Durations<KindOutcome>,
    // A gauge that only grows: etcd-backup-restore's name has no `_total`, which a counter would get.
    failures: Family<Failure, Gauge>,
    collected: Family<KindOutcome, Counter>,
    locked: Gauge,
    deltas: Gauge,
    delta_revisions: Gauge,
    verifications: Durations<KindOutcome>,
    chain_whole: Gauge,
    keys_collapsed: Gauge,
    secondary_syncs: Durations<Outcome>,
    secondary_synced: OptionalGauge,
    validations: Durations<Outcome>,
    restorations: Durations<RestoreOutcome>,
    defragmentations: Durations<EndpointOutcome>,
    learners: Family<Outcome, Counter>,
    added: Durations<Outcome>,
    promoted: Durations<Outcome>,
    removed: Durations<Outcome>,
    uncovered: Gauge,
    unwatched: Gauge,
    covered: OptionalGauge,
    owner: Gauge,
    cluster_size: Gauge,
    is_learner: Gauge,
    behind: Gauge,
    caught_up: Gauge<f64, AtomicU64>,
    differing: Gauge,
}

fn long() -> Histogram {
    Histogram::new(BUCKETS)
}

fn succeeded(succeeded: bool) -> &'static str {
    if succeeded { "true" } else { "false" }
}

fn signed(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

impl Metrics {
    /// Registers everything.
    pub fn new(registry: &Registry) -> Self {
        let metrics = Self {
            latest_revision: Family::default(),
            latest_timestamp: Family::default(),
            required: Family::default(),
            snapshots: Family::new_with_constructor(long),
            failures: Family::default(),
            collected: Family::default(),
            locked: Gauge::default(),
            deltas: Gauge::default(),
            delta_revisions: Gauge::default(),
            verifications: Family::new_with_constructor(long),
            chain_whole: Gauge::default(),
            keys_collapsed: Gauge::default(),
            secondary_syncs: Family::new_with_constructor(long),
            secondary_synced: OptionalGauge::default(),
            validations: Family::new_with_constructor(long),
            restorations: Family::new_with_constructor(long),
            defragmentations: Family::new_with_constructor(long),
            learners: Family::default(),
            added: Family::new_with_constructor(long),
            promoted: Family::new_with_constructor(long),
            removed: Family::new_with_constructor(long),
            uncovered: Gauge::default(),
            unwatched: Gauge::default(),
            covered: OptionalGauge::default(),
            owner: Gauge::default(),
            cluster_size: Gauge::default(),
            is_learner: Gauge::default(),
            behind: Gauge::default(),
            caught_up: Gauge::default(),
            differing: Gauge::default(),
        };
        registry.build_info("etcdbr", "etcd-steward", env!("CARGO_PKG_VERSION"));
        metrics.register_backups(registry);
        metrics.register_owner(registry);
        metrics.register_member(registry);
        metrics.create_series();
        metrics
    }

    /// What counts from zero is there from the start, so that the first increase shows.
    fn create_series(&self) {
        let kinds = [Kind::Full.as_str(), Kind::Delta.as_str()];
        for succeeded in ["true", "false"] {
            for kind in kinds {
                let label = KindOutcome { kind, succeeded };
                drop(self.snapshots.get_or_create(&label));
                drop(self.verifications.get_or_create(&label));
            }
            for kind in kinds.into_iter().chain([CHUNK]) {
                drop(self.collected.get_or_create(&KindOutcome { kind, succeeded }));
            }
            let label = Outcome { succeeded };
            for durations in [
                &self.secondary_syncs,
                &self.validations,
                &self.added,
                &self.promoted,
                &self.removed,
            ] {
                drop(durations.get_or_create(&label));
            }
            drop(self.learners.get_or_create(&label));
            let restore = "single_node";
            drop(
                self.restorations
                    .get_or_create(&RestoreOutcome { restore, succeeded }),
            );
        }
        self.forget_backups();
    }

    fn register_backups(&self, registry: &Registry) {
        registry.register(|r| {
            let mut add = |name: &str, help: &str, gauge: &Gauge| r.register(name, help, gauge.clone());
            add(
                "etcdbr_retention_locked_objects",
                "Old backups that the store still protects",
                &self.locked,
            );
            add(
                "etcdbr_snapstore_latest_deltas_total",
                "Deltas since the newest full snapshot",
                &self.deltas,
            );
            add(
                "etcdbr_snapstore_latest_deltas_revisions_total",
                "Revisions in the deltas since the newest full snapshot",
                &self.delta_revisions,
            );
            add(
                "etcdbr_backup_chain_verified",
                "1 if the newest chain was read back and is whole, 0 if it is damaged or wasn't read yet",
                &self.chain_whole,
            );
            add(
                "etcdbr_snapshot_keys_collapsed",
                "1 if the newest full snapshot has lost most of the keys that the one before it had, and no delta says so",
                &self.keys_collapsed,
            );
            let mut add = |name: &str, help: &str, family: &Family<OfKind, Gauge>| {
                r.register(name, help, family.clone());
            };
            add(
                "etcdbr_snapshot_latest_revision",
                "Last revision in the newest snapshot",
                &self.latest_revision,
            );
            add(
                "etcdbr_snapshot_latest_timestamp",
                "When it was taken, in seconds since 1970",
                &self.latest_timestamp,
            );
            add(
                "etcdbr_snapshot_required",
                "1 while there are changes that no snapshot holds; the same for both kinds",
                &self.required,
            );
            let mut add = |name: &str, help: &str, family: &Durations<KindOutcome>| {
                r.register(name, help, family.clone());
            };
            add(
                "etcdbr_snapshot_duration_seconds",
                "From the start of a snapshot until it is stored, or has failed",
                &self.snapshots,
            );
            add(
                "etcdbr_verification_duration_seconds",
                "Reading a stored snapshot back",
                &self.verifications,
            );
            r.register(
                "etcdbr_secondary_synced_timestamp_seconds",
                "When the second store last had all backups, in seconds since 1970",
                self.secondary_synced.clone(),
            );
            r.register(
                "etcdbr_secondary_sync_duration_seconds",
                "Copying to the second store what it lacks",
                self.secondary_syncs.clone(),
            );
            r.register(
                "etcdbr_snapshotter_failure",
                "Failures of backups by reason; only grows",
                self.failures.clone(),
            );
            r.register(
                "etcdbr_snapshot_gc",
                "Old backups that were deleted, or should have been; `kind` also `Chunk`: pieces of uploads",
                self.collected.clone(),
            );
        });
    }

    fn register_owner(&self, registry: &Registry) {
        registry.register(|r| {
            let mut add = |name: &str, help: &str, gauge: &Gauge| r.register(name, help, gauge.clone());
            add(
                "etcdbr_uncovered_revisions",
                "Revisions of the cluster that no stored snapshot holds",
                &self.uncovered,
            );
            add(
                "etcdbr_watch_behind_revisions",
                "Revisions of the cluster that the owner's watch had yet to bring when it was last looked at",
                &self.unwatched,
            );
            add(
                "etcdbr_backup_owner",
                "1 while this steward owns the backups",
                &self.owner,
            );
            r.register(
                "etcdbr_backup_covered_timestamp_seconds",
                "When backups last held everything, in seconds since 1970",
                self.covered.clone(),
            );
        });
    }

    fn register_member(&self, registry: &Registry) {
        registry.register(|r| {
            let mut add = |name: &str, help: &str, gauge: &Gauge| r.register(name, help, gauge.clone());
            add("etcdbr_cluster_size", "Wanted members", &self.cluster_size);
            add(
                "etcdbr_is_learner",
                "1 while the member is a learner",
                &self.is_learner,
            );
            add(
                "etcdbr_member_behind",
                "Raft entries that the member has to apply until it is where the others are",
                &self.behind,
            );
            add(
                "etcdbr_members_differing",
                "Members whose data differed from that of the majority at the last comparison",
                &self.differing,
            );
            r.register(
                "etcdbr_member_caught_up_ratio",
                "How far a learner has come with its data, from 0 to 1; 1 for a member that votes",
                self.caught_up.clone(),
            );
            let mut add = |name: &str, help: &str, family: &Durations<Outcome>| {
                r.register(name, help, family.clone());
            };
            add(
                "etcdbr_validation_duration_seconds",
                "Checks of the data directory",
                &self.validations,
            );
            add(
                "etcdbr_add_learner_duration_seconds",
                "Calls that add this member as a learner",
                &self.added,
            );
            add(
                "etcdbr_member_promote_duration_seconds",
                "Calls that make this member a voter",
                &self.promoted,
            );
            add(
                "etcdbr_member_remove_duration_seconds",
                "Calls that remove this member's lost predecessor",
                &self.removed,
            );
            r.register(
                "etcdbr_is_learner_count",
                "How often this member was added as a learner",
                self.learners.clone(),
            );
            r.register(
                "etcdbr_restoration_duration_seconds",
                "Restorations from the backups; `restore` is `single_node`",
                self.restorations.clone(),
            );
            r.register(
                "etcdbr_defragmentation_duration_seconds",
                "Defragmentations that this steward has led; `endpoint` is the member's client URL",
                self.defragmentations.clone(),
            );
            r.register_collector(Box::new(network::Traffic));
        });
    }

    /// This is the newest stored snapshot of its kind.
    pub fn snapshot_stored(&self, name: &SnapshotName) {
        let label = OfKind {
            kind: name.kind.as_str(),
        };
        self.latest_revision.get_or_create(&label).set(name.last_revision);
        self.latest_timestamp
            .get_or_create(&label)
            .set(name.created_on.as_second());
    }

    /// A snapshot has ended, one way or the other.
    pub fn snapshot_ended(&self, kind: Kind, stored: bool, took: Duration) {
        let label = KindOutcome {
            kind: kind.as_str(),
            succeeded: succeeded(stored),
        };
        self.snapshots.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// Backups failed.
    pub fn snapshot_failed(&self, reason: &'static str) {
        self.failures.get_or_create(&Failure { error: reason }).inc();
    }

    /// The deltas since the newest full snapshot.
    pub fn deltas(&self, deltas: &[StoredSnapshot]) {
        let revisions = |stored: &StoredSnapshot| stored.name.last_revision - stored.name.start_revision + 1;
        self.deltas.set(signed(deltas.len()));
        self.delta_revisions.set(deltas.iter().map(revisions).sum());
    }

    /// Old backups were let go.
    pub fn collected(&self, collected: &Collected) {
        let add = |kind: &'static str, done: bool, count: u64| {
            let label = KindOutcome {
                kind,
                succeeded: succeeded(done),
            };
            self.collected.get_or_create(&label).inc_by(count);
        };
        add(Kind::Full.as_str(), true, collected.fulls);
        add(Kind::Delta.as_str(), true, collected.deltas);
        add(CHUNK, true, collected.chunks);
        for failed in &collected.failed {
            let kind = failed.name.as_ref().map_or(CHUNK, |name| name.kind.as_str());
            add(kind, false, 1);
        }
        self.locked.set(signed(collected.locked));
    }

    /// A stored snapshot was read back.
    pub fn verified(&self, kind: Kind, sound: bool, took: Duration) {
        let label = KindOutcome {
            kind: kind.as_str(),
            succeeded: succeeded(sound),
        };
        self.verifications
            .get_or_create(&label)
            .observe(took.as_secs_f64());
    }

    /// The second store has what the first one has, or couldn't be brought there.
    pub fn secondary_synced(&self, done: bool, took: Duration) {
        let label = Outcome {
            succeeded: succeeded(done),
        };
        self.secondary_syncs
            .get_or_create(&label)
            .observe(took.as_secs_f64());
        if done {
            self.secondary_synced.set(Some(Timestamp::now().as_second()));
        }
    }

    /// Whether the newest chain is known to be whole.
    pub fn set_chain_whole(&self, whole: bool) {
        self.chain_whole.set(i64::from(whole));
    }

    /// Whether the newest full snapshot has lost keys for no known reason.
    pub fn set_keys_collapsed(&self, collapsed: bool) {
        self.keys_collapsed.set(i64::from(collapsed));
    }

    /// The data directory was checked.
    pub fn validated(&self, valid: bool, took: Duration) {
        let label = Outcome {
            succeeded: succeeded(valid),
        };
        self.validations.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// The data directory was filled from the backups, or wasn't.
    pub fn restored(&self, restored: bool, took: Duration) {
        let label = RestoreOutcome {
            restore: "single_node",
            succeeded: succeeded(restored),
        };
        self.restorations
            .get_or_create(&label)
            .observe(took.as_secs_f64());
    }

    /// A member was defragmented, or wasn't.
    pub fn defragmented(&self, endpoint: &str, done: bool, took: Duration) {
        let label = EndpointOutcome {
            endpoint: endpoint.to_owned(),
            succeeded: succeeded(done),
        };
        self.defragmentations
            .get_or_create(&label)
            .observe(took.as_secs_f64());
    }

    /// The cluster was asked to change this member's place in it.
    pub fn stepped(&self, step: Step, done: bool, took: Duration) {
        let label = Outcome {
            succeeded: succeeded(done),
        };
        let durations = match step {
            Step::AddLearner => {
                self.learners.get_or_create(&label).inc();
                &self.added
            }
            Step::Promote => &self.promoted,
            Step::Remove => &self.removed,
        };
        durations.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// How many revisions no snapshot holds, and when that was none.
    pub fn uncovered(&self, revisions: i64, covered_until: Option<Timestamp>) {
        self.uncovered.set(revisions);
        self.covered.set(covered_until.map(Timestamp::as_second));
        self.set_required(revisions > 0);
    }

    fn set_required(&self, required: bool) {
        for kind in [Kind::Full, Kind::Delta] {
            self.required
                .get_or_create(&OfKind { kind: kind.as_str() })
                .set(i64::from(required));
        }
    }

    /// How many revisions the watch is behind.
    pub fn set_watch_behind(&self, revisions: i64) {
        self.unwatched.set(revisions.max(0));
    }

    /// Whether this steward owns the backups.
    pub fn set_owner(&self, owner: bool) {
        self.owner.set(i64::from(owner));
    }

    /// Another member leads: numbers that only the owner of the backups has are zero, times and revisions aren't reported.
    pub fn forget_backups(&self) {
        for number in [
            &self.owner,
            &self.uncovered,
            &self.unwatched,
            &self.locked,
            &self.deltas,
            &self.delta_revisions,
            &self.chain_whole,
            &self.keys_collapsed,
        ] {
            number.set(0);
        }
        self.set_required(false);
        self.latest_revision.clear();
        self.latest_timestamp.clear();
        self.covered.set(None);
        self.secondary_synced.set(None);
    }

    /// The number of wanted members.
    pub fn set_cluster_size(&self, members: usize) {
        self.cluster_size.set(signed(members));
    }

    /// Whether the member is a learner.
    pub fn set_learner(&self, learner: bool) {
        self.is_learner.set(i64::from(learner));
    }

    /// How many members' data differs from that of the majority. Returns how many it was before.
    pub fn set_differing(&self, members: usize) -> usize {
        usize::try_from(self.differing.set(signed(members))).unwrap_or(0)
    }

    /// How far the member is behind the others.
    pub fn set_behind(&self, entries: u64) {
        self.behind.set(signed(entries));
    }

    /// How far the member has come with its data.
    pub fn set_caught_up(&self, percent: i32) {
        self.caught_up.set(f64::from(percent) / 100.0);
    }
}

#[cfg(test)]
mod tests;
