//! Task type `onDemandSnapshot`: the steward that owns the backups takes a full or delta snapshot.
//!
//! The snapshot is asked for with a request id made of the task's UID and the number of the attempt, so a controller
//! that was restarted, or a call whose answer was lost, finds the operation that runs instead of starting another.

use std::{sync::Arc, time::Duration};

use api::v1alpha1::{
    Etcd, EtcdOpsTask, OnDemandSnapshotConfig, SnapshotInfo, SnapshotResult, SnapshotType, TaskResult,
    TaskStep,
};
use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use operator::{
    owner::{self, Location},
    reconcile::{Reason as _, chain},
    steward::StewardError,
};
use steward_proto::v1::{
    self as proto, CreateSnapshotRequest, Operation, OperationState, Progress, operation,
};
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::{
    handler::{Assignment, Execution, Followed, Handler},
    lifecycle::{Problem, Work},
    preconditions,
    steward::Steward,
};

/// How many attempts are remembered in the status.
const REMEMBERED_ATTEMPTS: usize = 10;
const ATTEMPT: &str = "attempt-";

/// The handler.
#[derive(Debug)]
pub struct OnDemandSnapshot {
    steward: Arc<dyn Steward>,
}

impl OnDemandSnapshot {
    /// A handler that asks `steward`.
    pub fn new(steward: Arc<dyn Steward>) -> Self {
        Self { steward }
    }
}

#[async_trait]
impl Handler for OnDemandSnapshot {
    fn timeout(&self, task: &EtcdOpsTask) -> Duration {
        let seconds = config(task).map_or(0, |config| match config.type_ {
            SnapshotType::Delta => config.timeout_seconds_delta,
            _ => config.timeout_seconds_full,
        });
        Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
    }

    fn unmet(&self, assignment: &Assignment) -> Vec<Problem> {
        match preconditions::exists(&assignment.task, assignment.etcd.as_deref()) {
            Err(problem) => vec![problem],
            Ok(etcd) => [preconditions::has_store(etcd), preconditions::is_quorate(etcd)]
                .into_iter()
                .flatten()
                .collect(),
        }
    }

    async fn execute(&self, assignment: &Assignment, work: &mut Work) -> Result<Execution, Problem> {
        let etcd = preconditions::exists(&assignment.task, assignment.etcd.as_deref())?;
        let locations = owner::locations(etcd, &assignment.members);
        let (at, operation) = match self.resume(etcd, &locations, work).await? {
            Some(found) => found,
            None => self.begin(assignment, &locations, work).await?,
        };
        judge(&at, &operation, work)
    }

    async fn stop(&self, assignment: &Assignment, work: &Work) -> Result<(), Problem> {
        let Some(etcd) = assignment.etcd.as_deref() else {
            return Ok(());
        };
        let Some((at, id)) = running(etcd, work) else {
            return Ok(());
        };
        match self.steward.cancel(&at.target, &id).await {
            Err(error) if !is_unknown(&error) => Err(of_steward(&error)),
            _ => Ok(()),
        }
    }
}

impl OnDemandSnapshot {
    /// The operation that was begun; `None` when there is none any more, so that it has to be asked for (again).
    async fn resume(
        &self,
        etcd: &Etcd,
        locations: &[Location],
        work: &mut Work,
    ) -> Result<Option<(Location, Operation)>, Problem> {
        let Some((at, id)) = running(etcd, work) else {
            return Ok(None);
        };
        match self.steward.operation(&at.target, &id).await {
            Ok(operation) => Ok(Some((at, operation))),
            Err(error) if is_unknown(&error) => Ok(None),
            // The work of a member that lost the leadership is void; the new owner does it.
            Err(_) if locations.first().is_some_and(|owner| *owner != at) => Ok(None),
            Err(error) => Err(of_steward(&error)),
        }
    }

    /// Asks the owner for a snapshot.
    async fn begin(
        &self,
        assignment: &Assignment,
        locations: &[Location],
        work: &mut Work,
    ) -> Result<(Location, Operation), Problem> {
        let task = &assignment.task;
        let attempt = begin_attempt(&mut work.steps, Timestamp::now());
        work.operation_id = None;
        let request = request(task, attempt)?;
        let Some(first) = locations.first() else {
            return Err(Problem {
                code: "ERR_GET_ETCD",
                reason: "NoMembers".to_owned(),
                message: "the Etcd has no members that could take a snapshot".to_owned(),
                retryable: true,
            });
        };
        let (at, operation) = self.ask_owner(first, locations, &request).await?;
        work.operation_id = Some(format!("{}/{}", at.pod, operation.id));
        Ok((at, operation))
    }

    /// Asks one steward, and if it says that another one is the owner, that one.
    async fn ask_owner(
        &self,
        first: &Location,
        locations: &[Location],
        request: &CreateSnapshotRequest,
    ) -> Result<(Location, Operation), Problem> {
        let refused = match self.steward.create_snapshot(&first.target, request.clone()).await {
            Ok(operation) => return Ok((first.clone(), operation)),
            Err(error) => error,
        };
        let Some(owner) = owner_in(&refused).and_then(|url| owner::behind(&url, locations)) else {
            return Err(of_steward(&refused));
        };
        let answer = self.steward.create_snapshot(&owner.target, request.clone()).await;
        let operation = answer.map_err(|error| of_steward(&error))?;
        Ok((owner, operation))
    }
}

fn config(task: &EtcdOpsTask) -> Option<&OnDemandSnapshotConfig> {
    task.spec.config.on_demand_snapshot.as_ref()
}

fn request(task: &EtcdOpsTask, attempt: u32) -> Result<CreateSnapshotRequest, Problem> {
    let config = config(task);
    let type_ = match config.map(|config| &config.type_) {
        Some(SnapshotType::Full) => proto::SnapshotType::Full,
        Some(SnapshotType::Delta) => proto::SnapshotType::Delta,
        other => {
            let other = other.map(SnapshotType::as_str).unwrap_or_default();
            return Err(Problem {
                code: "ERR_UNSUPPORTED",
                reason: api::conditions::task::UNSUPPORTED.to_owned(),
                message: format!("unknown type of snapshot {other:?}"),
                retryable: false,
            });
        }
    };
    let uid = task.uid().unwrap_or_default();
    let request_id = if attempt == 1 {
        uid
    } else {
        format!("{uid}-{attempt}")
    };
    Ok(CreateSnapshotRequest {
        r#type: type_.into(),
        r#final: config.and_then(|config| config.is_final).unwrap_or(false),
        accept_fewer_keys: config
            .and_then(|config| config.accept_fewer_keys)
            .unwrap_or(false),
        request_id,
        r#async: true,
    })
}

/// The number of the attempt that is under way; begins one where the last has failed.
fn begin_attempt(steps: &mut Vec<TaskStep>, now: Timestamp) -> u32 {
    let last = steps.last();
    let number = last
        .and_then(|step| step.name.strip_prefix(ATTEMPT)?.parse().ok())
        .unwrap_or(0);
    if last.is_some_and(|step| step.completed_at.is_none()) {
        return number;
    }
    steps.push(TaskStep {
        name: format!("{ATTEMPT}{}", number + 1),
        started_at: Some(Time(now)),
        completed_at: None,
        message: None,
    });
    let surplus = steps.len().saturating_sub(REMEMBERED_ATTEMPTS);
    steps.drain(..surplus);
    number + 1
}

fn end_attempt(work: &mut Work, message: &str) {
    if let Some(step) = work.steps.last_mut() {
        step.completed_at = Some(Time(Timestamp::now()));
        step.message = Some(message.to_owned());
    }
}

/// The recorded operation: `<pod>/<id at its steward>`.
fn running(etcd: &Etcd, work: &Work) -> Option<(Location, String)> {
    let (pod, id) = work.operation_id.as_deref()?.split_once('/')?;
    Some((owner::in_pod(etcd, pod)?, id.to_owned()))
}

/// What the state of the operation means for the task.
fn judge(at: &Location, operation: &Operation, work: &mut Work) -> Result<Execution, Problem> {
    let failed = |reason: &str, message: String, retryable| Problem {
        code: "ERR_CREATE_SNAPSHOT",
        reason: reason.to_owned(),
        message,
        retryable,
    };
    let problem = match operation.state() {
        OperationState::Succeeded => {
            let (result, message) = outcome(operation);
            end_attempt(work, &message);
            "100%".clone_into(&mut work.progress);
            return Ok(Execution::Done(Box::new(result), message));
        }
        OperationState::Failed => {
            let error = operation.error.clone().unwrap_or_default();
            let reason = if error.reason.is_empty() {
                api::conditions::task::EXECUTION_FAILED
            } else {
                &error.reason
            };
            failed(reason, format!("{}: {}", at.pod, error.message), error.retryable)
        }
        OperationState::Cancelled => {
            let message = format!("{}: the snapshot was cancelled at the steward", at.pod);
            failed(api::conditions::task::CANCELLED, message, true)
        }
        OperationState::Running | OperationState::Pending | OperationState::Unspecified => {
            work.progress = progress(operation.progress.as_ref());
            return Ok(Execution::Running(Followed {
                target: at.target.clone(),
                id: operation.id.clone(),
            }));
        }
    };
    end_attempt(work, &problem.message);
    work.operation_id = None;
    Err(problem)
}

fn outcome(operation: &Operation) -> (TaskResult, String) {
    let taken = match &operation.result {
        Some(operation::Result::Snapshot(result)) => result.snapshot.as_ref(),
        _ => None,
    };
    let message = match taken {
        None => "nothing has changed since the last snapshot, so there was nothing to save".to_owned(),
        Some(taken) => format!(
            "stored {} up to revision {}, {} bytes",
            taken.name, taken.end_revision, taken.size_bytes
        ),
    };
    let snapshot = taken.map(|taken| SnapshotInfo {
        timestamp: taken.create_time.and_then(time),
        name: taken.name.clone(),
        // The steward tells the size of the object; this field is the size before compression.
        size: None,
        start_revision: taken.start_revision,
        end_revision: taken.end_revision,
    });
    let result = TaskResult {
        on_demand_snapshot: Some(SnapshotResult {
            snapshot,
            message: message.clone(),
        }),
        ..TaskResult::default()
    };
    (result, message)
}

fn time(time: impl TryInto<std::time::SystemTime>) -> Option<Time> {
    Timestamp::try_from(time.try_into().ok()?).ok().map(Time)
}

fn progress(progress: Option<&Progress>) -> String {
    match progress {
        None => "begun".to_owned(),
        Some(progress) if progress.total > 0 => {
            let percent = i128::from(progress.done) * 100 / i128::from(progress.total);
            format!("{percent}% {}", progress.message).trim_end().to_owned()
        }
        Some(progress) => progress.message.clone(),
    }
}

fn is_unknown(error: &StewardError) -> bool {
    matches!(error, StewardError::Call { status, .. } if status.code() == Code::NotFound)
}

/// The URL of the owner that a steward names when it refuses.
fn owner_in(error: &StewardError) -> Option<String> {
    let StewardError::Call { status, .. } = error else {
        return None;
    };
    let info = status.get_details_error_info()?;
    (info.reason == "NotOwner")
        .then(|| info.metadata.get("owner").cloned())
        .flatten()
}

/// A refusal is final where only a change of the request or the Etcd helps.
fn of_steward(error: &StewardError) -> Problem {
    let given = error.given_reason();
    let fatal = match error {
        StewardError::Call { status, .. } => match status.code() {
            Code::InvalidArgument | Code::Unimplemented => true,
            Code::FailedPrecondition => given.as_deref() != Some("NotOwner"),
            _ => false,
        },
        StewardError::NoIdentity(_) | StewardError::Connection { .. } => false,
    };
    Problem {
        code: "ERR_CREATE_SNAPSHOT",
        reason: given.unwrap_or_else(|| error.reason().to_owned()),
        message: chain(error),
        retryable: !fatal,
    }
}

#[cfg(test)]
mod tests;
