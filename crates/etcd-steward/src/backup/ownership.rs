//! Whose the snapshots below a prefix are. Manifests say of which cluster a snapshot was taken, of which Etcd that is, and
//! since when it stores its backups there. By that two clusters with one prefix notice each other, and exactly one of them
//! goes on.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use snapstore::{
    Error, Kind, Listing, SnapStore, SnapshotName, StoredSnapshot,
    manifest::{Facts, facts},
};

use crate::member::whole_seconds;

/// Manifests that are read at once.
const AT_ONCE: usize = 16;
/// A manifest follows its snapshot within this time, or not at all.
const MANIFEST_TIMEOUT: SignedDuration = SignedDuration::from_mins(1);
/// Whose newest snapshot is older than this may be gone for good, however long its delta period is.
const LONGEST_WINDOW: Duration = Duration::from_mins(10);

/// The cluster that a snapshot was taken of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    /// Cluster ID, in hexadecimal digits.
    pub(super) cluster: String,
    /// UID of its Etcd.
    pub(super) etcd_uid: Option<String>,
    /// Since when it stores its backups here.
    pub(super) since: Timestamp,
}

impl Origin {
    fn of(facts: Facts, name: &SnapshotName) -> Option<Self> {
        Some(Self {
            cluster: facts.cluster_id?,
            etcd_uid: facts.etcd_uid,
            since: facts.owner_since.unwrap_or(name.created_on),
        })
    }
}

/// What a cluster has below the prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tenant {
    pub(super) origin: Origin,
    /// When its first and its newest snapshot were stored, by the store's clock.
    pub(super) first: Timestamp,
    pub(super) newest: Timestamp,
    pub(super) newest_name: String,
    /// When its newest snapshot was taken. A copy is stored later than that.
    pub(super) taken: Timestamp,
}

/// What another cluster with backups below the prefix is to this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    /// An earlier cluster of the same Etcd: this one was restored from it.
    Predecessor,
    /// A later cluster of the same Etcd.
    Successor,
    /// A cluster of another Etcd that was here first.
    Earlier,
    /// A cluster of another Etcd that came later.
    Later,
}

impl Origin {
    /// What the other one is to this. Of two clusters each comes to the opposite answer.
    pub(super) fn relation(&self, other: &Self) -> Relation {
        let came_before = (other.since, &other.cluster) < (self.since, &self.cluster);
        let same_etcd = self.etcd_uid.is_some() && self.etcd_uid == other.etcd_uid;
        match (same_etcd, came_before) {
            (true, true) => Relation::Predecessor,
            (true, false) => Relation::Successor,
            (false, true) => Relation::Earlier,
            (false, false) => Relation::Later,
        }
    }
}

/// Whether this cluster has to leave the prefix to another one. `own`: what it has there itself.
pub(super) fn yields_to<'a>(
    origin: &Origin,
    own: Option<&Tenant>,
    others: &'a [Tenant],
    delta_period: Duration,
    now: Timestamp,
) -> Option<&'a Tenant> {
    let is_live = |other: &Tenant| match own {
        // It has stored something since.
        Some(own) => other.newest > own.first,
        // Nothing tells whether it will go on, but it did so just now.
        None => is_recent(other.taken, delta_period, now),
    };
    others.iter().find(|other| match origin.relation(&other.origin) {
        Relation::Successor => true,
        Relation::Earlier => is_live(other),
        Relation::Predecessor | Relation::Later => false,
    })
}

/// Whether a snapshot was taken so short a time ago that whoever took it must be taken to live.
pub(super) fn is_recent(taken: Timestamp, delta_period: Duration, now: Timestamp) -> bool {
    let window = (2 * delta_period).min(LONGEST_WINDOW);
    now.duration_since(taken) < SignedDuration::try_from(window).unwrap_or(SignedDuration::MAX)
}

/// Clusters of other Etcds that have come later and may not know that this one lives: it has stored nothing since.
pub(super) fn unaware<'a>(origin: &Origin, own: Option<&Tenant>, others: &'a [Tenant]) -> Option<&'a Tenant> {
    others.iter().find(|other| {
        origin.relation(&other.origin) == Relation::Later && own.is_none_or(|own| own.newest <= other.first)
    })
}

/// When the store got a snapshot, by its own clock where it tells.
pub(super) fn stored_at(stored: &StoredSnapshot) -> Timestamp {
    stored.object.last_modified.unwrap_or(stored.name.created_on)
}

/// Since when a cluster that has stored nothing yet stores its backups here. Names have whole seconds, and so have manifests.
fn begins(others: &[Tenant], etcd_uid: Option<&str>, now: Timestamp) -> Timestamp {
    let of_same_etcd = others
        .iter()
        .filter(|other| etcd_uid.is_some() && other.origin.etcd_uid.as_deref() == etcd_uid);
    let latest = of_same_etcd.map(|other| other.origin.since).max();
    let after = latest.and_then(|latest| latest.checked_add(SignedDuration::from_secs(1)).ok());
    whole_seconds(now).max(after.unwrap_or(Timestamp::MIN))
}

/// What was read of manifests; each is read once in the life of the process. `None`: there is none, or it names no cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct Origins {
    read: Arc<Mutex<HashMap<SnapshotName, Option<Origin>>>>,
    /// Since when this cluster stores its backups here.
    since: Arc<Mutex<Option<Timestamp>>>,
}

impl Origins {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SnapshotName, Option<Origin>>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when this cluster stores its backups here, once that was found out.
    pub(super) fn since(&self) -> Option<Timestamp> {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up what this cluster's own manifests say of it, or begins now: later than all earlier clusters of this Etcd,
    /// whatever the clocks of their nodes said.
    pub(super) fn claim(&self, own: Option<&Tenant>, others: &[Tenant], etcd_uid: Option<&str>) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let stated = own.map(|own| own.origin.since);
        *since = stated
            .or(*since)
            .or_else(|| Some(begins(others, etcd_uid, Timestamp::now())));
    }

    /// Notes a snapshot of this cluster's own, which needn't be looked at.
    pub(super) fn note(&self, name: &SnapshotName, own: &Origin) {
        self.lock()
            .entry(name.clone())
            .or_insert_with(|| Some(own.clone()));
    }

    /// Of which cluster a snapshot is, as far as that was looked at and its manifest says so.
    pub(super) fn of(&self, name: &SnapshotName) -> Option<Origin> {
        self.lock().get(name).cloned().flatten()
    }

    /// Whether a snapshot was looked at.
    fn knows(&self, name: &SnapshotName) -> bool {
        self.lock().contains_key(name)
    }

    /// Whether a snapshot was looked at, and nothing says of which cluster it is.
    pub(super) fn is_unnamed(&self, name: &SnapshotName) -> bool {
        matches!(self.lock().get(name), Some(None))
    }

    /// Looks at the manifests of snapshots. Those that may still get one are looked at again.
    pub(super) async fn look<'a>(
        &self,
        store: &Arc<dyn SnapStore>,
        snapshots: impl Iterator<Item = &'a StoredSnapshot>,
    ) -> Result<(), Error> {
        let unknown: Vec<_> = snapshots
            .filter(|stored| !self.knows(&stored.name))
            .cloned()
            .collect();
        let reads = unknown.into_iter().map(|stored| {
            let store = Arc::clone(store);
            async move {
                let found = facts(store.as_ref(), &stored).await?;
                Ok::<_, Error>((stored, found))
            }
        });
        let now = Timestamp::now();
        let read: Vec<_> = stream::iter(reads)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        let mut known = self.lock();
        for (stored, facts) in read {
            let is_young = now.duration_since(stored_at(&stored)) < MANIFEST_TIMEOUT;
            if stored.manifest.is_none() && is_young {
                continue;
            }
            let origin = facts.and_then(|facts| Origin::of(facts, &stored.name));
            known.insert(stored.name, origin);
        }
        Ok(())
    }

    /// Looks at as many manifests as it takes: those of all full snapshots, and of deltas only if there are several clusters.
    pub(super) async fn survey(
        &self,
        store: &Arc<dyn SnapStore>,
        listing: &Listing,
        own: &str,
    ) -> Result<(), Error> {
        self.forget_others(listing);
        let all = || listing.snapshots.iter();
        self.look(store, all().filter(|stored| stored.name.kind == Kind::Full))
            .await?;
        let is_mixed = self
            .tenants(listing)
            .iter()
            .any(|tenant| tenant.origin.cluster != own)
            || all().any(|stored| self.is_unnamed(&stored.name));
        if is_mixed {
            self.look(store, all()).await?;
        }
        Ok(())
    }

    fn forget_others(&self, listing: &Listing) {
        let listed: std::collections::HashSet<_> =
            listing.snapshots.iter().map(|stored| &stored.name).collect();
        self.lock().retain(|name, _| listed.contains(name));
    }

    /// The clusters below the prefix, as far as is known.
    pub(super) fn tenants(&self, listing: &Listing) -> Vec<Tenant> {
        let mut tenants = Vec::<Tenant>::new();
        for stored in &listing.snapshots {
            let Some(origin) = self.of(&stored.name) else {
                continue;
            };
            let at = stored_at(stored);
            let Some(tenant) = tenants
                .iter_mut()
                .find(|tenant| tenant.origin.cluster == origin.cluster)
            else {
                tenants.push(Tenant {
                    origin,
                    first: at,
                    newest: at,
                    newest_name: stored.name.to_string(),
                    taken: stored.name.created_on,
                });
                continue;
            };
            tenant.origin.since = tenant.origin.since.min(origin.since);
            tenant.origin.etcd_uid = tenant.origin.etcd_uid.take().or(origin.etcd_uid);
            tenant.first = tenant.first.min(at);
            tenant.taken = tenant.taken.max(stored.name.created_on);
            if at >= tenant.newest {
                (tenant.newest, tenant.newest_name) = (at, stored.name.to_string());
            }
        }
        tenants
    }

    /// Takes the snapshots of other clusters out of a listing, except those for which `keep` holds.
    pub(super) fn without_others(
        &self,
        listing: Listing,
        own: &str,
        keep: impl Fn(&Origin) -> bool,
    ) -> Listing {
        let is_kept = |stored: &StoredSnapshot| {
            let origin = self.of(&stored.name);
            origin.is_none_or(|origin| origin.cluster == own || keep(&origin))
        };
        Listing {
            snapshots: listing.snapshots.into_iter().filter(is_kept).collect(),
            ..listing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn origin(cluster: &str, uid: &str, since: i64) -> Origin {
        Origin {
            cluster: cluster.to_owned(),
            etcd_uid: (!uid.is_empty()).then(|| uid.to_owned()),
            since: at(since),
        }
    }

    fn tenant(origin: &Origin, first: i64, newest: i64) -> Tenant {
        Tenant {
            origin: origin.clone(),
            first: at(first),
            newest: at(newest),
            newest_name: "Full-00000000-00000007-1700000000".to_owned(),
            taken: at(newest),
        }
    }

    /// Of any two clusters exactly one goes on, whoever asks.
    #[test]
    fn exactly_one_of_two_goes_on() {
        let ids = [("a", "u1"), ("b", "u1"), ("c", "u2"), ("d", "")];
        let all: Vec<_> = ids
            .iter()
            .flat_map(|(id, uid)| [1, 2].map(|since| origin(id, uid, since)))
            .collect();
        for one in &all {
            for other in all.iter().filter(|other| other.cluster != one.cluster) {
                let (first, second) = (tenant(one, 10, 30), tenant(other, 20, 30));
                let (now, period) = (at(1000), Duration::from_secs(1));
                let (yields, other_yields) = (
                    yields_to(one, Some(&first), std::slice::from_ref(&second), period, now),
                    yields_to(other, Some(&second), std::slice::from_ref(&first), period, now),
                );
                assert!(yields.is_some() != other_yields.is_some(), "{one:?} {other:?}");
            }
        }
    }

    /// However late the clock of its node: a restored cluster is the successor of those before it.
    #[test]
    fn a_cluster_begins_after_the_earlier_ones_of_its_etcd() {
        let earlier = [
            tenant(&origin("b", "u1", 500), 500, 510),
            tenant(&origin("a", "u1", 400), 400, 410),
            tenant(&origin("c", "u2", 900), 900, 910),
        ];
        for (uid, now, expected) in [
            (Some("u1"), 600, 600),
            (Some("u1"), 500, 501),
            (Some("u1"), 450, 501),
            (Some("u3"), 450, 450),
            (None, 450, 450),
        ] {
            let since = begins(&earlier, uid, at(now));
            assert_eq!(since, at(expected), "{uid:?} {now}");
            if uid == Some("u1") {
                let new = origin("a", "u1", since.as_second());
                assert_eq!(new.relation(&earlier[0].origin), Relation::Predecessor);
            }
        }
    }

    #[test]
    fn each_relation_is_known() {
        let own = origin("b", "u1", 5);
        for (other, expected) in [
            (origin("a", "u1", 4), Relation::Predecessor),
            (origin("a", "u1", 6), Relation::Successor),
            (origin("a", "u2", 4), Relation::Earlier),
            (origin("a", "u2", 6), Relation::Later),
            // Manifests that name no Etcd: nothing shows that it is the same one.
            (origin("a", "", 4), Relation::Earlier),
            // At the same time the ID decides.
            (origin("a", "u2", 5), Relation::Earlier),
            (origin("c", "u2", 5), Relation::Later),
        ] {
            assert_eq!(own.relation(&other), expected, "{other:?}");
        }
        let nameless = origin("b", "", 5);
        assert_eq!(nameless.relation(&origin("a", "", 4)), Relation::Earlier);
    }

    /// Own first snapshot, the other's newest, now; whether the later one stops.
    #[test]
    fn an_earlier_cluster_counts_while_it_lives() {
        let (own, other) = (origin("b", "u2", 100), origin("a", "u1", 1));
        let period = Duration::from_secs(10);
        for (first, newest, now, stops) in [
            // It has stored nothing since: it may be gone.
            (Some(100), 90, 10_000, false),
            (Some(100), 101, 10_000, true),
            // Nothing of ours is there yet.
            (None, 90, 105, true),
            (None, 90, 111, false),
        ] {
            let mine = first.map(|first| tenant(&own, first, first));
            let others = [tenant(&other, 1, newest)];
            let stopped = yields_to(&own, mine.as_ref(), &others, period, at(now));
            assert_eq!(stopped.is_some(), stops, "{first:?} {newest} {now}");
        }
        // A long delta period doesn't keep a new cluster without backups for as long.
        let others = [tenant(&other, 1, 90)];
        let hours = Duration::from_hours(5);
        assert!(yields_to(&own, None, &others, hours, at(600)).is_some());
        assert!(yields_to(&own, None, &others, hours, at(700)).is_none());
    }

    /// The first one says that it lives, once.
    #[test]
    fn a_later_cluster_is_answered_once() {
        let (own, other) = (origin("a", "u1", 1), origin("b", "u2", 100));
        let others = [tenant(&other, 100, 120)];
        assert!(unaware(&own, Some(&tenant(&own, 1, 50)), &others).is_some());
        assert!(unaware(&own, Some(&tenant(&own, 1, 101)), &others).is_none());
        assert!(unaware(&other, Some(&tenant(&other, 100, 120)), &[tenant(&own, 1, 50)]).is_none());
    }
}
