//! Metrics of tasks, counted once at their end.

use api::v1alpha1::{EtcdOpsTask, TaskState};
use jiff::Timestamp;
use kube::ResourceExt as _;
use operator::metrics::Metrics;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
};

/// Seconds that a task may take: a delta is done in one, a restore or a copy may take hours.
const BUCKETS: [f64; 13] = [
    1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    r#type: String,
    state: &'static str,
    etcd: String,
    etcd_namespace: String,
}

/// Metrics of this controller.
#[derive(Debug, Clone)]
pub struct TaskMetrics {
    ended: Family<Labels, Counter>,
    durations: Family<Labels, Histogram, fn() -> Histogram>,
}

impl TaskMetrics {
    /// Adds them to the process's registry.
    pub fn new(metrics: &Metrics) -> Self {
        let own = Self {
            ended: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
        };
        metrics.register(|registry| {
            registry.register(
                "etcddruid_operator_tasks",
                "Tasks that have ended",
                own.ended.clone(),
            );
            registry.register(
                "etcddruid_operator_task_duration_seconds",
                "From the begin of a task's work to its end; rejected tasks have none",
                own.durations.clone(),
            );
        });
        own
    }

    /// Counts a task that has just ended; without a state it was cancelled.
    pub fn ended(&self, task: &EtcdOpsTask, state: Option<&TaskState>, now: Timestamp) {
        let state = match state {
            Some(TaskState::Succeeded) => "succeeded",
            Some(TaskState::Failed) => "failed",
            Some(TaskState::Rejected) => "rejected",
            _ => "cancelled",
        };
        let type_ = task.spec.config.task().ok();
        let labels = Labels {
            r#type: type_.map_or_else(|| "unknown".to_owned(), |task| task.type_().to_string()),
            state,
            etcd: task.spec.etcd_name.clone().unwrap_or_default(),
            etcd_namespace: task.namespace().unwrap_or_default(),
        };
        self.ended.get_or_create(&labels).inc();
        let started = task.status.as_ref().and_then(|status| status.started_at.as_ref());
        if let Some(started) = started {
            let seconds = now.duration_since(started.0).as_secs_f64();
            self.durations.get_or_create(&labels).observe(seconds.max(0.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn docs_tell_of_every_metric() {
        let metrics = Metrics::default();
        let task = json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdOpsTask",
            "metadata": {"name": "a", "namespace": "ns"},
            "spec": {"etcdName": "t1", "config": {"onDemandSnapshot": {"type": "full"}}},
            "status": {"startedAt": "1970-01-01T00:00:00Z"},
        });
        let task: EtcdOpsTask = serde_json::from_value(task).unwrap();
        TaskMetrics::new(&metrics).ended(&task, Some(&TaskState::Succeeded), Timestamp::UNIX_EPOCH);
        operator::metrics::reference::check("the opstask-controller", &metrics);
    }
}
