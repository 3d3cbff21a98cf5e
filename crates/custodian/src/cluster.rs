//! Dereference: everything that is known of one Etcd, taken out of the watch-fed caches. No request is made.

use std::{collections::BTreeSet, sync::Arc};

use api::{
    labels, names,
    v1alpha1::{Etcd, EtcdMember},
};
use k8s_openapi::api::{apps::v1::StatefulSet, coordination::v1::Lease, core::v1::Pod};
use kube::{
    Resource, ResourceExt as _,
    runtime::reflector::{ObjectRef, Store},
};
use operator::reconcile::Guarded;

/// The caches that the custodian reads.
#[derive(Clone, Debug)]
pub struct Caches {
    pub etcds: Store<Guarded<Etcd>>,
    pub members: Store<Guarded<EtcdMember>>,
    pub pods: Store<Guarded<Pod>>,
    pub sets: Store<Guarded<StatefulSet>>,
    pub leases: Store<Guarded<Lease>>,
}

/// An Etcd and what is there of it.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub etcd: Arc<Etcd>,
    pub set: Option<Arc<StatefulSet>>,
    /// The wanted members and those that are there besides, by ordinal.
    pub members: Vec<Member>,
}

/// A member and what is there of it.
#[derive(Clone, Debug)]
pub struct Member {
    pub name: String,
    pub ordinal: u32,
    pub record: Option<Arc<Guarded<EtcdMember>>>,
    pub lease: Option<Arc<Lease>>,
    pub pod: Option<Arc<Pod>>,
}

impl Caches {
    /// What is there of an Etcd.
    pub fn cluster(&self, etcd: &Arc<Etcd>) -> Cluster {
        let (namespace, name) = (etcd.namespace().unwrap_or_default(), etcd.name_any());
        let prefix = etcd.spec.member_name_prefix.as_deref();
        let set = cached(&self.sets, &namespace, &names::stateful_set(&name));
        let records = self.members.state_filter(|record| {
            record.namespace().as_deref() == Some(&namespace)
                && record.labels().get(labels::OWNED_BY) == Some(&name)
        });
        let mut ordinals: BTreeSet<u32> = records
            .iter()
            .filter_map(|record| names::ordinal(&name, prefix, &record.name_any()))
            .collect();
        ordinals.extend(0..count(etcd.spec.replicas).max(set_replicas(set.as_deref())));
        let members = ordinals.into_iter().map(|ordinal| {
            let member = names::member(&name, prefix, ordinal);
            let lease = names::member_lease(&name, prefix, ordinal);
            let pod = names::pod(&name, ordinal);
            Member {
                record: records.iter().find(|record| record.name_any() == member).cloned(),
                lease: cached(&self.leases, &namespace, &lease),
                pod: cached(&self.pods, &namespace, &pod),
                name: member,
                ordinal,
            }
        });
        Cluster {
            members: members.collect(),
            set,
            etcd: Arc::clone(etcd),
        }
    }
}

/// The object of a name, if it can be decoded.
fn cached<K>(store: &Store<Guarded<K>>, namespace: &str, name: &str) -> Option<Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let found = store.get(&ObjectRef::new(name).within(namespace))?;
    found.0.as_ref().ok().cloned().map(Arc::new)
}

impl Cluster {
    /// Members that should be there. Of an Etcd that is to sleep: those that it has, until that is carried out.
    pub fn wanted(&self) -> u32 {
        match count(self.etcd.spec.replicas) {
            0 => self.scaled_to(),
            replicas => replicas,
        }
    }

    /// Pods that the StatefulSet is to have; what the spec wants may not have been carried out yet.
    pub fn scaled_to(&self) -> u32 {
        set_replicas(self.set.as_deref())
    }

    /// Whether the etcd-controller has carried out the newest spec.
    pub fn carried_out(&self) -> bool {
        let observed = self.etcd.status.as_ref().and_then(|s| s.observed_generation);
        observed >= self.etcd.metadata.generation
    }
}

fn set_replicas(set: Option<&StatefulSet>) -> u32 {
    let replicas = set
        .and_then(|set| set.spec.as_ref())
        .and_then(|spec| spec.replicas);
    count(replicas.unwrap_or(0))
}

fn count(replicas: i32) -> u32 {
    u32::try_from(replicas).unwrap_or(0)
}
