use std::{collections::HashMap, sync::Mutex};

use api::v1alpha1::EtcdMember;
use futures::stream::BoxStream;
use operator::steward::Target;
use serde_json::{Value, json};
use steward_proto::v1::{OperationError, Snapshot, SnapshotResult as TakenResult};
use tonic::Status;
use tonic_types::ErrorDetails;

use super::*;
use crate::steward::call;

fn task(config: &Value) -> EtcdOpsTask {
    serde_json::from_value(json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdOpsTask",
        "metadata": {"name": "t", "namespace": "ns", "uid": "u1"},
        "spec": {"etcdName": "main", "config": {"onDemandSnapshot": config}},
    }))
    .unwrap()
}

fn etcd(spec: &Value, status: &Value) -> Arc<Etcd> {
    let etcd = serde_json::from_value(json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd",
        "metadata": {"name": "main", "namespace": "ns"}, "spec": spec, "status": status,
    }));
    Arc::new(etcd.unwrap())
}

fn healthy() -> Arc<Etcd> {
    etcd(
        &json!({"replicas": 3, "backup": {"store": {"provider": "S3", "container": "bkp", "prefix": "p"}}}),
        &json!({"conditions": [{"type": "Ready", "status": "True"}]}),
    )
}

fn member(name: &str, owner: bool) -> Arc<EtcdMember> {
    let member = serde_json::from_value(json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdMember",
        "metadata": {"name": name, "namespace": "ns"}, "status": {"backupOwner": owner},
    }));
    Arc::new(member.unwrap())
}

fn assignment(owner: &str) -> Assignment {
    Assignment {
        task: task(&json!({"type": "full"})),
        etcd: Some(healthy()),
        members: ["main-0", "main-1", "main-2"]
            .map(|name| member(name, name == owner))
            .to_vec(),
    }
}

#[test]
fn preconditions() {
    let store = json!({"provider": "S3", "container": "bkp", "prefix": "p"});
    let ready = |status: &str| json!({"conditions": [{"type": "Ready", "status": status}]});
    let awake = json!({"replicas": 3, "backup": {"store": store}});
    let cases: Vec<(Option<Arc<Etcd>>, &[&str])> = vec![
        (None, &["EtcdNotFound"]),
        (Some(healthy()), &[]),
        (
            Some(etcd(&json!({"replicas": 3}), &ready("True"))),
            &["BackupNotEnabled"],
        ),
        (Some(etcd(&awake, &ready("False"))), &["EtcdNotReady"]),
        (Some(etcd(&awake, &ready("Unknown"))), &["EtcdNotReady"]),
        (Some(etcd(&awake, &Value::Null)), &["EtcdNotReady"]),
        (
            Some(etcd(&json!({"replicas": 3}), &ready("False"))),
            &["BackupNotEnabled", "EtcdNotReady"],
        ),
        // Asleep, with conditions of the time before.
        (
            Some(etcd(
                &json!({"replicas": 0, "backup": {"store": store}}),
                &json!({"replicas": 0, "conditions": [{"type": "Ready", "status": "True"}]}),
            )),
            &["EtcdNotReady"],
        ),
        // On its way to sleep: the snapshot before it is taken by a task.
        (
            Some(etcd(
                &json!({"replicas": 0, "backup": {"store": store}}),
                &json!({"replicas": 3, "conditions": [{"type": "Ready", "status": "True"}]}),
            )),
            &[],
        ),
    ];
    let handler = OnDemandSnapshot::new(Arc::new(Script::default()));
    for (etcd, want) in cases {
        let assignment = Assignment {
            etcd,
            ..assignment("main-0")
        };
        let unmet = handler.unmet(&assignment);
        let reasons: Vec<_> = unmet.iter().map(|problem| problem.reason.as_str()).collect();
        assert_eq!(reasons, want, "{:?}", assignment.etcd);
    }
}

#[test]
fn the_timeout_is_that_of_the_type() {
    let handler = OnDemandSnapshot::new(Arc::new(Script::default()));
    for (config, seconds) in [
        (json!({"type": "full"}), 900),
        (json!({"type": "delta"}), 60),
        (json!({"type": "full", "timeoutSecondsFull": 1200}), 1200),
        (json!({"type": "delta", "timeoutSecondsDelta": 10}), 10),
    ] {
        assert_eq!(handler.timeout(&task(&config)), Duration::from_secs(seconds));
    }
}

/// Stewards that answer by a script: per host, what the calls get, in order.
#[derive(Debug, Default)]
struct Script {
    answers: Mutex<HashMap<String, Vec<Answer>>>,
    calls: Mutex<Vec<String>>,
}

#[derive(Debug, Clone)]
enum Answer {
    Is(Box<Operation>),
    NotOwner(&'static str),
    Code(Code),
    Refused(&'static str),
}

impl Script {
    fn answer(self, pod: &str, answers: &[Answer]) -> Self {
        let reversed = answers.iter().rev().cloned().collect();
        self.answers.lock().unwrap().insert(pod.to_owned(), reversed);
        self
    }

    fn next(&self, target: &Target, what: &str) -> Answer {
        let pod = target.address.split('.').next().unwrap().to_owned();
        self.calls.lock().unwrap().push(format!("{pod}: {what}"));
        let answer = self.answers.lock().unwrap().get_mut(&pod).and_then(Vec::pop);
        answer.expect("a call that the script foresees")
    }

    fn play(&self, target: &Target, what: &str) -> Result<Operation, StewardError> {
        let detailed = |code, reason: &str, owner: Option<String>| {
            let metadata: HashMap<_, _> = owner
                .into_iter()
                .map(|owner| ("owner".to_owned(), owner))
                .collect();
            let mut details = ErrorDetails::new();
            details.set_error_info(reason, "x", metadata);
            call(target, Status::with_error_details(code, reason, details))
        };
        match self.next(target, what) {
            Answer::Is(operation) => Ok(*operation),
            Answer::NotOwner(owner) => {
                let url = format!("https://{owner}.main-peer.ns.svc:8080");
                Err(detailed(Code::FailedPrecondition, "NotOwner", Some(url)))
            }
            Answer::Code(code) => Err(call(target, Status::new(code, "scripted"))),
            Answer::Refused(reason) => Err(detailed(Code::FailedPrecondition, reason, None)),
        }
    }
}

#[async_trait]
impl Steward for Script {
    async fn create_snapshot(
        &self,
        target: &Target,
        request: CreateSnapshotRequest,
    ) -> Result<Operation, StewardError> {
        assert!(request.r#async);
        self.play(target, &format!("create {}", request.request_id))
    }

    async fn operation(&self, target: &Target, id: &str) -> Result<Operation, StewardError> {
        self.play(target, &format!("get {id}"))
    }

    async fn watch(
        &self,
        target: &Target,
        id: &str,
    ) -> Result<BoxStream<'static, Result<Operation, StewardError>>, StewardError> {
        self.play(target, &format!("watch {id}"))?;
        Ok(Box::pin(futures::stream::empty()))
    }

    async fn cancel(&self, target: &Target, id: &str) -> Result<(), StewardError> {
        self.play(target, &format!("cancel {id}")).map(drop)
    }
}

fn operation(id: &str, state: OperationState) -> Operation {
    Operation {
        id: id.to_owned(),
        state: state.into(),
        progress: Some(Progress {
            message: "uploading".to_owned(),
            done: 4,
            total: 10,
            unit: "bytes".to_owned(),
        }),
        ..Operation::default()
    }
}

fn running(id: &str) -> Answer {
    Answer::Is(Box::new(operation(id, OperationState::Running)))
}

fn stored(id: &str) -> Answer {
    let snapshot = Snapshot {
        name: "Full-1".to_owned(),
        end_revision: 42,
        size_bytes: 7,
        ..Snapshot::default()
    };
    Answer::Is(Box::new(Operation {
        result: Some(operation::Result::Snapshot(TakenResult {
            snapshot: Some(snapshot),
            skipped: false,
        })),
        ..operation(id, OperationState::Succeeded)
    }))
}

fn failed(id: &str, reason: &str, retryable: bool) -> Answer {
    Answer::Is(Box::new(Operation {
        error: Some(OperationError {
            reason: reason.to_owned(),
            message: "scripted".to_owned(),
            retryable,
        }),
        ..operation(id, OperationState::Failed)
    }))
}

/// Runs `execute` with each owner in turn, keeping the work; tells the outcomes and the calls.
async fn run(script: Script, owners: &[&str]) -> (Vec<String>, Vec<String>, Work) {
    let script = Arc::new(script);
    let handler = OnDemandSnapshot::new(Arc::clone(&script) as Arc<dyn Steward>);
    let mut work = Work::default();
    let mut outcomes = Vec::new();
    for owner in owners {
        outcomes.push(match handler.execute(&assignment(owner), &mut work).await {
            Ok(Execution::Running(followed)) => format!("running {}", followed.id),
            Ok(Execution::Done(_, message)) => message,
            Err(problem) => format!("{} retryable={}", problem.reason, problem.retryable),
        });
    }
    let calls = script.calls.lock().unwrap().clone();
    (outcomes, calls, work)
}

#[tokio::test]
async fn a_snapshot_is_begun_once_and_followed_to_its_end() {
    let script = Script::default().answer("main-1", &[running("a"), running("a"), stored("a")]);
    let (outcomes, calls, work) = run(script, &["main-1", "main-1", "main-1"]).await;
    assert_eq!(
        outcomes,
        [
            "running a",
            "running a",
            "stored Full-1 up to revision 42, 7 bytes"
        ]
    );
    assert_eq!(calls, ["main-1: create u1", "main-1: get a", "main-1: get a"]);
    assert_eq!(work.operation_id.as_deref(), Some("main-1/a"));
    assert!(work.steps[0].completed_at.is_some());
}

/// What members tell may be older than the last election.
#[tokio::test]
async fn the_owner_that_a_steward_names_is_asked() {
    let script = Script::default()
        .answer("main-0", &[Answer::NotOwner("main-2")])
        .answer("main-2", &[running("a")]);
    let (outcomes, calls, work) = run(script, &["main-0"]).await;
    assert_eq!(outcomes, ["running a"]);
    assert_eq!(calls, ["main-0: create u1", "main-2: create u1"]);
    assert_eq!(work.operation_id.as_deref(), Some("main-2/a"));
    assert_eq!(work.progress, "40% uploading");
}

#[tokio::test]
async fn a_foreign_owner_is_not_asked_but_waited_for() {
    let script = Script::default().answer("main-0", &[Answer::NotOwner("evil")]);
    let (outcomes, ..) = run(script, &["main-0"]).await;
    assert_eq!(outcomes, ["NotOwner retryable=true"]);
}

/// The answer may have been lost, not the call: the same request id finds what was begun.
#[tokio::test]
async fn an_unreachable_steward_is_asked_again_with_the_same_request() {
    let script = Script::default().answer("main-0", &[Answer::Code(Code::Unavailable), running("a")]);
    let (outcomes, calls, work) = run(script, &["main-0", "main-0"]).await;
    assert_eq!(outcomes, ["StewardUnreachable retryable=true", "running a"]);
    assert_eq!(calls, ["main-0: create u1", "main-0: create u1"]);
    assert_eq!(work.steps.len(), 1);
}

#[tokio::test]
async fn a_steward_that_forgot_the_operation_is_asked_again_with_the_same_request() {
    let script = Script::default().answer(
        "main-0",
        &[running("a"), Answer::Code(Code::NotFound), running("b")],
    );
    let (outcomes, calls, _) = run(script, &["main-0", "main-0"]).await;
    assert_eq!(outcomes, ["running a", "running b"]);
    assert_eq!(calls, ["main-0: create u1", "main-0: get a", "main-0: create u1"]);
}

#[tokio::test]
async fn when_the_owner_is_gone_the_new_one_is_asked() {
    let script = Script::default()
        .answer(
            "main-0",
            &[
                running("a"),
                Answer::Code(Code::Unavailable),
                Answer::Code(Code::Unavailable),
            ],
        )
        .answer("main-1", &[running("b")]);
    let (outcomes, _, work) = run(script, &["main-0", "main-0", "main-1"]).await;
    assert_eq!(
        outcomes,
        ["running a", "StewardUnreachable retryable=true", "running b"]
    );
    assert_eq!(work.operation_id.as_deref(), Some("main-1/b"));
}

/// A steward answers the request id of a failed operation with that operation, so a new attempt needs a new id.
#[tokio::test]
async fn a_failure_that_may_pass_begins_a_new_attempt() {
    let script = Script::default().answer(
        "main-0",
        &[failed("a", "StoreUnreachable", true), running("b"), stored("b")],
    );
    let (outcomes, calls, work) = run(script, &["main-0", "main-0", "main-0"]).await;
    assert_eq!(outcomes[..2], ["StoreUnreachable retryable=true", "running b"]);
    assert_eq!(
        calls,
        ["main-0: create u1", "main-0: create u1-2", "main-0: get b"]
    );
    let names: Vec<_> = work.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["attempt-1", "attempt-2"]);
}

#[tokio::test]
async fn what_only_people_can_set_right_is_final() {
    for answer in [
        failed("a", "BucketNotFound", false),
        Answer::Refused("NoStore"),
        Answer::Code(Code::InvalidArgument),
    ] {
        let script = Script::default().answer("main-0", std::slice::from_ref(&answer));
        let (outcomes, ..) = run(script, &["main-0"]).await;
        assert!(
            outcomes[0].ends_with("retryable=false"),
            "{answer:?}: {outcomes:?}"
        );
    }
}

#[tokio::test]
async fn a_delta_with_nothing_new_says_so() {
    let nothing = Answer::Is(Box::new(Operation {
        result: Some(operation::Result::Snapshot(TakenResult {
            snapshot: None,
            skipped: true,
        })),
        ..operation("a", OperationState::Succeeded)
    }));
    let (outcomes, ..) = run(Script::default().answer("main-0", &[nothing]), &["main-0"]).await;
    assert!(outcomes[0].contains("nothing to save"), "{outcomes:?}");
}

#[tokio::test]
async fn stopping_cancels_what_runs_and_nothing_else() {
    let cases = [
        (None, vec![], true),
        (Some("main-0/a"), vec![running("a")], true),
        // It has ended, or its steward was restarted.
        (Some("main-0/a"), vec![Answer::Code(Code::NotFound)], true),
        (Some("main-0/a"), vec![Answer::Code(Code::Unavailable)], false),
    ];
    for (operation_id, answers, stopped) in cases {
        let script = Script::default().answer("main-0", &answers);
        let handler = OnDemandSnapshot::new(Arc::new(script));
        let work = Work {
            operation_id: operation_id.map(str::to_owned),
            ..Work::default()
        };
        let result = handler.stop(&assignment("main-0"), &work).await;
        assert_eq!(result.is_ok(), stopped, "{operation_id:?} {answers:?}");
    }
}

#[test]
fn attempts_are_numbered_on_and_the_oldest_forgotten() {
    let mut steps = Vec::new();
    for number in 1..=15 {
        assert_eq!(begin_attempt(&mut steps, Timestamp::now()), number);
        assert_eq!(begin_attempt(&mut steps, Timestamp::now()), number);
        steps.last_mut().unwrap().completed_at = Some(Time(Timestamp::now()));
    }
    assert_eq!(steps.len(), REMEMBERED_ATTEMPTS);
}
