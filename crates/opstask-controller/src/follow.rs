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
                    Ok(state) if state.end_time.is_some() => break,
                    Ok(_) if std::mem::take(&mut first) => {}
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

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use futures::stream::{self, BoxStream};
    use operator::steward::{StewardError, Target};
    use steward_proto::v1::{CreateSnapshotRequest, Operation};
    use tonic::Status;

    use super::*;
    use crate::steward::call;

    /// A steward whose operation goes through these states, and that keeps the stream open afterwards.
    #[derive(Debug)]
    struct Watched(Vec<Result<bool, ()>>);

    #[async_trait]
    impl Steward for Watched {
        async fn create_snapshot(
            &self,
            target: &Target,
            _: CreateSnapshotRequest,
        ) -> Result<Operation, StewardError> {
            Err(call(target, Status::unimplemented("")))
        }

        async fn operation(&self, target: &Target, _: &str) -> Result<Operation, StewardError> {
            Err(call(target, Status::unimplemented("")))
        }

        async fn watch(
            &self,
            target: &Target,
            _: &str,
        ) -> Result<BoxStream<'static, Result<Operation, StewardError>>, StewardError> {
            let target = target.clone();
            let states = self.0.clone().into_iter().map(move |state| match state {
                Ok(done) => Ok(Operation {
                    end_time: done.then(prost_types::Timestamp::default),
                    ..Operation::default()
                }),
                Err(()) => Err(call(&target, Status::unavailable("gone"))),
            });
            Ok(stream::iter(states).chain(stream::pending()).boxed())
        }

        async fn cancel(&self, target: &Target, _: &str) -> Result<(), StewardError> {
            Err(call(target, Status::unimplemented("")))
        }
    }

    async fn wakes(states: Vec<Result<bool, ()>>) -> usize {
        let (wake, woken) = Wake::new();
        let follower = Follower::new(Arc::new(Watched(states)), wake);
        let operation = Followed {
            target: Target {
                address: "x:1".to_owned(),
                server_name: "x".to_owned(),
            },
            id: "a".to_owned(),
        };
        let task = ObjectRef::new("t").within("ns");
        follower.follow(task.clone(), operation.clone());
        follower.follow(task, operation);
        let limit = tokio::time::sleep(Duration::from_mins(10));
        woken.take_until(limit).count().await
    }

    /// The end may come before the first look, and it must not be missed.
    #[tokio::test(start_paused = true)]
    async fn a_task_is_woken_by_the_end_of_its_operation() {
        assert_eq!(wakes(vec![Ok(true)]).await, 1);
        assert_eq!(wakes(vec![Ok(false), Ok(true)]).await, 1);
        assert_eq!(wakes(vec![Ok(false), Ok(false), Ok(true)]).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_already_wakes_nobody() {
        assert_eq!(wakes(vec![Ok(false)]).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_breaks_has_the_task_looked_at() {
        assert_eq!(wakes(vec![Ok(false), Err(())]).await, 1);
    }
}
