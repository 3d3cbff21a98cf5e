//! Makes this steward the owner of the backups for as long as its member leads.

use std::{sync::Arc, time::Duration};

use api::{
    conditions::member as condition,
    v1alpha1::{ConditionStatus, EtcdMemberStatus, MemberRole},
};
use jiff::Timestamp;
use operator::reconcile::{Reason as _, chain};
use snapstore::{Kind, SnapStore, manifest::Facts};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    BackupError, Backups, Known, Order, Secondary, Settings, Trouble,
    key_counts::{self, KeyCounts},
    ownership::{Origin, Origins},
    prefix_watch, retention, secondary,
    snapshotter::Snapshotter,
    told::Told,
    verification::{self, Proven},
};
use crate::{
    etcd::Connector,
    member::{Status, kubernetes::Kubernetes},
    metrics::Metrics,
};

const FIRST_RETRY: Duration = Duration::from_secs(2);
const LAST_RETRY: Duration = Duration::from_mins(2);
/// A term of work that lasted longer than this was no failure of the start.
const STEADY: Duration = Duration::from_mins(5);

/// Everything that taking backups needs.
#[derive(Debug, Clone)]
pub struct Owner {
    /// Where to.
    pub store: Arc<dyn SnapStore>,
    /// Where a copy of that is kept.
    pub secondary: Option<Secondary>,
    /// How.
    pub settings: Settings,
    /// From where.
    pub connector: Connector,
    /// What the member tells.
    pub status: Status,
    /// For Events.
    pub kubernetes: Option<Kubernetes>,
    /// Metrics.
    pub metrics: Metrics,
    /// What was read back and found whole.
    pub(super) proven: Proven,
    /// Of which clusters the store's snapshots are.
    pub(super) origins: Origins,
    /// Which full snapshots may take the place of what was before.
    pub(super) key_counts: KeyCounts,
    told: Told,
    known: Arc<watch::Sender<Known>>,
    orders: Arc<watch::Sender<Option<mpsc::Sender<Order>>>>,
}

impl Owner {
    /// An owner to be, and the API's way to it.
    pub fn new(
        store: Arc<dyn SnapStore>,
        secondary: Option<Secondary>,
        settings: Settings,
        connector: Connector,
        status: Status,
        kubernetes: Option<Kubernetes>,
        metrics: Metrics,
    ) -> (Self, Backups) {
        let (known, orders) = (
            Arc::new(watch::Sender::new(Known::default())),
            Arc::new(watch::Sender::new(None)),
        );
        let backups = Backups {
            store: Arc::clone(&store),
            known: known.subscribe(),
            orders: orders.subscribe(),
        };
        (
            Self {
                store,
                secondary,
                settings,
                connector,
                status,
                kubernetes,
                metrics,
                proven: Proven::default(),
                origins: Origins::default(),
                key_counts: KeyCounts::default(),
                told: Told::default(),
                known,
                orders,
            },
            backups,
        )
    }

    /// Changes what is known of the backups, and tells it.
    pub(super) fn learn(&self, change: impl FnOnce(&mut Known)) {
        self.known.send_modify(change);
    }

    /// Follows what is known of the backups.
    pub(super) fn follow(&self) -> watch::Receiver<Known> {
        self.known.subscribe()
    }

    /// Where the snapshotter takes orders, while there is one.
    pub(super) fn orders(&self) -> Option<mpsc::Sender<Order>> {
        self.orders.borrow().clone()
    }

    /// When the next full snapshot is due.
    pub(super) fn next_full(&self) -> Option<Timestamp> {
        self.known.borrow().next_full
    }

    /// What is known of the backups.
    pub(super) fn known(&self) -> Known {
        self.known.borrow().clone()
    }

    /// What a restore needs to know of the cluster.
    pub(super) fn facts(&self) -> Facts {
        self.status.read(|status| Facts {
            cluster_id: status.cluster_id.clone(),
            etcd_version: status.etcd_version.clone(),
            config_hash: status.observed_config_hash.clone(),
            auth: Some(self.connector.authenticates()),
            etcd_uid: self.settings.etcd_uid.clone(),
            owner_since: self.origins.since(),
            ..Facts::default()
        })
    }

    /// The cluster's ID.
    pub(super) fn cluster_id(&self) -> Option<String> {
        self.status.read(|status| status.cluster_id.clone())
    }

    /// What marks this cluster's snapshots.
    pub(super) fn origin(&self) -> Option<Origin> {
        Some(Origin {
            cluster: self.cluster_id()?,
            etcd_uid: self.settings.etcd_uid.clone(),
            since: self.origins.since().unwrap_or_else(Timestamp::now),
        })
    }

    /// Works whenever this member leads, until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut retry = FIRST_RETRY;
        loop {
            if !self.leads() {
                self.stand_by();
                retry = FIRST_RETRY;
            }
            if !self.led(true, &shutdown).await {
                return;
            }
            let begun = Instant::now();
            tokio::select! {
                error = self.term() => {
                    if begun.elapsed() > STEADY {
                        retry = FIRST_RETRY;
                    }
                    self.resign();
                    if !is_passing(&error, retry) {
                        self.failed(&error).await;
                        debug!(reason = error.reason(), error = chain(&error), ?retry, "a term of backups has failed");
                    }
                }
                lost = self.led(false, &shutdown) => {
                    self.resign();
                    if !lost {
                        return;
                    }
                    info!("the leadership is gone, and the backups with it");
                    continue;
                }
            }
            tokio::select! {
                () = sleep(retry.mul_f64(0.8 + rand::random::<f64>() * 0.4)) => {}
                lost = self.led(false, &shutdown) => if !lost { return },
            }
            retry = (retry * 2).min(LAST_RETRY);
        }
    }

    fn leads(&self) -> bool {
        self.status.read(|status| status.role == Some(MemberRole::Leader))
    }

    /// Another member leads, or none: what this one knew of the backups is out of date.
    fn stand_by(&self) {
        self.metrics.forget_backups();
        self.status.update(|status| {
            let is_own = |type_: &str| !condition::OF_LEADER.contains(&type_);
            status.conditions.retain(|known| is_own(&known.type_));
        });
    }

    /// Waits until this member leads, or doesn't any more. False when the process ends.
    async fn led(&self, wanted: bool, shutdown: &CancellationToken) -> bool {
        let mut changes = self.status.subscribe();
        let leads = |status: &EtcdMemberStatus| status.role == Some(MemberRole::Leader);
        tokio::select! {
            changed = changes.wait_for(|status| leads(status) == wanted) => changed.is_ok(),
            () = shutdown.cancelled() => false,
        }
    }

    /// One term of ownership; ends only with an error.
    async fn term(&self) -> BackupError {
        let (sender, orders) = mpsc::channel(8);
        let (found, others) = mpsc::channel(1);
        let snapshotter = match Box::pin(Snapshotter::begin(self)).await {
            Ok(snapshotter) => snapshotter,
            Err(error) => return error,
        };
        self.learn(|known| known.owner = true);
        self.metrics.set_owner(true);
        self.status.update(|status| status.backup_owner = Some(true));
        self.orders.send_replace(Some(sender));
        let fence = snapshotter.fence().clone();
        // On the heap: together they are too large for a thread's stack.
        tokio::select! {
            ended = Box::pin(snapshotter.run(orders, others)) => match ended {
                Ok(never) => match never {},
                Err(error) => error,
            },
            never = Box::pin(retention::run(self, &fence)) => match never {},
            never = Box::pin(verification::run(self)) => match never {},
            never = Box::pin(key_counts::run(self)) => match never {},
            error = Box::pin(prefix_watch::run(self, found)) => error,
            never = Box::pin(secondary::run(self, &fence)) => match never {},
        }
    }

    fn resign(&self) {
        self.orders.send_replace(None);
        self.learn(|known| known.owner = false);
        self.metrics.set_owner(false);
        self.status.update(|status| status.backup_owner = Some(false));
    }

    /// Tells that backups don't work.
    pub(super) async fn failed(&self, error: &BackupError) {
        self.fails(None, error).await;
    }

    /// Tells that snapshots of a kind can't be stored.
    pub(super) async fn snapshot_failed(&self, kind: Kind, error: &BackupError) {
        self.fails(Some(kind), error).await;
    }

    /// Log and Event tell each kind of failure once.
    async fn fails(&self, kind: Option<Kind>, error: &BackupError) {
        let (reason, message) = (error.reason(), chain(error));
        // Who waits for a snapshot hears of it even if the Event takes its time.
        let trouble = Trouble {
            reason,
            message: message.clone(),
            at: Instant::now(),
        };
        self.learn(|known| known.failures.add(kind, trouble));
        self.metrics.snapshot_failed(reason);
        self.status
            .condition(condition::BACKUP_READY, ConditionStatus::False, reason, &message);
        if self.told.fails(reason) {
            warn!(reason, message, "backups don't work, trying again and again");
            if let Some(kubernetes) = &self.kubernetes {
                kubernetes.warn("Backup", reason, &message).await;
            }
        }
    }

    /// Warns of something that doesn't keep backups from working: once in the log and by an Event, until they work again
    /// after a failure.
    pub(super) async fn warn(&self, reason: &'static str, note: &str) {
        if !self.told.fails(reason) {
            return;
        }
        warn!(reason, note, "backups go on");
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes.warn("Backup", reason, note).await;
        }
    }

    /// Tells that a snapshot is stored, or that there is none to be stored. What keeps those of the other kind from it stays
    /// told.
    pub(super) async fn works(&self, kind: Kind) {
        self.learn(|known| known.failures.clear(kind));
        if let Some(trouble) = self.known().failures.newest() {
            let (reason, message) = (trouble.reason, &trouble.message);
            self.status
                .condition(condition::BACKUP_READY, ConditionStatus::False, reason, message);
            return;
        }
        self.status.condition(
            condition::BACKUP_READY,
            ConditionStatus::True,
            api::conditions::backup_ready::SUCCEEDED,
            "the newest snapshots are stored",
        );
        if self.told.works() {
            info!("backups work again");
            if let Some(kubernetes) = &self.kubernetes {
                kubernetes
                    .tell("Backup", "BackupRecovered", "snapshots are stored again")
                    .await;
            }
        }
    }
}

/// Whether the end of a term is no failure: another member leads, or the status of one that leads since a moment ago has no
/// cluster ID yet.
fn is_passing(error: &BackupError, retry: Duration) -> bool {
    match error {
        BackupError::NotLeader => true,
        BackupError::ClusterIdUnknown => retry == FIRST_RETRY,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_id_that_stays_unknown_is_a_failure() {
        for (error, retry, expected) in [
            (BackupError::NotLeader, LAST_RETRY, true),
            (BackupError::ClusterIdUnknown, FIRST_RETRY, true),
            (BackupError::ClusterIdUnknown, FIRST_RETRY * 2, false),
            (BackupError::Compacted(7), FIRST_RETRY, false),
        ] {
            assert_eq!(is_passing(&error, retry), expected, "{error}");
        }
    }
}
