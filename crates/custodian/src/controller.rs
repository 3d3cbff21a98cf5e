//! The controller: watches, the reconcile around the pure steps, and what was reported last.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::{
    labels::{self, component},
    v1alpha1::{Etcd, EtcdMember, EtcdStatus, MemberStatus},
};
use async_trait::async_trait;
use futures::{Stream, StreamExt as _, future::ready};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    coordination::v1::Lease,
    core::v1::{ObjectReference, Pod},
};
use kube::{
    Api, Resource, ResourceExt as _,
    runtime::{
        Controller,
        controller::Action,
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use operator::{
    Context,
    apply::{ApplyError, Change},
    cache::{everything, selected, until, watch},
    reconcile::{Guarded, Reason, Reconciler},
};

use crate::{
    cluster::Caches,
    config::Config,
    member::Thresholds,
    metrics::Statuses,
    report::{self, FIELDS, Report},
    transitions,
};

/// What is looked at for a moment in time is looked at this much after it.
const AFTER: Duration = Duration::from_secs(1);

/// Runs the custodian until the process is told to stop.
pub async fn run(context: Context, config: Config) -> anyhow::Result<()> {
    let (client, readiness) = (&context.client, &context.readiness);
    let managed = |component: Option<&str>| {
        let managed = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_VALUE);
        match component {
            Some(component) => selected(&format!("{managed},{}={component}", labels::COMPONENT)),
            None => selected(&managed),
        }
    };
    let (etcds, etcd_stream) = watch(Api::all(client.clone()), everything(), readiness);
    let (members, member_stream) = watch::<EtcdMember>(Api::all(client.clone()), everything(), readiness);
    let of_sets = managed(Some(component::STATEFUL_SET));
    let (pods, pod_stream) = watch::<Pod>(Api::all(client.clone()), of_sets, readiness);
    let (sets, set_stream) = watch::<StatefulSet>(Api::all(client.clone()), managed(None), readiness);
    let of_leases = managed(Some(component::MEMBER_LEASE));
    let (leases, lease_stream) = watch::<Lease>(Api::all(client.clone()), of_leases, readiness);

    context
        .metrics
        .register(|registry| registry.register_collector(Box::new(Statuses(etcds.clone()))));
    let controller = Controller::for_stream(etcd_stream, etcds.clone())
        .watches_stream(member_stream, |member| owner(&member, labels::OWNED_BY))
        .watches_stream(pod_stream, |pod| owner(&pod, labels::PART_OF))
        .watches_stream(set_stream, |set| owner(&set, labels::PART_OF))
        .watches_stream(news(lease_stream, etcds.clone()), |lease| {
            owner(&lease, labels::PART_OF)
        });
    let custodian = Custodian {
        context: context.clone(),
        caches: Caches {
            etcds,
            members,
            pods,
            sets,
            leases,
        },
        thresholds: Thresholds {
            unknown: config.unknown_threshold.into(),
            not_ready: config.not_ready_threshold.into(),
        },
        reported: Mutex::default(),
    };
    operator::reconcile::run(controller, custodian, &context).await;
    Ok(())
}

/// The Etcd that an object belongs to by its label.
fn owner<K: Resource>(object: &K, label: &str) -> Option<ObjectRef<Guarded<Etcd>>> {
    let etcd = object.labels().get(label)?;
    Some(ObjectRef::new(etcd).within(&object.namespace().unwrap_or_default()))
}

fn member_reference(etcd: &Etcd, member: String) -> ObjectReference {
    ObjectReference {
        api_version: Some(EtcdMember::api_version(&()).into_owned()),
        kind: Some(EtcdMember::kind(&()).into_owned()),
        namespace: etcd.namespace(),
        name: Some(member),
        ..ObjectReference::default()
    }
}

/// Leaves out the heartbeats of members that are known to be ready. They come every few seconds and tell nothing new;
/// that they stay away is found out by the clock.
fn news(
    leases: impl Stream<Item = Result<Guarded<Lease>, watcher::Error>> + Send + 'static,
    etcds: Store<Guarded<Etcd>>,
) -> impl Stream<Item = Result<Guarded<Lease>, watcher::Error>> + Send + 'static {
    leases.filter(move |lease| {
        let known = lease.as_ref().is_ok_and(|lease| {
            owner(lease, labels::PART_OF)
                .and_then(|etcd| etcds.get(&etcd))
                .is_some_and(|etcd| is_ready(&etcd, &lease.name_any()))
        });
        ready(!known)
    })
}

fn is_ready(etcd: &Guarded<Etcd>, member: &str) -> bool {
    let status = etcd.0.as_ref().ok().and_then(|etcd| etcd.status.as_ref());
    status.is_some_and(|status| {
        status
            .members
            .iter()
            .any(|known| known.name == member && known.status == MemberStatus::Ready)
    })
}

/// Why an Etcd's status wasn't brought up to date.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct StatusNotWritten(#[from] ApplyError);

impl Reason for StatusNotWritten {
    fn reason(&self) -> &'static str {
        "StatusNotWritten"
    }
}

/// What was reported last of an Etcd.
#[derive(Clone, Debug, Default)]
struct Reported {
    status: EtcdStatus,
    /// The member that led last; kept while there is no leader.
    leader: Option<String>,
}

struct Custodian {
    context: Context,
    caches: Caches,
    thresholds: Thresholds,
    /// By the UID of the Etcd. Nobody else writes these fields, so this is what is so, even while the cache doesn't
    /// have it yet. After a start the objects tell.
    reported: Mutex<HashMap<String, Reported>>,
}

#[async_trait]
impl Reconciler for Custodian {
    type Error = StatusNotWritten;
    type Object = Etcd;

    const NAME: &'static str = "custodian";

    async fn reconcile(&self, etcd: Arc<Etcd>) -> Result<Action, StatusNotWritten> {
        let before = self.before(&etcd);
        let cluster = self.caches.cluster(&etcd);
        let report = Report::new(&cluster, &before.status, self.thresholds, Timestamp::now());
        let wanted = serde_json::to_value(&report.status).unwrap_or_default();
        let change = self
            .context
            .applier
            .apply_status(&*etcd, &wanted, &FIELDS)
            .await?;
        let leader = report::leader(&report.status)
            .map(str::to_owned)
            .or_else(|| before.leader.clone());
        let after = Reported {
            status: report.status,
            leader,
        };
        self.remember(&etcd, after.clone());
        if change != Change::None {
            self.tell(&etcd, &before, &after).await;
        }
        Ok(report.until.map_or_else(Action::await_change, |time| {
            Action::requeue(until(time).saturating_add(AFTER))
        }))
    }
}

impl Custodian {
    fn before(&self, etcd: &Etcd) -> Reported {
        let known = self.reported().get(&etcd.uid().unwrap_or_default()).cloned();
        known.unwrap_or_else(|| {
            let status = etcd.status.clone().unwrap_or_default();
            Reported {
                leader: report::leader(&status).map(str::to_owned),
                status,
            }
        })
    }

    fn remember(&self, etcd: &Etcd, report: Reported) {
        let mut reported = self.reported();
        reported.insert(etcd.uid().unwrap_or_default(), report);
        // Etcds that are gone are forgotten now and then.
        let etcds = self.caches.etcds.state();
        if reported.len() > etcds.len() {
            let uids: std::collections::HashSet<_> = etcds.iter().filter_map(|etcd| etcd.uid()).collect();
            reported.retain(|uid, _| uids.contains(uid));
        }
    }

    async fn tell(&self, etcd: &Etcd, before: &Reported, after: &Reported) {
        for event in transitions::between(&before.status, &after.status, before.leader.as_deref()) {
            let events = match event.member {
                Some(member) => self.context.events.related_to(member_reference(etcd, member)),
                None => self.context.events.clone(),
            };
            if event.warning {
                events.warning(etcd, "Observe", event.reason, event.note).await;
            } else {
                events.normal(etcd, "Observe", event.reason, event.note).await;
            }
        }
    }

    fn reported(&self) -> MutexGuard<'_, HashMap<String, Reported>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
