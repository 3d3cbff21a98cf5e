//! Looks after what lies below the store's prefix: whether it is this cluster's, whether it is still there, and whether
//! somebody else stores backups there too. See [`super::ownership`] for who has to leave.

use std::{collections::HashSet, time::Duration};

use jiff::{SignedDuration, Timestamp};
use snapstore::{Class, Error, Kind, Listing, SnapStore, SnapshotName, StoredSnapshot};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{
    BackupError,
    history::{self, Lineage},
    other_fulls::OtherFulls,
    owner::Owner,
    ownership::{Origin, Tenant, is_recent, stored_at, unaware, yields_to},
    snapshotter::{NewestSet, newest_set},
    upload::store_error,
    verification::begin_anew,
};

/// How often the store is looked at when deltas are rarer, or not periodic.
const LOOK_PERIOD: Duration = Duration::from_mins(1);
/// Another history, or nothing that shows that it is this cluster's.
const HISTORY_DIFFERS: &str = "HistoryDiffers";
const HISTORY_UNPROVEN: &str = "HistoryUnproven";
/// Another cluster stores its backups in the same place, and has to leave.
const PREFIX_SHARED: &str = "PrefixShared";

/// The clusters below the prefix: this one, and others.
struct Tenants {
    origin: Origin,
    own: Option<Tenant>,
    others: Vec<Tenant>,
}

async fn tenants(owner: &Owner, listing: &Listing) -> Result<Tenants, BackupError> {
    let cluster = owner.cluster_id().ok_or(BackupError::ClusterIdUnknown)?;
    let surveyed = owner.origins.survey(&owner.store, listing, &cluster).await;
    surveyed.map_err(|source| store_error(owner, source))?;
    let all = owner.origins.tenants(listing).into_iter();
    let (own, others): (Vec<_>, Vec<_>) = all.partition(|tenant| tenant.origin.cluster == cluster);
    let own = own.into_iter().next();
    let etcd_uid = owner.settings.etcd_uid.as_deref();
    owner.origins.claim(own.as_ref(), &others, etcd_uid);
    let origin = owner.origin().ok_or(BackupError::ClusterIdUnknown)?;
    Ok(Tenants { origin, own, others })
}

impl Tenants {
    /// Fails if this cluster has to leave the prefix to another one.
    fn admit(&self, owner: &Owner) -> Result<(), BackupError> {
        let period = owner.settings.delta_period.unwrap_or(LOOK_PERIOD);
        let (own, now) = (self.own.as_ref(), Timestamp::now());
        match yields_to(&self.origin, own, &self.others, period, now) {
            None => Ok(()),
            Some(other) => Err(BackupError::PrefixInUse {
                cluster: describe(&other.origin),
                location: owner.store.location().to_owned(),
                newest: other.newest_name.clone(),
                at: other.newest,
            }),
        }
    }
}

fn describe(origin: &Origin) -> String {
    let Origin {
        cluster,
        etcd_uid,
        since,
    } = origin;
    let uid = etcd_uid.as_deref().unwrap_or("unknown");
    format!("etcd cluster {cluster} (UID of its Etcd: {uid}; there since {since})")
}

/// What a cluster is called that isn't named by manifests.
const UNNAMED: &str = "an etcd cluster that its snapshots don't name";

impl Tenants {
    /// Judges a delta that no manifest names a cluster of. Fails if it is of another cluster that was here before this one.
    /// True if it is of one that came later.
    async fn check_foreign(
        &self,
        owner: &Owner,
        listing: &Listing,
        delta: &StoredSnapshot,
    ) -> Result<bool, BackupError> {
        if !matches!(
            Box::pin(history::delta_happened(owner, delta)).await?,
            Ok(Some(false))
        ) {
            return Ok(false);
        }
        let begun = self.own.as_ref().map(|own| own.first);
        let is_older = |stored: &StoredSnapshot| {
            owner.origins.is_unnamed(&stored.name) && begun.is_none_or(|begun| stored_at(stored) < begun)
        };
        if !listing.snapshots.iter().any(is_older) {
            return Ok(true);
        }
        Err(BackupError::PrefixInUse {
            cluster: UNNAMED.to_owned(),
            location: owner.store.location().to_owned(),
            newest: delta.name.to_string(),
            at: stored_at(delta),
        })
    }

    /// The same at the start of a term, of the newest delta if it is so new that whoever stored it must be taken to live.
    async fn admit_unnamed(&self, owner: &Owner, listing: &Listing) -> Result<(), BackupError> {
        let period = owner.settings.delta_period.unwrap_or(LOOK_PERIOD);
        let now = Timestamp::now();
        let is_recent_delta = |stored: &&StoredSnapshot| {
            stored.name.kind == Kind::Delta
                && owner.origins.is_unnamed(&stored.name)
                && is_recent(stored.name.created_on, period, now)
        };
        match listing.snapshots.iter().rfind(is_recent_delta) {
            Some(delta) => self.check_foreign(owner, listing, delta).await.map(drop),
            None => Ok(()),
        }
    }
}

/// The newest set of snapshots, if it is of this cluster's history: all or nothing. What this cluster was `restored` from is
/// its history, whatever cluster stored it.
pub(super) async fn own_set(
    owner: &Owner,
    listing: Listing,
    current: i64,
    restored: bool,
) -> Result<NewestSet, BackupError> {
    let tenants = tenants(owner, &listing).await?;
    tenants.admit(owner)?;
    tenants.admit_unnamed(owner, &listing).await?;
    if restored {
        return Ok(newest_set(&listing));
    }
    let listing = if tenants.own.is_some() {
        let own = &tenants.origin.cluster;
        owner.origins.without_others(listing, own, |_| false)
    } else {
        listing
    };
    let set = newest_set(&listing);
    let Some(newest) = set.1.last().or(set.0.as_ref()) else {
        return Ok(set);
    };
    let stored = newest.name.last_revision;
    if stored > current {
        return Err(BackupError::StoreAhead {
            stored,
            cluster: current,
        });
    }
    let Some(full) = &set.0 else {
        return Ok((None, Vec::new()));
    };
    let (reason, why) = match Box::pin(history::check(owner, full, newest)).await? {
        Lineage::Ours => return Ok(restorable(set)),
        Lineage::Other(why) => (
            HISTORY_DIFFERS,
            format!("the newest backups are of another history: {why}"),
        ),
        Lineage::Unproven(why) => (
            HISTORY_UNPROVEN,
            format!("nothing shows that the newest backups are of this cluster: {why}"),
        ),
    };
    owner
        .warn(reason, &format!("{why}; a full snapshot begins a new chain"))
        .await;
    Ok((None, Vec::new()))
}

/// The newest set without the deltas that a restore doesn't take: those behind a hole, and those that overlap what comes
/// before and have no manifest to say that they tell the same story. Whoever stored those was ended before it could write one;
/// what they hold is collected and stored again.
fn restorable((full, deltas): NewestSet) -> NewestSet {
    let Some(base) = full.as_ref().filter(|full| full.manifest.is_some()) else {
        return (full, deltas);
    };
    let mut end = base.name.last_revision;
    let mut taken = deltas;
    taken.retain(|delta| {
        let (start, last) = (delta.name.start_revision, delta.name.last_revision);
        let follows = start == end + 1 || (start <= end && delta.manifest.is_some());
        if !follows {
            let why = if start > end {
                "revisions before it are missing"
            } else {
                "it has no manifest"
            };
            warn!(name = %delta.name, after = end, why, "not counted, its revisions are stored again");
        }
        end = if follows { end.max(last) } else { end };
        follows
    });
    (full, taken)
}

/// A listing without what other clusters have stored, if this one has stored anything.
pub(super) async fn own_listing(owner: &Owner, listing: Listing) -> Result<Listing, BackupError> {
    let tenants = tenants(owner, &listing).await?;
    if tenants.own.is_none() {
        return Ok(listing);
    }
    let own = &tenants.origin.cluster;
    Ok(owner.origins.without_others(listing, own, |_| false))
}

/// Looks again and again, for as long as the term lasts. Returns why it must end. `found`: where full snapshots go that are
/// this cluster's, and newer than the one that its owner knows.
pub(super) async fn run(owner: &Owner, found: mpsc::Sender<StoredSnapshot>) -> BackupError {
    let period = owner.settings.delta_period.unwrap_or(LOOK_PERIOD);
    let mut watch = Watch::default();
    loop {
        match watch.look(owner, &found).await {
            Ok(()) => {}
            Err(error @ (BackupError::PrefixInUse { .. } | BackupError::SnapshotMissing(_))) => return error,
            Err(error) => debug!(%error, "what lies below the prefix can't be looked at"),
        }
        sleep(period.min(LOOK_PERIOD)).await;
    }
}

#[derive(Default)]
struct Watch {
    /// Deltas that were there from the start, or that were looked at.
    seen: Option<HashSet<SnapshotName>>,
    /// How often the newest snapshot was missing.
    missing: u32,
    others: OtherFulls,
}

impl Watch {
    async fn look(&mut self, owner: &Owner, found: &mpsc::Sender<StoredSnapshot>) -> Result<(), BackupError> {
        let known = owner.known();
        let listed = owner.store.list().await;
        let listing = listed.map_err(|source| store_error(owner, source))?;
        let stored: Vec<_> = known.full.iter().chain(&known.deltas).collect();
        self.compare(&stored, &listing)?;
        if let Some(origin) = owner.origin() {
            for stored in &stored {
                owner.origins.note(&stored.name, &origin);
            }
        }
        let fresh = self.fresh_deltas(&listing, owner);
        let looked = owner.origins.look(&owner.store, fresh.iter()).await;
        looked.map_err(|source| store_error(owner, source))?;
        let tenants = tenants(owner, &listing).await?;
        tenants.admit(owner)?;
        self.check_unnamed(owner, &tenants, &listing, &fresh).await?;
        answer(owner, &tenants).await;
        let cluster = &tenants.origin.cluster;
        if let Some(full) = self.others.newest(owner, &listing, cluster).await? {
            // While the last one isn't taken, the next look brings it again.
            let _ = found.try_send(full);
        }
        Ok(())
    }

    /// The newest full snapshot and the newest delta are where they were stored. One listing may be older than they are.
    fn compare(&mut self, stored: &[&StoredSnapshot], listing: &Listing) -> Result<(), BackupError> {
        let is_there = |name: &SnapshotName| {
            let found = listing.snapshots.iter().chain(&listing.unsettled);
            found
                .filter(|found| !found.excluded)
                .any(|found| found.name == *name)
        };
        let newest = [stored.first(), stored.last()].into_iter().flatten();
        let Some(lost) = newest.copied().find(|stored| !is_there(&stored.name)) else {
            self.missing = 0;
            return Ok(());
        };
        self.missing += 1;
        if self.missing < 2 {
            return Ok(());
        }
        Err(BackupError::SnapshotMissing(lost.name.to_string()))
    }

    /// Deltas that have appeared and that this owner hasn't stored.
    fn fresh_deltas(&mut self, listing: &Listing, owner: &Owner) -> Vec<StoredSnapshot> {
        let deltas = || {
            let all = listing.snapshots.iter();
            all.filter(|stored| stored.name.kind == Kind::Delta)
        };
        let Some(seen) = &mut self.seen else {
            self.seen = Some(deltas().map(|stored| stored.name.clone()).collect());
            return Vec::new();
        };
        let listed: HashSet<_> = deltas().map(|stored| &stored.name).collect();
        seen.retain(|name| listed.contains(name));
        let is_fresh = |stored: &&StoredSnapshot| {
            !seen.contains(&stored.name) && owner.origins.of(&stored.name).is_none()
        };
        deltas().filter(is_fresh).cloned().collect()
    }

    /// Deltas that no manifest names a cluster of, as etcd-backup-restore writes them. They may be of this very cluster.
    async fn check_unnamed(
        &mut self,
        owner: &Owner,
        tenants: &Tenants,
        listing: &Listing,
        fresh: &[StoredSnapshot],
    ) -> Result<(), BackupError> {
        let unnamed = fresh
            .iter()
            .filter(|stored| owner.origins.is_unnamed(&stored.name));
        let unnamed: Vec<_> = unnamed.collect();
        let Some(newest) = unnamed.last() else {
            return Ok(());
        };
        let is_first = tenants.check_foreign(owner, listing, newest).await?;
        if let Some(seen) = &mut self.seen {
            seen.extend(unnamed.iter().map(|stored| stored.name.clone()));
        }
        if is_first {
            shared(owner, UNNAMED, &newest.name.to_string()).await;
        }
        Ok(())
    }
}

/// Lets a cluster that came later know that this one lives: it has to leave when it sees a new snapshot.
async fn answer(owner: &Owner, tenants: &Tenants) {
    let Some(other) = unaware(&tenants.origin, tenants.own.as_ref(), &tenants.others) else {
        return;
    };
    shared(owner, &describe(&other.origin), &other.newest_name).await;
    info!(
        cluster = other.origin.cluster,
        "a full snapshot shows the other cluster that this one lives"
    );
    // It goes on without a waiter.
    let _ = timeout(LOOK_PERIOD, begin_anew(owner)).await;
}

async fn shared(owner: &Owner, cluster: &str, newest: &str) {
    let note = format!(
        "{cluster} has begun to store its backups in {} too ({newest}), where this one was first. This one goes on; give \
         the other Etcd another spec.backup.store.prefix",
        owner.store.location()
    );
    owner.warn(PREFIX_SHARED, &note).await;
}

/// How long snapshots of unknown clusters are left alone after this one has begun: another one may still use them.
const UNNAMED_KEPT: SignedDuration = SignedDuration::from_hours(24);

/// A listing without what retention must leave alone: snapshots of clusters of other Etcds, and for a while those of
/// unknown ones.
pub(super) async fn collectable(
    owner: &Owner,
    store: &dyn SnapStore,
    listing: Listing,
) -> Result<Listing, Error> {
    let action = || format!("see whose backups are in {}", store.location());
    let origin = owner.origin();
    let origin = &origin.ok_or_else(|| Error::new(Class::Other, action(), "the cluster's ID isn't known"))?;
    // What was copied to the second store has the names of the first one, and was looked at there.
    if store.location() == owner.store.location() {
        let surveyed = owner.origins.survey(&owner.store, &listing, &origin.cluster);
        surveyed.await?;
    }
    let same_etcd = |other: &Origin| origin.etcd_uid.is_some() && origin.etcd_uid == other.etcd_uid;
    let mut listing = owner.origins.without_others(listing, &origin.cluster, same_etcd);
    if Timestamp::now().duration_since(origin.since) < UNNAMED_KEPT {
        let is_named = |stored: &StoredSnapshot| !owner.origins.is_unnamed(&stored.name);
        listing.snapshots.retain(is_named);
    }
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::testing;

    fn stored(name: &str, has_manifest: bool) -> StoredSnapshot {
        let snapshot = testing::stored(name);
        let manifest = has_manifest.then(|| snapshot.object.clone());
        StoredSnapshot { manifest, ..snapshot }
    }

    /// Deltas by their revisions, with an m if they have a manifest, behind a full snapshot at 4; those that are taken.
    #[test]
    fn deltas_are_taken_as_a_restore_takes_them() {
        for (full_has_manifest, deltas, expected) in [
            (true, vec!["5-6", "7-9m"], vec!["5-6", "7-9m"]),
            (true, vec!["2-6m", "7-9"], vec!["2-6m", "7-9"]),
            (true, vec!["2-6"], vec![]),
            (true, vec!["2-6", "7-9m"], vec![]),
            (true, vec!["2-6", "7-9m", "5-20m"], vec!["5-20m"]),
            (true, vec!["5-6m", "8-9m"], vec!["5-6m"]),
            (false, vec!["2-6", "8-9"], vec!["2-6", "8-9"]),
        ] {
            let full = stored("Full-00000000-00000004-1700000000", full_has_manifest);
            let delta = |text: &&str| {
                let (start, last) = text.trim_end_matches('m').split_once('-').unwrap();
                stored(
                    &format!("Incr-{start:0>8}-{last:0>8}-1700000001"),
                    text.ends_with('m'),
                )
            };
            let all = deltas.iter().map(delta).collect();
            let (_, taken) = restorable((Some(full), all));
            let expected: Vec<_> = expected.iter().map(delta).map(|delta| delta.name).collect();
            let taken: Vec<_> = taken.into_iter().map(|delta| delta.name).collect();
            assert_eq!(taken, expected, "{deltas:?}");
        }
    }
}
