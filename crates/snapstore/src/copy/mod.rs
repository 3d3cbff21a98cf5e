//! Copies backups from one store to another: whole chains, the newest first, each with its full snapshot first and its
//! deltas in order, so that whatever has arrived can be restored. Every snapshot is checked on its way. What the target
//! has already is left alone, so that a copy that broke off goes on where it was.

mod compare;
mod verify;
mod wait;

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap, HashSet},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use futures::{
    FutureExt as _, StreamExt as _, TryFutureExt as _, TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use jiff::{SignedDuration, Timestamp};
use tracing::{info, warn};

pub use self::wait::{OnExpiry, WaitForFinal};
use crate::{
    body::Body,
    chain::{self, Chain},
    error::{Class, Error, Result},
    listing::{Listing, StoredSnapshot},
    manifest::{self, Attestation, Digest, Manifest, Signatures},
    name::SnapshotName,
    retention::{self, Policy},
    store::SnapStore,
};

/// Snapshots up to this size are read and checked ahead of their turn.
const READ_AHEAD_SIZE: u64 = 4 * 1024 * 1024;

/// Snapshots that are read at once.
const READ_AHEAD: usize = 6;

/// What is copied, and how.
#[derive(Debug, Clone, Default)]
pub struct CopyOptions {
    /// No more than so many of the newest chains.
    pub max_backups: Option<usize>,
    /// Only what this policy keeps: what it would delete right away isn't copied.
    pub policy: Option<Policy>,
    /// Full snapshots because of which the policy lets nothing go, by names without `.final`.
    pub doubtful: BTreeSet<SnapshotName>,
    /// No chains whose full snapshot is older.
    pub max_age: Option<SignedDuration>,
    /// Copy only when the source's cluster has made its last snapshot.
    pub wait_for_final: Option<WaitForFinal>,
    /// Take snapshots of one name and size for the same where no manifest tells their hashes. By default they are read.
    pub sizes_suffice: bool,
    /// What was compared before, and isn't again.
    pub compared: Compared,
    /// Keep `.final` in names. By default it is dropped, as etcd-backup-restore does: for the cluster at the target
    /// the snapshot isn't the last one.
    pub keep_final: bool,
}

/// What happens during a copy.
#[derive(Debug)]
pub enum CopyEvent<'a> {
    /// The final snapshot isn't there yet.
    Waiting,
    /// So much is to be copied; what the target has already isn't counted.
    Planned {
        snapshots: usize,
        bytes: u64,
    },
    /// Bytes of the snapshot at hand that were sent.
    Sent(u64),
    Copied(&'a SnapshotName),
    Failed(&'a SnapshotName, &'a Error),
}

/// Told of what happens.
pub type Observer = Arc<dyn Fn(CopyEvent<'_>) + Send + Sync>;

/// What a copy has done.
#[derive(Debug, Default)]
pub struct Copied {
    pub snapshots: usize,
    pub bytes: u64,
    /// Were at the target before.
    pub present: usize,
    /// Are too short to be snapshots, so that nothing is to be copied of them.
    pub unusable: Vec<SnapshotName>,
    /// Couldn't be copied. The snapshots after such a one in its chain weren't tried.
    pub failed: Vec<(SnapshotName, Error)>,
}

/// Copies what `options` select. An error means that a store didn't work; what is wrong with single snapshots is in
/// the result. May be repeated.
pub async fn copy(
    source: &dyn SnapStore,
    target: &dyn SnapStore,
    options: &CopyOptions,
    observer: Observer,
) -> Result<Copied> {
    if let Some(wait) = &options.wait_for_final {
        wait::for_final(source, wait, &observer).await?;
    }
    let mut listing = source.list().await?;
    if let Some(policy) = &options.policy {
        let doubtful =
            |full: &StoredSnapshot| options.doubtful.contains(&full.name.clone().with_final(false));
        retention::leave_kept(&mut listing, policy, |full| !doubtful(full), Timestamp::now());
    }
    let chains = select(&listing, options, Timestamp::now());
    let unusable = listing.snapshots.iter().filter(|s| !s.excluded && !s.is_usable());
    let unusable = unusable.map(|stored| stored.name.clone()).collect();
    let present = Present::of(&target.list().await?);
    let mut transfer = Transfer {
        source,
        target,
        options,
        observer,
        present,
        copied: Copied {
            unusable,
            ..Copied::default()
        },
    };
    transfer.announce(&chains);
    for chain in &chains {
        transfer.chain(chain).await?;
    }
    Ok(transfer.copied)
}

/// The chains to copy, the one with the newest full snapshot first.
fn select<'a>(listing: &'a Listing, options: &CopyOptions, now: Timestamp) -> Vec<Chain<'a>> {
    let (mut chains, _) = chain::group(&listing.snapshots, StoredSnapshot::is_usable);
    let created = |chain: &Chain<'_>| chain.base.map(|base| base.name.created_on);
    let is_young = |created: Timestamp| {
        options
            .max_age
            .is_none_or(|age| now.duration_since(created) <= age)
    };
    chains.retain(|chain| created(chain).is_some_and(is_young));
    // By what is in it: clocks go wrong, and names have whole seconds only.
    let rank = |chain: &Chain<'_>| {
        chain
            .base
            .map(|base| (base.name.last_revision, base.name.created_on))
    };
    chains.sort_by_key(|chain| Reverse(rank(chain)));
    chains.truncate(options.max_backups.unwrap_or(usize::MAX));
    chains
}

/// What the target has, by names without `.final`.
struct Present(HashMap<SnapshotName, StoredSnapshot>);

impl Present {
    fn of(listing: &Listing) -> Self {
        let stored = listing.snapshots.iter();
        Self(
            stored
                .map(|stored| (stored.name.clone().with_final(false), stored.clone()))
                .collect(),
        )
    }

    /// What the target has under the name of `snapshot`.
    fn get(&self, snapshot: &StoredSnapshot) -> Option<&StoredSnapshot> {
        self.0.get(&snapshot.name.clone().with_final(false))
    }
}

/// Snapshots that were found to be the same in both stores. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Compared(Arc<Mutex<HashSet<SnapshotName>>>);

impl Compared {
    fn lock(&self) -> MutexGuard<'_, HashSet<SnapshotName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Transfer<'a> {
    source: &'a dyn SnapStore,
    target: &'a dyn SnapStore,
    options: &'a CopyOptions,
    observer: Observer,
    present: Present,
    copied: Copied,
}

/// What is known of a snapshot before it is sent.
struct Draft {
    content: Content,
    /// Goes along, so that a signature holds at the target too.
    envelope: Option<Bytes>,
    manifest: Option<Manifest>,
}

/// Content that is checked, or will be while it is sent.
enum Content {
    Whole(Bytes),
    Stream,
}

impl Transfer<'_> {
    fn announce(&self, chains: &[Chain<'_>]) {
        let missing: Vec<_> = chains
            .iter()
            .flat_map(Chain::parts)
            .filter(|part| part.is_usable() && self.present.get(part).is_none())
            .collect();
        let bytes = missing.iter().map(|part| part.object.size).sum();
        (self.observer)(CopyEvent::Planned {
            snapshots: missing.len(),
            bytes,
        });
    }

    /// Copies one chain in order; stops at the first snapshot that can't be copied.
    async fn chain(&mut self, chain: &Chain<'_>) -> Result<()> {
        let mut missing = Vec::new();
        for part in chain.parts().filter(|part| part.is_usable()) {
            match self.present.get(part) {
                Some(there) => {
                    let same = compare::same(self.source, part, self.target, there, self.options);
                    let complete = async { self.complete(part, there).await };
                    if let Err(error) = same.and_then(|()| complete).await {
                        return self.fail(part, error);
                    }
                    self.copied.present += 1;
                }
                None => missing.push(part),
            }
        }
        let source = self.source;
        let reads: Vec<BoxFuture<'_, _>> = missing
            .into_iter()
            .map(|part| async move { (part, read_ahead(source, part).await) }.boxed())
            .collect();
        let mut contents = stream::iter(reads).buffered(READ_AHEAD);
        while let Some((part, content)) = contents.next().await {
            let sent = match content {
                Ok(content) => self.send(part, content).await,
                Err(error) => Err(error),
            };
            match sent {
                Ok(()) => {
                    info!(name = %part.name, "copied");
                    (self.observer)(CopyEvent::Copied(&part.name));
                    self.copied.snapshots += 1;
                    self.copied.bytes += part.object.size;
                }
                Err(error) => return self.fail(part, error),
            }
        }
        Ok(())
    }

    /// Gives a snapshot that is there its manifest, if only that is missing.
    async fn complete(&self, part: &StoredSnapshot, there: &StoredSnapshot) -> Result<()> {
        // What copied it ended in between.
        if part.manifest.is_none() || there.manifest.is_some() {
            return Ok(());
        }
        let envelope = self.source.envelope(part).await?;
        if let Some(envelope) = envelope.filter(|envelope| !envelope.is_empty()) {
            let file = manifest::name_of(&part.name);
            self.target.put_object(&file, Body::from_bytes(envelope)).await?;
        }
        Ok(())
    }

    async fn send(&self, part: &StoredSnapshot, draft: Draft) -> Result<()> {
        let size = part.object.size;
        let body = match draft.content {
            Content::Whole(bytes) => Body::from_bytes(bytes),
            Content::Stream => {
                Body::from_stream(checked(self.source, part, draft.manifest).await?, Some(size))
            }
        };
        let body = body.with_envelope(draft.envelope);
        let observer = Arc::clone(&self.observer);
        let body = body.inspect(move |bytes| observer(CopyEvent::Sent(bytes.len() as u64)));
        let is_final = part.name.is_final && self.options.keep_final;
        let stored = self
            .target
            .put(&part.name.clone().with_final(is_final), body)
            .await;
        stored.map(drop).map_err(|error| blame(error, part))
    }

    /// Notes what is wrong with one snapshot; passes on what is wrong with a store.
    fn fail(&mut self, part: &StoredSnapshot, error: Error) -> Result<()> {
        if !matches!(
            error.class(),
            Class::Corrupt
                | Class::SourceFailed
                | Class::NotFound
                | Class::AlreadyExists
                | Class::PayloadRejected
        ) {
            return Err(error);
        }
        warn!(name = %part.name, %error, "not copied, nor is what follows in its chain");
        (self.observer)(CopyEvent::Failed(&part.name, &error));
        self.copied.failed.push((part.name.clone(), error));
        Ok(())
    }
}

/// Small snapshots whole and checked.
async fn read_ahead(source: &dyn SnapStore, part: &StoredSnapshot) -> Result<Draft> {
    let envelope = source.envelope(part).await?;
    let manifest = attested(source, part, envelope.as_deref())?;
    let envelope = envelope.filter(|envelope| !envelope.is_empty());
    if part.object.size > READ_AHEAD_SIZE {
        return Ok(Draft {
            content: Content::Stream,
            envelope,
            manifest,
        });
    }
    let pieces: Vec<Bytes> = checked(source, part, manifest)
        .await?
        .try_collect()
        .await
        .map_err(|e| from_check(e, part))?;
    Ok(Draft {
        content: Content::Whole(pieces.concat().into()),
        envelope,
        manifest: None,
    })
}

/// What the manifest says. A copy needs no keys: what is signed with an unknown one is for others to check.
fn attested(
    source: &dyn SnapStore,
    part: &StoredSnapshot,
    envelope: Option<&[u8]>,
) -> Result<Option<Manifest>> {
    let signatures = source.signatures();
    let judged = match source.judge(envelope, &part.name)? {
        Attestation::UnknownKey { manifest, .. } if signatures == Signatures::IfPresent => Ok(Some(manifest)),
        attestation => signatures.judge(attestation),
    };
    judged.map_err(|reason| Error::new(Class::Corrupt, format!("check {}", part.name), reason))
}

async fn checked(
    source: &dyn SnapStore,
    part: &StoredSnapshot,
    manifest: Option<Manifest>,
) -> Result<BoxStream<'static, io::Result<Bytes>>> {
    let stream = source.get(&part.object, None).await?;
    let stream = match manifest {
        Some(manifest) => Digest::check(stream, manifest),
        None => stream,
    };
    Ok(verify::verified(stream, &part.name).boxed())
}

/// An upload that failed for its content's sake is the source's fault.
fn blame(error: Error, part: &StoredSnapshot) -> Error {
    error
        .into_source::<io::Error>()
        .map_or_else(|error| error, |cause| from_check(cause, part))
}

/// What stopped the reading of a snapshot: its store, or the check.
fn from_check(cause: io::Error, part: &StoredSnapshot) -> Error {
    cause.downcast::<Error>().unwrap_or_else(|cause| {
        Error::new(
            Class::Corrupt,
            format!("check snapshot {}", part.object.key),
            cause.to_string(),
        )
    })
}
