//! The StatefulSet of the members.

use std::collections::BTreeMap;

use api::{
    labels::{self, component},
    names, quantity,
};
use k8s_openapi::{
    api::{
        apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy},
        core::v1::{
            PersistentVolumeClaim, PersistentVolumeClaimSpec, PodTemplateSpec, VolumeResourceRequirements,
        },
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::api::ObjectMeta;

use super::{meta, pod};
use crate::validate::Cluster;

/// Parallel: the members of a new cluster need each other to become ready.
pub fn stateful_set(cluster: &Cluster) -> StatefulSet {
    let name = names::stateful_set(&cluster.name);
    StatefulSet {
        metadata: meta(cluster, component::STATEFUL_SET, name.clone()),
        spec: Some(StatefulSetSpec {
            replicas: i32::try_from(cluster.replicas).ok(),
            service_name: Some(names::peer_service(&cluster.name)),
            pod_management_policy: Some("Parallel".to_owned()),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("RollingUpdate".to_owned()),
                ..StatefulSetUpdateStrategy::default()
            }),
            // What etcd-druid selected by: a selector can't be changed.
            selector: LabelSelector {
                match_labels: Some(labels::of_etcd(&cluster.name)),
                ..LabelSelector::default()
            },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(pod_labels(cluster, &name)),
                    annotations: Some(cluster.etcd.spec.annotations.clone()),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod::spec(cluster)),
            },
            volume_claim_templates: Some(vec![claim(cluster)]),
            ..StatefulSetSpec::default()
        }),
        ..StatefulSet::default()
    }
}

/// The user's labels under ours.
fn pod_labels(cluster: &Cluster, name: &str) -> BTreeMap<String, String> {
    let mut labels = cluster.etcd.spec.labels.clone();
    labels.extend(labels::of_component(&cluster.name, component::STATEFUL_SET, name));
    labels
}

fn claim(cluster: &Cluster) -> PersistentVolumeClaim {
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(cluster.etcd.volume_claim_template().to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: cluster
                .etcd
                .spec
                .storage_class
                .clone()
                .filter(|class| !class.is_empty()),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([(
                    "storage".to_owned(),
                    quantity::from_bytes(cluster.storage),
                )])),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    }
}
