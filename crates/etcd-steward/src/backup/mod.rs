//! The cluster's backups. The steward beside the etcd leader owns them; the others stand by.

mod backlog;
mod collector;
mod fence;
pub(crate) mod full;
mod health;
mod history;
mod key_counts;
mod lanes;
mod other_fulls;
pub mod owner;
mod ownership;
mod pace;
mod pieces;
mod prefix_watch;
mod report;
mod restored;
mod retention;
mod secondary;
mod settings;
mod snapshotter;
mod stored;
#[cfg(test)]
mod testing;
mod told;
mod upload;
mod verification;

use std::{sync::Arc, time::Duration};

use etcd_storage::{delta, full::Error as FullError};
use operator::reconcile::{Reason, Retry};
use snapstore::{Kind, SnapStore, StoredSnapshot};
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep},
};

pub use fence::revision;
pub use health::{Failures, Trouble};
pub use owner::Owner;
pub use secondary::Secondary;
pub use settings::{Settings, SettingsError};

use crate::etcd::EtcdError;

/// How long somebody who has asked for a snapshot waits while storing it fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why a snapshot wasn't taken or stored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The store refused, or couldn't be reached.
    #[error("{location}: {source}")]
    Store {
        /// The store.
        location: String,
        /// Why.
        #[source]
        source: snapstore::Error,
    },
    /// etcd refused, or couldn't be reached.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The scratch space can't be used.
    #[error("scratch space: {0}")]
    Scratch(#[from] std::io::Error),
    /// What etcd sent isn't a whole database.
    #[error("the snapshot that etcd sent is damaged: {0}")]
    Damaged(#[from] FullError),
    /// The events can't be written as a delta.
    #[error(transparent)]
    Delta(#[from] delta::EncodeError),
    /// The store holds a history that this cluster doesn't have.
    #[error(
        "the newest snapshot in the store ends at revision {stored}, the cluster is at {cluster}: the store holds backups \
         of another history. Move them away, or give this Etcd another spec.backup.store.prefix"
    )]
    StoreAhead {
        /// Last revision in the store.
        stored: i64,
        /// Revision of the cluster.
        cluster: i64,
    },
    /// Another cluster stores its backups in the same place.
    #[error(
        "{cluster} stores its backups in the same place, {location}, the newest of them, {newest}, at {at}: nothing is \
         stored beside them. Give this Etcd another spec.backup.store.prefix, or, if that cluster is gone for good, move \
         its backups away"
    )]
    PrefixInUse {
        /// The other one.
        cluster: String,
        /// The store.
        location: String,
        /// Its newest snapshot.
        newest: String,
        /// When that was stored.
        at: jiff::Timestamp,
    },
    /// The store isn't as this owner left it.
    #[error("{0}, the newest snapshot that was stored, isn't in the store any more: it is looked at anew")]
    SnapshotMissing(String),
    /// What is stored can't be marked as this cluster's.
    #[error("the ID of the cluster isn't known: etcd hasn't answered since it leads")]
    ClusterIdUnknown,
    /// Another member leads.
    #[error("this member doesn't lead the cluster any more")]
    NotLeader,
    /// etcd has dropped history that no snapshot holds.
    #[error("etcd has compacted revisions up to {0}, which no delta holds: a full snapshot is needed")]
    Compacted(i64),
    /// The watch ended.
    #[error("the watch of etcd ended: {0}")]
    WatchEnded(String),
    /// It took too long.
    #[error("not done within {0:?}")]
    Timeout(Duration),
    /// It is tried again and again, for longer than anybody should wait.
    #[error("not stored after {after:?}, tried again and again: {message}")]
    NotYet {
        /// How long was waited.
        after: Duration,
        /// Reason of the failure.
        reason: &'static str,
        /// The failure.
        message: String,
    },
    /// The work was dropped.
    #[error("the snapshot was given up: {0}")]
    Abandoned(&'static str),
}

impl Reason for BackupError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Store { source, .. } => source.reason(),
            Self::Etcd(_) | Self::WatchEnded(_) => "EtcdUnreachable",
            Self::Scratch(_) => "ScratchSpace",
            Self::Damaged(_) => "SnapshotDamaged",
            Self::Delta(_) => "DeltaOutOfOrder",
            Self::StoreAhead { .. } => "StoreAhead",
            Self::PrefixInUse { .. } => "PrefixInUse",
            Self::SnapshotMissing(_) => "SnapshotMissing",
            Self::ClusterIdUnknown => "ClusterIdUnknown",
            Self::NotLeader => "NotOwner",
            Self::Compacted(_) => "Compacted",
            Self::Timeout(_) => "Timeout",
            Self::NotYet { reason, .. } => reason,
            Self::Abandoned(_) => "Abandoned",
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Self::Store { source, .. } if !source.is_retryable() => Retry::OnChange,
            Self::StoreAhead { .. } | Self::PrefixInUse { .. } => Retry::OnChange,
            _ => Retry::Backoff,
        }
    }
}

/// What a full snapshot is marked with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks {
    /// It is the last one.
    pub is_final: bool,
    /// It may take the place of what was before, however few keys it has.
    pub accepts_fewer_keys: bool,
}

/// What is asked of the owner.
#[derive(Debug)]
pub struct Order {
    /// Full or delta.
    pub kind: Kind,
    /// What it is marked with.
    pub marks: Marks,
    /// Where the outcome goes. `None` for a delta with nothing in it.
    pub done: oneshot::Sender<Result<Option<StoredSnapshot>, BackupError>>,
}

/// What the owner knows of the backups.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Whether this steward owns the backups.
    pub owner: bool,
    /// The newest full snapshot.
    pub full: Option<StoredSnapshot>,
    /// The deltas after it, ascending.
    pub deltas: Vec<StoredSnapshot>,
    /// Last revision that the store holds.
    pub covered: i64,
    /// Last revision that is known of the cluster.
    pub current: i64,
    /// When the next full snapshot is due.
    pub next_full: Option<jiff::Timestamp>,
    /// What keeps backups from working.
    pub failures: Failures,
}

/// The API's way to the backups.
#[derive(Debug, Clone)]
pub struct Backups {
    /// The store, for listings.
    pub store: Arc<dyn SnapStore>,
    /// What the owner knows.
    pub known: watch::Receiver<Known>,
    /// Orders to the owner, while this steward is it.
    pub orders: watch::Receiver<Option<tokio::sync::mpsc::Sender<Order>>>,
}

impl Backups {
    /// Has a snapshot taken, and waits until it is stored, or is seen not to work for the time being.
    pub async fn take(&self, kind: Kind, marks: Marks) -> Result<Option<StoredSnapshot>, BackupError> {
        let orders = self.orders.borrow().clone().ok_or(BackupError::NotLeader)?;
        let (done, outcome) = oneshot::channel();
        let begun = Instant::now();
        orders
            .send(Order { kind, marks, done })
            .await
            .map_err(|_| BackupError::NotLeader)?;
        tokio::select! {
            // The owner drops its orders when it loses the leadership.
            taken = outcome => taken.map_err(|_| BackupError::NotLeader)?,
            error = self.fails(kind, begun) => Err(error),
        }
    }

    /// Waits for longer than anybody should, and then until storing snapshots of a kind is seen to fail.
    async fn fails(&self, kind: Kind, since: Instant) -> BackupError {
        sleep(PATIENCE).await;
        let mut known = self.known.clone();
        let is_news = |known: &Known| known.failures.of(kind).is_some_and(|trouble| trouble.at > since);
        let failing = match known.wait_for(is_news).await {
            Ok(known) => known.failures.of(kind).cloned(),
            Err(_) => None,
        };
        failing.map_or(BackupError::NotLeader, |trouble| BackupError::NotYet {
            after: since.elapsed(),
            reason: trouble.reason,
            message: trouble.message,
        })
    }
}

impl Backups {
    /// The newest full snapshot and the deltas beyond it, as they lie in the store.
    pub async fn latest(&self) -> Result<(Option<StoredSnapshot>, Vec<StoredSnapshot>), snapstore::Error> {
        Ok(snapshotter::newest_set(&self.store.list().await?))
    }
}
