use api::v1alpha1::{SnapshotResult, find_condition};
use serde_json::{Value, json};

use super::*;

fn task(status: &Value) -> EtcdOpsTask {
    serde_json::from_value(json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdOpsTask",
        "metadata": {"name": "t", "namespace": "ns", "generation": 1},
        "spec": {
            "etcdName": "main", "ttlSecondsAfterFinished": 60,
            "config": {"onDemandSnapshot": {"type": "delta"}},
        },
        "status": status,
    }))
    .unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn problem(reason: &str, message: &str) -> Problem {
    Problem {
        code: "ERR_X",
        reason: reason.to_owned(),
        message: message.to_owned(),
        retryable: true,
    }
}

fn work() -> Work {
    Work {
        operation_id: Some("main-0/1".to_owned()),
        steps: Vec::new(),
        progress: "40%".to_owned(),
    }
}

/// Plays transitions one second apart.
fn play(transitions: Vec<Transition>) -> EtcdOpsTask {
    let mut task = task(&Value::Null);
    for (second, transition) in (0..).zip(transitions) {
        task.status = Some(next(&task, transition, at(second)));
    }
    task
}

fn conditions(task: &EtcdOpsTask) -> String {
    let mut told: Vec<_> = task.status.iter().flat_map(|status| &status.conditions).collect();
    told.sort_by(|a, b| a.type_.cmp(&b.type_));
    let told: Vec<_> = told
        .iter()
        .map(|condition| format!("{}={}({})", condition.type_, condition.status, condition.reason))
        .collect();
    told.join(" ")
}

#[test]
fn every_way_through_the_states() {
    let reject = |reason| Transition::Reject {
        reason,
        problems: vec![problem("A", "no store"), problem("B", "not ready")],
    };
    let done = Transition::Succeed(work(), Box::default(), "stored".to_owned());
    let wait = Transition::Wait {
        other: "first".to_owned(),
    };
    let cases = [
        (
            vec![wait.clone()],
            TaskState::Pending,
            "Admitted=Unknown(WaitingForOtherTask)",
        ),
        (
            vec![wait.clone(), reject(condition::PRECONDITIONS_UNMET)],
            TaskState::Rejected,
            "Admitted=False(PreconditionsUnmet) Progressing=False(PreconditionsUnmet) \
             Succeeded=False(PreconditionsUnmet)",
        ),
        (
            vec![Transition::Start],
            TaskState::InProgress,
            "Admitted=True(PreconditionsMet) Progressing=True(Running)",
        ),
        (
            vec![
                wait,
                Transition::Start,
                Transition::Retry(work(), problem("StewardUnreachable", "down")),
            ],
            TaskState::InProgress,
            "Admitted=True(PreconditionsMet) Progressing=True(StewardUnreachable)",
        ),
        (
            vec![Transition::Start, Transition::Progress(work()), done],
            TaskState::Succeeded,
            "Admitted=True(PreconditionsMet) Progressing=False(Finished) Succeeded=True(Finished)",
        ),
        (
            vec![
                Transition::Start,
                Transition::Fail(work(), problem("BucketNotFound", "no bucket")),
            ],
            TaskState::Failed,
            "Admitted=True(PreconditionsMet) Progressing=False(Finished) Succeeded=False(BucketNotFound)",
        ),
    ];
    for (transitions, state, told) in cases {
        let task = play(transitions);
        assert_eq!(super::state(&task), Some(&state));
        assert_eq!(conditions(&task), told);
        assert_eq!(is_over(&task), state.is_terminal());
        assert_eq!(
            task.status.unwrap().type_,
            Some(api::v1alpha1::TaskType::OnDemandSnapshot)
        );
    }
}

/// A user with two things to set right must not find the second one only after the first.
#[test]
fn a_rejection_lists_everything_that_is_missing() {
    let task = play(vec![Transition::Reject {
        reason: condition::PRECONDITIONS_UNMET,
        problems: vec![problem("A", "no store"), problem("B", "not ready")],
    }]);
    let status = task.status.unwrap();
    let admitted = find_condition(&status.conditions, condition::ADMITTED).unwrap();
    assert_eq!(admitted.message, "no store; not ready");
    assert_eq!(status.last_errors.len(), 2);
}

/// An unchanged status isn't written, so nothing in it may move by itself.
#[test]
fn the_same_again_changes_nothing() {
    let task = play(vec![Transition::Start, Transition::Progress(work())]);
    let again = next(&task, Transition::Progress(work()), at(100));
    assert_eq!(Some(again), task.status);
}

#[test]
fn times_tell_when_the_state_changed_and_the_work_began() {
    let waited = play(vec![
        Transition::Wait {
            other: "first".to_owned(),
        },
        Transition::Wait {
            other: "second".to_owned(),
        },
        Transition::Start,
        Transition::Progress(work()),
    ]);
    let status = waited.status.unwrap();
    assert_eq!(status.last_transition_time, Some(Time(at(2))));
    assert_eq!(status.started_at, Some(Time(at(2))));
}

#[test]
fn errors_are_kept_newest_last_and_repeated_ones_once() {
    let mut transitions = vec![Transition::Start];
    transitions.extend((0..12).map(|n| Transition::Retry(work(), problem("X", &n.to_string()))));
    transitions.push(Transition::Retry(work(), problem("X", "5")));
    let errors = play(transitions).status.unwrap().last_errors;
    let told: Vec<_> = errors.iter().map(|error| error.description.as_str()).collect();
    assert_eq!(
        told,
        [
            "X: 2", "X: 3", "X: 4", "X: 6", "X: 7", "X: 8", "X: 9", "X: 10", "X: 11", "X: 5"
        ]
    );
    assert_eq!(errors.last().unwrap().observed_at, Some(Time(at(13))));
}

#[test]
fn the_result_and_the_operation_stay_with_the_ended_task() {
    let result = TaskResult {
        on_demand_snapshot: Some(SnapshotResult::default()),
        ..TaskResult::default()
    };
    let task = play(vec![
        Transition::Start,
        Transition::Succeed(work(), Box::new(result.clone()), "stored".to_owned()),
    ]);
    let status = task.status.unwrap();
    assert_eq!(
        (status.result, status.operation_id.as_deref()),
        (result, Some("main-0/1"))
    );
}

#[test]
fn only_an_ended_task_expires() {
    assert_eq!(expires_at(&play(vec![Transition::Start])), None);
    let failed = play(vec![
        Transition::Start,
        Transition::Fail(work(), problem("X", "")),
    ]);
    assert_eq!(expires_at(&failed), Some(at(1 + 60)));
}

#[test]
fn the_deadline_counts_from_the_begin_of_the_work() {
    let ten = SignedDuration::from_secs(10);
    let running = play(vec![Transition::Start, Transition::Progress(work())]);
    assert_eq!(deadline(&running, ten, at(7)), at(10));
    assert_eq!(deadline(&task(&Value::Null), ten, at(7)), at(17));
    assert_eq!(deadline(&running, SignedDuration::MAX, at(7)), Timestamp::MAX);
}

#[test]
fn tries_get_rarer_and_stop_at_the_deadline() {
    for (elapsed, left, millis) in [
        (0, 60, 1000),
        (8, 60, 2000),
        (400, 600, 30_000),
        (400, 5, 5000),
        (400, 0, 100),
    ] {
        let wait = pause(at(0), at(elapsed + left), at(elapsed));
        assert_eq!(wait.as_millis(), millis, "{elapsed} {left}");
    }
}

/// The API server refuses a status with longer texts, and then the task would never end.
#[test]
fn long_texts_are_cut_between_characters() {
    let long = "ü".repeat(5000);
    let mut work = work();
    work.progress.clone_from(&long);
    let status = play(vec![
        Transition::Start,
        Transition::Fail(work, problem("X", &long)),
    ])
    .status
    .unwrap();
    assert_eq!(status.progress.unwrap().len(), 256);
    assert!(status.last_errors[0].description.len() <= 4096);
    assert!(status.last_operation.unwrap().description.len() <= 4096);
}
