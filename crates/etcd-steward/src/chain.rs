//! From what a store lists to the chain that the storage engine reads: which snapshots there are, which of them can't be
//! used, the way to a wanted state ([`route`]), and its objects, which are fetched when they are needed ([`fetch`]).

mod attest;
mod check;
mod damage;
mod ending;
mod fetch;
mod route;
#[cfg(test)]
mod tests;

use std::sync::{Arc, atomic::AtomicU64};

use etcd_storage::{
    assemble,
    chain::{self, Link, Plan},
    object::{Chain, Object},
};
use snapstore::{
    Kind, Layout, Listing, SnapStore, SnapshotName, StoredSnapshot, Unparsable, manifest::Manifest,
    name::NameError,
};
use tokio::runtime::Handle;

use self::fetch::Fetch;
pub use self::{
    attest::FindError,
    damage::{Cause, Damage, Fault, Rescue, Revisions, is_damage, store_error},
    route::{Error, Route, Wanted},
};
pub(crate) use self::{
    attest::admitted,
    check::{Verdict, read_back},
    ending::{LONGEST_KEY, describe, key_changes, last_event},
};

/// The snapshots of a store, and what is known to be wrong with them.
#[derive(Debug)]
pub struct Catalog(Vec<Entry>);

/// A snapshot of the store, as far as a chain is concerned.
#[derive(Debug)]
struct Entry {
    name: String,
    stored: StoredSnapshot,
    link: Link,
    /// Why it can't be used.
    fault: Option<String>,
    /// Whether its manifest was looked at, and found in order.
    attested: bool,
    /// What that says.
    manifest: Option<Manifest>,
    /// Whether it is of another cluster than the wanted one.
    is_left_out: bool,
}

impl Catalog {
    /// Takes what a store lists. Snapshots that are marked as excluded count as not there.
    pub fn new(listing: Listing) -> Self {
        let known = listing.snapshots.into_iter().filter(|stored| !stored.excluded);
        let known = known.map(|stored| {
            let size = stored.object.size;
            let fault = format!("{size} bytes are too few to hold data and its SHA-256");
            let fault = (!stored.is_usable()).then_some(fault);
            (stored.name.to_string(), stored, fault)
        });
        let unknown = listing.unparsable.into_iter().filter_map(of_unknown_form);
        let entry =
            |(index, (name, stored, fault)): (usize, (String, StoredSnapshot, Option<String>))| Entry {
                link: link(&stored.name, index),
                name,
                stored,
                fault,
                attested: false,
                manifest: None,
                is_left_out: false,
            };
        Self(known.chain(unknown).enumerate().map(entry).collect())
    }

    /// Notes that a snapshot turned out to be bad. False when that was known, or there is none of this name.
    pub fn condemn(&mut self, name: &str, reason: &str) -> bool {
        let sound = |entry: &&mut Entry| entry.name == name && entry.fault.is_none();
        let found = self.0.iter_mut().find(sound);
        found.map(|entry| entry.fault = Some(reason.to_owned())).is_some()
    }

    /// Notes what the engine found. False when the error isn't that a snapshot is bad.
    pub fn condemn_for(&mut self, error: &assemble::Error) -> bool {
        match error.object() {
            Some(object) if is_damage(error) => self.condemn(object, &damage::reason(error)),
            _ => false,
        }
    }

    /// The snapshots of a plan, the base first.
    pub fn snapshots<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = &'a StoredSnapshot> + 'a {
        let links = std::iter::once(&plan.base).chain(&plan.deltas);
        links.map(|link| &self.0[link.index].stored)
    }

    /// The objects of a plan. They are fetched when they are opened, from threads outside the runtime.
    pub fn open(&self, store: &Arc<dyn SnapStore>, plan: &Plan, runtime: &Handle) -> Source {
        let fetched = Arc::default();
        let open = |link: &Link| {
            let entry = &self.0[link.index];
            object(
                store,
                &entry.stored,
                self.manifest(link).cloned(),
                runtime,
                &fetched,
            )
        };
        let chain = Chain {
            base: open(&plan.base),
            deltas: plan.deltas.iter().map(open).collect(),
        };
        Source {
            chain,
            size: self.snapshots(plan).map(|stored| stored.object.size).sum(),
            fetched,
        }
    }
}

/// A chain that is ready to be read.
#[derive(Debug)]
pub struct Source {
    /// Its objects.
    pub chain: Chain,
    /// Bytes that were fetched from the store so far.
    pub fetched: Arc<AtomicU64>,
    /// Bytes that the objects have in the store.
    pub size: u64,
}

/// A stored snapshot as the engine reads it: to its end only if it is what its manifest says. What is fetched is added to
/// `fetched`.
pub fn object(
    store: &Arc<dyn SnapStore>,
    stored: &StoredSnapshot,
    manifest: Option<Manifest>,
    runtime: &Handle,
    fetched: &Arc<AtomicU64>,
) -> Object {
    let (store, place) = (Arc::clone(store), stored.object.clone());
    let (runtime, fetched) = (runtime.clone(), Arc::clone(fetched));
    Object {
        name: stored.name.to_string(),
        compression: stored.name.compression,
        start: stored.name.start_revision,
        last: stored.name.last_revision,
        open: Box::new(move || {
            let (store, fetched) = (Arc::clone(&store), Arc::clone(&fetched));
            let fetch = Fetch::start(store, place.clone(), manifest.clone(), fetched, &runtime);
            Ok(Box::new(fetch))
        }),
    }
}

fn link(name: &SnapshotName, index: usize) -> Link {
    Link {
        kind: match name.kind {
            Kind::Full => chain::Kind::Full,
            Kind::Delta => chain::Kind::Delta,
        },
        start: name.start_revision,
        last: name.last_revision,
        created_on: name.created_on.as_second(),
        cluster: None,
        index,
    }
}

/// A snapshot whose compression isn't known here. It can't be read, but a chain that needs it is not whole without it.
fn of_unknown_form(unknown: Unparsable) -> Option<(String, StoredSnapshot, Option<String>)> {
    let NameError::Compression(suffix) = &unknown.reason else {
        return None;
    };
    let text = unknown.object.key.rsplit('/').next()?.to_owned();
    let known = text.trim_end_matches(".final").strip_suffix(suffix.as_str())?;
    let stored = StoredSnapshot {
        name: known.parse().ok()?,
        layout: Layout::V2,
        object: unknown.object,
        excluded: false,
        manifest: None,
    };
    Some((text, stored, Some(unknown.reason.to_string())))
}
