//! Whether the newest backups are of this cluster's own history. Their revisions don't tell: a cluster whose data went
//! back, or another one, counts past them after a while, and deltas would then be added to what they don't follow.

use etcd_client::{Client, GetOptions};
use etcd_storage::delta::{Event, EventKind};
use operator::reconcile::chain as causes;
use snapstore::{Kind, StoredSnapshot};
use tracing::warn;

use super::{BackupError, owner::Owner};
use crate::{
    chain,
    etcd::{CALL_TIMEOUT, EtcdError, call},
};

/// Why the snapshot, up to which the store has everything, isn't of this cluster's history; `None` when it is, or when
/// that can't be told.
pub(super) async fn differs(owner: &Owner, newest: &StoredSnapshot) -> Result<Option<String>, BackupError> {
    match newest.name.kind {
        Kind::Full => of_full(owner, newest).await,
        Kind::Delta => of_delta(owner, newest).await,
    }
}

/// By what its manifest says.
async fn of_full(owner: &Owner, full: &StoredSnapshot) -> Result<Option<String>, BackupError> {
    let facts = match chain::admitted(&owner.store, full).await {
        Ok(Ok(Some(manifest))) => manifest.facts,
        // Verification tells of it.
        Ok(_) => return Ok(None),
        Err(error) => {
            warn!(name = %full.name, error = causes(&error), "what the newest snapshot is of can't be told");
            return Ok(None);
        }
    };
    let own = owner.status.read(|status| status.cluster_id.clone());
    if let (Some(theirs), Some(own)) = (&facts.cluster_id, &own)
        && theirs != own
    {
        return Ok(Some(format!(
            "{} is of cluster {theirs}, this is {own}",
            full.name
        )));
    }
    let Some(stated) = facts.keys else {
        return Ok(None);
    };
    let revision = full.name.last_revision;
    let found = unless_compacted(owner.connector.count_keys(revision).await)?;
    Ok(found.filter(|found| *found != stated).map(|found| {
        format!(
            "{} has {stated} keys at revision {revision}, this cluster has {found}",
            full.name
        )
    }))
}

/// By its last event.
async fn of_delta(owner: &Owner, delta: &StoredSnapshot) -> Result<Option<String>, BackupError> {
    let event = match chain::last_event(&owner.store, delta).await {
        Ok(Some(event)) => event,
        Ok(None) => return Ok(None),
        Err(error) => {
            warn!(name = %delta.name, error = causes(&error), "whose the newest snapshot is can't be told");
            return Ok(None);
        }
    };
    let mut client = owner.connector.local().await?;
    let is_own = unless_compacted(happened(&mut client, &event).await)?;
    Ok((is_own == Some(false)).then(|| {
        format!(
            "the last event of {}, at revision {}, never happened here",
            delta.name, event.mod_revision
        )
    }))
}

async fn happened(client: &mut Client, event: &Event) -> Result<bool, EtcdError> {
    let mut at = async |revision| {
        let options = Some(GetOptions::new().with_revision(revision));
        let asked = client.get(event.key.clone(), options);
        let answer = call("read a key of the newest delta", CALL_TIMEOUT, asked).await?;
        Ok::<_, EtcdError>(answer.kvs().first().cloned())
    };
    let after = at(event.mod_revision).await?;
    match (event.kind, after) {
        (EventKind::Put, Some(kv)) => Ok(kv.mod_revision() == event.mod_revision
            && kv.version() == event.version
            && kv.value() == event.value),
        (EventKind::Delete, None) => Ok(at(event.mod_revision - 1).await?.is_some()),
        _ => Ok(false),
    }
}

/// What was compacted can't be looked at. The watch finds that too, and a full snapshot follows.
fn unless_compacted<T>(answer: Result<T, EtcdError>) -> Result<Option<T>, EtcdError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_compacted() => Ok(None),
        Err(error) => Err(error),
    }
}
