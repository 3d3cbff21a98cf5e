//! Lets old backups go by the Etcd's policy while this steward owns the backups: whole chains, never the newest proven
//! one, and each object only after the fence has been asked.

use std::{
    convert::Infallible,
    future::pending,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use operator::reconcile::chain;
use snapstore::{
    Body, ByteStream, Class, Error, Immutability, Listing, Object, SnapStore, SnapshotName, StoredSnapshot,
    manifest::{Attestation, Signatures},
    retention::{Collected, collect},
};
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::{fence::Fence, owner::Owner, prefix_watch, told::Told};

/// The first look for old backups comes so soon.
const FIRST: Duration = Duration::from_mins(5);

/// Collects again and again, for as long as the term lasts.
pub(super) async fn run(owner: &Owner, fence: &Fence) -> Infallible {
    let Some(period) = owner.settings.retention_period else {
        return pending().await;
    };
    let (told, mut locked) = (Told::default(), 0);
    // A term may never last for a whole period.
    let mut pause = period.min(FIRST);
    loop {
        sleep(pause.mul_f64(0.9 + rand::random::<f64>() * 0.2)).await;
        pause = period;
        let store = Fenced::new(owner, owner.store.as_ref(), fence);
        let proven = owner.proven.names();
        let is_proven =
            |full: &StoredSnapshot| proven.contains(&full.name) && owner.key_counts.is_plausible(&full.name);
        let collected = collect(&store, &owner.settings.retention, is_proven, Timestamp::now()).await;
        if let Ok(collected) = &collected {
            account(owner, collected);
        }
        // A new owner has taken over, and this term is about to end; or etcd didn't answer, and it is tried again soon.
        if store.is_lost() {
            pause = period.min(FIRST);
            continue;
        }
        if let Ok(collected) = &collected
            && locked != collected.locked
        {
            locked = collected.locked;
            info!(locked, "old backups that the store still protects");
        }
        tell(owner, &told, collected).await;
    }
}

fn account(owner: &Owner, collected: &Collected) {
    owner.metrics.collected(collected);
    if collected.fulls + collected.deltas + collected.chunks + collected.uploads > 0 {
        info!(
            fulls = collected.fulls,
            deltas = collected.deltas,
            chunks = collected.chunks,
            uploads = collected.uploads,
            "old backups are gone"
        );
    }
}

async fn tell(owner: &Owner, told: &Told, collected: Result<Collected, Error>) {
    let failed = match collected {
        Ok(collected) => {
            let count = collected.failed.len();
            let first = collected.failed.into_iter().next();
            first.map(|first| {
                let message = format!(
                    "{count} old backups can't be deleted, the first is {}: {}",
                    first.key,
                    chain(&first.error)
                );
                (first.error.reason(), message)
            })
        }
        Err(error) => Some((
            error.reason(),
            format!("old backups aren't looked for: {}", chain(&error)),
        )),
    };
    let Some((reason, message)) = failed else {
        told.works();
        return;
    };
    if told.fails(reason) {
        warn!(reason, message, "retention doesn't work");
        if let Some(kubernetes) = &owner.kubernetes {
            kubernetes.warn("Retention", reason, &message).await;
        }
    } else {
        debug!(reason, message, "retention still doesn't work");
    }
}

/// The store in the hands of an owner whose term may end at any time: the fence is asked before each deletion. Backups of
/// other clusters aren't seen.
#[derive(Debug)]
pub(super) struct Fenced<'a> {
    owner: &'a Owner,
    store: &'a dyn SnapStore,
    fence: &'a Fence,
    lost: AtomicBool,
}

impl<'a> Fenced<'a> {
    pub(super) fn new(owner: &'a Owner, store: &'a dyn SnapStore, fence: &'a Fence) -> Self {
        Self {
            owner,
            store,
            fence,
            lost: AtomicBool::new(false),
        }
    }

    /// Whether the term has ended.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    async fn check(&self, action: &str) -> Result<(), Error> {
        let withdrawn = |why: String| Err(Error::new(Class::SourceFailed, action, why));
        if self.lost.load(Ordering::Relaxed) {
            return withdrawn("this member doesn't own the backups any more".to_owned());
        }
        match self.fence.check().await {
            Ok(_) => Ok(()),
            Err(error) => {
                self.lost.store(true, Ordering::Relaxed);
                withdrawn(chain(&error))
            }
        }
    }
}

#[async_trait]
impl SnapStore for Fenced<'_> {
    fn location(&self) -> &str {
        self.store.location()
    }

    async fn list(&self) -> Result<Listing, Error> {
        let listing = self.store.list().await?;
        prefix_watch::collectable(self.owner, self.store, listing).await
    }

    async fn put(&self, name: &SnapshotName, body: Body) -> Result<StoredSnapshot, Error> {
        self.store.put(name, body).await
    }

    async fn put_object(&self, file: &str, body: Body) -> Result<Object, Error> {
        self.store.put_object(file, body).await
    }

    fn judge(&self, envelope: Option<&[u8]>, name: &SnapshotName) -> Result<Attestation, Error> {
        self.store.judge(envelope, name)
    }

    fn signatures(&self) -> Signatures {
        self.store.signatures()
    }

    async fn get(&self, object: &Object, range: Option<Range<u64>>) -> Result<ByteStream, Error> {
        self.store.get(object, range).await
    }

    async fn delete(&self, object: &Object) -> Result<(), Error> {
        self.check(&format!("delete {}", object.key)).await?;
        self.store.delete(object).await
    }

    async fn immutability(&self) -> Result<Immutability, Error> {
        self.store.immutability().await
    }

    async fn abort_stale_uploads(&self, started_before: Timestamp) -> Result<u64, Error> {
        self.check("drop unfinished uploads").await?;
        self.store.abort_stale_uploads(started_before).await
    }
}
