//! From what a store lists to the chain that the storage engine reads: plans it, and opens its objects as they are needed.

use std::{io, sync::Arc};

use etcd_storage::{
    chain::{self, Link, Plan},
    object::{Chain, Object},
};
use futures::TryStreamExt as _;
use snapstore::{Kind, Listing, SnapStore, StoredSnapshot};
use tokio::runtime::Handle;
use tokio_util::io::{StreamReader, SyncIoBridge};

/// Plans the restore of the newest state, or of the state at `target`.
pub fn plan(listing: &Listing, target: Option<i64>) -> Result<Plan, chain::Error> {
    let links: Vec<Link> = listing
        .snapshots
        .iter()
        .enumerate()
        .filter(|(_, snapshot)| !snapshot.excluded)
        .map(|(index, snapshot)| Link {
            kind: match snapshot.name.kind {
                Kind::Full => chain::Kind::Full,
                Kind::Delta => chain::Kind::Delta,
            },
            start: snapshot.name.start_revision,
            last: snapshot.name.last_revision,
            created_on: snapshot.name.created_on.as_second(),
            index,
        })
        .collect();
    chain::plan(&links, target)
}

/// The objects of a plan. They are fetched when they are opened, from threads outside the runtime.
pub fn open(store: &Arc<dyn SnapStore>, listing: &Listing, plan: &Plan, runtime: &Handle) -> Option<Chain> {
    let object = |link: &Link| Some(object(store, listing.snapshots.get(link.index)?, runtime));
    Some(Chain {
        base: object(&plan.base)?,
        deltas: plan.deltas.iter().map(object).collect::<Option<_>>()?,
    })
}

fn object(store: &Arc<dyn SnapStore>, stored: &StoredSnapshot, runtime: &Handle) -> Object {
    let (store, place, runtime) = (Arc::clone(store), stored.object.clone(), runtime.clone());
    Object {
        name: stored.name.to_string(),
        compression: stored.name.compression,
        start: stored.name.start_revision,
        last: stored.name.last_revision,
        open: Box::new(move || {
            let stream = runtime
                .block_on(store.get(&place, None))
                .map_err(io::Error::other)?;
            let reader = StreamReader::new(stream.map_err(io::Error::other));
            Ok(Box::new(SyncIoBridge::new_with_handle(reader, runtime.clone())))
        }),
    }
}
