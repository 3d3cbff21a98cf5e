//! One term of taking snapshots: what the store lacks is found out once, then the watch is followed, and deltas and full
//! snapshots are stored when they are due or ordered, each in a lane of its own.

use std::{convert::Infallible, future::pending, time::Duration};

use etcd_client::WatchResponse;
use jiff::Timestamp;
use snapstore::{Kind, Listing, StoredSnapshot};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, info, warn};

use super::{
    BackupError, Order,
    backlog::Backlog,
    collector::Collector,
    fence::Fence,
    lanes::{DeltaLane, FullLane},
    owner::Owner,
    prefix_watch,
    report::Report,
    restored,
    upload::{Outcome, store_delta, store_error, take_full},
};
use crate::etcd::EtcdError;

/// Without periodic deltas the cluster's revision is looked at this often, to know whether backups are current. A watch that
/// brings nothing for so long, although there is something, is opened anew.
const LOOK_PERIOD: Duration = Duration::from_mins(1);
/// Compressed bytes that make a delta before its time.
const LARGEST: u64 = 16 << 20;
/// Clusters that have slept through their schedules together take their full snapshots spread over so long.
const SPREAD: Duration = Duration::from_secs(30);

pub(super) struct Snapshotter {
    owner: Owner,
    fence: Fence,
    collector: Collector,
    backlog: Backlog,
    fulls: FullLane,
    deltas: DeltaLane,
    report: Report,
    /// Revisions are missing between what is stored and this one, after which is collected: no delta from there on is
    /// stored before a full snapshot that closes the gap.
    gap: Option<i64>,
    /// Since when the watch hasn't brought what it lacks.
    behind_since: Option<Instant>,
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
        let newest = newest_set(&listing);
        let restored = owner.status.read(|status| restored::began_at(status, &newest));
        let (full, deltas) = prefix_watch::own_set(owner, listing, current, restored.is_some()).await?;
        let covered = restored.unwrap_or_else(|| restored::end_of(full.as_ref(), &deltas));
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
        let gap = (full.is_none() || restored.is_some()).then_some(current);
        let base = gap.unwrap_or(covered);
        let collector = Collector::open(&owner.connector, base, owner.settings.compression).await?;
        owner.learn(|known| {
            (known.full, known.deltas, known.covered, known.current) = (full, deltas, covered, current);
            known.next_full = next_full;
        });
        let this = Self {
            owner: owner.clone(),
            fence,
            collector,
            backlog: Backlog::new(&owner.settings.temp),
            fulls: FullLane::new(full_due),
            deltas: DeltaLane::new(base),
            report: Report::begin(owner),
            gap,
            behind_since: None,
        };
        let is_stored = covered == current || owner.settings.delta_period.is_none();
        owner.learn(|known| known.failures.retain(full_due, !is_stored));
        if is_stored && !full_due {
            // Nothing that could show that it works again.
            owner.works(Kind::Full).await;
        }
        Ok(this)
    }

    /// What guards this term.
    pub(super) fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Follows the watch until something fails that a new term must mend.
    pub(super) async fn run(
        mut self,
        mut orders: mpsc::Receiver<Order>,
        mut others: mpsc::Receiver<StoredSnapshot>,
    ) -> Result<Infallible, BackupError> {
        let period = self.owner.settings.delta_period.unwrap_or(LOOK_PERIOD);
        let mut tick = Instant::now() + period;
        loop {
            self.begin_full();
            self.begin_delta().await?;
            let next_full = self.owner.next_full();
            tokio::select! {
                answer = self.collector.next(), if self.collects() => self.collect(answer).await?,
                outcome = self.fulls.ended() => if let Some((outcome, took)) = outcome {
                    self.full_ended(outcome, took).await?;
                },
                (outcome, took) = self.deltas.ended() => self.delta_ended(outcome, took).await?,
                order = orders.recv() => self.take(order.ok_or(BackupError::NotLeader)?).await?,
                Some(full) = others.recv() => self.found(&full),
                () = sleep_until(tick) => {
                    tick = Instant::now() + period;
                    self.deltas.set_due(self.owner.settings.delta_period.is_some());
                    self.look().await?;
                }
                () = until(next_full) => {
                    self.fulls.set_due();
                    let next = self.owner.settings.schedule.next_after(Timestamp::now());
                    self.owner.learn(|known| known.next_full = next);
                }
            }
        }
    }

    /// Whether the watch is read. What isn't read stays with etcd.
    fn collects(&self) -> bool {
        self.collector.len() < self.owner.settings.memory_limit && self.collector.held() < LARGEST
    }

    async fn collect(&mut self, answer: Result<WatchResponse, BackupError>) -> Result<(), BackupError> {
        self.behind_since = None;
        match answer {
            Ok(answer) => self.collector.add(answer).await,
            Err(BackupError::Compacted(revision)) => self.reopen(revision).await,
            Err(error) => Err(error),
        }
    }

    /// etcd dropped what the watch should have brought. What was collected before still follows what is stored.
    async fn reopen(&mut self, compacted: i64) -> Result<(), BackupError> {
        if let Some(delta) = self.collector.cut()? {
            self.backlog.push(delta, self.gap).await;
        }
        let full = self.owner.known().full.map_or(0, |full| full.name.last_revision);
        let base = if full > self.collector.last() && full + 1 >= compacted {
            info!(
                compacted,
                full, "etcd dropped history that only the newest full snapshot holds"
            );
            self.gap = None;
            self.deltas.stored(full, None);
            full
        } else {
            warn!(
                compacted,
                "etcd dropped history that no delta holds, taking a full snapshot"
            );
            let current = self.fence.check().await?;
            self.gap = Some(current);
            current
        };
        self.collector =
            Collector::open(&self.owner.connector, base, self.owner.settings.compression).await?;
        Ok(())
    }

    fn begin_full(&mut self) {
        let Some(marks) = self.fulls.begin(self.gap.is_some()) else {
            return;
        };
        let (owner, fence) = (self.owner.clone(), self.fence.clone());
        let work = take_full(owner, fence, marks, self.deltas.under_way());
        self.fulls.run(work);
    }

    /// Closes the delta that is collected if it is time, and stores the next one that waits.
    async fn begin_delta(&mut self) -> Result<(), BackupError> {
        let is_idle = !self.deltas.is_busy() && self.backlog.is_idle();
        let is_wanted = self.deltas.wants(self.collector.base(), self.collector.last());
        let is_large = !self.collects();
        if (is_large && self.backlog.has_room()) || (is_idle && self.gap.is_none() && is_wanted) {
            self.deltas.set_due(false);
            if let Some(delta) = self.collector.cut()? {
                self.backlog.push(delta, self.gap).await;
            }
        }
        if !self.deltas.is_busy()
            && let Some(delta) = self.backlog.next()
        {
            let (owner, fence) = (self.owner.clone(), self.fence.clone());
            self.deltas.begin(store_delta(owner, fence, delta));
        }
        Ok(())
    }

    async fn take(&mut self, order: Order) -> Result<(), BackupError> {
        if order.kind == Kind::Full {
            self.fulls.order(order);
            return Ok(());
        }
        // An ordered delta holds everything that was acknowledged before the order.
        match self.fence.check().await {
            Ok(wanted) => self.deltas.order(wanted, order.done),
            Err(BackupError::NotLeader) => return Err(BackupError::NotLeader),
            Err(error) => drop(order.done.send(Err(error))),
        }
        Ok(())
    }

    async fn full_ended(&mut self, outcome: Outcome, took: Duration) -> Result<(), BackupError> {
        self.owner
            .metrics
            .snapshot_ended(Kind::Full, outcome.is_ok(), took);
        match outcome {
            Ok(stored) => {
                self.report.stored(&stored, took).await;
                self.fulls.stored(&stored.snapshot);
                self.close_gap(stored.snapshot.name.last_revision);
                self.look().await
            }
            Err(BackupError::NotLeader) => Err(BackupError::NotLeader),
            Err(error) => {
                self.owner.snapshot_failed(Kind::Full, &error).await;
                self.fulls.failed(error);
                Ok(())
            }
        }
    }

    /// A full snapshot of this cluster that this owner hasn't stored. The one that is under way is newer; afterwards it is
    /// looked at again.
    fn found(&mut self, full: &StoredSnapshot) {
        let known = self.owner.known().full.map(|known| known.name);
        let is_newer = known.is_some_and(|known| known < full.name);
        if is_newer && !self.fulls.is_busy() && self.gap.is_none() {
            self.report.found(full);
        }
    }

    /// Deltas go on behind a full snapshot. Those that lie before it or across it are stored as well, and the chain before
    /// it goes on: the new one isn't proven yet, and readers skip what they have.
    fn close_gap(&mut self, full: i64) {
        self.backlog.full_stored(full);
        if self.gap.is_some_and(|base| base <= full) {
            self.gap = None;
            self.collector.drop_covered(full);
            self.deltas.stored(full, None);
        }
    }

    async fn delta_ended(&mut self, outcome: Outcome, took: Duration) -> Result<(), BackupError> {
        self.owner
            .metrics
            .snapshot_ended(Kind::Delta, outcome.is_ok(), took);
        match outcome {
            Ok(stored) => {
                self.report.stored(&stored, took).await;
                let revision = stored.snapshot.name.last_revision;
                self.deltas.stored(revision, Some(&stored.snapshot));
                self.look().await
            }
            Err(BackupError::NotLeader) => Err(BackupError::NotLeader),
            Err(error) => {
                self.owner.snapshot_failed(Kind::Delta, &error).await;
                Err(self.deltas.failed(error).unwrap_or(BackupError::NotLeader))
            }
        }
    }

    /// Compares the cluster's revision with what is collected and stored.
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
        let behind = current - self.collector.last();
        self.owner.metrics.set_watch_behind(behind);
        self.report.current(current);
        if behind <= 0 || !self.collects() {
            self.behind_since = None;
            return Ok(());
        }
        let since = self.behind_since.get_or_insert_with(Instant::now);
        if since.elapsed() < LOOK_PERIOD {
            return Ok(());
        }
        Err(BackupError::Timeout(LOOK_PERIOD))
    }
}

async fn until(time: Option<Timestamp>) {
    match time {
        Some(time) => sleep(operator::cache::until(time)).await,
        None => pending().await,
    }
}

pub(super) type NewestSet = (Option<StoredSnapshot>, Vec<StoredSnapshot>);

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
