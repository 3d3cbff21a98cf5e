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
    let manifest = admitted(store, delta).await.map_err(io::Error::other)?;
    let manifest = manifest.map_err(io::Error::other)?;
    let object = object(store, delta, manifest, &Handle::current(), &Arc::default());
    let read = tokio::task::spawn_blocking(move || read(&object));
    read.await.map_err(io::Error::other)?
}

fn read(object: &Object) -> io::Result<Option<Event>> {
    let mut decoder = delta::Decoder::new(Decoder::new(object.compression, (object.open)()?)?);
    let mut last = None;
    while let Some(positioned) = decoder.next_event().map_err(io::Error::other)? {
        last = Some(positioned.event);
    }
    Ok(last)
}
