//! Whether what a store shows under a name is what was sent. Stores have kept half of an upload and answered with success.

use snapstore::{Class, Error, Kind, SnapshotName, StoredSnapshot, manifest::Digest};
use tokio::time::Instant;
use tracing::warn;

use super::{fence::Fence, owner::Owner};
use crate::chain;

/// Reads back what was just stored, and compares it with `sent`: its bytes and their SHA-256. What differs is removed.
pub(super) async fn confirm(
    owner: &Owner,
    fence: &Fence,
    stored: StoredSnapshot,
    sent: &(u64, String),
) -> Result<StoredSnapshot, Error> {
    let begun = Instant::now();
    let difference = match Digest::of_object(owner.store.as_ref(), &stored.object).await {
        Ok(digest) => {
            let found = digest.finish();
            let different = || format!("sent {} bytes, {} other ones were read back", sent.0, found.0);
            (found != *sent).then(different)
        }
        // Already its size isn't the one that the store told.
        Err(error) if error.class() == Class::Corrupt => Some(error.to_string()),
        // Who may only write can't compare. Verification reports it.
        Err(error) if error.class() == Class::AccessDenied => return Ok(stored),
        Err(error) => return Err(error),
    };
    let kind = stored.name.kind;
    owner
        .metrics
        .verified(kind, difference.is_none(), begun.elapsed());
    let Some(difference) = difference else {
        // What is inside a full snapshot is verification's to check.
        if kind == Kind::Delta {
            owner.proven.add(stored.name.clone());
        }
        return Ok(stored);
    };
    let state = match remove(owner, fence, &stored).await {
        Ok(()) => "it was removed".to_owned(),
        Err(why) => format!("it can't be removed ({why}), remove it by hand"),
    };
    let action = format!("store {}", stored.object.key);
    Err(Error::new(
        Class::Corrupt,
        action,
        format!("{difference}; {state}"),
    ))
}

/// Removes an object that this term has just made, and its manifest.
async fn remove(owner: &Owner, fence: &Fence, stored: &StoredSnapshot) -> Result<(), String> {
    fence.check().await.map_err(|error| error.to_string())?;
    let deleted = owner.store.delete(&stored.object).await;
    deleted.map_err(|error| error.to_string())?;
    if let Some(manifest) = &stored.manifest
        && let Err(error) = owner.store.delete(manifest).await
    {
        // An orphan from now on, and retention takes it along.
        warn!(key = manifest.key, %error, "not deleted");
    }
    Ok(())
}

/// An object of the name exists. It is the one that was sent, by an earlier try whose answer got lost, or it is in the way.
pub(super) async fn existing(
    owner: &Owner,
    name: &SnapshotName,
    sent: &(u64, String),
    refusal: Error,
) -> Result<StoredSnapshot, Error> {
    let listing = owner.store.list().await?;
    let found = listing.snapshots.into_iter().find(|stored| stored.name == *name);
    let Some(found) = found.filter(|found| found.object.size == sent.0) else {
        return Err(refusal);
    };
    let manifest = match chain::admitted(&owner.store, &found).await? {
        Ok(manifest) => manifest,
        Err(reason) => return Err(Error::new(Class::AlreadyExists, format!("store {name}"), reason)),
    };
    if manifest.is_some_and(|manifest| (manifest.size, &manifest.sha256) != (sent.0, &sent.1)) {
        return Err(refusal);
    }
    let digest = Digest::of_object(owner.store.as_ref(), &found.object).await?;
    if digest.finish() != *sent {
        return Err(refusal);
    }
    Ok(found)
}
