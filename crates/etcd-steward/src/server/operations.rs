//! The registry of long-running operations: an operation goes on when its caller goes away, can be followed, waited for
//! and cancelled, and is remembered for a while after its end.

use std::{
    collections::{HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use futures::{FutureExt as _, Stream, stream};
use steward_proto::v1::{Operation, OperationError, OperationState, Progress, operation};
use tokio::{
    sync::watch,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, info_span, warn};

/// How many operations are remembered, and for how long after their end.
const REMEMBERED: usize = 200;
const KEPT: Duration = Duration::from_hours(1);

/// A failure of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// CamelCase class.
    pub reason: String,
    /// What failed, where, and what to do.
    pub message: String,
    /// Whether it may work later.
    pub retryable: bool,
}

impl<E: operator::Reason> From<&E> for Failure {
    fn from(error: &E) -> Self {
        Self {
            reason: error.reason().to_owned(),
            message: operator::reconcile::chain(error),
            retryable: error.retry() != operator::reconcile::Retry::OnChange,
        }
    }
}

impl Failure {
    fn panicked() -> Self {
        Self {
            reason: "Panicked".to_owned(),
            message: "a fault in the steward itself ended it: see its log".to_owned(),
            retryable: false,
        }
    }
}

/// What an operation gets to work with.
#[derive(Debug, Clone)]
pub struct Run {
    operation: Arc<watch::Sender<Operation>>,
}

impl Run {
    /// Tells how far it is.
    pub fn progress(&self, message: &str, done: i64, total: i64, unit: &str) {
        let progress = Progress {
            message: message.to_owned(),
            done,
            total,
            unit: unit.to_owned(),
        };
        self.operation
            .send_modify(|operation| operation.progress = Some(progress));
    }
}

/// What is asked for, and the caller's idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked<'a> {
    /// Type of the operation.
    pub type_: &'static str,
    /// Its parameters: the same key with others is a mistake of the caller's.
    pub parameters: String,
    /// The key; empty for none.
    pub request_id: &'a str,
}

/// The idempotency key belongs to another request: the operation that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTaken(pub String);

#[derive(Debug)]
struct Entry {
    operation: Arc<watch::Sender<Operation>>,
    cancel: CancellationToken,
    parameters: String,
    /// Until when it is wanted, by those who have asked for it with a deadline.
    deadline: Option<Instant>,
    /// Somebody has asked for it without one.
    kept: bool,
}

#[derive(Debug, Default)]
struct Entries {
    by_id: HashMap<String, Entry>,
    order: VecDeque<String>,
    /// An idempotency key is one of its type: keys of different calls have nothing to do with each other.
    by_request: HashMap<(&'static str, String), String>,
}

/// All operations of this steward.
#[derive(Debug, Clone, Default)]
pub struct Operations {
    entries: Arc<Mutex<Entries>>,
}

impl Operations {
    /// Starts an operation, or finds the one that was started with the same idempotency key. One that failed or was
    /// cancelled is not found: who calls again with its key wants another try.
    pub fn start<F, Fut>(&self, asked: &Asked<'_>, work: F) -> Result<watch::Receiver<Operation>, KeyTaken>
    where
        F: FnOnce(Run) -> Fut,
        Fut: Future<Output = Result<operation::Result, Failure>> + Send + 'static,
    {
        let mut entries = self.entries();
        if let Some(known) = entries.asked_before(asked)? {
            return Ok(known);
        }
        Ok(entries.begin(asked, work))
    }

    /// Starts an operation that nobody asked for.
    pub fn start_own<F, Fut>(&self, type_: &'static str, work: F) -> watch::Receiver<Operation>
    where
        F: FnOnce(Run) -> Fut,
        Fut: Future<Output = Result<operation::Result, Failure>> + Send + 'static,
    {
        let asked = Asked {
            type_,
            parameters: String::new(),
            request_id: "",
        };
        self.entries().begin(&asked, work)
    }

    /// One operation.
    pub fn get(&self, id: &str) -> Option<watch::Receiver<Operation>> {
        self.entries()
            .by_id
            .get(id)
            .map(|entry| entry.operation.subscribe())
    }

    /// All that are remembered, newest first.
    pub fn list(&self) -> Vec<Operation> {
        let entries = self.entries();
        let newest_first = entries.order.iter().rev().filter_map(|id| entries.by_id.get(id));
        newest_first
            .map(|entry| entry.operation.borrow().clone())
            .collect()
    }

    /// Asks an operation to stop.
    pub fn cancel(&self, id: &str) -> Option<Operation> {
        let entries = self.entries();
        let entry = entries.by_id.get(id)?;
        entry.cancel.cancel();
        Some(entry.operation.borrow().clone())
    }

    /// Somebody wants an operation done, however long it takes.
    pub fn keep(&self, id: &str) {
        if let Some(entry) = self.entries().by_id.get_mut(id) {
            entry.kept = true;
        }
    }

    /// Asks an operation to stop if it isn't done by then, unless others who have asked for it want it for longer.
    pub fn cancel_at(&self, id: String, deadline: Instant) {
        let mut operation = {
            let mut entries = self.entries();
            let Some(entry) = entries.by_id.get_mut(&id) else {
                return;
            };
            entry.deadline = entry.deadline.max(Some(deadline));
            entry.operation.subscribe()
        };
        let operations = self.clone();
        tokio::spawn(async move {
            if timeout_at(deadline, operation.wait_for(is_done)).await.is_err() {
                operations.cancel_unwanted(&id);
            }
        });
    }

    fn cancel_unwanted(&self, id: &str) {
        let entries = self.entries();
        let now = Instant::now();
        let unwanted = |entry: &&Entry| !entry.kept && entry.deadline.is_some_and(|last| last <= now);
        if let Some(entry) = entries.by_id.get(id).filter(unwanted) {
            info!(id, "the caller's deadline has passed: cancelling its operation");
            entry.cancel.cancel();
        }
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// The operation that was started by the same request.
    fn asked_before(&self, asked: &Asked<'_>) -> Result<Option<watch::Receiver<Operation>>, KeyTaken> {
        let key = (asked.type_, asked.request_id.to_owned());
        let Some(id) = self.by_request.get(&key) else {
            return Ok(None);
        };
        let Some(known) = self.by_id.get(id) else {
            return Ok(None);
        };
        if known.parameters != asked.parameters {
            return Err(KeyTaken(id.clone()));
        }
        let state = known.operation.borrow().state();
        let over = matches!(state, OperationState::Failed | OperationState::Cancelled);
        Ok((!over).then(|| known.operation.subscribe()))
    }

    fn begin<F, Fut>(&mut self, asked: &Asked<'_>, work: F) -> watch::Receiver<Operation>
    where
        F: FnOnce(Run) -> Fut,
        Fut: Future<Output = Result<operation::Result, Failure>> + Send + 'static,
    {
        let id = format!("{:016x}", rand::random::<u64>());
        let Asked {
            type_, request_id, ..
        } = *asked;
        let operation = Arc::new(watch::Sender::new(Operation {
            id: id.clone(),
            r#type: type_.to_owned(),
            state: OperationState::Running.into(),
            create_time: Some(now()),
            start_time: Some(now()),
            request_id: request_id.to_owned(),
            ..Operation::default()
        }));
        let cancel = CancellationToken::new();
        info!(id, type_, request_id, "operation started");
        let span = info_span!("operation", id, type_);
        let work = work(Run {
            operation: Arc::clone(&operation),
        });
        tokio::spawn(follow(work, Arc::clone(&operation), cancel.clone()).instrument(span));
        let receiver = operation.subscribe();
        let entry = Entry {
            operation,
            cancel,
            parameters: asked.parameters.clone(),
            deadline: None,
            kept: false,
        };
        self.remember(id, (type_, request_id), entry);
        receiver
    }

    fn remember(&mut self, id: String, (type_, request_id): (&'static str, &str), entry: Entry) {
        let oldest_kept = SystemTime::now()
            .checked_sub(KEPT)
            .unwrap_or(SystemTime::UNIX_EPOCH);
        let forgotten = |entries: &Self| {
            let entry = entries.order.front().and_then(|id| entries.by_id.get(id))?;
            let ended = entry.operation.borrow().end_time?;
            let old = SystemTime::try_from(ended).is_ok_and(|ended| ended < oldest_kept);
            (old || entries.order.len() >= REMEMBERED).then(|| entries.order.front().cloned())?
        };
        while let Some(old) = forgotten(self) {
            self.order.pop_front();
            self.by_id.remove(&old);
            self.by_request.retain(|_, id| *id != old);
        }
        if !request_id.is_empty() {
            self.by_request.insert((type_, request_id.to_owned()), id.clone());
        }
        self.order.push_back(id.clone());
        self.by_id.insert(id, entry);
    }
}

async fn follow(
    work: impl Future<Output = Result<operation::Result, Failure>>,
    operation: Arc<watch::Sender<Operation>>,
    cancel: CancellationToken,
) {
    let work = AssertUnwindSafe(work).catch_unwind();
    let outcome = tokio::select! {
        outcome = work => Some(outcome.unwrap_or_else(|_| Err(Failure::panicked()))),
        () = cancel.cancelled() => None,
    };
    operation.send_modify(|operation| {
        operation.end_time = Some(now());
        match outcome {
            Some(Ok(result)) => {
                operation.state = OperationState::Succeeded.into();
                operation.result = Some(result);
            }
            Some(Err(failure)) => {
                warn!(
                    reason = failure.reason,
                    message = failure.message,
                    "operation failed"
                );
                operation.state = OperationState::Failed.into();
                operation.error = Some(OperationError {
                    reason: failure.reason,
                    message: failure.message,
                    retryable: failure.retryable,
                });
            }
            None => operation.state = OperationState::Cancelled.into(),
        }
    });
}

/// Waits until an operation is done, for as long as `limit` at most.
pub async fn wait(mut operation: watch::Receiver<Operation>, limit: Option<Duration>) -> Operation {
    let done = async {
        // The sender stays as long as the operation is remembered.
        let _ = operation.wait_for(is_done).await;
    };
    match limit {
        Some(limit) => drop(timeout(limit, done).await),
        None => done.await,
    }
    operation.borrow().clone()
}

/// The operation at once and at each change, until it is done.
pub fn states(operation: watch::Receiver<Operation>) -> impl Stream<Item = Operation> + Send {
    enum Next {
        Now,
        Change,
        End,
    }
    stream::unfold((operation, Next::Now), |(mut operation, next)| async move {
        match next {
            Next::Now => {}
            Next::Change => operation.changed().await.ok()?,
            Next::End => return None,
        }
        let state = operation.borrow_and_update().clone();
        let next = if is_done(&state) { Next::End } else { Next::Change };
        Some((state, (operation, next)))
    })
}

/// Whether an operation has ended.
pub fn is_done(operation: &Operation) -> bool {
    matches!(
        operation.state(),
        OperationState::Succeeded | OperationState::Failed | OperationState::Cancelled
    )
}

fn now() -> prost_types::Timestamp {
    SystemTime::now().into()
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use steward_proto::v1::CompactResult;

    use super::*;

    fn done() -> operation::Result {
        operation::Result::Compact(CompactResult { revision: 7 })
    }

    fn asked(type_: &'static str, parameters: &str) -> Asked<'static> {
        Asked {
            type_,
            parameters: parameters.to_owned(),
            request_id: "key",
        }
    }

    #[tokio::test]
    async fn an_operation_outlives_its_caller_and_is_found_by_id_and_key() {
        let operations = Operations::default();
        let (go, gate) = tokio::sync::oneshot::channel::<()>();
        let first = operations.start(&asked("Compact", ""), |_| async {
            let _ = gate.await;
            Ok(done())
        });
        let first = first.unwrap();
        let id = first.borrow().id.clone();
        drop(first);
        let again = operations.start(&asked("Compact", ""), |_| async { panic!("the key is taken") });
        let again = again.unwrap();
        assert_eq!(again.borrow().id, id);
        assert_eq!(
            wait(again, Some(Duration::from_millis(10))).await.state(),
            OperationState::Running
        );
        go.send(()).unwrap();
        let ended = wait(operations.get(&id).unwrap(), None).await;
        assert_eq!(ended.state(), OperationState::Succeeded);
        assert_eq!(ended.result, Some(done()));
    }

    /// Who asks for an operation that is done already must not wait for a change that never comes.
    #[tokio::test]
    async fn the_states_of_an_operation_end_with_it() {
        let operations = Operations::default();
        let (go, gate) = tokio::sync::oneshot::channel::<()>();
        let operation = operations.start_own("Compact", |run| async move {
            run.progress("compacting", 1, 2, "members");
            let _ = gate.await;
            Ok(done())
        });
        let watched = states(operation.clone());
        go.send(()).unwrap();
        wait(operation.clone(), None).await;
        for states in [watched.boxed(), states(operation).boxed()] {
            let states: Vec<_> = states.map(|operation| operation.state()).collect().await;
            assert_eq!(states.last(), Some(&OperationState::Succeeded));
        }
    }

    #[tokio::test]
    async fn cancelling_stops_the_work_and_is_idempotent() {
        let operations = Operations::default();
        let running = operations.start_own("Compact", |_| std::future::pending());
        let id = running.borrow().id.clone();
        assert!(operations.cancel(&id).is_some() && operations.cancel(&id).is_some());
        assert_eq!(wait(running, None).await.state(), OperationState::Cancelled);
        assert!(operations.cancel("nothing").is_none());
    }

    /// Two calls of different kinds may come with the same key by chance.
    #[tokio::test]
    async fn a_key_is_one_of_its_type() {
        let operations = Operations::default();
        let start = |asked: &Asked<'_>| operations.start(asked, |_| async { Ok(done()) });
        let first = start(&asked("Compact", "7")).unwrap();
        let other = start(&asked("Defragment", "7")).unwrap();
        assert_ne!(first.borrow().id, other.borrow().id);
        let id = first.borrow().id.clone();
        assert_eq!(start(&asked("Compact", "8")).unwrap_err(), KeyTaken(id));
    }

    /// Who repeats a call that failed must not get the old failure for an hour.
    #[tokio::test]
    async fn a_key_whose_operation_failed_may_be_used_again() {
        let operations = Operations::default();
        let failure = || Failure {
            reason: "Unreachable".to_owned(),
            message: "no answer".to_owned(),
            retryable: true,
        };
        let failed = operations.start(&asked("Compact", ""), |_| async move { Err(failure()) });
        assert_eq!(wait(failed.unwrap(), None).await.state(), OperationState::Failed);
        for _ in 0..2 {
            let again = operations.start(&asked("Compact", ""), |_| async { Ok(done()) });
            assert_eq!(
                wait(again.unwrap(), None).await.state(),
                OperationState::Succeeded
            );
        }
        assert_eq!(operations.list().len(), 2);
    }

    /// What a caller with a deadline asked for must not go on in secret once it has given up.
    #[tokio::test(start_paused = true)]
    async fn the_deadline_of_the_caller_cancels() {
        let operations = Operations::default();
        let (late, early) = (
            operations.start_own("Compact", |_| std::future::pending()),
            operations.start_own("Compact", |_| async { Ok(done()) }),
        );
        let deadline = Instant::now() + Duration::from_secs(5);
        for operation in [&late, &early] {
            let id = operation.borrow().id.clone();
            operations.cancel_at(id, deadline);
        }
        assert_eq!(wait(late, None).await.state(), OperationState::Cancelled);
        assert!(Instant::now() >= deadline);
        assert_eq!(wait(early, None).await.state(), OperationState::Succeeded);
    }

    /// The first caller is gone; the second one, with the same key, has another deadline, or none.
    #[tokio::test(start_paused = true)]
    async fn the_last_deadline_counts() {
        let operations = Operations::default();
        let in_seconds = |seconds| Instant::now() + Duration::from_secs(seconds);
        let (twice, kept) = (
            operations.start_own("Compact", |_| std::future::pending()),
            operations.start_own("Compact", |_| std::future::pending()),
        );
        let id = |operation: &watch::Receiver<Operation>| operation.borrow().id.clone();
        for (operation, seconds) in [(&twice, 5), (&twice, 9), (&kept, 5)] {
            operations.cancel_at(id(operation), in_seconds(seconds));
        }
        operations.keep(&id(&kept));
        let begun = Instant::now();
        assert_eq!(wait(twice, None).await.state(), OperationState::Cancelled);
        assert_eq!(begun.elapsed().as_secs(), 9);
        let kept = wait(kept, Some(Duration::from_hours(1))).await;
        assert_eq!(kept.state(), OperationState::Running);
    }

    /// Who waits for it must not wait for ever.
    #[tokio::test]
    async fn a_panic_is_a_failure() {
        let operations = Operations::default();
        let operation = operations.start_own("Compact", |_| async { panic!("a fault") });
        let ended = wait(operation, None).await;
        assert_eq!(ended.error.map(|error| error.reason), Some("Panicked".to_owned()));
    }

    #[tokio::test]
    async fn the_memory_is_bounded() {
        let operations = Operations::default();
        for _ in 0..REMEMBERED + 50 {
            let operation = operations.start_own("Compact", |_| async { Ok(done()) });
            wait(operation, None).await;
        }
        assert_eq!(operations.list().len(), REMEMBERED);
    }
}
