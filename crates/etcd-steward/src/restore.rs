//! Fills the data directory from the backups: beside the old one, which is moved aside when the new one is complete.

use std::{
    fmt::Write as _,
    ops::ControlFlow,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use api::v1alpha1::{
    MemberState, MemberSubState, Restoration, RestorationStatus, RestorationType, transition_reason as reason,
};
use etcd_storage::{
    assemble::Progress,
    cluster,
    object::Target,
    restore::{Consent, Options, Restored, restore},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use operator::reconcile::chain as causes;
use snapstore::{SnapStore, StoredSnapshot};
use tokio::{
    runtime::Handle,
    task::{JoinError, JoinHandle},
    time::timeout,
};
use tracing::{info, info_span, instrument, warn};

use crate::{
    bootstrap::evidence::Scene,
    chain::{self, Catalog, Fault, FindError, Route, Wanted},
    etcd::hex_id,
    member::{Status, whole_seconds},
    volume::{self, VolumeError},
};

/// A restore that takes its time is told of at least this often.
const TOLD_EVERY: Duration = Duration::from_secs(3);

/// How far a restore raises the revision at least. Kubernetes' own instructions have people do the same.
pub(crate) const RAISE: i64 = 1_000_000_000;
/// More than etcd can write in a second, since each write is agreed on and synced to disk.
const WRITES_PER_SECOND: i64 = 100_000;

/// Why the backups weren't restored. The data directory is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// There is no store.
    #[error("no backup store is configured")]
    NoStore,
    /// The store refused, or couldn't be reached.
    #[error("backup store {location}: {source}")]
    Store {
        /// The store.
        location: String,
        /// Why.
        #[source]
        source: snapstore::Error,
    },
    /// Its manifest may be on its way.
    #[error("snapshot {0} was stored a moment ago, and has no manifest yet: waiting for it for a minute")]
    Unsettled(String),
    /// The snapshots don't make a chain.
    #[error("the backups can't be restored: {0}")]
    Plan(#[from] chain::Error),
    /// An object is damaged, or the result can't be written.
    #[error("the backups can't be restored: {0}")]
    Engine(#[from] etcd_storage::assemble::Error),
    /// The new cluster can't be described.
    #[error("the restored cluster: {0}")]
    Cluster(#[from] cluster::Error),
    /// The volume can't be written.
    #[error("the restored data directory: {0}")]
    Volume(#[from] VolumeError),
    /// The cluster that is made can't be recorded.
    #[error("record the restored cluster in this member's EtcdMember: {0}")]
    Record(#[source] Box<kube::Error>),
    /// It was broken off.
    #[error("the restore was broken off: {0}")]
    BrokenOff(String),
}

impl RestoreError {
    /// The reason in the member's condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoStore => "NoStore",
            Self::Store { source, .. } => source.reason(),
            Self::Unsettled(_) => "ManifestPending",
            Self::Plan(_) => api::conditions::member::CHAIN_DAMAGED,
            Self::Engine(_) => "RestorationFailed",
            Self::Cluster(_) => "InvalidConfiguration",
            Self::Volume(_) => "VolumeUnwritable",
            Self::Record(_) => "RecordUnwritable",
            Self::BrokenOff(_) => "BrokenOff",
        }
    }

    /// Whether the backups were read for nothing, which takes its time.
    pub fn is_costly(&self) -> bool {
        matches!(
            self,
            Self::Engine(_) | Self::Volume(_) | Self::Record(_) | Self::BrokenOff(_)
        )
    }
}

/// Restores the newest state as a cluster of this member alone; the others join it.
#[instrument(name = "restore", skip_all, fields(member = scene.member.name))]
pub async fn run(scene: &Scene) -> Result<(), RestoreError> {
    scene.status.transition(
        MemberState::Initializing,
        Some(MemberSubState::Restoration),
        reason::DB_VALIDATION_FAILED,
        "fills the data directory from the backups",
    );
    let begun = Time(whole_seconds(Timestamp::now()));
    note(
        scene,
        &begun,
        RestorationStatus::InProgress,
        "reads the backups",
        None,
    );
    let started = Instant::now();
    let restored = fill(scene).await;
    scene.metrics.restored(restored.is_ok(), started.elapsed());
    match &restored {
        Ok((restored, chain)) => {
            let message = chain.tell(restored);
            info!(?restored, ?chain, "restored");
            note(
                scene,
                &begun,
                RestorationStatus::Success,
                &message,
                Some((chain, restored)),
            );
            if let Some(kubernetes) = &scene.kubernetes {
                kubernetes.tell("Restore", "Restored", &message).await;
            }
        }
        Err(error) => {
            let message = causes(error);
            note(scene, &begun, RestorationStatus::Failed, &message, None);
            scene.status.setback(reason::RESTORATION_FAILED, &message);
        }
    }
    restored.map(|_| ())
}

/// A cluster token that no other cluster has: IDs that are made from it tell a restored cluster, its volumes and its
/// clients from those of the cluster that was backed up, though names and URLs are the same.
pub(crate) fn unique_token() -> String {
    let second = Timestamp::now().as_second();
    format!("restore-{second}-{:032x}", rand::random::<u128>())
}

/// By how much to raise the revision, so that it lies beyond any that a client can have seen: beyond all that can have been
/// written since the last snapshot, which ends at `end`, and beyond where a restore before this one has begun.
fn raise_by(end: i64, uncovered: SignedDuration, raised_before: Option<i64>) -> i64 {
    // By milliseconds: two restores from the same snapshots may follow each other within a second.
    let milliseconds = i64::try_from(uncovered.as_millis()).unwrap_or(i64::MAX).max(0);
    let written = milliseconds.saturating_mul(WRITES_PER_SECOND / 1000);
    let before = raised_before.map_or(0, |before| before.saturating_sub(end).max(0));
    RAISE.saturating_add(written).saturating_add(before)
}

/// What a data directory was restored from.
#[derive(Debug)]
struct Used {
    full: String,
    /// SHA-256 of the full snapshot's object, if its manifest tells it.
    sha256: Option<String>,
    deltas: usize,
    /// Snapshots that are damaged, and that others make up for.
    left_out: Vec<Fault>,
    /// When the last of them was taken: what was written later is lost.
    until: Timestamp,
}

impl Used {
    fn of<'a>(snapshots: impl Iterator<Item = &'a StoredSnapshot>, sha256: Option<String>) -> Self {
        let names: Vec<_> = snapshots.map(|stored| &stored.name).collect();
        Self {
            full: names.first().map(ToString::to_string).unwrap_or_default(),
            sha256,
            deltas: names.len().saturating_sub(1),
            left_out: Vec::new(),
            until: names.last().map(|name| name.created_on).unwrap_or_default(),
        }
    }

    fn tell(&self, restored: &Restored) -> String {
        let raised = if restored.revision > restored.data_revision {
            format!(", raised to {}", restored.revision)
        } else {
            String::new()
        };
        let mut text = format!(
            "restored to revision {}{raised} from {} and {} deltas, a database of {} MiB; what was written after {} is lost",
            restored.data_revision,
            self.full,
            self.deltas,
            restored.db_size >> 20,
            self.until
        );
        for fault in &self.left_out {
            let _ = write!(text, "; without {fault}");
        }
        if let Some(warning) = restored.warnings.text() {
            let _ = write!(text, "; {}: {warning}", self.full);
        }
        text
    }
}

async fn fill(scene: &Scene) -> Result<(Restored, Used), RestoreError> {
    let store = scene.store.clone().ok_or(RestoreError::NoStore)?;
    let failed = |source| RestoreError::Store {
        location: store.location().to_owned(),
        source,
    };
    let listing = store.list().await.map_err(failed)?;
    if let Some(young) = listing.unsettled.first() {
        return Err(RestoreError::Unsettled(young.name.to_string()));
    }
    let mut catalog = Catalog::new(listing);
    let preferred = catalog.prefer(&store, &scene.cluster.uid).await;
    preferred.map_err(failed)?;
    loop {
        let route = match catalog.find(&store, &Wanted::Latest, false).await {
            Ok(route) => route,
            Err(FindError::Route(error)) => return Err(error.into()),
            Err(FindError::Store(error)) => return Err(failed(error)),
        };
        for fault in &route.left_out {
            warn!(%fault, "restores without it, and loses no revision");
        }
        match assemble(scene, &store, &catalog, &route).await {
            // The next way goes around it, if nothing is lost by that.
            Err(RestoreError::Engine(error)) if catalog.condemn_for(&error) => {
                warn!(error = causes(&error), "a snapshot turned out to be damaged");
            }
            restored => return restored,
        }
    }
}

/// Restores what lies on the way, and puts it in the place of the data directory.
async fn assemble(
    scene: &Scene,
    store: &Arc<dyn SnapStore>,
    catalog: &Catalog,
    route: &Route,
) -> Result<(Restored, Used), RestoreError> {
    let plan = &route.plan;
    let sha256 = catalog
        .manifest(&plan.base)
        .map(|manifest| manifest.sha256.clone());
    let used = Used {
        left_out: route.left_out.clone(),
        ..Used::of(catalog.snapshots(plan), sha256)
    };
    let end = plan.end;
    let broken = |what: &str| RestoreError::BrokenOff(what.to_owned());
    let source = catalog.open(store, plan, &Handle::current());
    let meter = Arc::new(Meter {
        status: scene.status.clone(),
        end,
        size: source.size,
        fetched: source.fetched,
        seen: Mutex::new(None),
    });
    let chain = source.chain;
    let raised_before = scene
        .status
        .read(|status| status.last_restoration.as_ref().and_then(|last| last.raised_to));
    let uncovered = Timestamp::now().duration_since(used.until);
    let bump_revision = scene
        .raises_revision
        .then(|| raise_by(end, uncovered, raised_before));
    let fresh = scene.data_dir.with_extension("restored");
    // What an earlier try left.
    volume::remove(&fresh)?;
    let options = Options {
        data_dir: fresh.clone(),
        cluster: cluster::NewCluster::new(
            &unique_token(),
            [(scene.member.name.clone(), scene.member.peer_urls.clone())],
        )?,
        member: scene.member.name.clone(),
        target: Target::Latest,
        minor: None,
        bump_revision,
        unknown_lease_ttl: None,
        consent: Consent::default(),
    };
    let cluster = hex_id(options.cluster.id().0);
    let seen = Arc::clone(&meter);
    let span = info_span!("assemble", full = used.full, deltas = used.deltas);
    let work = tokio::task::spawn_blocking(move || {
        let _entered = span.entered();
        let mut tell = |progress: Progress| {
            seen.see(progress);
            ControlFlow::Continue(())
        };
        restore(&chain, &options, &mut tell)
    });
    let restored = meter.follow(work).await;
    let restored = restored.map_err(|error| broken(&error.to_string()))??;
    record_cluster(scene, &cluster).await?;
    volume::replace(&scene.data_dir, &fresh)?;
    Ok((restored, used))
}

/// Records the cluster that the restore makes, before its data takes the place of what was there: data of a cluster that
/// isn't recorded is never started.
async fn record_cluster(scene: &Scene, cluster: &str) -> Result<(), RestoreError> {
    scene.identity().record_cluster(&scene.volume, cluster)?;
    scene.status.update(|status| {
        (status.id, status.cluster_id) = (None, Some(cluster.to_owned()));
        if let Some(restoration) = &mut status.last_restoration {
            restoration.cluster_id = Some(cluster.to_owned());
        }
    });
    if let Some(kubernetes) = &scene.kubernetes {
        let published = kubernetes.publish_now(&scene.status).await;
        published.map_err(|error| RestoreError::Record(Box::new(error)))?;
    }
    Ok(())
}

/// Tells how far a restore is: whenever the engine has done something, and at least as often as [`TOLD_EVERY`], for a
/// slow store keeps the engine waiting.
struct Meter {
    status: Status,
    /// The revision that is to be reached.
    end: i64,
    /// Bytes of all objects, and those of them that have arrived.
    size: u64,
    fetched: Arc<AtomicU64>,
    /// What the engine told last.
    seen: Mutex<Option<Progress>>,
}

impl Meter {
    fn see(&self, progress: Progress) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
        self.tell();
    }

    async fn follow<T>(&self, mut work: JoinHandle<T>) -> Result<T, JoinError> {
        loop {
            match timeout(TOLD_EVERY, &mut work).await {
                Ok(done) => return done,
                Err(_) => self.tell(),
            }
        }
    }

    fn tell(&self) {
        let fetched = self.fetched.load(Ordering::Relaxed).min(self.size);
        let percent = fetched.saturating_mul(100).checked_div(self.size).unwrap_or(100);
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let at = seen.map_or_else(String::new, |seen| {
            let (done, all) = (seen.objects_done, seen.objects);
            format!(
                "object {done} of {all}, revision {} of {}, ",
                seen.revision, self.end
            )
        });
        let message = format!("restores: {at}{} of {} KiB read", fetched >> 10, self.size >> 10);
        self.status
            .progress(i32::try_from(percent).unwrap_or(100), &message);
    }
}

fn note(
    scene: &Scene,
    begun: &Time,
    status: RestorationStatus,
    message: &str,
    outcome: Option<(&Used, &Restored)>,
) {
    let ended = status != RestorationStatus::InProgress;
    scene.status.update(|member| {
        let this = member.last_restoration.take();
        // What a restore that doesn't come to its end would leave out, the next one needs.
        let raised_before = this.as_ref().and_then(|last| last.raised_to);
        let this = this.filter(|last| last.start_time.as_ref() == Some(begun));
        let raised_to = match outcome {
            Some((_, restored)) => Some(restored.revision).filter(|raised| *raised > restored.data_revision),
            None => raised_before,
        };
        member.last_restoration = Some(Restoration {
            cluster_id: this.and_then(|this| this.cluster_id),
            type_: RestorationType::FromSnapshot,
            status,
            reason: None,
            message: Some(message.to_owned()),
            start_time: Some(begun.clone()),
            end_time: ended.then(|| Time(whole_seconds(Timestamp::now()))),
            snapshot: outcome.map(|(used, _)| used.full.clone()),
            snapshot_sha256: outcome.and_then(|(used, _)| used.sha256.clone()),
            deltas: outcome.and_then(|(used, _)| i32::try_from(used.deltas).ok()),
            covered_until: outcome.map(|(used, _)| Time(used.until)),
            revision: outcome.map(|(_, restored)| restored.data_revision),
            raised_to,
            // By the etcd that starts from it.
            keys: None,
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients may have seen what no snapshot has, and what was written after an earlier restore from the same snapshots.
    #[test]
    fn a_raised_revision_is_beyond_all_that_was_seen() {
        let hours = SignedDuration::from_hours;
        for (end, uncovered, raised_before, expected) in [
            (11, 0, None, 1_000_000_000),
            // The clock of whoever took the snapshot was ahead.
            (11, -1, None, 1_000_000_000),
            (11, 1, None, 1_360_000_000),
            // No snapshot was stored since then.
            (11, 1, Some(5_000_000_011), 6_360_000_000),
            // One was.
            (6_000_000_000, 0, Some(5_000_000_011), 1_000_000_000),
            (11, 1, Some(i64::MAX), i64::MAX),
        ] {
            assert_eq!(
                raise_by(end, hours(uncovered), raised_before),
                expected,
                "{end}, {uncovered}, {raised_before:?}"
            );
        }
    }
}
