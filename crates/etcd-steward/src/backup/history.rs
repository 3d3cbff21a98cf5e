//! Whether the newest backups are of this cluster's own history. Their revisions don't tell: a cluster whose data went
//! back, or another one, counts past them after a while, and deltas would then be added to what they don't follow. Nothing
//! is continued unless it is shown to be ours: by the manifests, which name the cluster, and by the last event, which must
//! have happened here.

use std::time::Duration;

use base64_simd::STANDARD as BASE64;
use etcd_client::{
    Client, GetOptions, WatchOptions,
    proto::{PbEvent, PbKeyValue},
};
use etcd_storage::delta::Event;
use operator::reconcile::chain as causes;
use sha2::{Digest as _, Sha256};
use snapstore::{
    Class, Kind, StoredSnapshot,
    manifest::{Facts, LastEvent, Signatures, facts},
};
use tokio::time::timeout;
use tracing::debug;

use super::{BackupError, owner::Owner, upload::store_error};
use crate::{
    chain,
    etcd::{CALL_TIMEOUT, Connector, EtcdError, call},
};

/// etcd has the event at hand, or none: a revision that a restore has raised has no events.
const EVENT_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of the largest answer: etcd takes values of any size that its own limit allows.
const LARGEST_MESSAGE: usize = i32::MAX as usize;
/// What `Event.type` of etcd's API calls a deletion.
const DELETE: i32 = 1;

/// Of what history a chain in the store is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lineage {
    /// Of this cluster's.
    Ours,
    /// Of another one; says how that shows.
    Other(String),
    /// Nothing shows that it is of this one.
    Unproven(String),
}

/// Whose history the chain is that begins with `full` and ends with `newest`.
pub(super) async fn check(
    owner: &Owner,
    full: &StoredSnapshot,
    newest: &StoredSnapshot,
) -> Result<Lineage, BackupError> {
    let Some(own) = owner.cluster_id() else {
        return Ok(Lineage::Unproven("this cluster's ID isn't known".to_owned()));
    };
    let mut described = Facts::default();
    let is_one = full.name == newest.name;
    for stored in [full, newest].into_iter().take(if is_one { 1 } else { 2 }) {
        let name = &stored.name;
        let facts = match describe(owner, stored).await? {
            Ok(facts) => facts,
            Err(why) => return Ok(Lineage::Unproven(format!("{name}: {why}"))),
        };
        let theirs = facts.as_ref().and_then(|facts| facts.cluster_id.clone());
        match theirs {
            Some(theirs) if theirs == own => described = facts.unwrap_or_default(),
            Some(theirs) => {
                return Ok(Lineage::Other(format!(
                    "{name} is of cluster {theirs}, this is {own}"
                )));
            }
            // The manifest of a delta may be missing when its owner has lost the leadership: then its last event decides alone.
            None if name.kind == Kind::Delta => {}
            None => {
                return Ok(Lineage::Unproven(format!(
                    "no manifest says of which cluster {name} is"
                )));
            }
        }
    }
    match newest.name.kind {
        Kind::Full => by_full(owner, newest, &described).await,
        Kind::Delta => by_delta(owner, newest).await,
    }
}

/// What the manifest of a snapshot says, if it has one, or why it doesn't count.
pub(super) async fn describe(
    owner: &Owner,
    stored: &StoredSnapshot,
) -> Result<Result<Option<Facts>, String>, BackupError> {
    let read = async {
        if owner.store.signatures() == Signatures::Ignore {
            let found = facts(owner.store.as_ref(), stored).await?;
            return Ok::<_, snapstore::Error>(Ok(found));
        }
        let admitted = chain::admitted(&owner.store, stored).await?;
        Ok(admitted.map(|manifest| manifest.map(|manifest| manifest.facts)))
    };
    match read.await {
        Ok(described) => Ok(described),
        Err(error) => unreadable(owner, error).map(Err),
    }
}

/// What may be readable later says nothing now; what never will is no proof.
fn unreadable(owner: &Owner, error: snapstore::Error) -> Result<String, BackupError> {
    if error.is_retryable() {
        return Err(store_error(owner, error));
    }
    Ok(causes(&error))
}

async fn by_full(owner: &Owner, full: &StoredSnapshot, facts: &Facts) -> Result<Lineage, BackupError> {
    let (name, revision) = (&full.name, full.name.last_revision);
    if revision <= 1 {
        // Before the first write all histories of a cluster are one.
        return Ok(Lineage::Ours);
    }
    if let Some(stated) = facts.keys
        && let Some(found) = unless_compacted(owner.connector.count_keys(revision).await)?
        && found != stated
    {
        let why = format!("{name} has {stated} keys at revision {revision}, this cluster has {found}");
        return Ok(Lineage::Other(why));
    }
    let Some(stated) = facts.last_event.as_ref() else {
        return Ok(Lineage::Unproven(format!(
            "the manifest of {name} names no event"
        )));
    };
    let Ok(key) = BASE64.decode_to_vec(&stated.key) else {
        return Ok(Lineage::Unproven(format!("the manifest of {name} names no key")));
    };
    let mut client = owner.connector.local().await?;
    let happened = happened(&mut client, key, revision, stated).await;
    Ok(lineage(unless_compacted(happened)?, name, revision))
}

async fn by_delta(owner: &Owner, delta: &StoredSnapshot) -> Result<Lineage, BackupError> {
    let happened = delta_happened(owner, delta).await?;
    match happened {
        Ok(happened) => Ok(lineage(happened, &delta.name, delta.name.last_revision)),
        Err(why) => Ok(Lineage::Unproven(format!("{}: {why}", delta.name))),
    }
}

fn lineage(happened: Option<bool>, name: &snapstore::SnapshotName, revision: i64) -> Lineage {
    match happened {
        Some(true) => Lineage::Ours,
        Some(false) => Lineage::Other(format!(
            "the last event of {name}, at revision {revision}, never happened here"
        )),
        None => Lineage::Unproven(format!(
            "etcd has compacted revision {revision}, with which {name} ends"
        )),
    }
}

/// The last event of a delta, or why it can't be read.
async fn end_of(owner: &Owner, delta: &StoredSnapshot) -> Result<Result<Event, String>, BackupError> {
    match chain::last_event(&owner.store, delta).await {
        Ok(Some(event)) => Ok(Ok(event)),
        Ok(None) => Ok(Err("it is empty".to_owned())),
        Err(error) => {
            let class = chain::store_error(&error).unwrap_or(Class::Corrupt);
            let error = snapstore::Error::new(class, format!("read {}", delta.name), causes(&error));
            unreadable(owner, error).map(Err)
        }
    }
}

/// Whether a full snapshot ends with the same event as another snapshot of that revision. Shows whose it is when etcd has
/// compacted that revision.
pub(super) async fn ends_like(
    owner: &Owner,
    full: &StoredSnapshot,
    other: &StoredSnapshot,
) -> Result<bool, BackupError> {
    let stated = last_event_of(owner, full).await?;
    let expected = match other.name.kind {
        Kind::Full => last_event_of(owner, other).await?,
        Kind::Delta => {
            let event = Box::pin(end_of(owner, other)).await?;
            event.ok().map(|event| chain::describe(&event))
        }
    };
    Ok(stated.is_some() && stated == expected)
}

async fn last_event_of(owner: &Owner, full: &StoredSnapshot) -> Result<Option<LastEvent>, BackupError> {
    let facts = describe(owner, full).await?.ok().flatten();
    Ok(facts.and_then(|facts| facts.last_event))
}

/// Whether the last event of a delta happened here; `None` if etcd has dropped it. Or why the delta can't be read.
pub(super) async fn delta_happened(
    owner: &Owner,
    delta: &StoredSnapshot,
) -> Result<Result<Option<bool>, String>, BackupError> {
    let event = match end_of(owner, delta).await? {
        Ok(event) => event,
        Err(why) => return Ok(Err(why)),
    };
    let mut client = owner.connector.local().await?;
    let (key, revision, stated) = (event.key.clone(), event.mod_revision, chain::describe(&event));
    let happened = happened(&mut client, key, revision, &stated).await;
    Ok(Ok(unless_compacted(happened)?))
}

async fn happened(
    client: &mut Client,
    key: Vec<u8>,
    revision: i64,
    stated: &LastEvent,
) -> Result<bool, EtcdError> {
    let mut at = async |revision| {
        let options = Some(GetOptions::new().with_revision(revision));
        let asked = client.get(key.clone(), options);
        let answer = call("read a key of the newest backup", CALL_TIMEOUT, asked).await?;
        Ok::<_, EtcdError>(answer.kvs().first().cloned())
    };
    match (stated.deleted, at(revision).await?) {
        (false, Some(kv)) => Ok(kv.mod_revision() == revision
            && kv.version() == stated.version
            && hex::encode(Sha256::digest(kv.value())) == stated.value_sha256),
        (true, None) => Ok(at(revision - 1).await?.is_some()),
        _ => Ok(false),
    }
}

/// What was compacted can't be looked at.
fn unless_compacted<T>(answer: Result<T, EtcdError>) -> Result<Option<T>, EtcdError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_compacted() => Ok(None),
        Err(error) => Err(error),
    }
}

/// An event of a revision, for the manifest of the full snapshot that ends with it. Nothing depends on it: without it the
/// chain isn't continued by the next owner, who takes a full snapshot.
pub(super) async fn last_event(connector: &Connector, revision: i64) -> Option<LastEvent> {
    // Nothing was written yet.
    if revision <= 1 {
        return None;
    }
    let event = event_of(connector, revision).await;
    event
        .inspect_err(|error| debug!(revision, %error, "no event goes into the manifest"))
        .ok()
        .flatten()
}

async fn event_of(connector: &Connector, revision: i64) -> Result<Option<LastEvent>, EtcdError> {
    const CALL: &str = "watch a revision";
    let client = connector.local().await?;
    let options = WatchOptions::new()
        .with_all_keys()
        .with_start_revision(revision)
        .with_fragment();
    let mut watches = client.watch_client().max_decoding_message_size(LARGEST_MESSAGE);
    let mut stream = call(CALL, CALL_TIMEOUT, watches.watch("\0", Some(options))).await?;
    let failed = |source| EtcdError::Call {
        call: CALL,
        source: Box::new(source),
    };
    let read = async {
        while let Some(answer) = stream.message().await.map_err(failed)? {
            if answer.compact_revision() > 0 || answer.canceled() {
                return Ok(None);
            }
            if !answer.0.events.is_empty() {
                return Ok(summarize(&answer.0.events, revision));
            }
        }
        Ok(None)
    };
    // From here on: that etcd is slow to begin says nothing.
    timeout(EVENT_TIMEOUT, read).await.unwrap_or(Ok(None))
}

/// Of the events of a revision a put, if there is one: what was there before a deletion is the first to be compacted.
fn summarize(events: &[PbEvent], revision: i64) -> Option<LastEvent> {
    let fits = |kv: &&PbKeyValue| kv.mod_revision == revision && kv.key.len() <= chain::LONGEST_KEY;
    let of_revision = || {
        events
            .iter()
            .filter_map(|event| Some((event.r#type == DELETE, event.kv.as_ref().filter(fits)?)))
    };
    let put = of_revision().find(|(deleted, _)| !deleted);
    let (deleted, kv) = put.or_else(|| of_revision().next())?;
    Some(LastEvent {
        key: BASE64.encode_to_string(&kv.key),
        deleted,
        version: kv.version,
        value_sha256: hex::encode(Sha256::digest(&kv.value)),
    })
}
