//! One term of taking snapshots: what the store lacks is found out once, then the watch is followed, deltas and fulls are
//! stored when they are due or ordered, one upload at a time and beside the watch.

use std::{convert::Infallible, future::pending, mem, pin::Pin, time::Duration};

use api::{quantity, v1alpha1::SnapshotInfo};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use snapstore::{Kind, Listing, StoredSnapshot};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use super::{
    BackupError, Order,
    collector::Collector,
    fence::Fence,
    history,
    owner::Owner,
    upload::{FIRST_RETRY, Outcome, Stored, store_delta, store_error, take_full},
};
use crate::{etcd::EtcdError, member::whole_seconds};

/// Without periodic deltas the cluster's revision is looked at this often, to know whether backups are current.
const LOOK_PERIOD: Duration = Duration::from_mins(1);
/// Bytes that are held in memory at the most, compressed: of a delta on its way into the store, and of the one that is
/// collected meanwhile. Half of it makes a delta.
const HELD: u64 = 48 << 20;
/// The longest pause before a full snapshot that failed is tried again.
const LAST_RETRY: Duration = Duration::from_mins(10);
/// Clusters that have slept through their schedules together take their full snapshots spread over so long.
const SPREAD: Duration = Duration::from_secs(30);

type Waiters = Vec<oneshot::Sender<Result<Option<StoredSnapshot>, BackupError>>>;

/// The work under way, and who waits for it.
struct Job {
    kind: Kind,
    /// Whether it would have been done without an order too.
    due: bool,
    begun: Instant,
    /// Bytes of the object that are held in memory until it is stored.
    held: u64,
    work: Pin<Box<dyn Future<Output = Outcome> + Send>>,
    waiters: Waiters,
}

pub(super) struct Snapshotter {
    owner: Owner,
    fence: Fence,
    collector: Collector,
    accumulated: u64,
    /// When the store was last seen to hold everything.
    covered_until: Option<Timestamp>,
    full_due: bool,
    /// What is collected doesn't follow what is stored: there is no delta before there is a full snapshot.
    hole: bool,
    /// When a full snapshot that has failed is tried again, and how long that is put off the next time.
    retry: (Option<Timestamp>, Duration),
}

impl Snapshotter {
    /// Reads the store, and opens the watch where the store ends.
    pub(super) async fn begin(owner: &Owner) -> Result<Self, BackupError> {
        let fence = Fence::begin(&owner.connector).await?;
        let current = fence.check().await?;
        let listing = owner
            .store
            .list()
            .await
            .map_err(|source| store_error(owner, source))?;
        let (full, deltas) = own_set(owner, newest_set(&listing), current).await?;
        let covered = deltas
            .last()
            .or(full.as_ref())
            .map_or(0, |snapshot| snapshot.name.last_revision);
        let full_due = full.as_ref().is_none_or(|full| full.name.is_final);
        let next_full = next_full(owner, full.as_ref());
        info!(
            covered,
            current,
            full_due,
            next_full = next_full.map(tracing::field::display),
            store = owner.store.location(),
            "owning the backups"
        );
        let hole = full.is_none();
        let base = if hole { current } else { covered };
        let collector = Collector::open(&owner.connector, base, owner.settings.compression).await?;
        // What they had before compression isn't known: a lower bound.
        let accumulated = deltas.iter().map(|delta| delta.object.size).sum();
        for newest in full.iter().chain(deltas.last()) {
            owner.metrics.snapshot_stored(&newest.name);
        }
        owner.learn(|known| {
            (known.full, known.deltas, known.covered, known.current) = (full, deltas, covered, current);
            known.next_full = next_full;
        });
        let mut this = Self {
            owner: owner.clone(),
            fence,
            collector,
            accumulated,
            covered_until: None,
            full_due,
            hole,
            retry: (None, FIRST_RETRY),
        };
        this.tell();
        let nothing_to_store = covered == current || owner.settings.delta_period.is_none();
        if nothing_to_store && !full_due {
            // Nothing that could show that it works again.
            owner.works().await;
        }
        Ok(this)
    }

    /// What guards this term.
    pub(super) fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Follows the watch until something fails that a new term must mend.
    pub(super) async fn run(mut self, mut orders: mpsc::Receiver<Order>) -> Result<Infallible, BackupError> {
        let period = self.owner.settings.delta_period.unwrap_or(LOOK_PERIOD);
        let mut job: Option<Job> = None;
        let mut waiting: Vec<Order> = Vec::new();
        let mut delta_due = false;
        let mut tick = Instant::now() + period;
        loop {
            if job.is_none() {
                job = self.next_job(&mut waiting, delta_due).await?;
                if job.as_ref().is_some_and(|job| job.kind == Kind::Delta) || self.collector.len() == 0 {
                    delta_due = false;
                }
            }
            let next_full = self.owner.next_full();
            let held = job.as_ref().map_or(0, |job| job.held);
            tokio::select! {
                answer = self.collector.next(), if self.has_room(held) => match answer {
                    Ok(answer) => self.collector.add(answer).await?,
                    Err(BackupError::Compacted(revision)) => {
                        warn!(revision, "etcd dropped history that no delta holds, taking a full snapshot");
                        self.reopen().await?;
                    }
                    Err(error) => return Err(error),
                },
                outcome = finished(&mut job) => {
                    let Some(done) = job.take() else { continue };
                    self.finish(done, outcome).await?;
                }
                order = orders.recv() => match order {
                    Some(order) => waiting.push(order),
                    None => return Err(BackupError::NotLeader),
                },
                () = sleep_until(tick) => {
                    tick = Instant::now() + period;
                    delta_due = self.owner.settings.delta_period.is_some();
                    self.look().await?;
                }
                // To look for the next job again.
                () = until(self.retry.0), if job.is_none() => self.retry.0 = None,
                () = until(next_full) => {
                    self.full_due = true;
                    let next = self.owner.settings.schedule.next_after(Timestamp::now());
                    self.owner.learn(|known| known.next_full = next);
                }
            }
            delta_due |= !self.has_room(HELD / 2);
        }
    }

    /// Whether more may be collected, with so many bytes on their way into the store.
    fn has_room(&self, held: u64) -> bool {
        self.collector.len() < self.owner.settings.memory_limit && held + self.collector.held() < HELD
    }

    /// The most urgent thing to do, if there is any. Orders of the same kind share one snapshot.
    async fn next_job(
        &mut self,
        waiting: &mut Vec<Order>,
        delta_due: bool,
    ) -> Result<Option<Job>, BackupError> {
        let of = |kind| move |order: &Order| order.kind == kind;
        let due = (self.full_due || self.hole) && self.retry.0.is_none();
        if due || waiting.iter().any(of(Kind::Full)) {
            let due = mem::take(&mut self.full_due);
            let (ordered, rest): (Vec<_>, Vec<_>) = waiting.drain(..).partition(of(Kind::Full));
            *waiting = rest;
            let is_final = ordered.iter().any(|order| order.is_final);
            let waiters = ordered.into_iter().map(|order| order.done).collect();
            let work = Box::pin(take_full(self.owner.clone(), self.fence.clone(), is_final));
            return Ok(Some(Job {
                kind: Kind::Full,
                due,
                begun: Instant::now(),
                held: 0,
                work,
                waiters,
            }));
        }
        if self.hole {
            return Ok(None);
        }
        let ordered = waiting.iter().any(of(Kind::Delta));
        if !ordered && !delta_due {
            return Ok(None);
        }
        let waiters: Waiters = if !ordered || self.caught_up().await? {
            waiting.drain(..).map(|order| order.done).collect()
        } else {
            Waiters::new()
        };
        if let Some(delta) = self.collector.cut()? {
            let held = delta.bytes.len();
            let work = Box::pin(store_delta(self.owner.clone(), self.fence.clone(), delta));
            Ok(Some(Job {
                kind: Kind::Delta,
                due: false,
                begun: Instant::now(),
                held,
                work,
                waiters,
            }))
        } else {
            for waiter in waiters {
                let _ = waiter.send(Ok(None));
            }
            Ok(None)
        }
    }

    /// An ordered delta holds everything that was acknowledged before the order. False if that is more than one delta may
    /// hold: the order is for a later one.
    async fn caught_up(&mut self) -> Result<bool, BackupError> {
        let wanted = self.fence.check().await?;
        while self.collector.last() < wanted {
            if !self.has_room(HELD / 2) {
                return Ok(false);
            }
            let answer = timeout(LOOK_PERIOD, self.collector.next())
                .await
                .map_err(|_| BackupError::Timeout(LOOK_PERIOD))??;
            self.collector.add(answer).await?;
        }
        Ok(true)
    }

    async fn finish(&mut self, job: Job, outcome: Outcome) -> Result<(), BackupError> {
        let took = job.begun.elapsed();
        self.owner.metrics.snapshot_ended(job.kind, outcome.is_ok(), took);
        let stored = match outcome {
            Ok(stored) => stored,
            Err(error) => return self.failed(job, error).await,
        };
        if let Some(stored) = &stored {
            self.account(job.kind, stored, took).await;
        }
        for waiter in job.waiters {
            let _ = waiter.send(Ok(stored.as_ref().map(|stored| stored.snapshot.clone())));
        }
        if let (Some(stored), Kind::Full) = (&stored, job.kind) {
            self.follow(stored).await?;
        }
        self.look().await
    }

    /// Goes on behind a full snapshot. Events beyond it that were collected together with covered ones stay in one delta:
    /// readers skip what they have. Its start must follow the snapshot before it, so it is collected anew instead.
    async fn follow(&mut self, full: &Stored) -> Result<(), BackupError> {
        let revision = full.snapshot.name.last_revision;
        if !self.collector.covered(revision) {
            self.collector =
                Collector::open(&self.owner.connector, revision, self.owner.settings.compression).await?;
        }
        Ok(())
    }

    /// A full that failed is still due; a delta that failed is lost to this term, whose successor watches from where the
    /// store ends.
    async fn failed(&mut self, job: Job, error: BackupError) -> Result<(), BackupError> {
        self.full_due |= job.due;
        self.owner.failed(&error).await;
        let goes_on = job.kind == Kind::Full && !matches!(error, BackupError::NotLeader);
        let mut error = Some(error);
        for waiter in job.waiters {
            let cause = error
                .take()
                .unwrap_or(BackupError::Abandoned("the one that it shared failed"));
            let _ = waiter.send(Err(cause));
        }
        if !goes_on {
            return Err(error.unwrap_or(BackupError::NotLeader));
        }
        let (again, pause) = &mut self.retry;
        *again = Timestamp::now().checked_add(*pause).ok();
        *pause = (*pause * 2).min(LAST_RETRY);
        Ok(())
    }

    async fn account(&mut self, kind: Kind, stored: &Stored, took: Duration) {
        let Stored { snapshot, size } = stored;
        let revision = snapshot.name.last_revision;
        info!(name = %snapshot.name, revision, bytes = snapshot.object.size, ?took, "stored a snapshot");
        self.owner.metrics.snapshot_stored(&snapshot.name);
        match kind {
            Kind::Full => {
                (self.accumulated, self.hole, self.retry) = (0, false, (None, FIRST_RETRY));
                self.owner.learn(|known| {
                    known.full = Some(snapshot.clone());
                    known.deltas.retain(|delta| delta.name.last_revision > revision);
                    known.covered = known.covered.max(revision);
                });
            }
            Kind::Delta => {
                self.accumulated += size;
                self.owner.learn(|known| {
                    known.deltas.push(snapshot.clone());
                    known.covered = known.covered.max(revision);
                });
            }
        }
        let info = Some(info_of(snapshot, *size));
        self.owner.status.update(|status| match kind {
            Kind::Full => status.snapshots.last_full = info,
            Kind::Delta => status.snapshots.last_delta = info,
        });
        self.tell();
        self.owner.works().await;
    }

    /// Compares the cluster's revision with what is stored.
    async fn look(&mut self) -> Result<(), BackupError> {
        let current = match self.fence.check().await {
            Ok(current) => current,
            // A slow disk, or no quorum for a moment: it may still be led from here. If etcd is gone, the watch breaks.
            Err(BackupError::Etcd(error @ EtcdError::Timeout { .. })) => {
                debug!(%error, "the cluster's revision can't be read at the moment");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.owner
            .metrics
            .set_watch_behind(current - self.collector.last());
        self.owner
            .learn(|known| known.current = known.current.max(current));
        self.tell();
        Ok(())
    }

    fn tell(&mut self) {
        let known = self.owner.known();
        let uncovered = known.current.saturating_sub(known.covered).max(0);
        let newest = known.deltas.last().or(known.full.as_ref());
        let seen = match newest {
            Some(_) if uncovered == 0 => Some(Timestamp::now()),
            Some(snapshot) => Some(snapshot.name.created_on),
            None => None,
        };
        // Once everything was covered up to then, it stays so, whatever comes later.
        self.covered_until = self.covered_until.max(seen);
        self.owner.metrics.uncovered(uncovered, self.covered_until);
        self.owner.metrics.deltas(&known.deltas);
        let covered = self.covered_until.map(|time| Time(whole_seconds(time)));
        let accumulated = quantity::from_bytes(self.accumulated);
        self.owner.status.update(|status| {
            let snapshots = &mut status.snapshots;
            snapshots.uncovered_revisions = Some(uncovered);
            snapshots.covered_until = covered;
            snapshots.accumulated_delta_size = Some(accumulated);
            refresh(&mut snapshots.last_full, known.full.as_ref());
            refresh(&mut snapshots.last_delta, known.deltas.last());
        });
    }

    /// Starts the watch anew at the present, with a full snapshot to close the hole.
    async fn reopen(&mut self) -> Result<(), BackupError> {
        let current = self.fence.check().await?;
        self.collector =
            Collector::open(&self.owner.connector, current, self.owner.settings.compression).await?;
        self.hole = true;
        Ok(())
    }
}

async fn finished(job: &mut Option<Job>) -> Outcome {
    match job {
        Some(job) => job.work.as_mut().await,
        None => pending().await,
    }
}

async fn until(time: Option<Timestamp>) {
    match time {
        Some(time) => sleep(operator::cache::until(time)).await,
        None => pending().await,
    }
}

type NewestSet = (Option<StoredSnapshot>, Vec<StoredSnapshot>);

/// What of the store's newest set is of this cluster's history: all or nothing.
async fn own_set(owner: &Owner, set: NewestSet, current: i64) -> Result<NewestSet, BackupError> {
    let Some(newest) = set.1.last().or(set.0.as_ref()) else {
        return Ok(set);
    };
    let stored = newest.name.last_revision;
    if stored > current {
        return Err(BackupError::StoreAhead {
            stored,
            cluster: current,
        });
    }
    let Some(why) = history::differs(owner, newest).await? else {
        return Ok(set);
    };
    owner.foreign(&why).await;
    Ok((None, Vec::new()))
}

/// The newest full snapshot and the deltas beyond it.
pub(super) fn newest_set(listing: &Listing) -> NewestSet {
    let usable = || listing.snapshots.iter().filter(|snapshot| !snapshot.excluded);
    let full = usable()
        .rfind(|snapshot| snapshot.name.kind == Kind::Full)
        .cloned();
    let after = full.as_ref().map_or(0, |full| full.name.last_revision);
    let deltas = usable()
        .filter(|snapshot| snapshot.name.kind == Kind::Delta && snapshot.name.last_revision > after)
        .cloned()
        .collect();
    (full, deltas)
}

/// When the next full snapshot is due: by the schedule, or soon if one was missed.
fn next_full(owner: &Owner, newest: Option<&StoredSnapshot>) -> Option<Timestamp> {
    let (schedule, now) = (&owner.settings.schedule, Timestamp::now());
    let missed = schedule
        .last_until(now)
        .is_some_and(|due| newest.is_some_and(|full| due > full.name.created_on));
    let soon = now.checked_add(SPREAD.mul_f64(rand::random())).ok();
    soon.filter(|_| missed)
        .into_iter()
        .chain(schedule.next_after(now))
        .min()
}

/// Tells the snapshot that is known now. What was told of the same one before stays: it has its size too.
fn refresh(told: &mut Option<SnapshotInfo>, known: Option<&StoredSnapshot>) {
    let name = known.map(|known| known.name.to_string());
    if told.as_ref().map(|told| &told.name) != name.as_ref() {
        *told = known.map(stored_info);
    }
}

fn info_of(snapshot: &StoredSnapshot, size: u64) -> SnapshotInfo {
    SnapshotInfo {
        size: Some(quantity::from_bytes(size)),
        ..stored_info(snapshot)
    }
}

fn stored_info(snapshot: &StoredSnapshot) -> SnapshotInfo {
    SnapshotInfo {
        timestamp: Some(Time(snapshot.name.created_on)),
        name: snapshot.name.to_string(),
        size: None,
        start_revision: snapshot.name.start_revision,
        end_revision: snapshot.name.last_revision,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(name: &str) -> StoredSnapshot {
        StoredSnapshot {
            name: name.parse().unwrap(),
            layout: snapstore::Layout::V2,
            object: snapstore::Object {
                key: name.to_owned(),
                size: 100,
                etag: None,
                last_modified: None,
                version: None,
                immutable_until: None,
            },
            excluded: false,
            manifest: None,
        }
    }

    /// A member that leads again may have told of snapshots that are old by now.
    #[test]
    fn what_is_told_follows_what_is_known() {
        let (old, new) = (
            stored("Full-00000000-00000005-1700000000.gz"),
            stored("Full-00000000-00000009-1700003600.gz"),
        );
        let mut told = Some(info_of(&old, 4096));
        refresh(&mut told, Some(&old));
        assert!(
            told.as_ref().unwrap().size.is_some(),
            "the size of the same one stays"
        );
        refresh(&mut told, Some(&new));
        assert_eq!(told.as_ref().unwrap().end_revision, 9);
        refresh(&mut told, None);
        assert_eq!(told, None);
    }
}
