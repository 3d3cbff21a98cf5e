//! What a type of task has to say: its preconditions, its work, and how the work is stopped. A type is one file with one
//! [`Handler`], and one line in [`Handlers::new`].

use std::{collections::HashMap, fmt::Debug, sync::Arc, time::Duration};

use api::v1alpha1::{Etcd, EtcdMember, EtcdOpsTask, TaskResult, TaskType};
use async_trait::async_trait;
use operator::steward::Target;

use crate::{
    lifecycle::{Problem, Work},
    on_demand_snapshot::OnDemandSnapshot,
    steward::Steward,
};

/// A task and what it is about.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// The task.
    pub task: EtcdOpsTask,
    /// The Etcd that it names; `None` is certain: the API server says that there is none.
    pub etcd: Option<Arc<Etcd>>,
    /// The members of that Etcd.
    pub members: Vec<Arc<EtcdMember>>,
}

/// How the work stands.
#[derive(Debug, Clone, PartialEq)]
pub enum Execution {
    /// Under way at a steward; the task is looked at again when the operation changes.
    Running(Followed),
    /// Done: the result, and a sentence about it.
    Done(Box<TaskResult>, String),
}

/// An operation of a steward that a task waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followed {
    /// The steward.
    pub target: Target,
    /// The operation's id there.
    pub id: String,
}

/// A type of task.
///
/// `execute` is called again and again until the task has ended. It must be safe to repeat: a controller may stop after
/// any of its calls, before what they did is recorded in `work`.
#[async_trait]
pub trait Handler: Debug + Send + Sync {
    /// The longest time that the work may take, retries included.
    fn timeout(&self, task: &EtcdOpsTask) -> Duration;

    /// Every precondition that isn't met.
    fn unmet(&self, assignment: &Assignment) -> Vec<Problem>;

    /// Begins the work, or goes on with it.
    async fn execute(&self, assignment: &Assignment, work: &mut Work) -> Result<Execution, Problem>;

    /// Stops what still runs: the task is out of time or being deleted.
    async fn stop(&self, assignment: &Assignment, work: &Work) -> Result<(), Problem>;
}

/// The types of tasks that this version carries out.
#[derive(Debug)]
pub struct Handlers {
    by_type: HashMap<TaskType, Box<dyn Handler>>,
}

impl Handlers {
    /// All handlers.
    pub fn new(steward: &Arc<dyn Steward>) -> Self {
        let mut by_type: HashMap<TaskType, Box<dyn Handler>> = HashMap::new();
        by_type.insert(
            TaskType::OnDemandSnapshot,
            Box::new(OnDemandSnapshot::new(Arc::clone(steward))),
        );
        Self { by_type }
    }

    /// The handler of a task, or why there is none.
    pub fn of(&self, task: &EtcdOpsTask) -> Result<&dyn Handler, Problem> {
        let unsupported = |message| Problem {
            code: "ERR_UNSUPPORTED",
            reason: api::conditions::task::UNSUPPORTED.to_owned(),
            message,
            retryable: false,
        };
        let type_ = task
            .spec
            .config
            .task()
            .map_err(|error| unsupported(error.to_string()))?
            .type_();
        let handler = self.by_type.get(&type_).map(|handler| &**handler);
        handler.ok_or_else(|| {
            let version = env!("CARGO_PKG_VERSION");
            unsupported(format!(
                "tasks of type {type_} aren't supported by version {version} of the opstask-controller"
            ))
        })
    }
}
