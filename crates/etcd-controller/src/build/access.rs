//! What the members' pods may do, and what may be done to them.

use api::{labels::component, names};
use k8s_openapi::{
    api::{
        core::v1::ServiceAccount,
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
        rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kube::ResourceExt as _;

use super::{meta, pod_selector};
use crate::validate::Cluster;

/// Identity of the members' pods. Only the steward's container gets its token.
pub fn service_account(cluster: &Cluster) -> ServiceAccount {
    ServiceAccount {
        metadata: meta(
            cluster,
            component::SERVICE_ACCOUNT,
            names::service_account(&cluster.name),
        ),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

/// A steward reads the members of its own Etcd, and writes their status, the end of their time as learners, heartbeats
/// and Events; nothing else.
pub fn role(cluster: &Cluster) -> Role {
    let members: Vec<String> = (0..cluster.replicas.max(1))
        .map(|ordinal| cluster.member(ordinal))
        .collect();
    let rule = |group: &str, resource: &str, verbs: &[&str], names: Option<&Vec<String>>| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        resource_names: names.cloned(),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    };
    Role {
        metadata: meta(cluster, component::ROLE, names::role(&cluster.name)),
        rules: Some(vec![
            rule(
                "druid.gardener.cloud",
                "etcdmembers",
                &["get", "list", "watch", "patch"],
                Some(&members),
            ),
            rule(
                "druid.gardener.cloud",
                "etcdmembers/status",
                &["patch"],
                Some(&members),
            ),
            rule("coordination.k8s.io", "leases", &["get", "patch"], Some(&members)),
            rule("events.k8s.io", "events", &["create", "patch"], None),
        ]),
    }
}

/// Binds the role.
pub fn role_binding(cluster: &Cluster) -> RoleBinding {
    RoleBinding {
        metadata: meta(
            cluster,
            component::ROLE_BINDING,
            names::role_binding(&cluster.name),
        ),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "Role".to_owned(),
            name: names::role(&cluster.name),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: names::service_account(&cluster.name),
            namespace: Some(cluster.namespace.clone()),
            ..Subject::default()
        }]),
    }
}

/// Keeps a quorum of the wanted size from being drained. A single member has no quorum to keep: a budget would only pin
/// its node.
pub fn disruption_budget(cluster: &Cluster) -> Option<PodDisruptionBudget> {
    use api::labels::annotation::ALLOW_UNHEALTHY_POD_EVICTION;
    if cluster.replicas <= 1 {
        return None;
    }
    let quorum = i32::try_from(cluster.replicas / 2 + 1).unwrap_or(i32::MAX);
    let always = cluster
        .etcd
        .annotations()
        .contains_key(ALLOW_UNHEALTHY_POD_EVICTION);
    Some(PodDisruptionBudget {
        metadata: meta(
            cluster,
            component::POD_DISRUPTION_BUDGET,
            names::pod_disruption_budget(&cluster.name),
        ),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(quorum)),
            selector: Some(LabelSelector {
                match_labels: Some(pod_selector(cluster)),
                ..LabelSelector::default()
            }),
            unhealthy_pod_eviction_policy: always.then(|| "AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    })
}
