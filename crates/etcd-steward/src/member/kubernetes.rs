//! The member's side of the Kubernetes API: its EtcdMember, its heartbeat Lease and Events.

use std::{pin::pin, sync::Arc, time::Duration};

use api::{
    labels,
    steward::ClusterConfig,
    v1alpha1::{EtcdMember, EtcdMemberStatus, MemberRole, MemberState},
};
use futures::{
    Stream, StreamExt as _,
    future::{join_all, ready},
};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
    runtime::{WatchStreamExt as _, watcher},
};
use operator::{events::Events, reconcile::chain};
use serde_json::json;
use tokio::{
    sync::{Mutex, watch},
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    Status,
    stored_index::{StoredIndex, Tracker},
};

const MANAGER: &str = "etcd-steward";
/// Changes that come close together are published as one.
const BATCH: Duration = Duration::from_millis(150);
/// How long the API server may be silent: in a call, and in a watch, which it ends itself before.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const WATCH_TIMEOUT: Duration = Duration::from_mins(6);
/// The same where a start waits for the answer.
const RECORD_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(3);
/// How far the covered time may run ahead of what is published: backups that stay current cost no writes.
const COVERED_STEP: i64 = 600;

/// Access to the objects of this member and, for reading, of the other members.
#[derive(Clone)]
pub struct Kubernetes {
    members: Api<EtcdMember>,
    /// Their metadata, by a client that waits for longer.
    watched: Api<PartialObjectMeta<EtcdMember>>,
    leases: Api<Lease>,
    events: Events,
    names: Arc<Vec<String>>,
    own: String,
    /// Whether what was published before has been read. An older status must not overtake a newer one on its way.
    writing: Arc<Mutex<bool>>,
}

impl std::fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubernetes")
            .field("member", &self.own)
            .finish_non_exhaustive()
    }
}

impl Kubernetes {
    /// Access in the name of `member`, which runs in `pod`.
    pub async fn connect(cluster: &ClusterConfig, member: &str, pod: &str) -> kube::Result<Self> {
        let mut config = Config::infer().await.map_err(kube::Error::InferConfig)?;
        config.read_timeout = Some(WATCH_TIMEOUT);
        let watching = Client::try_from(config.clone())?;
        // Backups must not hang on an API server that is gone without a word.
        config.read_timeout = Some(CALL_TIMEOUT);
        config.reset_reader_on_write = true;
        let client = Client::try_from(config)?;
        Ok(Self {
            members: Api::namespaced(client.clone(), &cluster.namespace),
            watched: Api::namespaced(watching, &cluster.namespace),
            leases: Api::namespaced(client.clone(), &cluster.namespace),
            events: Events::new(client, MANAGER, pod),
            names: Arc::new(cluster.members.iter().map(|member| member.name.clone()).collect()),
            own: member.to_owned(),
            writing: Arc::default(),
        })
    }

    /// This member's object.
    pub async fn own(&self) -> kube::Result<Option<EtcdMember>> {
        self.members.get_opt(&self.own).await
    }

    /// What was published before, by an earlier process.
    pub async fn before(&self) -> kube::Result<EtcdMemberStatus> {
        let mut is_read = self.writing.lock().await;
        let own = self.own().await?;
        *is_read = true;
        Ok(own.and_then(|own| own.status).unwrap_or_default())
    }

    /// Another member's object.
    pub async fn member(&self, name: &str) -> kube::Result<Option<EtcdMember>> {
        self.members.get_opt(name).await
    }

    /// What all wanted members have recorded; `None` of one that has no object.
    pub async fn records(&self) -> Vec<(String, kube::Result<Option<EtcdMemberStatus>>)> {
        let asked = self.names.iter().map(async |name| {
            let member = self.members.get_opt(name).await;
            let status = member.map(|member| member.map(|member| member.status.unwrap_or_default()));
            (name.clone(), status)
        });
        join_all(asked).await
    }

    /// Whether the member was made by a scale-out.
    pub fn as_learner(member: &EtcdMember) -> bool {
        member
            .annotations()
            .contains_key(labels::annotation::CREATE_AS_LEARNER)
    }

    /// An Event on this member's object.
    pub async fn warn(&self, action: &str, reason: &str, note: &str) {
        match self.own().await {
            Ok(Some(member)) => self.events.warning(&member, action, reason, note).await,
            Ok(None) => {}
            Err(error) => debug!(
                error = chain(&error),
                "no event: the member's object can't be read"
            ),
        }
    }

    /// As [`Kubernetes::warn`], for what went as it should.
    pub async fn tell(&self, action: &str, reason: &str, note: &str) {
        if let Ok(Some(member)) = self.own().await {
            self.events.normal(&member, action, reason, note).await;
        }
    }

    /// The member votes: takes the mark away that made it join as a learner, if it is there.
    pub async fn no_learner_any_more(&self) -> kube::Result<()> {
        if !self.own().await?.as_ref().is_some_and(Self::as_learner) {
            return Ok(());
        }
        let patch = json!({"metadata": {"annotations": {labels::annotation::CREATE_AS_LEARNER: null}}});
        self.members
            .patch(&self.own, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        info!("took the learner annotation away");
        Ok(())
    }

    /// Writes the status now, and says whether it is stored: for records that must be there before the next step. What was
    /// published before is read first, so that it isn't lost.
    pub async fn publish_now(&self, status: &Status) -> kube::Result<EtcdMemberStatus> {
        let mut is_read = self.writing.lock().await;
        if !*is_read {
            status.adopt(self.own().await?.and_then(|own| own.status).unwrap_or_default());
            *is_read = true;
        }
        let status = status.read(Clone::clone);
        let patch = json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1",
            "kind": "EtcdMember",
            "metadata": {"name": self.own},
            "status": status,
        });
        self.members
            .patch_status(
                &self.own,
                &PatchParams::apply(MANAGER).force(),
                &Patch::Apply(&patch),
            )
            .await?;
        Ok(status)
    }

    /// Publishes the status whenever it has changed in a way that somebody would want to know.
    pub async fn publish(&self, status: Status, shutdown: CancellationToken) {
        let mut changes = status.subscribe();
        let mut published: Option<EtcdMemberStatus> = None;
        let mut made_anew = pin!(self.made_anew());
        loop {
            let current = changes.borrow_and_update().clone();
            if published
                .as_ref()
                .is_none_or(|published| differs(published, &current))
            {
                match self.publish_now(&status).await {
                    Ok(current) => published = Some(current),
                    Err(error) => {
                        warn!(
                            error = chain(&error),
                            "failed to publish the member's status, trying again"
                        );
                        sleep(RETRY).await;
                        changes.mark_changed();
                    }
                }
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                Some(()) = made_anew.next() => published = None,
                () = shutdown.cancelled() => return,
            }
            sleep(BATCH).await;
        }
    }

    /// Each time that this member's object has been made anew: what was published is gone with the one before.
    fn made_anew(&self) -> impl Stream<Item = ()> + Send + use<> {
        let own = watcher::Config::default().fields(&format!("metadata.name={}", self.own));
        let objects = watcher(self.watched.clone(), own).default_backoff();
        let mut known = None;
        objects.applied_objects().filter_map(move |object| {
            let uid = object
                .inspect_err(|error| debug!(error = chain(error), "this member's object isn't watched"))
                .ok()
                .and_then(|object| object.metadata.uid);
            let is_another = uid.is_some() && known.is_some() && uid != known;
            if uid.is_some() {
                known = uid;
            }
            ready(is_another.then_some(()))
        })
    }

    /// The index that this member is known to have stored, by its heartbeats. An API server that doesn't answer holds nobody up.
    pub async fn stored_index(&self) -> Option<StoredIndex> {
        let read = timeout(RECORD_TIMEOUT, self.leases.get_opt(&self.own)).await;
        let lease = match read {
            Ok(Ok(lease)) => lease?,
            Ok(Err(error)) => {
                warn!(error = chain(&error), "failed to read the member's lease");
                return None;
            }
            Err(_) => {
                warn!(after = ?RECORD_TIMEOUT, "failed to read the member's lease in time");
                return None;
            }
        };
        let text = lease.annotations().get(labels::annotation::RAFT_INDEX)?;
        text.parse().ok()
    }

    /// The member is about to get other data: what its log has held so far says nothing of it.
    pub async fn forget_stored_index(&self) -> kube::Result<()> {
        if self.leases.get_opt(&self.own).await?.is_none() {
            return Ok(());
        }
        let patch = json!({"metadata": {"annotations": {labels::annotation::RAFT_INDEX: null}}});
        self.leases
            .patch(&self.own, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map(|_| ())
    }

    /// Renews the heartbeat Lease for as long as etcd answers.
    pub async fn heartbeat(&self, every: Duration, alive: watch::Receiver<bool>, status: Status) {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut alive_changes = alive.clone();
        let mut stored = Tracker::default();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                // The first heartbeat comes with the first answer, not up to a period later.
                changed = alive_changes.changed() => if changed.is_err() { return },
            }
            if !*alive.borrow() {
                continue;
            }
            let Some((identity, peer_tls)) = status.read(holder) else {
                continue;
            };
            let mut annotations = json!({});
            // Unknown is left as it is.
            if let Some(tls) = peer_tls {
                annotations[labels::annotation::PEER_TLS_ENABLED] = json!(tls.to_string());
            }
            if let Some(stored) = status.read(|status| stored.see(status).cloned()) {
                annotations[labels::annotation::RAFT_INDEX] = json!(stored.to_string());
            }
            let patch = json!({
                "metadata": {"annotations": annotations},
                "spec": {
                    "holderIdentity": identity,
                    "renewTime": format!("{:.6}", Timestamp::now()),
                    "leaseDurationSeconds": lease_duration(every),
                },
            });
            if let Err(error) = self
                .leases
                .patch(&self.own, &PatchParams::default(), &Patch::Merge(&patch))
                .await
            {
                warn!(error = chain(&error), "failed to renew the member's lease");
            }
        }
    }
}

/// For how many seconds a heartbeat holds: one that is late or lost must not make the member look dead, and one that is dead not
/// look alive for hours.
fn lease_duration(every: Duration) -> u64 {
    let every = every.as_secs().max(1);
    let longest = (every.saturating_mul(5) / 4).max(3600);
    every.saturating_mul(4).min(longest).min(i32::MAX as u64)
}

/// `<memberID>:<clusterID>:<role>`, as etcd-backup-restore writes it.
fn holder(status: &EtcdMemberStatus) -> Option<(String, Option<bool>)> {
    let role = if status.role == Some(MemberRole::Leader) {
        "Leader"
    } else {
        "Member"
    };
    let (id, cluster) = (status.id.as_ref()?, status.cluster_id.as_ref()?);
    Some((format!("{id}:{cluster}:{role}"), status.peer_tls_enabled))
}

/// Whether two statuses differ in more than what moves all the time.
fn differs(published: &EtcdMemberStatus, current: &EtcdMemberStatus) -> bool {
    let quiet = |status: &EtcdMemberStatus| {
        let mut status = status.clone();
        (status.raft_index, status.raft_applied_index) = (None, None);
        status.snapshots.uncovered_revisions = status.snapshots.uncovered_revisions.map(|n| n.min(1));
        let covered = status
            .snapshots
            .covered_until
            .take()
            .map_or(0, |time| time.0.as_second());
        (status, covered)
    };
    let ((old, old_covered), (new, new_covered)) = (quiet(published), quiet(current));
    let settled = new.state == Some(MemberState::Started);
    let covered = if settled {
        new_covered.saturating_sub(old_covered) >= COVERED_STEP
    } else {
        old_covered != new_covered
    };
    old != new || covered || (old_covered == 0) != (new_covered == 0)
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicBool, Ordering},
    };

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::client::Body;

    use super::*;

    /// An API server that answers each request in one way.
    fn answering(
        answer: impl Fn(&http::Request<Body>) -> serde_json::Value + Clone + Send + 'static,
    ) -> Kubernetes {
        let service = tower::service_fn(move |request| {
            let body = answer(&request).to_string().into_bytes();
            ready(Ok::<_, Infallible>(http::Response::new(Body::from(body))))
        });
        let client = Client::new(service, "lab");
        Kubernetes {
            members: Api::namespaced(client.clone(), "lab"),
            watched: Api::namespaced(client.clone(), "lab"),
            leases: Api::namespaced(client.clone(), "lab"),
            events: Events::new(client, MANAGER, "t1-0"),
            names: Arc::default(),
            own: "t1-0".to_owned(),
            writing: Arc::default(),
        }
    }

    /// What can't be read or understood says nothing of how far the log must reach.
    #[tokio::test]
    async fn the_stored_index_is_read_from_the_lease() {
        for (annotations, expected) in [
            (
                json!({labels::annotation::RAFT_INDEX: "1f:c0:7"}),
                Some("1f:c0:7"),
            ),
            (json!({labels::annotation::RAFT_INDEX: "seven"}), None),
            (json!({}), None),
        ] {
            let kubernetes = answering(move |request| {
                assert!(
                    request.uri().path().ends_with("/leases/t1-0"),
                    "{}",
                    request.uri()
                );
                json!({"metadata": {"name": "t1-0", "annotations": annotations}})
            });
            let stored = kubernetes.stored_index().await;
            assert_eq!(stored.map(|stored| stored.to_string()).as_deref(), expected);
        }
    }

    /// Whoever gets other data must not be measured by what the data before has held.
    #[tokio::test]
    async fn the_stored_index_is_forgotten() {
        let patched = Arc::new(AtomicBool::new(false));
        let kubernetes = answering({
            let patched = Arc::clone(&patched);
            move |request| {
                patched.fetch_or(request.method() == http::Method::PATCH, Ordering::Relaxed);
                json!({"metadata": {"name": "t1-0"}})
            }
        });
        kubernetes.forget_stored_index().await.unwrap();
        assert!(patched.load(Ordering::Relaxed));
    }

    #[test]
    fn a_heartbeat_holds_until_the_next_one() {
        for (every, holds) in [
            (0, 4),
            (1, 4),
            (10, 40),
            (900, 3600),
            (1800, 3600),
            (3600, 4500),
            (9000, 11250),
        ] {
            assert_eq!(lease_duration(Duration::from_secs(every)), holds, "{every}");
        }
    }

    /// A busy cluster moves its Raft index all the time, and a quiet one its covered time: neither is worth a write.
    #[test]
    fn what_moves_all_the_time_is_no_difference() {
        let base = EtcdMemberStatus {
            state: Some(MemberState::Started),
            raft_index: Some(1),
            ..EtcdMemberStatus::default()
        };
        let with = |change: &dyn Fn(&mut EtcdMemberStatus)| {
            let mut status = base.clone();
            change(&mut status);
            status
        };
        let second = |s| Some(Time(Timestamp::from_second(s).unwrap()));
        let covered = with(&|s| s.snapshots.covered_until = second(1000));
        assert!(!differs(&base, &with(&|s| s.raft_index = Some(2))));
        assert!(differs(&base, &with(&|s| s.raft_term = Some(2))));
        assert!(differs(&base, &covered));
        assert!(!differs(
            &covered,
            &with(&|s| s.snapshots.covered_until = second(1100))
        ));
        assert!(differs(
            &covered,
            &with(&|s| s.snapshots.covered_until = second(1600))
        ));
    }
}
