//! What the manifests of a chain's snapshots say, looked at before the first byte of one is used.

use std::{collections::BTreeSet, sync::Arc};

use etcd_storage::chain::{Kind, Link, Plan};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use snapstore::{
    SnapStore, StoredSnapshot,
    manifest::{Facts, LastEvent, Manifest, facts},
};
use tracing::{debug, info};

use super::{
    Catalog, Error, Route, Wanted,
    ending::{LONGEST_KEY, describe, last_event},
};

/// Manifests that are read at once.
const AT_ONCE: usize = 16;

/// Why no way was found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// There is none.
    #[error(transparent)]
    Route(#[from] Error),
    /// The store didn't give a manifest.
    #[error(transparent)]
    Store(#[from] snapstore::Error),
}

/// What the manifest of a snapshot says, or why the snapshot isn't to be used.
pub(crate) async fn admitted(
    store: &Arc<dyn SnapStore>,
    stored: &StoredSnapshot,
) -> Result<Result<Option<Manifest>, String>, snapstore::Error> {
    let attestation = store.attest(stored).await?;
    let judged = store.signatures().judge(attestation);
    Ok(judged.and_then(|manifest| match manifest {
        // Before the first byte of it is read.
        Some(manifest) if manifest.size != stored.object.size => Err(format!(
            "has {} bytes in the store, but its manifest says {}",
            stored.object.size, manifest.size
        )),
        manifest => Ok(manifest),
    }))
}

/// The last event of a delta, for a manifest. Without it the cluster takes a full snapshot sooner.
async fn end_of(store: &Arc<dyn SnapStore>, delta: &StoredSnapshot) -> Option<LastEvent> {
    match last_event(store, delta).await {
        Ok(event) => {
            let event = event.filter(|event| event.key.len() <= LONGEST_KEY);
            event.as_ref().map(describe)
        }
        Err(error) => {
            debug!(name = %delta.name, %error, "no event goes into the manifest");
            None
        }
    }
}

impl Catalog {
    /// Finds the way to the wanted state, see [`Catalog::route`], of snapshots whose manifests are in order.
    pub async fn find(
        &mut self,
        store: &Arc<dyn SnapStore>,
        wanted: &Wanted,
        fallback: bool,
    ) -> Result<Route, FindError> {
        loop {
            let route = self.route(wanted, fallback)?;
            if self.attest(store, &route.plan).await? {
                return Ok(route);
            }
        }
    }

    /// What the manifest of a plan's newest snapshot says, as far as that is true of another snapshot of its end too, and the
    /// last event.
    pub async fn facts(&self, store: &Arc<dyn SnapStore>, plan: &Plan) -> Facts {
        let newest = plan.deltas.last().unwrap_or(&plan.base);
        let facts = self.manifest(newest).map(|manifest| manifest.facts.clone());
        let mut facts = facts.unwrap_or_else(|| self.cluster_before(plan));
        facts.database_sha256 = None;
        if let Some(delta) = plan.deltas.last() {
            facts.keys = None;
            facts.last_event = end_of(store, &self.0[delta.index].stored).await;
        }
        facts
    }

    /// Of which cluster the snapshots before a plan's newest one are, if its manifest isn't there yet or never came: the last
    /// event shows whether that is so.
    fn cluster_before(&self, plan: &Plan) -> Facts {
        let links = || plan.deltas.iter().rev().chain([&plan.base]);
        let manifest = links().find_map(|link| self.manifest(link));
        let facts = manifest.map(|manifest| &manifest.facts);
        facts.map_or_else(Facts::default, |facts| Facts {
            cluster_id: facts.cluster_id.clone(),
            etcd_uid: facts.etcd_uid.clone(),
            owner_since: facts.owner_since,
            ..Facts::default()
        })
    }

    /// The manifest of a snapshot, once it was looked at.
    pub fn manifest(&self, link: &Link) -> Option<&Manifest> {
        self.0[link.index].manifest.as_ref()
    }

    /// Leaves what other clusters have stored out of the way, if the cluster's Etcd has stored anything here: of its clusters
    /// the latest counts.
    pub async fn prefer(
        &mut self,
        store: &Arc<dyn SnapStore>,
        etcd_uid: &str,
    ) -> Result<(), snapstore::Error> {
        let fulls = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.link.kind == Kind::Full);
        let fulls: Vec<_> = fulls
            .map(|(index, entry)| (index, entry.stored.clone()))
            .collect();
        let reads = fulls.into_iter().map(|(index, stored)| {
            let store = Arc::clone(store);
            async move {
                let found = facts(store.as_ref(), &stored).await?;
                Ok::<_, snapstore::Error>((index, found.unwrap_or_default()))
            }
        });
        let read: Vec<_> = stream::iter(reads)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        let own = read
            .iter()
            .filter(|(_, facts)| facts.etcd_uid.as_deref() == Some(etcd_uid));
        let latest = own
            .max_by_key(|(_, facts)| facts.owner_since)
            .map(|(_, facts)| facts.cluster_id.clone());
        let Some(Some(cluster)) = latest else {
            return Ok(());
        };
        let others: BTreeSet<_> = read
            .iter()
            .filter(|(_, facts)| facts.cluster_id.as_ref() != Some(&cluster))
            .map(|(index, _)| *index)
            .collect();
        for index in &others {
            info!(
                name = self.0[*index].name,
                cluster, "left out: it isn't of this Etcd's latest cluster"
            );
            self.0[*index].is_left_out = true;
        }
        Ok(())
    }

    /// Looks at the manifests of a plan's snapshots, at each once. False when another plan may be the right one by that.
    async fn attest(&mut self, store: &Arc<dyn SnapStore>, plan: &Plan) -> Result<bool, snapstore::Error> {
        let links = std::iter::once(&plan.base).chain(&plan.deltas);
        let unseen = links.filter(|link| !self.0[link.index].attested);
        let unseen: Vec<_> = unseen
            .map(|link| (link.index, self.0[link.index].stored.clone()))
            .collect();
        let reads = unseen.into_iter().map(|(index, stored)| {
            let store = Arc::clone(store);
            async move { Ok::<_, snapstore::Error>((index, admitted(&store, &stored).await?)) }
        });
        let admitted: Vec<_> = stream::iter(reads)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        // What is known of clusters now may make it another plan.
        let mut sound = admitted.is_empty();
        for (index, admitted) in admitted {
            let entry = &mut self.0[index];
            match admitted {
                Ok(manifest) => {
                    let cluster = manifest
                        .as_ref()
                        .and_then(|manifest| manifest.facts.cluster_id.as_deref());
                    entry.link.cluster = cluster.and_then(|id| u64::from_str_radix(id, 16).ok());
                    (entry.attested, entry.manifest) = (true, manifest);
                }
                Err(reason) => {
                    entry.fault.get_or_insert(reason);
                    sound = false;
                }
            }
        }
        Ok(sound)
    }
}
