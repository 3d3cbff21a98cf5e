//! Brings what is to be stored into the store, and doesn't give up while this member leads.

use std::time::Duration;

use etcd_storage::full::FullSummary;
use jiff::{SignedDuration, Timestamp};
use snapstore::{
    Body, Class, SnapshotName, StoredSnapshot,
    manifest::{Digest, Facts},
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{debug, instrument};

use super::{BackupError, Marks, collector::Delta, fence::Fence, full, history, owner::Owner, pace, stored};
use crate::member::whole_seconds;

pub(super) const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_mins(1);
/// Objects up to this size, among them every delta, are read back before they count as stored.
const READ_BACK_LIMIT: u64 = 64 << 20;

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
#[instrument(name = "full snapshot", skip_all)]
pub(super) async fn take_full(
    owner: Owner,
    fence: Fence,
    marks: Marks,
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
    let name = name.with_final(marks.is_final);
    let facts = Facts {
        keys: keys(&owner, &spooled.summary).await,
        fewer_keys_accepted: marks.accepts_fewer_keys,
        database_sha256: Some(spooled.summary.sha256.to_string()),
        last_event: Box::pin(history::last_event(&owner.connector, revision)).await,
        ..owner.facts()
    };
    let path = spooled.file.path().to_owned();
    let body = || async { Ok(pace::body(&path, deltas.clone()).await?) };
    let snapshot = Box::pin(upload(&owner, &fence, name, &facts, body)).await?;
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
    newest.map_or_else(Timestamp::now, next_time)
}

/// By what the snapshot holds. Amid a compaction that can't be told, and etcd is asked.
async fn keys(owner: &Owner, summary: &FullSummary) -> Option<i64> {
    if summary.keys.is_some() {
        return summary.keys;
    }
    let revision = summary.revision;
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
    let snapshot = Box::pin(upload(&owner, &fence, name, &owner.facts(), body)).await?;
    Ok(Stored {
        snapshot,
        size: delta.summary.len,
        as_of: delta.closed_at,
    })
}

/// Uploads until it works: the object is whole and waits here, so there is nothing better to do than to try again. What
/// the store shows counts only if it is what was sent.
#[instrument(skip_all, fields(%name))]
async fn upload<F, Fut>(
    owner: &Owner,
    fence: &Fence,
    mut name: SnapshotName,
    facts: &Facts,
    body: F,
) -> Result<StoredSnapshot, BackupError>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<Body, BackupError>>,
{
    let token = format!("{:032x}", rand::random::<u128>());
    let mut retry = FIRST_RETRY;
    loop {
        let sent = async {
            let digest = body().await?.digest().await;
            digest
                .map(Digest::finish)
                .map_err(|source| store_error(owner, source))
        };
        let guarded = guarded(body().await?, fence, facts).with_token(&token);
        let put = match owner.store.put(&name, guarded).await {
            // Larger ones are read back by verification, which begins as soon as there is a new full snapshot.
            Ok(stored) if stored.object.size > READ_BACK_LIMIT => Ok(stored),
            Ok(stored) => Box::pin(stored::confirm(owner, fence, stored, &sent.await?)).await,
            Err(error) if error.class() == Class::AlreadyExists => {
                Box::pin(stored::existing(owner, &name, &sent.await?, error)).await
            }
            Err(error) => Err(error),
        };
        let error = match put {
            Ok(stored) => return Ok(stored),
            Err(error) => error,
        };
        // A cluster that can't be asked at the moment may still be led from here.
        if let Err(BackupError::NotLeader) = fence.check().await {
            return Err(BackupError::NotLeader);
        }
        if matches!(error.class(), Class::Corrupt | Class::AlreadyExists) {
            // Something else may be left under this name.
            name.created_on = next_time(name.created_on);
            owner.proven.doubt();
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

fn guarded(body: Body, fence: &Fence, facts: &Facts) -> Body {
    let (guard, facts) = (fence.clone(), facts.clone());
    body.with_facts(move || facts).with_guard(async move {
        let checked = guard.check().await;
        checked.map_or_else(|error| Err(std::io::Error::other(error.to_string())), |_| Ok(()))
    })
}

/// The present, or the next second if that is later: names have whole seconds.
fn next_time(before: Timestamp) -> Timestamp {
    let next = before.checked_add(SignedDuration::from_secs(1)).ok();
    whole_seconds(next.map_or_else(Timestamp::now, |next| next.max(Timestamp::now())))
}

/// Rights, buckets, keys and disks are mended while the steward runs. What doesn't change by itself is what is uploaded.
fn may_work_later(class: Class) -> bool {
    !matches!(class, Class::Unsupported)
}

pub(super) fn store_error(owner: &Owner, source: snapstore::Error) -> BackupError {
    BackupError::Store {
        location: owner.store.location().to_owned(),
        source,
    }
}
