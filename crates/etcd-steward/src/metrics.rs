//! The steward's metrics, under the names of etcd-backup-restore where it had them.

use std::time::Duration;

use jiff::Timestamp;
use operator::metrics::Metrics as Registry;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};
use snapstore::Kind;

/// Seconds that a snapshot may take: from a small delta to a large full one.
const SNAPSHOT_BUCKETS: [f64; 14] = [
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    kind: &'static str,
    succeeded: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failure {
    error: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Verdict {
    succeeded: &'static str,
}

/// What is measured.
#[derive(Debug, Clone)]
pub struct Metrics {
    latest_revision: Family<OfKind, Gauge>,
    latest_timestamp: Family<OfKind, Gauge>,
    required: Family<OfKind, Gauge>,
    duration: Family<Outcome, Histogram, fn() -> Histogram>,
    failures: Family<Failure, Counter>,
    validation: Family<Verdict, Histogram, fn() -> Histogram>,
    uncovered: Gauge,
    owner: Gauge,
    cluster_size: Gauge,
    is_learner: Gauge,
}

fn long() -> Histogram {
    Histogram::new(SNAPSHOT_BUCKETS)
}

impl Metrics {
    /// Registers everything.
    pub fn new(registry: &Registry) -> Self {
        let metrics = Self {
            latest_revision: Family::default(),
            latest_timestamp: Family::default(),
            required: Family::default(),
            duration: Family::new_with_constructor(long),
            failures: Family::default(),
            validation: Family::new_with_constructor(long),
            uncovered: Gauge::default(),
            owner: Gauge::default(),
            cluster_size: Gauge::default(),
            is_learner: Gauge::default(),
        };
        registry.register(|r| {
            let m = &metrics;
            r.register(
                "etcdbr_snapshot_latest_revision",
                "Last revision in the newest stored snapshot",
                m.latest_revision.clone(),
            );
            r.register(
                "etcdbr_snapshot_latest_timestamp",
                "When the newest stored snapshot was taken, in seconds since 1970",
                m.latest_timestamp.clone(),
            );
            r.register(
                "etcdbr_snapshot_required",
                "1 while there are changes that no snapshot holds",
                m.required.clone(),
            );
            r.register(
                "etcdbr_snapshot_duration_seconds",
                "Time from the start of a snapshot until it is stored",
                m.duration.clone(),
            );
            r.register(
                "etcdbr_snapshotter_failure",
                "Failures of backups by reason",
                m.failures.clone(),
            );
            r.register(
                "etcdbr_validation_duration_seconds",
                "Duration of checks of the data directory",
                m.validation.clone(),
            );
            r.register(
                "etcdbr_uncovered_revisions",
                "Revisions of the cluster that no stored snapshot holds",
                m.uncovered.clone(),
            );
            r.register(
                "etcdbr_backup_owner",
                "1 while this steward owns the cluster's backups",
                m.owner.clone(),
            );
            r.register(
                "etcdbr_cluster_size",
                "Number of wanted members",
                m.cluster_size.clone(),
            );
            r.register(
                "etcdbr_is_learner",
                "1 while the member is a learner",
                m.is_learner.clone(),
            );
        });
        metrics
    }

    /// A snapshot was stored.
    pub fn snapshot_stored(&self, kind: Kind, revision: i64, created_on: Timestamp, took: Duration) {
        let label = OfKind { kind: kind.as_str() };
        self.latest_revision.get_or_create(&label).set(revision);
        self.latest_timestamp
            .get_or_create(&label)
            .set(created_on.as_second());
        self.duration
            .get_or_create(&Outcome {
                kind: kind.as_str(),
                succeeded: "true",
            })
            .observe(took.as_secs_f64());
    }

    /// Backups failed.
    pub fn snapshot_failed(&self, reason: &'static str) {
        self.failures.get_or_create(&Failure { error: reason }).inc();
    }

    /// The data directory was checked.
    pub fn validated(&self, valid: bool, took: Duration) {
        let succeeded = if valid { "true" } else { "false" };
        self.validation
            .get_or_create(&Verdict { succeeded })
            .observe(took.as_secs_f64());
    }

    /// How many revisions no snapshot holds.
    pub fn uncovered(&self, revisions: i64) {
        self.uncovered.set(revisions);
        for kind in [Kind::Full, Kind::Delta] {
            self.required
                .get_or_create(&OfKind { kind: kind.as_str() })
                .set(i64::from(revisions > 0));
        }
    }

    /// Whether this steward owns the backups.
    pub fn set_owner(&self, owner: bool) {
        self.owner.set(i64::from(owner));
    }

    /// The number of wanted members.
    pub fn set_cluster_size(&self, members: usize) {
        self.cluster_size.set(i64::try_from(members).unwrap_or(i64::MAX));
    }

    /// Whether the member is a learner.
    pub fn set_learner(&self, learner: bool) {
        self.is_learner.set(i64::from(learner));
    }
}
