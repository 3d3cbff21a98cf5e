//! Follows operations at stewards, and wakes the task when one has changed: no task is polled.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::v1alpha1::EtcdOpsTask;
use futures::{Stream, StreamExt as _};
use kube::{Resource as _, ResourceExt as _, runtime::reflector::ObjectRef};
use operator::reconcile::Guarded;
use tokio::{sync::mpsc, task::AbortHandle};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tracing::debug;

use crate::{handler::Followed, steward::Steward};

/// Progress is told this often at most, and a broken stream is begun again after as much.
const PAUSE: Duration = Duration::from_secs(2);

/// The key of a task in the controller's queue.
pub type TaskRef = ObjectRef<Guarded<EtcdOpsTask>>;

/// Wakes tasks.
#[derive(Debug, Clone)]
pub struct Wake {
    sender: mpsc::UnboundedSender<TaskRef>,
}

impl Wake {
    /// A waker, and the stream of tasks to look at.
    pub fn new() -> (Self, impl Stream<Item = TaskRef> + Send + 'static) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { sender }, UnboundedReceiverStream::new(receiver))
    }

    /// Has a task looked at.
    pub fn wake(&self, task: TaskRef) {
        // Nobody listens once the controller has stopped; then nothing is looked at any more.
        let _ = self.sender.send(task);
    }
}

/// The key of a task.
pub fn key(task: &EtcdOpsTask) -> TaskRef {
    ObjectRef::new(&task.name_any()).within(task.meta().namespace.as_deref().unwrap_or_default())
}

/// The operations that are followed, one for each task.
#[derive(Debug)]
pub struct Follower {
    steward: Arc<dyn Steward>,
    wake: Wake,
    followed: Arc<Mutex<HashMap<TaskRef, (Followed, AbortHandle)>>>,
}

impl Follower {
    /// Follows through `steward`, tells `wake`.
    pub fn new(steward: Arc<dyn Steward>, wake: Wake) -> Self {
        Self {
            steward,
            wake,
            followed: Arc::default(),
        }
    }

    /// Wakes the task when the operation has changed, or can't be followed any more.
    pub fn follow(&self, task: TaskRef, operation: Followed) {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, handle)) = followed.get(&task) {
            if *known == operation && !handle.is_finished() {
                return;
            }
            handle.abort();
        }
        let run = run(
            Arc::clone(&self.steward),
            self.wake.clone(),
            task.clone(),
            operation.clone(),
        );
        let handle = tokio::spawn(run).abort_handle();
        followed.insert(task, (operation, handle));
    }

    /// The task has ended.
    pub fn forget(&self, task: &TaskRef) {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, handle)) = followed.remove(task) {
            handle.abort();
        }
    }
}

async fn run(steward: Arc<dyn Steward>, wake: Wake, task: TaskRef, operation: Followed) {
    match steward.watch(&operation.target, &operation.id).await {
        Ok(mut states) => {
            // The first state is the one that is known already.
            let mut first = true;
            while let Some(state) = states.next().await {
                match state {
                    Ok(_) if std::mem::take(&mut first) => {}
                    Ok(state) if state.end_time.is_some() => break,
                    Ok(_) => {
                        wake.wake(task.clone());
                        tokio::time::sleep(PAUSE).await;
                    }
                    Err(error) => {
                        debug!(%task, %error, "operation can't be followed");
                        tokio::time::sleep(PAUSE).await;
                        break;
                    }
                }
            }
        }
        Err(error) => {
            debug!(%task, %error, "operation can't be followed");
            tokio::time::sleep(PAUSE).await;
        }
    }
    wake.wake(task);
}
