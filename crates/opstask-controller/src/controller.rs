//! The driver of tasks: admission → execution → expiry, and cancellation by deletion.
//!
//! A task is read from the API server at the begin of each reconcile, never from the cache: what was last recorded of
//! its work decides what is done next. There are few tasks, and each is looked at a few times.

use std::{sync::Arc, time::Duration};

use api::{
    conditions::task as condition,
    labels,
    v1alpha1::{Etcd, EtcdMember, EtcdOpsTask, TaskState},
};
use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Preconditions},
    runtime::{controller::Action, reflector::Store},
};
use operator::{
    Context,
    apply::ApplyError,
    cache::{decoded, until},
    finalizers,
    reconcile::{Guarded, Reason, Reconciler, Retry},
};
use tokio::sync::Mutex;
use tracing::info;

use crate::{
    follow::{Follower, key},
    handler::{Assignment, Execution, Handler, Handlers},
    lifecycle::{self, OURS, Problem, Transition, Work},
    metrics::TaskMetrics,
    turn::comes_first,
};

/// A waiting task is woken by the end of the one before it; this is for a watch that missed something.
const WAITING_RESYNC: Duration = Duration::from_mins(1);
/// A running task is woken by its operation; this is for a stream that hangs.
const RUNNING_RESYNC: Duration = Duration::from_secs(30);
/// How long the deletion of a task is held up by work that can't be stopped. A steward that isn't reached for so long
/// has most likely stopped it itself.
const STOP_LIMIT: SignedDuration = SignedDuration::from_secs(30);

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// The API server refused, or couldn't be asked.
    #[error("{action}: {source}")]
    Request {
        /// What was tried.
        action: &'static str,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// The status can't be written.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The work failed and is tried again. It is recorded in the task.
    #[error("{problem}")]
    Work {
        /// What failed.
        problem: Problem,
        /// When it is tried again.
        wait: Duration,
    },
}

impl Reason for TaskError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Request { .. } | Self::Apply(_) => "ApiServer",
            Self::Work { .. } => "Work",
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Self::Work { wait, .. } => Retry::After(*wait),
            _ => Retry::Backoff,
        }
    }
}

fn request(action: &'static str) -> impl Fn(kube::Error) -> TaskError {
    move |source| TaskError::Request {
        action,
        source: Box::new(source),
    }
}

/// The reconciler of tasks.
#[derive(Debug)]
pub struct TaskController {
    /// Shared with the other controllers.
    pub context: Context,
    /// The types of tasks.
    pub handlers: Handlers,
    /// Members, to find stewards by.
    pub members: Store<Guarded<EtcdMember>>,
    /// Follows the stewards' operations.
    pub follower: Follower,
    /// Counts.
    pub metrics: TaskMetrics,
    /// Held from the look at the other tasks to the record that this one has begun, so that two never begin together.
    pub admission: Mutex<()>,
}

#[async_trait]
impl Reconciler for TaskController {
    type Error = TaskError;
    type Object = EtcdOpsTask;

    const NAME: &'static str = "etcdopstask";

    async fn reconcile(&self, cached: Arc<EtcdOpsTask>) -> Result<Action, TaskError> {
        let live = self.api(&cached).get_opt(&cached.name_any()).await;
        let Some(task) = live.map_err(request("read the task"))? else {
            self.follower.forget(&key(&cached));
            return Ok(Action::await_change());
        };
        if task.metadata.deletion_timestamp.is_some() {
            return self.remove(task).await;
        }
        if let Some(expiry) = lifecycle::expires_at(&task) {
            self.follower.forget(&key(&task));
            return self.expire(&task, expiry).await;
        }
        let task = self.adopt(task).await?;
        if lifecycle::is_running(&task) {
            Box::pin(self.execute(task)).await
        } else {
            Box::pin(self.admit(task)).await
        }
    }
}

impl TaskController {
    async fn admit(&self, task: EtcdOpsTask) -> Result<Action, TaskError> {
        let handler = match self.handlers.of(&task) {
            Ok(handler) => handler,
            Err(problem) => return self.reject(task, condition::UNSUPPORTED, vec![problem]).await,
        };
        let begun = {
            let _guard = self.admission.lock().await;
            let others = self.siblings(&task).await?;
            if let Some(other) = comes_first(&task, &others) {
                self.record(&task, Transition::Wait { other }).await?;
                return Ok(Action::requeue(WAITING_RESYNC));
            }
            let assignment = self.assignment(task).await?;
            let problems = handler.unmet(&assignment);
            if !problems.is_empty() {
                let reason = condition::PRECONDITIONS_UNMET;
                return self.reject(assignment.task, reason, problems).await;
            }
            self.record(&assignment.task, Transition::Start).await?
        };
        let note = "all preconditions are met, the work begins";
        self.context
            .events
            .normal(&begun, "Admit", "TaskStarted", note)
            .await;
        Box::pin(self.execute(begun)).await
    }

    async fn reject(
        &self,
        task: EtcdOpsTask,
        reason: &'static str,
        problems: Vec<Problem>,
    ) -> Result<Action, TaskError> {
        let ended = self
            .record(&task, Transition::Reject { reason, problems })
            .await?;
        self.told(&ended, None).await;
        Ok(until_expiry(&ended))
    }

    async fn execute(&self, task: EtcdOpsTask) -> Result<Action, TaskError> {
        let handler = match self.handlers.of(&task) {
            Ok(handler) => handler,
            Err(problem) => return self.fail(task, None, Work::default(), problem).await,
        };
        let assignment = self.assignment(task).await?;
        let task = &assignment.task;
        let mut work = task.status.as_ref().map(Work::from).unwrap_or_default();
        let result = handler.execute(&assignment, &mut work).await;
        let now = Timestamp::now();
        let timeout = SignedDuration::try_from(handler.timeout(task)).unwrap_or(SignedDuration::MAX);
        let deadline = lifecycle::deadline(task, timeout, now);
        match result {
            Ok(Execution::Done(result, message)) => {
                let ended = self
                    .record(task, Transition::Succeed(work, result, message))
                    .await?;
                self.told(&ended, assignment.etcd.as_deref()).await;
                Ok(until_expiry(&ended))
            }
            Err(problem) if !problem.retryable => {
                self.fail(assignment.task, assignment.etcd, work, problem).await
            }
            Ok(Execution::Running(_)) | Err(_) if now >= deadline => {
                let last = result.err();
                self.out_of_time(handler, assignment, work, timeout, last).await
            }
            Ok(Execution::Running(operation)) => {
                self.record(task, Transition::Progress(work)).await?;
                self.follower.follow(key(task), operation);
                Ok(Action::requeue(until(deadline).min(RUNNING_RESYNC)))
            }
            Err(problem) => {
                let wait = lifecycle::pause(lifecycle::started_at(task, now), deadline, now);
                self.record(task, Transition::Retry(work, problem.clone()))
                    .await?;
                Err(TaskError::Work { problem, wait })
            }
        }
    }

    async fn out_of_time(
        &self,
        handler: &dyn Handler,
        assignment: Assignment,
        work: Work,
        timeout: SignedDuration,
        last: Option<Problem>,
    ) -> Result<Action, TaskError> {
        let mut message = format!("not done within {} seconds", timeout.as_secs());
        if let Some(last) = last {
            message = format!("{message}; last: {last}");
        }
        if let Err(problem) = handler.stop(&assignment, &work).await {
            message = format!("{message}; what still runs couldn't be stopped: {problem}");
        }
        let problem = Problem {
            code: "ERR_DEADLINE_EXCEEDED",
            reason: condition::DEADLINE_EXCEEDED.to_owned(),
            message,
            retryable: false,
        };
        self.fail(assignment.task, assignment.etcd, work, problem).await
    }

    async fn fail(
        &self,
        task: EtcdOpsTask,
        etcd: Option<Arc<Etcd>>,
        work: Work,
        problem: Problem,
    ) -> Result<Action, TaskError> {
        let ended = self.record(&task, Transition::Fail(work, problem)).await?;
        self.told(&ended, etcd.as_deref()).await;
        Ok(until_expiry(&ended))
    }

    /// Deletes the task once its time is over.
    async fn expire(&self, task: &EtcdOpsTask, expiry: Timestamp) -> Result<Action, TaskError> {
        if Timestamp::now() < expiry {
            return Ok(Action::requeue(until(expiry)));
        }
        let same = DeleteParams {
            preconditions: Some(Preconditions {
                uid: task.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match self.api(task).delete(&task.name_any(), &same).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            other => drop(other.map_err(request("delete the expired task"))?),
        }
        Ok(Action::await_change())
    }

    /// The task is being deleted: what runs is stopped, then it may go.
    async fn remove(&self, task: EtcdOpsTask) -> Result<Action, TaskError> {
        let cancelled = !lifecycle::is_over(&task);
        let task = if cancelled { self.cancel(task).await? } else { task };
        self.follower.forget(&key(&task));
        let own = labels::finalizer::OPS_TASK;
        if task.finalizers().iter().any(|finalizer| finalizer == own) {
            let removed = finalizers::remove(&self.context.client, &task, own).await;
            let removed = removed.map_err(request("remove the finalizer"))?;
            if removed.is_some() && cancelled {
                self.metrics.ended(&task, None, Timestamp::now());
                let note = "deleted before its end: what ran for it was stopped";
                self.context
                    .events
                    .normal(&task, "Cleanup", "TaskCancelled", note)
                    .await;
            }
        }
        Ok(Action::await_change())
    }

    async fn cancel(&self, task: EtcdOpsTask) -> Result<EtcdOpsTask, TaskError> {
        let Ok(handler) = self.handlers.of(&task) else {
            return Ok(task);
        };
        let deleted = task.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let assignment = self.assignment(task).await?;
        let work = assignment
            .task
            .status
            .as_ref()
            .map(Work::from)
            .unwrap_or_default();
        if let Err(problem) = handler.stop(&assignment, &work).await {
            let now = Timestamp::now();
            let waited = deleted.map_or(SignedDuration::ZERO, |since| now.duration_since(since));
            if waited < STOP_LIMIT {
                let wait = Duration::from_secs(2);
                return Err(TaskError::Work { problem, wait });
            }
            let note = format!("deleted although what ran for it couldn't be stopped: {problem}");
            self.context
                .events
                .warning(&assignment.task, "Cleanup", "TaskNotStopped", note)
                .await;
        }
        Ok(assignment.task)
    }

    /// Makes a transition, and returns the task as it is after it.
    async fn record(&self, task: &EtcdOpsTask, transition: Transition) -> Result<EtcdOpsTask, TaskError> {
        let status = lifecycle::next(task, transition, Timestamp::now());
        let wanted = serde_json::to_value(&status).map_err(|source| ApplyError::Encode {
            kind: "EtcdOpsTask".to_owned(),
            name: task.name_any(),
            source,
        })?;
        self.context.applier.apply_status(task, &wanted, OURS).await?;
        let mut task = task.clone();
        task.status = Some(status);
        Ok(task)
    }

    /// Counts and tells the end of a task.
    async fn told(&self, task: &EtcdOpsTask, etcd: Option<&Etcd>) {
        self.follower.forget(&key(task));
        let state = lifecycle::state(task);
        self.metrics.ended(task, state, Timestamp::now());
        let status = task.status.as_ref();
        let message = status
            .and_then(|status| status.last_operation.as_ref())
            .map(|last| last.description.clone())
            .unwrap_or_default();
        let events = &self.context.events;
        let name = task.name_any();
        info!(?state, message, "task has ended");
        match state {
            Some(TaskState::Succeeded) => {
                events
                    .normal(task, "Execution", "TaskSucceeded", message.clone())
                    .await;
                if let Some(etcd) = etcd {
                    let note = format!("task {name}: {message}");
                    events.normal(etcd, "OpsTask", "TaskSucceeded", note).await;
                }
            }
            Some(TaskState::Rejected) => events.warning(task, "Admit", "TaskRejected", message).await,
            _ => {
                events
                    .warning(task, "Execution", "TaskFailed", message.clone())
                    .await;
                if let Some(etcd) = etcd {
                    let note = format!("task {name}: {message}");
                    events.warning(etcd, "OpsTask", "TaskFailed", note).await;
                }
            }
        }
    }

    /// The finalizer keeps the task until what runs for it is stopped.
    async fn adopt(&self, task: EtcdOpsTask) -> Result<EtcdOpsTask, TaskError> {
        let added = finalizers::add(&self.context.client, &task, labels::finalizer::OPS_TASK).await;
        Ok(added.map_err(request("add the finalizer"))?.unwrap_or(task))
    }

    /// All tasks of the same Etcd, as the API server has them now.
    async fn siblings(&self, task: &EtcdOpsTask) -> Result<Vec<EtcdOpsTask>, TaskError> {
        let Some(etcd) = &task.spec.etcd_name else {
            return Ok(Vec::new());
        };
        let of_etcd = ListParams::default().fields(&format!("spec.etcdName={etcd}"));
        let api = Api::<Guarded<EtcdOpsTask>>::namespaced(
            self.context.client.clone(),
            &task.namespace().unwrap_or_default(),
        );
        let listed = api.list(&of_etcd).await;
        let tasks = listed.map_err(request("list the tasks of the Etcd"))?.items;
        // What can't be decoded isn't carried out by anybody, and holds up nobody.
        Ok(tasks.into_iter().filter_map(|task| task.0.ok()).collect())
    }

    async fn assignment(&self, task: EtcdOpsTask) -> Result<Assignment, TaskError> {
        let namespace = task.namespace().unwrap_or_default();
        let etcd = match &task.spec.etcd_name {
            None => None,
            Some(name) => {
                let api = Api::<Etcd>::namespaced(self.context.client.clone(), &namespace);
                let etcd = api.get_opt(name).await.map_err(request("read the Etcd"))?;
                etcd.map(Arc::new)
            }
        };
        let of_etcd = |member: &Guarded<EtcdMember>| {
            member.namespace().as_deref() == Some(namespace.as_str())
                && member.labels().get(labels::OWNED_BY) == task.spec.etcd_name.as_ref()
        };
        Ok(Assignment {
            members: decoded(self.members.state_filter(of_etcd)),
            etcd,
            task,
        })
    }

    fn api(&self, task: &EtcdOpsTask) -> Api<EtcdOpsTask> {
        Api::namespaced(self.context.client.clone(), &task.namespace().unwrap_or_default())
    }
}

fn until_expiry(task: &EtcdOpsTask) -> Action {
    lifecycle::expires_at(task).map_or_else(Action::await_change, |expiry| Action::requeue(until(expiry)))
}
