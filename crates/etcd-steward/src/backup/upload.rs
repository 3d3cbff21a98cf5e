//! Brings what is to be stored into the store, and doesn't give up while this member leads.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use snapstore::{Body, Class, SnapshotName, StoredSnapshot, manifest::Facts};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{debug, instrument};

use super::{BackupError, collector::Delta, fence::Fence, full, owner::Owner, pace};

pub(super) const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_mins(1);

pub(super) type Outcome = Result<Stored, BackupError>;

/// What an upload yielded.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) snapshot: StoredSnapshot,
    /// Bytes before compression.
    pub(super) size: u64,
    /// Up to when it holds everything.
    pub(super) as_of: Timestamp,
}

/// Fetches a full snapshot and stores it. `deltas`: which delta is under way, for them to go first.
#[instrument(name = "full snapshot", skip_all, fields(is_final))]
pub(super) async fn take_full(
    owner: Owner,
    fence: Fence,
    is_final: bool,
    deltas: watch::Receiver<u64>,
) -> Outcome {
    let as_of = Timestamp::now();
    let deadline = owner.settings.timeout;
    let fetched = full::fetch(&owner.connector, owner.settings.compression, &owner.settings.temp);
    let spooled = timeout(deadline, fetched)
        .await
        .map_err(|_| BackupError::Timeout(deadline))??;
    let revision = spooled.summary.revision;
    let name = SnapshotName::full(revision, new_time(&owner), owner.settings.compression);
    let name = name.with_final(is_final);
    let facts = Facts {
        keys: keys(&owner, revision).await,
        database_sha256: Some(spooled.summary.sha256.to_string()),
        ..owner.facts()
    };
    let path = spooled.file.path().to_owned();
    let body = || async { Ok(pace::body(&path, deltas.clone()).await?) };
    let snapshot = upload(&owner, &fence, &name, &facts, body).await?;
    Ok(Stored {
        snapshot,
        size: spooled.summary.db_size,
        as_of,
    })
}

/// A time that no full snapshot has in its name yet. Users and roles change without a revision, and names have whole
/// seconds: another snapshot would be taken for an earlier try to store this one.
fn new_time(owner: &Owner) -> Timestamp {
    let known = owner.follow();
    let newest = known.borrow().full.as_ref().map(|full| full.name.created_on);
    let next = newest.and_then(|newest| newest.checked_add(SignedDuration::from_secs(1)).ok());
    next.map_or_else(Timestamp::now, |next| next.max(Timestamp::now()))
}

/// Nothing depends on it.
async fn keys(owner: &Owner, revision: i64) -> Option<i64> {
    let counted = owner.connector.count_keys(revision).await;
    counted
        .inspect_err(|error| debug!(revision, %error, "the keys aren't counted"))
        .ok()
}

#[instrument(name = "delta snapshot", skip_all, fields(start = delta.start, last = delta.summary.last_revision))]
pub(super) async fn store_delta(owner: Owner, fence: Fence, delta: Delta) -> Outcome {
    let (start, last) = (delta.start, delta.summary.last_revision);
    let name = SnapshotName::delta(start, last, delta.closed_at, owner.settings.compression);
    let body = || async { Ok(delta.content.body()) };
    let snapshot = upload(&owner, &fence, &name, &owner.facts(), body).await?;
    Ok(Stored {
        snapshot,
        size: delta.summary.len,
        as_of: delta.closed_at,
    })
}

/// Uploads until it works: the object is whole and waits here, so there is nothing better to do than to try again.
#[instrument(skip_all, fields(%name))]
async fn upload<F, Fut>(
    owner: &Owner,
    fence: &Fence,
    name: &SnapshotName,
    facts: &Facts,
    body: F,
) -> Result<StoredSnapshot, BackupError>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<Body, BackupError>>,
{
    let mut retry = FIRST_RETRY;
    loop {
        let (guard, facts) = (fence.clone(), facts.clone());
        let body = body().await?.with_facts(move || facts);
        let guarded = body.with_guard(async move {
            guard
                .check()
                .await
                .map(|_| ())
                .map_err(|error| std::io::Error::other(error.to_string()))
        });
        let error = match owner.store.put(name, guarded).await {
            Ok(stored) => return Ok(stored),
            Err(error) => error,
        };
        // An earlier try of ours may have arrived although its answer got lost.
        if error.class() == Class::AlreadyExists {
            let listing = owner
                .store
                .list()
                .await
                .map_err(|source| store_error(owner, source))?;
            if let Some(stored) = listing.snapshots.into_iter().find(|stored| stored.name == *name) {
                return Ok(stored);
            }
        }
        // A cluster that can't be asked at the moment may still be led from here.
        if let Err(BackupError::NotLeader) = fence.check().await {
            return Err(BackupError::NotLeader);
        }
        let may_work_later = may_work_later(error.class());
        let error = store_error(owner, error);
        if !may_work_later {
            return Err(error);
        }
        owner.snapshot_failed(name.kind, &error).await;
        sleep(retry.mul_f64(0.8 + rand::random::<f64>() * 0.4)).await;
        retry = (retry * 2).min(LAST_RETRY);
    }
}

/// Rights, buckets, keys and disks are mended while the steward runs. What doesn't change by itself is what is uploaded.
fn may_work_later(class: Class) -> bool {
    !matches!(class, Class::AlreadyExists | Class::Unsupported)
}

pub(super) fn store_error(owner: &Owner, source: snapstore::Error) -> BackupError {
    BackupError::Store {
        location: owner.store.location().to_owned(),
        source,
    }
}
