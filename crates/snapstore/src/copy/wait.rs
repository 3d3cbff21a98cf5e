//! Waits for the last snapshot of a cluster that goes away.

use std::{cmp::Reverse, time::Duration};

use rand::Rng as _;
use tokio::time::Instant;
use tracing::warn;

use super::{CopyEvent, Observer};
use crate::{
    error::{Class, Error, Result},
    listing::Listing,
    name::Kind,
    store::SnapStore,
};

/// Of the newest full snapshots so many are looked at: a snapshot taken by hand may follow the final one.
const NEWEST_FULLS: usize = 4;

/// For how long to wait for a final snapshot.
#[derive(Debug, Clone)]
pub struct WaitForFinal {
    /// None: for ever.
    pub timeout: Option<Duration>,
    pub on_expiry: OnExpiry,
    /// Time between two looks: stores tell nobody what is new.
    pub interval: Duration,
}

/// What becomes of a copy when no final snapshot came in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnExpiry {
    /// It fails with [`Class::NoFinalSnapshot`].
    #[default]
    Fail,
    /// It copies what is there, as etcd-backup-restore does.
    CopyAnyway,
}

impl Default for WaitForFinal {
    fn default() -> Self {
        Self {
            timeout: None,
            on_expiry: OnExpiry::Fail,
            interval: Duration::from_secs(15),
        }
    }
}

/// Returns when there is a final snapshot, or when the time is over and the copy may go on without.
pub(super) async fn for_final(
    source: &dyn SnapStore,
    wait: &WaitForFinal,
    observer: &Observer,
) -> Result<()> {
    let deadline = wait.timeout.map(|timeout| Instant::now() + timeout);
    loop {
        match source.list().await {
            Ok(listing) if has_final(&listing) => return Ok(()),
            Err(error) if !error.is_retryable() => return Err(error),
            Err(error) => warn!(%error, "the source can't be listed now, waiting on"),
            Ok(_) => {}
        }
        observer(CopyEvent::Waiting);
        let pause = wait.interval.mul_f64(rand::rng().random_range(0.9..=1.1));
        let next = Instant::now() + pause;
        match deadline {
            Some(deadline) if Instant::now() >= deadline => return expired(source, wait),
            Some(deadline) => tokio::time::sleep_until(next.min(deadline)).await,
            None => tokio::time::sleep_until(next).await,
        }
    }
}

fn expired(source: &dyn SnapStore, wait: &WaitForFinal) -> Result<()> {
    if wait.on_expiry == OnExpiry::CopyAnyway {
        warn!(
            source = source.location(),
            "no final snapshot in time, copying what is there"
        );
        return Ok(());
    }
    let action = format!("wait for the final snapshot in {}", source.location());
    Err(Error::new(
        Class::NoFinalSnapshot,
        action,
        format!("none came within {:?}", wait.timeout.unwrap_or_default()),
    ))
}

fn has_final(listing: &Listing) -> bool {
    let mut fulls: Vec<_> = listing
        .snapshots
        .iter()
        .filter(|s| s.name.kind == Kind::Full && s.is_usable())
        .collect();
    fulls.sort_by_key(|full| Reverse(&full.name));
    fulls.iter().take(NEWEST_FULLS).any(|full| full.name.is_final)
}
