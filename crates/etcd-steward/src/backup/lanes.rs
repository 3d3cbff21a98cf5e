//! The two lanes of a term: a full snapshot is fetched and stored in the one, deltas are stored one after the other in the
//! other, and neither waits for the other.

use std::{future::pending, time::Duration};

use snapstore::{Kind, StoredSnapshot};
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep_until},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use super::{
    BackupError, Marks, Order,
    upload::{FIRST_RETRY, Outcome},
};

/// The longest pause before a full snapshot that failed is tried again.
const LAST_RETRY: Duration = Duration::from_mins(10);

type Waiter = oneshot::Sender<Result<Option<StoredSnapshot>, BackupError>>;

/// A snapshot on its way into the store, in a task of its own: nothing else waits while a store doesn't answer. Dropping it
/// breaks it off.
struct Job {
    begun: Instant,
    work: AbortOnDropHandle<Outcome>,
}

impl Job {
    fn start(work: impl Future<Output = Outcome> + Send + 'static) -> Self {
        Self {
            begun: Instant::now(),
            work: AbortOnDropHandle::new(tokio::spawn(work.in_current_span())),
        }
    }
}

/// Waits for the end of a job. May be dropped at any time.
async fn ended(job: &mut Option<Job>) -> (Outcome, Duration) {
    let Some(running) = job else {
        return pending().await;
    };
    let outcome = (&mut running.work).await;
    let took = running.begun.elapsed();
    *job = None;
    let outcome = outcome.unwrap_or_else(|error| Err(std::io::Error::other(error).into()));
    (outcome, took)
}

/// The first one hears of the failure itself. Returned if nobody waits.
fn refuse(waiters: impl IntoIterator<Item = Waiter>, error: BackupError) -> Option<BackupError> {
    let mut error = Some(error);
    for waiter in waiters {
        let cause = error.take();
        let cause = cause.unwrap_or(BackupError::Abandoned("the one that it shared failed"));
        let _ = waiter.send(Err(cause));
    }
    error
}

/// Full snapshots: one at a time, when one is due or ordered.
pub(super) struct FullLane {
    job: Option<Job>,
    /// Whether the one under way would have been taken without an order too.
    job_due: bool,
    /// Who waits for it.
    waiters: Vec<Waiter>,
    due: bool,
    /// Orders for the next one: it must hold what was acknowledged before them.
    orders: Vec<Order>,
    /// When one that failed is tried again, and how long that is put off the next time.
    retry: Option<Instant>,
    pause: Duration,
}

impl FullLane {
    pub(super) fn new(due: bool) -> Self {
        Self {
            job: None,
            job_due: false,
            waiters: Vec::new(),
            due,
            orders: Vec::new(),
            retry: None,
            pause: FIRST_RETRY,
        }
    }

    /// One is due by the schedule.
    pub(super) fn set_due(&mut self) {
        self.due = true;
    }

    pub(super) fn is_busy(&self) -> bool {
        self.job.is_some()
    }

    pub(super) fn order(&mut self, order: Order) {
        self.orders.push(order);
    }

    /// Whether to begin one now, and what it is marked with. `needed`: no delta can be stored before there is one.
    pub(super) fn begin(&mut self, needed: bool) -> Option<Marks> {
        let due = (self.due || needed) && self.retry.is_none();
        if self.job.is_some() || (!due && self.orders.is_empty()) {
            return None;
        }
        self.job_due = std::mem::take(&mut self.due);
        let marks = Marks {
            is_final: self.orders.iter().any(|order| order.marks.is_final),
            accepts_fewer_keys: self.orders.iter().any(|order| order.marks.accepts_fewer_keys),
        };
        self.waiters = self.orders.drain(..).map(|order| order.done).collect();
        Some(marks)
    }

    pub(super) fn run(&mut self, work: impl Future<Output = Outcome> + Send + 'static) {
        self.job = Some(Job::start(work));
    }

    /// Waits until the one under way has ended, or (`None`) one that failed may be tried again. May be dropped at any time.
    pub(super) async fn ended(&mut self) -> Option<(Outcome, Duration)> {
        if self.job.is_some() {
            return Some(ended(&mut self.job).await);
        }
        match self.retry {
            Some(at) => sleep_until(at).await,
            None => pending().await,
        }
        self.retry = None;
        None
    }

    /// It is stored.
    pub(super) fn stored(&mut self, snapshot: &StoredSnapshot) {
        (self.retry, self.pause) = (None, FIRST_RETRY);
        for waiter in self.waiters.drain(..) {
            let _ = waiter.send(Ok(Some(snapshot.clone())));
        }
    }

    /// It failed, and is still due if it was.
    pub(super) fn failed(&mut self, error: BackupError) {
        self.due |= self.job_due;
        drop(refuse(self.waiters.drain(..), error));
        self.retry = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LAST_RETRY);
    }
}

/// Deltas: stored in the order of their revisions, one at a time.
pub(super) struct DeltaLane {
    job: Option<Job>,
    /// Up to here the store holds every revision without a gap.
    end: i64,
    due: bool,
    /// Who waits until a revision is stored.
    waiters: Vec<(i64, Waiter)>,
    /// Counts the deltas, and is zero while none is under way.
    under_way: watch::Sender<u64>,
    count: u64,
}

impl DeltaLane {
    pub(super) fn new(end: i64) -> Self {
        Self {
            job: None,
            end,
            due: false,
            waiters: Vec::new(),
            under_way: watch::Sender::new(0),
            count: 0,
        }
    }

    /// Which delta is under way; zero while none is.
    pub(super) fn under_way(&self) -> watch::Receiver<u64> {
        self.under_way.subscribe()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.job.is_some()
    }

    pub(super) fn set_due(&mut self, due: bool) {
        self.due = due;
    }

    /// Whether what was collected between two revisions is to be stored now.
    pub(super) fn wants(&self, after: i64, last: i64) -> bool {
        let is_asked = |(wanted, _): &(i64, Waiter)| (after + 1..=last).contains(wanted);
        self.due || self.waiters.iter().any(is_asked)
    }

    /// Somebody waits until everything up to a revision is stored.
    pub(super) fn order(&mut self, wanted: i64, done: Waiter) {
        self.waiters.push((wanted, done));
        self.answer(None);
    }

    pub(super) fn begin(&mut self, work: impl Future<Output = Outcome> + Send + 'static) {
        self.count += 1;
        self.under_way.send_replace(self.count);
        self.job = Some(Job::start(work));
    }

    /// Waits until the one under way has ended. May be dropped at any time.
    pub(super) async fn ended(&mut self) -> (Outcome, Duration) {
        let ended = ended(&mut self.job).await;
        self.under_way.send_replace(0);
        ended
    }

    /// Everything up to a revision is stored, by this snapshot if it is a delta.
    pub(super) fn stored(&mut self, revision: i64, snapshot: Option<&StoredSnapshot>) {
        self.end = self.end.max(revision);
        self.answer(snapshot);
    }

    /// What failed is lost to this term, whose successor watches from where the store ends. Returns the error if nobody waits.
    pub(super) fn failed(&mut self, error: BackupError) -> Option<BackupError> {
        refuse(self.waiters.drain(..).map(|(_, waiter)| waiter), error)
    }

    fn answer(&mut self, snapshot: Option<&StoredSnapshot>) {
        let end = self.end;
        let snapshot = snapshot.filter(|snapshot| snapshot.name.kind == Kind::Delta);
        for (_, waiter) in self.waiters.extract_if(.., |(wanted, _)| *wanted <= end) {
            let _ = waiter.send(Ok(snapshot.cloned()));
        }
    }
}
