//! How a Job ended, and why: out of its conditions and its pod. Pure.

use api::conditions::compaction as condition;
use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1::{Job, JobCondition},
    core::v1::{ContainerStateTerminated, Pod},
};

/// The end of a Job.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Whether the snapshots were compacted.
    pub succeeded: bool,
    /// The reason, as in the condition.
    pub reason: &'static str,
    /// The reason, as in metrics.
    pub failure: &'static str,
    /// What happened, for people.
    pub message: String,
    /// When it ended.
    pub ended: Timestamp,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// Whether there is a Job that hasn't ended.
pub fn runs(job: Option<&Job>) -> bool {
    job.is_some_and(|job| outcome(job, None, Timestamp::UNIX_EPOCH).is_none())
}

/// The end of a Job; `None` while it runs. `pod` is its newest one, if it is still there.
pub fn outcome(job: &Job, pod: Option<&Pod>, now: Timestamp) -> Option<Outcome> {
    let failed = condition_of(job, "Failed").or_else(|| condition_of(job, "FailureTarget"));
    let complete = condition_of(job, "Complete").or_else(|| condition_of(job, "SuccessCriteriaMet"));
    match (complete, failed) {
        (Some(complete), _) => Some(success(job, complete, now)),
        (None, Some(failed)) => Some(failure(job, failed, pod, now)),
        (None, None) => None,
    }
}

fn success(job: &Job, complete: &JobCondition, now: Timestamp) -> Outcome {
    let completed = job
        .status
        .as_ref()
        .and_then(|status| status.completion_time.as_ref());
    let ended = completed
        .or(complete.last_transition_time.as_ref())
        .map_or(now, |time| time.0);
    Outcome {
        succeeded: true,
        reason: condition::NONE,
        failure: "none",
        message: "the stored snapshots were compacted into a full snapshot".to_owned(),
        ended,
        seconds: since_start(job, ended),
    }
}

fn failure(job: &Job, failed: &JobCondition, pod: Option<&Pod>, now: Timestamp) -> Outcome {
    let told = failed.last_transition_time.as_ref().map_or(now, |time| time.0);
    let outcome = |reason, failure, message, ended| Outcome {
        succeeded: false,
        reason,
        failure,
        message,
        ended,
        seconds: since_start(job, ended),
    };
    if failed.reason.as_deref() == Some("DeadlineExceeded") {
        let limit = job.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
        let message = format!("the Job wasn't done within {} seconds", limit.unwrap_or_default());
        return outcome(condition::DEADLINE_EXCEEDED, "deadlineExceeded", message, told);
    }
    if let Some((reason, failure, message)) = pod.and_then(disruption) {
        return outcome(reason, failure, message, told);
    }
    if let Some(end) = pod.and_then(terminated) {
        let ended = end.finished_at.as_ref().map_or(told, |time| time.0);
        let text = end.message.as_deref().map(str::trim).unwrap_or_default();
        let message = format!(
            "compaction failed with exit code {}{}{}",
            end.exit_code,
            if text.is_empty() { "" } else { ": " },
            text
        );
        return outcome(condition::PROCESS_FAILURE, "processFailure", message, ended);
    }
    let message = format!(
        "the Job failed, and its pod tells no reason: {}",
        failed.message.as_deref().unwrap_or("no message")
    );
    outcome(condition::UNKNOWN, "unknown", message, told)
}

fn condition_of<'a>(job: &'a Job, type_: &str) -> Option<&'a JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Whether the pod was sent away rather than that it failed.
fn disruption(pod: &Pod) -> Option<(&'static str, &'static str, String)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let target = conditions
        .iter()
        .find(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True")?;
    let (reason, failure) = match target.reason.as_deref()? {
        "PreemptionByScheduler" => (condition::PREEMPTED, "preempted"),
        "DeletionByTaintManager" => (condition::DELETED_BY_TAINT, "evicted"),
        "EvictionByEvictionAPI" => (condition::EVICTED, "evicted"),
        "TerminationByKubelet" => (condition::TERMINATED_BY_KUBELET, "evicted"),
        _ => return None,
    };
    let message = format!(
        "the Job's pod was removed from its node: {}",
        target.message.as_deref().unwrap_or("no message")
    );
    Some((reason, failure, message))
}

fn terminated(pod: &Pod) -> Option<&ContainerStateTerminated> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    containers
        .iter()
        .find_map(|container| container.state.as_ref()?.terminated.as_ref())
}

fn since_start(job: &Job, end: Timestamp) -> f64 {
    let started = job.status.as_ref().and_then(|status| status.start_time.as_ref());
    started.map_or(0.0, |start| end.duration_since(start.0).as_secs_f64().max(0.0))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(conditions: &Value) -> Job {
        serde_json::from_value(json!({
            "spec": {"activeDeadlineSeconds": 60, "template": {}},
            "status": {
                "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:40Z",
                "conditions": conditions,
            },
        }))
        .unwrap()
    }

    fn failed(reason: &str) -> Value {
        json!([{
            "type": "Failed", "status": "True", "reason": reason, "message": "told",
            "lastTransitionTime": "2026-01-01T00:00:30Z",
        }])
    }

    fn pod(status: &Value) -> Pod {
        serde_json::from_value(json!({"status": status})).unwrap()
    }

    fn disrupted(reason: &str) -> Pod {
        let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": reason});
        pod(&json!({"conditions": [condition]}))
    }

    fn crashed() -> Pod {
        let end = json!({"exitCode": 3, "message": "gap between 10 and 20\n", "finishedAt": "2026-01-01T00:00:20Z"});
        pod(&json!({"containerStatuses": [{
            "name": "compact", "image": "x", "imageID": "x", "ready": false, "restartCount": 0,
            "state": {"terminated": end},
        }]}))
    }

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().unwrap()
    }

    #[test]
    fn every_end_has_its_reason() {
        let (backoff, late) = (failed("BackoffLimitExceeded"), failed("DeadlineExceeded"));
        let ended = |type_: &str| json!([{"type": type_, "status": "True"}]);
        let (none, crash) = (|| None, || Some(crashed()));
        let gone = |reason: &str| Some(disrupted(reason));
        let (preempted, tainted) = ("PreemptionByScheduler", "DeletionByTaintManager");
        let (evicted, killed) = ("EvictionByEvictionAPI", "TerminationByKubelet");
        let rows = vec![
            (ended("Complete"), none(), "None none 40"),
            (ended("SuccessCriteriaMet"), none(), "None none 40"),
            (late.clone(), none(), "DeadlineExceeded deadlineExceeded 30"),
            // A pod that the deadline killed also has an exit code.
            (late, crash(), "DeadlineExceeded deadlineExceeded 30"),
            (
                backoff.clone(),
                gone(preempted),
                "PreemptionByScheduler preempted 30",
            ),
            (
                backoff.clone(),
                gone(tainted),
                "DeletionByTaintManager evicted 30",
            ),
            (backoff.clone(), gone(evicted), "EvictionByEvictionAPI evicted 30"),
            (backoff.clone(), gone(killed), "TerminationByKubelet evicted 30"),
            (backoff.clone(), crash(), "ProcessFailure processFailure 20"),
            (backoff.clone(), gone("SomethingNew"), "Unknown unknown 30"),
            (backoff, none(), "Unknown unknown 30"),
        ];
        for (conditions, pod, want) in rows {
            let outcome = outcome(&job(&conditions), pod.as_ref(), now()).unwrap();
            let told = format!("{} {} {}", outcome.reason, outcome.failure, outcome.seconds);
            assert_eq!(told, want, "{conditions} {pod:?}");
            assert_eq!(outcome.succeeded, outcome.failure == "none");
        }
    }

    #[test]
    fn a_job_that_runs_has_not_ended() {
        assert_eq!(outcome(&job(&json!([])), None, now()), None);
        let suspended = json!([{"type": "Failed", "status": "False"}]);
        assert_eq!(outcome(&job(&suspended), None, now()), None);
    }

    /// A Job that somebody deletes runs no more.
    #[test]
    fn a_job_runs_until_it_ends_or_is_gone() {
        assert!(runs(Some(&job(&json!([])))));
        assert!(!runs(Some(&job(
            &json!([{"type": "Complete", "status": "True"}])
        ))));
        assert!(!runs(None));
    }

    /// What the process said last is the first thing that people need.
    #[test]
    fn the_root_cause_is_told() {
        let outcome = outcome(&job(&failed("BackoffLimitExceeded")), Some(&crashed()), now());
        assert_eq!(
            outcome.unwrap().message,
            "compaction failed with exit code 3: gap between 10 and 20"
        );
    }
}
