//! How a delta ends: by its last event a cluster can tell whether the delta is of its own history.

use std::{io, sync::Arc};

use etcd_storage::{
    compression::Decoder,
    delta::{self, Event},
    object::Object,
};
use snapstore::{SnapStore, StoredSnapshot};
use tokio::runtime::Handle;

use super::{attest::admitted, object};

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
