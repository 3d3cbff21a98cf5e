//! All objects of a cluster, made from nothing but the validated cluster.

pub mod access;
pub mod config;
pub mod members;
pub mod pod;
pub mod secrets;
pub mod services;
pub mod stateful_set;

use std::collections::BTreeMap;

use api::{labels, v1alpha1::EtcdMember};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        coordination::v1::Lease,
        core::v1::{ConfigMap, Service, ServiceAccount},
        policy::v1::PodDisruptionBudget,
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Resource as _, api::ObjectMeta};

use crate::validate::Cluster;

/// Everything that belongs to a cluster, besides certificates: those don't wait for the spec to be carried out.
#[derive(Debug)]
pub struct Objects {
    /// Identity of the members' pods.
    pub service_account: ServiceAccount,
    /// What it may do.
    pub role: Role,
    /// That it may.
    pub role_binding: RoleBinding,
    /// Configuration of etcd and of the stewards.
    pub config_map: ConfigMap,
    /// DNS names of the pods.
    pub peer_service: Service,
    /// One name for all members.
    pub client_service: Service,
    /// Guard against too many drains at once; none for a single member.
    pub disruption_budget: Option<PodDisruptionBudget>,
    /// Heartbeats.
    pub leases: Vec<Lease>,
    /// What the members tell.
    pub members: Vec<EtcdMember>,
    /// The pods.
    pub stateful_set: StatefulSet,
}

/// Builds everything. `formed` says whether members exist that have formed a cluster, which new ones must join.
pub fn build(cluster: &Cluster, formed: bool) -> Result<Objects, config::EncodeError> {
    Ok(Objects {
        service_account: access::service_account(cluster),
        role: access::role(cluster),
        role_binding: access::role_binding(cluster),
        config_map: config::config_map(cluster)?,
        peer_service: services::peer(cluster),
        client_service: services::client(cluster),
        disruption_budget: access::disruption_budget(cluster),
        leases: (0..cluster.replicas)
            .map(|ordinal| members::lease(cluster, ordinal))
            .collect(),
        members: (0..cluster.replicas)
            .map(|ordinal| members::member(cluster, ordinal, formed))
            .collect(),
        stateful_set: stateful_set::stateful_set(cluster),
    })
}

/// Metadata of a child.
fn meta(cluster: &Cluster, component: &str, name: String) -> ObjectMeta {
    ObjectMeta {
        labels: Some(labels::of_component(&cluster.name, component, &name)),
        name: Some(name),
        namespace: Some(cluster.namespace.clone()),
        owner_references: Some(vec![owner(cluster)]),
        ..ObjectMeta::default()
    }
}

/// The Etcd as the owner of a child.
pub fn owner(cluster: &Cluster) -> OwnerReference {
    cluster.etcd.controller_owner_ref(&()).unwrap_or_default()
}

/// Labels that only members' pods carry: other pods of the Etcd must not count as members.
fn pod_selector(cluster: &Cluster) -> BTreeMap<String, String> {
    let mut selector = labels::of_etcd(&cluster.name);
    selector.insert(
        labels::COMPONENT.to_owned(),
        labels::component::STATEFUL_SET.to_owned(),
    );
    selector
}

#[cfg(test)]
mod tests;
