//! Reads back what was stored: every object of the newest chain once, from its first byte to its hash. Retention relies
//! on what is proven here, and a chain that turns out to be damaged is followed by a new full snapshot.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::{
    conditions::member as condition,
    v1alpha1::{ConditionStatus, find_condition},
};
use operator::reconcile::chain as causes;
use snapstore::{Kind, Listing, SnapshotName, StoredSnapshot};
use tokio::{
    runtime::Handle,
    sync::{Notify, OwnedMutexGuard, oneshot},
    task::JoinError,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{Marks, Order, owner::Owner, prefix_watch, snapshotter::newest_set};
use crate::chain::{self, Catalog, FindError, Verdict, Wanted};

/// A term that has just begun has more urgent things to do.
const FIRST: Duration = Duration::from_secs(5);
/// How often deltas are read back while no new full snapshot begins a chain.
const PERIOD: Duration = Duration::from_hours(1);
/// Pause after the store couldn't be read, or a chain was damaged. The latter doubles.
const RETRY: Duration = Duration::from_mins(1);
/// What was found out before stands for so long while the store can't be read.
const STANDS: Duration = Duration::from_hours(1);

/// Snapshots that were read back and found whole. What one term has proven the next one needn't prove again.
#[derive(Debug, Clone, Default)]
pub(super) struct Proven {
    names: Arc<Mutex<BTreeSet<SnapshotName>>>,
    reading: Arc<tokio::sync::Mutex<()>>,
    doubt: Arc<Notify>,
}

impl Proven {
    /// What is proven at the moment.
    pub(super) fn names(&self) -> BTreeSet<SnapshotName> {
        self.lock().clone()
    }

    /// Whether it was read back.
    fn has(&self, name: &SnapshotName) -> bool {
        self.lock().contains(name)
    }

    /// Something in the store isn't what was sent: the newest chain is to be looked at soon.
    pub(super) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Waits for a doubt.
    async fn doubted(&self) {
        self.doubt.notified().await;
    }

    /// Reading is done one after the other.
    async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.reading).lock_owned().await
    }

    /// One more was read back.
    pub(super) fn add(&self, name: SnapshotName) {
        self.lock().insert(name);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<SnapshotName>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what the store doesn't list any more.
    fn forget_others(&self, listing: &Listing) {
        let listed: BTreeSet<_> = listing.snapshots.iter().map(|stored| &stored.name).collect();
        self.lock().retain(|name| listed.contains(name));
    }
}

/// What a pass over the newest chain found.
enum Found {
    /// There is no chain yet.
    Nothing,
    /// It is whole up to this revision.
    Whole(i64),
    /// It is damaged; the text says where and how.
    Damaged(String),
    /// It can't be told; the text says why.
    Unknown(String),
}

/// Verifies again and again, for as long as the term lasts.
pub(super) async fn run(owner: &Owner) -> Infallible {
    sleep(FIRST).await;
    let mut known = owner.follow();
    owner.metrics.set_chain_whole(false);
    let (mut unread_since, mut damaged) = (None, None);
    loop {
        let chain = known.borrow().full.as_ref().map(|full| full.name.clone());
        let found = newest_chain(owner).await;
        let (is_unknown, is_damaged) = (
            matches!(found, Found::Unknown(_)),
            matches!(found, Found::Damaged(_)),
        );
        let unread_for = if is_unknown {
            unread_since.get_or_insert_with(Instant::now).elapsed()
        } else {
            unread_since = None;
            Duration::ZERO
        };
        tell(owner, found, unread_for).await;
        damaged = match damaged {
            _ if !is_damaged => None,
            None => Some(RETRY),
            Some(pause) => {
                // What was stored instead is of no use either: another one isn't taken at once.
                sleep(pause).await;
                Some((pause * 2).min(PERIOD))
            }
        };
        let pause = if is_unknown { RETRY } else { PERIOD };
        let next = known.wait_for(|known| known.full.as_ref().map(|full| &full.name) != chain.as_ref());
        // The owner lives as long as its terms.
        tokio::select! {
            _ = timeout(pause, next) => {}
            () = owner.proven.doubted() => {}
        }
    }
}

async fn newest_chain(owner: &Owner) -> Found {
    let listing = match owner.store.list().await {
        Ok(listing) => listing,
        Err(error) => return Found::Unknown(causes(&error)),
    };
    owner.proven.forget_others(&listing);
    let listing = match prefix_watch::own_listing(owner, listing).await {
        Ok(listing) => listing,
        Err(error) => return Found::Unknown(causes(&error)),
    };
    if newest_set(&listing).0.is_none() {
        return Found::Nothing;
    }
    // Manifests are looked at each time: keys may be gone since.
    let mut catalog = Catalog::new(listing);
    let route = match catalog.find(&owner.store, &Wanted::Latest, false).await {
        Ok(route) => route,
        Err(FindError::Route(error)) => return Found::Damaged(causes(&error)),
        Err(FindError::Store(error)) => return Found::Unknown(causes(&error)),
    };
    for stored in catalog.snapshots(&route.plan) {
        if !owner.proven.has(&stored.name) {
            match read_back(owner, stored).await {
                Verdict::Sound {
                    revision,
                    warning: None,
                } => debug!(name = %stored.name, revision, "read back"),
                Verdict::Sound {
                    revision,
                    warning: Some(warning),
                } => {
                    warn!(name = %stored.name, revision, warning, "read back");
                }
                Verdict::Damaged { reason } => return Found::Damaged(format!("{}: {reason}", stored.name)),
                Verdict::Unknown { reason } => return Found::Unknown(format!("{}: {reason}", stored.name)),
            }
        }
    }
    match route.left_out.first() {
        None => Found::Whole(route.plan.end),
        // A restore goes around it, and loses nothing; but it isn't what it was.
        Some(fault) => Found::Damaged(fault.to_string()),
    }
}

/// Reads one object back. A check that a term has begun is carried to its end, and what it finds is kept, however often the
/// leadership moves meanwhile; the next one waits for it.
async fn read_back(owner: &Owner, stored: &StoredSnapshot) -> Verdict {
    let turn = owner.proven.turn().await;
    if owner.proven.has(&stored.name) {
        let revision = stored.name.last_revision;
        return Verdict::Sound {
            revision,
            warning: None,
        };
    }
    let (store, proven) = (Arc::clone(&owner.store), owner.proven.clone());
    let (stored, metrics) = (stored.clone(), owner.metrics.clone());
    let checked = tokio::spawn(async move {
        let _turn = turn;
        let begun = Instant::now();
        let checked = chain::read_back(&store, &stored, &Handle::current()).await;
        let verdict = checked.unwrap_or_else(|error| broke_off(&error));
        if let Some(sound) = verdict.is_sound() {
            metrics.verified(stored.name.kind, sound, begun.elapsed());
            if sound {
                proven.add(stored.name);
            }
        }
        verdict
    });
    checked.await.unwrap_or_else(|error| broke_off(&error))
}

fn broke_off(error: &JoinError) -> Verdict {
    Verdict::Unknown {
        reason: format!("the check broke off: {error}"),
    }
}

async fn tell(owner: &Owner, found: Found, unread_for: Duration) {
    let (status, reason, message) = match found {
        Found::Nothing => return,
        Found::Whole(revision) => (
            ConditionStatus::True,
            condition::VERIFIED,
            format!("the newest chain was read back, and is whole up to revision {revision}"),
        ),
        Found::Unknown(why) => {
            warn!(why, "the newest backups can't be read back");
            owner.metrics.set_chain_whole(false);
            if unread_for < STANDS {
                return;
            }
            (ConditionStatus::Unknown, condition::CHAIN_UNREADABLE, why)
        }
        Found::Damaged(what) => {
            warn!(what, "the newest backups are damaged");
            (ConditionStatus::False, condition::CHAIN_DAMAGED, what)
        }
    };
    let is_damaged = reason == condition::CHAIN_DAMAGED;
    let was_well = owner.status.read(|member| {
        find_condition(&member.conditions, condition::BACKUP_VERIFIED)
            .is_none_or(|known| known.status == ConditionStatus::True)
    });
    let is_well = status == ConditionStatus::True;
    owner.metrics.set_chain_whole(is_well);
    owner
        .status
        .condition(condition::BACKUP_VERIFIED, status, reason, &message);
    if let Some(kubernetes) = &owner.kubernetes {
        match (is_well, was_well) {
            (false, true) => kubernetes.warn("Verify", reason, &message).await,
            (true, false) => kubernetes.tell("Verify", reason, &message).await,
            _ => {}
        }
    }
    // It is reported before: while nothing can be stored this doesn't end.
    if is_damaged {
        begin_anew(owner).await;
    }
}

/// A chain that can't be restored to its end is left behind as soon as there is a new full snapshot.
pub(super) async fn begin_anew(owner: &Owner) {
    let orders = owner.orders();
    let (done, outcome) = oneshot::channel();
    let order = Order {
        kind: Kind::Full,
        marks: Marks::default(),
        done,
    };
    if let Some(orders) = orders
        && orders.send(order).await.is_ok()
        && let Ok(Ok(Some(stored))) = outcome.await
    {
        info!(name = %stored.name, "a new chain takes the place of the damaged one");
    }
}
