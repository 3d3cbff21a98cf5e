//! A task's status as a state machine: every change of it is one [`Transition`], and nothing else writes it. Pure.
//!
//! ```text
//! Pending ── Start ──→ InProgress ── Succeed ──→ Succeeded
//!    │                     └─────── Fail ──────→ Failed
//!    └──── Reject ──→ Rejected
//! ```

use api::{
    conditions::task as condition,
    v1alpha1::{
        Condition, ConditionStatus, EtcdOpsTask, EtcdOpsTaskStatus, LastError, LastOperation,
        LastOperationState, LastOperationType, TaskResult, TaskState, TaskStep,
    },
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource as _;

/// Fields of the status that this controller owns: all.
pub const OURS: &[&str] = &[
    "state",
    "type",
    "lastTransitionTime",
    "startedAt",
    "lastErrors",
    "lastOperation",
    "conditions",
    "progress",
    "operationID",
    "steps",
    "result",
];

const MAX_PROGRESS_BYTES: usize = 256;
const MAX_DESCRIPTION_BYTES: usize = 4096;

/// Something that keeps a task from being done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// Kind of problem in `lastErrors`, like `ERR_ETCD_NOT_READY`.
    pub code: &'static str,
    /// CamelCase class, the reason of conditions and events.
    pub reason: String,
    /// What failed, where, and what to do.
    pub message: String,
    /// Whether it may go away by itself.
    pub retryable: bool,
}

/// What a handler remembers of its work between two looks at it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// The operation that a steward runs for the task.
    pub operation_id: Option<String>,
    /// Steps that have been begun.
    pub steps: Vec<TaskStep>,
    /// How far it is, in a few words.
    pub progress: String,
}

impl From<&EtcdOpsTaskStatus> for Work {
    fn from(status: &EtcdOpsTaskStatus) -> Self {
        Self {
            operation_id: status.operation_id.clone(),
            steps: status.steps.clone(),
            progress: status.progress.clone().unwrap_or_default(),
        }
    }
}

/// A change of a task's status.
#[derive(Debug, Clone, PartialEq)]
pub enum Transition {
    /// Another task of the same Etcd comes first.
    Wait {
        /// Its name.
        other: String,
    },
    /// The preconditions aren't met: all that are missing.
    Reject {
        /// `PreconditionsUnmet` or `Unsupported`.
        reason: &'static str,
        /// Each of them.
        problems: Vec<Problem>,
    },
    /// The work begins.
    Start,
    /// The work goes on.
    Progress(Work),
    /// Something failed and is tried again.
    Retry(Work, Problem),
    /// Done.
    Succeed(Work, Box<TaskResult>, String),
    /// Ended without success.
    Fail(Work, Problem),
}

/// The status after a transition.
pub fn next(task: &EtcdOpsTask, transition: Transition, now: Timestamp) -> EtcdOpsTaskStatus {
    let mut step = Step {
        status: task.status.clone().unwrap_or_default(),
        generation: task.meta().generation,
        now,
    };
    step.status.type_ = task.spec.config.task().ok().map(|task| task.type_());
    match transition {
        Transition::Wait { other } => step.wait(&other),
        Transition::Reject { reason, problems } => step.reject(reason, &problems),
        Transition::Start => step.start(),
        Transition::Progress(work) => step.go_on(work, None),
        Transition::Retry(work, problem) => step.go_on(work, Some(&problem)),
        Transition::Succeed(work, result, message) => step.succeed(work, *result, &message),
        Transition::Fail(work, problem) => step.fail(work, &problem),
    }
    step.status
}

struct Step {
    status: EtcdOpsTaskStatus,
    generation: Option<i64>,
    now: Timestamp,
}

impl Step {
    fn wait(&mut self, other: &str) {
        self.state(TaskState::Pending);
        let message = format!("waits for task {other} of the same Etcd to end");
        self.condition(
            condition::ADMITTED,
            ConditionStatus::Unknown,
            condition::WAITING_FOR_TASK,
            &message,
        );
        self.operation(LastOperationType::Admit, LastOperationState::InProgress, &message);
        self.progress(&message);
    }

    fn reject(&mut self, reason: &'static str, problems: &[Problem]) {
        self.state(TaskState::Rejected);
        let message = list(problems);
        for problem in problems {
            self.error(problem);
        }
        let refused = [
            (condition::ADMITTED, reason),
            (condition::PROGRESSING, reason),
            (condition::SUCCEEDED, reason),
        ];
        for (type_, reason) in refused {
            self.condition(type_, ConditionStatus::False, reason, &message);
        }
        self.operation(LastOperationType::Admit, LastOperationState::Failed, &message);
        self.progress("");
    }

    fn start(&mut self) {
        self.state(TaskState::InProgress);
        self.status.started_at.get_or_insert(Time(self.now));
        self.condition(
            condition::ADMITTED,
            ConditionStatus::True,
            condition::PRECONDITIONS_MET,
            "all preconditions were met",
        );
        self.go_on(Work::default(), None);
    }

    fn go_on(&mut self, work: Work, problem: Option<&Problem>) {
        let (reason, message) = match problem {
            Some(problem) => (
                problem.reason.clone(),
                format!("tried again after: {}", problem.message),
            ),
            None if work.progress.is_empty() => (condition::RUNNING.to_owned(), "begun".to_owned()),
            None => (condition::RUNNING.to_owned(), "under way".to_owned()),
        };
        self.work(work);
        if let Some(problem) = problem {
            self.error(problem);
        }
        self.condition(condition::PROGRESSING, ConditionStatus::True, &reason, &message);
        self.operation(
            LastOperationType::Execution,
            LastOperationState::InProgress,
            &message,
        );
    }

    fn succeed(&mut self, work: Work, result: TaskResult, message: &str) {
        self.work(work);
        self.state(TaskState::Succeeded);
        self.status.result = result;
        self.end(ConditionStatus::True, condition::FINISHED, message);
        self.operation(
            LastOperationType::Execution,
            LastOperationState::Completed,
            message,
        );
    }

    fn fail(&mut self, work: Work, problem: &Problem) {
        self.work(work);
        self.state(TaskState::Failed);
        self.end(ConditionStatus::False, &problem.reason, &problem.message);
        self.operation(
            LastOperationType::Execution,
            LastOperationState::Failed,
            &problem.message,
        );
        self.error(problem);
    }

    fn end(&mut self, succeeded: ConditionStatus, reason: &str, message: &str) {
        self.condition(
            condition::PROGRESSING,
            ConditionStatus::False,
            condition::FINISHED,
            message,
        );
        self.condition(condition::SUCCEEDED, succeeded, reason, message);
    }

    fn state(&mut self, state: TaskState) {
        if self.status.state.as_ref() != Some(&state) {
            self.status.state = Some(state);
            self.status.last_transition_time = Some(Time(self.now));
        }
    }

    fn work(&mut self, work: Work) {
        self.status.operation_id = work.operation_id;
        self.status.steps = work.steps;
        self.progress(&work.progress);
    }

    fn progress(&mut self, progress: &str) {
        let end = progress.floor_char_boundary(MAX_PROGRESS_BYTES);
        self.status.progress = progress
            .get(..end)
            .filter(|text| !text.is_empty())
            .map(str::to_owned);
    }

    fn condition(&mut self, type_: &str, status: ConditionStatus, reason: &str, message: &str) {
        let new = Condition::new(type_, status, reason, message)
            .observed(self.generation)
            .since(&self.status.conditions, self.now);
        self.status.conditions.retain(|old| old.type_ != type_);
        self.status.conditions.push(new);
    }

    /// What is only repeated keeps its time.
    fn operation(&mut self, type_: LastOperationType, state: LastOperationState, description: &str) {
        let description = cut(description);
        let same = self.status.last_operation.as_ref().is_some_and(|last| {
            last.type_ == type_ && last.state == state && last.description == description
        });
        if !same {
            self.status.last_operation = Some(LastOperation {
                type_,
                state,
                description,
                run_id: operator::reconcile::run_id(),
                last_update_time: Some(Time(self.now)),
            });
        }
    }

    /// The same error again is one error, seen last now.
    fn error(&mut self, problem: &Problem) {
        let error = LastError {
            code: problem.code.to_owned(),
            description: cut(&format!("{}: {}", problem.reason, problem.message)),
            observed_at: Some(Time(self.now)),
        };
        self.status
            .last_errors
            .retain(|old| (&old.code, &old.description) != (&error.code, &error.description));
        self.status.push_error(error);
    }
}

fn list(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(|problem| problem.message.as_str())
        .collect::<Vec<_>>()
        .join("; ")
}

fn cut(text: &str) -> String {
    let mut text = text.to_owned();
    text.truncate(text.floor_char_boundary(MAX_DESCRIPTION_BYTES));
    text
}

/// Whether the task has ended.
pub fn is_over(task: &EtcdOpsTask) -> bool {
    state(task).is_some_and(TaskState::is_terminal)
}

/// Whether the work is under way.
pub fn is_running(task: &EtcdOpsTask) -> bool {
    state(task) == Some(&TaskState::InProgress)
}

/// Whether the task hasn't begun, and may still.
pub fn is_waiting(task: &EtcdOpsTask) -> bool {
    !is_over(task) && !is_running(task)
}

/// The state that is recorded.
pub fn state(task: &EtcdOpsTask) -> Option<&TaskState> {
    task.status.as_ref()?.state.as_ref()
}

/// When the task removes itself; `None` while it hasn't ended.
pub fn expires_at(task: &EtcdOpsTask) -> Option<Timestamp> {
    let ended = task.status.as_ref()?.last_transition_time.as_ref()?.0;
    let ttl = SignedDuration::from_secs(task.spec.ttl_seconds_after_finished.into());
    is_over(task).then(|| later(ended, ttl))
}

/// When the task must have ended.
pub fn deadline(task: &EtcdOpsTask, timeout: SignedDuration, now: Timestamp) -> Timestamp {
    later(started_at(task, now), timeout)
}

/// When the work began: now if it is just beginning.
pub fn started_at(task: &EtcdOpsTask, now: Timestamp) -> Timestamp {
    let started = task.status.as_ref().and_then(|status| status.started_at.as_ref());
    started.map_or(now, |time| time.0)
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// How long to wait before the next try: a quarter of the time already spent, between one and thirty seconds, and not
/// beyond the deadline.
pub fn pause(started: Timestamp, deadline: Timestamp, now: Timestamp) -> std::time::Duration {
    let quarter = now.duration_since(started) / 4;
    let wait = quarter.clamp(SignedDuration::from_secs(1), SignedDuration::from_secs(30));
    let left = deadline.duration_since(now).max(SignedDuration::from_millis(100));
    wait.min(left).unsigned_abs()
}

#[cfg(test)]
mod tests;
