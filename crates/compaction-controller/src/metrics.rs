//! Metrics of compactions, under `etcddruid_compaction_`.

use operator::metrics::Metrics;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};

use crate::outcome::Outcome;

/// Seconds that a Job may take: up to its deadline of hours.
const BUCKETS: [f64; 10] = [
    10.0, 60.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 3600.0, 7200.0, 10800.0,
];

type Label = (&'static str, String);

/// An Etcd as labels.
fn of_etcd(namespace: &str, name: &str) -> [Label; 2] {
    [
        ("etcd_namespace", namespace.to_owned()),
        ("etcd", name.to_owned()),
    ]
}

fn of_job(outcome: &Outcome, namespace: &str, name: &str) -> [Label; 4] {
    let [in_namespace, named] = of_etcd(namespace, name);
    [
        ("succeeded", outcome.succeeded.to_string()),
        ("failureReason", outcome.failure.to_owned()),
        in_namespace,
        named,
    ]
}

/// Metrics of this controller.
#[derive(Debug, Clone)]
pub struct CompactionMetrics {
    jobs: Family<[Label; 4], Counter>,
    durations: Family<[Label; 4], Histogram, fn() -> Histogram>,
    full_snapshots: Family<[Label; 3], Counter>,
    current: Family<[Label; 2], Gauge>,
    events: Family<[Label; 2], Gauge>,
}

impl CompactionMetrics {
    /// Adds them to the process's registry.
    pub fn new(metrics: &Metrics) -> Self {
        let own = Self {
            jobs: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            full_snapshots: Family::default(),
            current: Family::default(),
            events: Family::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "etcddruid_compaction_jobs",
                "Jobs that have ended",
                own.jobs.clone(),
            );
            registry.register(
                "etcddruid_compaction_job_duration_seconds",
                "From the start of a Job to its end",
                own.durations.clone(),
            );
            registry.register(
                "etcddruid_compaction_full_snapshot_triggered",
                "Full snapshots in place of a compaction",
                own.full_snapshots.clone(),
            );
            registry.register(
                "etcddruid_compaction_jobs_current",
                "1 while a Job runs",
                own.current.clone(),
            );
            registry.register(
                "etcddruid_compaction_num_delta_events",
                "Revisions in deltas since the newest full snapshot",
                own.events.clone(),
            );
        });
        own
    }

    /// Counts the end of a Job.
    pub fn job_ended(&self, namespace: &str, etcd: &str, outcome: &Outcome) {
        let labels = of_job(outcome, namespace, etcd);
        self.jobs.get_or_create(&labels).inc();
        self.durations.get_or_create(&labels).observe(outcome.seconds);
    }

    /// Counts a full snapshot.
    pub fn full_snapshot(&self, namespace: &str, etcd: &str, succeeded: bool) {
        let [in_namespace, named] = of_etcd(namespace, etcd);
        let labels = [("succeeded", succeeded.to_string()), in_namespace, named];
        self.full_snapshots.get_or_create(&labels).inc();
    }

    /// Tells whether a Job runs.
    pub fn running(&self, namespace: &str, etcd: &str, running: bool) {
        let labels = of_etcd(namespace, etcd);
        self.current.get_or_create(&labels).set(running.into());
    }

    /// Tells how many revisions are in deltas.
    pub fn backlog(&self, namespace: &str, etcd: &str, events: i64) {
        self.events.get_or_create(&of_etcd(namespace, etcd)).set(events);
    }

    /// The Etcd is gone, or has no backups any more.
    pub fn forget(&self, namespace: &str, etcd: &str) {
        let labels = of_etcd(namespace, etcd);
        self.current.remove(&labels);
        self.events.remove(&labels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docs_tell_of_every_metric() {
        let metrics = Metrics::default();
        let own = CompactionMetrics::new(&metrics);
        let outcome = Outcome {
            succeeded: true,
            reason: "Succeeded",
            failure: "none",
            message: String::new(),
            ended: jiff::Timestamp::UNIX_EPOCH,
            seconds: 1.0,
        };
        own.job_ended("ns", "a", &outcome);
        own.full_snapshot("ns", "a", true);
        own.running("ns", "a", true);
        own.backlog("ns", "a", 7);
        operator::metrics::reference::check("the compaction-controller", &metrics);
    }
}
