//! How a delta ends: by its last event a cluster can tell whether the delta is of its own history.

use std::{io, sync::Arc};

use base64_simd::STANDARD as BASE64;
use etcd_storage::{
    compression::Decoder,
    delta::{self, Event, EventKind},
    object::Object,
};
use sha2::{Digest as _, Sha256};
use snapstore::{SnapStore, StoredSnapshot, manifest::LastEvent};
use tokio::runtime::Handle;

use super::{attest::admitted, object};

/// Longer keys aren't written into manifests.
pub(crate) const LONGEST_KEY: usize = 4 << 10;

/// An event as manifests describe it.
pub(crate) fn describe(event: &Event) -> LastEvent {
    LastEvent {
        key: BASE64.encode_to_string(&event.key),
        deleted: event.kind == EventKind::Delete,
        version: event.version,
        value_sha256: hex::encode(Sha256::digest(&event.value)),
    }
}

/// The last event of a delta whose manifest is in order, and whose hash is right.
pub(crate) async fn last_event(
    store: &Arc<dyn SnapStore>,
    delta: &StoredSnapshot,
) -> io::Result<Option<Event>> {
    let object = opened(store, delta).await?;
    let read = tokio::task::spawn_blocking(move || read(&object));
    read.await.map_err(io::Error::other)?
}

/// By how many keys there are more after those events of a delta that lie after one revision, up to another. Its manifest is
/// in order, and its hash is right.
pub(crate) async fn key_changes(
    store: &Arc<dyn SnapStore>,
    delta: &StoredSnapshot,
    after: i64,
    to: i64,
) -> io::Result<i64> {
    let object = opened(store, delta).await?;
    let read = tokio::task::spawn_blocking(move || count(&object, after, to));
    read.await.map_err(io::Error::other)?
}

async fn opened(store: &Arc<dyn SnapStore>, delta: &StoredSnapshot) -> io::Result<Object> {
    let manifest = admitted(store, delta).await.map_err(io::Error::other)?;
    let manifest = manifest.map_err(io::Error::other)?;
    Ok(object(
        store,
        delta,
        manifest,
        &Handle::current(),
        &Arc::default(),
    ))
}

fn count(object: &Object, after: i64, to: i64) -> io::Result<i64> {
    let source = Decoder::new(object.compression, (object.open)()?)?;
    let mut decoder = delta::Decoder::without_contents(source);
    let mut net = 0;
    while let Some(positioned) = decoder.next_event().map_err(io::Error::other)? {
        let event = positioned.event;
        if event.mod_revision <= after || event.mod_revision > to {
            continue;
        }
        net += match event.kind {
            EventKind::Put => i64::from(event.create_revision == event.mod_revision),
            EventKind::Delete => -1,
        };
    }
    Ok(net)
}

fn read(object: &Object) -> io::Result<Option<Event>> {
    let mut decoder = delta::Decoder::new(Decoder::new(object.compression, (object.open)()?)?);
    let mut last = None;
    while let Some(positioned) = decoder.next_event().map_err(io::Error::other)? {
        last = Some(positioned.event);
    }
    Ok(last)
}
