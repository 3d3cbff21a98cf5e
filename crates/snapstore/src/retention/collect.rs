//! Carries out a retention plan.

use jiff::Timestamp;
use tracing::{debug, info, warn};

use super::{Action, Decision, Policy, plan};
use crate::{
    error::{Class, Error, Result},
    listing::StoredSnapshot,
    name::{Kind, SnapshotName},
    store::SnapStore,
};

/// What one collection did.
#[derive(Debug, Default)]
pub struct Collected {
    /// Deleted snapshots by kind.
    pub fulls: u64,
    pub deltas: u64,
    /// Deleted pieces of uploads.
    pub chunks: u64,
    /// Unfinished uploads that were dropped.
    pub uploads: u64,
    /// Objects that are due but protected by the store. No fault.
    pub locked: u64,
    /// What should have been deleted and couldn't be.
    pub failed: Vec<Failed>,
}

/// An object that couldn't be deleted.
#[derive(Debug)]
pub struct Failed {
    pub key: String,
    pub name: Option<SnapshotName>,
    pub error: Error,
}

/// Lists the store, deletes what [`plan`] says and drops unfinished uploads. An error means that the listing failed
/// and nothing was deleted; failures of single objects are in the result.
///
/// `proven`: see [`plan`].
pub async fn collect(
    store: &dyn SnapStore,
    policy: &Policy,
    proven: impl Fn(&StoredSnapshot) -> bool,
    now: Timestamp,
) -> Result<Collected> {
    let listing = store.list().await?;
    let mut collected = Collected::default();
    // Set while an object of a chain stays that needs those before it.
    let mut is_held = false;
    for decision in plan(&listing, policy, proven, now).iter().rev() {
        let stays = match decision.action {
            Action::Delete if !is_held => !collected.delete(store, decision).await,
            Action::Locked => {
                collected.locked += 1;
                true
            }
            Action::Delete | Action::Keep => false,
        };
        is_held = match decision.name.map(|name| name.kind) {
            Some(Kind::Delta) => is_held || stays,
            // A chain ends (from behind) with its full snapshot.
            Some(Kind::Full) | None => false,
        };
    }
    let started_before = now
        .saturating_sub(policy.leftovers_after)
        .unwrap_or(Timestamp::MIN);
    match store.abort_stale_uploads(started_before).await {
        Ok(uploads) => collected.uploads = uploads,
        Err(error) if error.class() == Class::Unsupported => {}
        Err(error) => {
            warn!(%error, "unfinished uploads are left");
            collected.failed.push(Failed {
                key: store.location().to_owned(),
                name: None,
                error,
            });
        }
    }
    Ok(collected)
}

impl Collected {
    /// Whether the object is gone.
    async fn delete(&mut self, store: &dyn SnapStore, decision: &Decision<'_>) -> bool {
        let Decision {
            object,
            name,
            manifest,
            rule,
            ..
        } = decision;
        let error = match store.delete(object).await {
            Ok(()) => {
                info!(key = object.key, %rule, "deleted");
                *self.counter(name.map(|name| name.kind)) += 1;
                if let Some(manifest) = manifest
                    && let Err(error) = store.delete(manifest).await
                {
                    // An orphan from now on, and looked at as such.
                    debug!(key = manifest.key, %error, "not deleted");
                }
                return true;
            }
            Err(error) => error,
        };
        if error.class() == Class::Locked {
            self.locked += 1;
        } else {
            warn!(key = object.key, %error, "not deleted");
            self.failed.push(Failed {
                key: object.key.clone(),
                name: name.cloned(),
                error,
            });
        }
        false
    }

    fn counter(&mut self, kind: Option<Kind>) -> &mut u64 {
        match kind {
            Some(Kind::Full) => &mut self.fulls,
            Some(Kind::Delta) => &mut self.deltas,
            None => &mut self.chunks,
        }
    }
}
