//! The objects by which each member tells its state.

use api::{
    labels::{self, component},
    v1alpha1::{EtcdMember, EtcdMemberSpec},
};
use k8s_openapi::api::coordination::v1::Lease;

use super::{config, meta};
use crate::validate::Cluster;

/// A member's heartbeat. The steward fills it.
pub fn lease(cluster: &Cluster, ordinal: u32) -> Lease {
    Lease {
        metadata: meta(cluster, component::MEMBER_LEASE, cluster.member(ordinal)),
        spec: None,
    }
}

/// What a member tells, and what its etcd is to run with. One that is made after the cluster has formed joins as a
/// learner.
pub fn member(cluster: &Cluster, ordinal: u32, formed: bool) -> EtcdMember {
    let mut metadata = meta(cluster, component::MEMBER, cluster.member(ordinal));
    metadata
        .labels
        .get_or_insert_default()
        .insert(labels::OWNED_BY.to_owned(), cluster.name.clone());
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(
        labels::annotation::WANTED_CONFIG_HASH.to_owned(),
        config::hash(cluster, ordinal),
    );
    if formed {
        annotations.insert(labels::annotation::CREATE_AS_LEARNER.to_owned(), String::new());
    }
    EtcdMember {
        metadata,
        spec: EtcdMemberSpec {},
        status: None,
    }
}
