//! Labels, annotations and finalizers, each defined once.
//!
//! Keys and values that etcd-druid wrote are part of selectors that can't change, so they keep their spelling.

use std::collections::BTreeMap;

/// Who manages an object; on every child of an Etcd, and part of the StatefulSet's selector.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGED_BY_VALUE: &str = "etcd-druid";
/// The Etcd (or copy task) that an object belongs to, by name; part of the StatefulSet's selector.
pub const PART_OF: &str = "app.kubernetes.io/part-of";
/// The object's own name, shortened by [`value`] where a name is longer than a label may be.
pub const NAME: &str = "app.kubernetes.io/name";
/// What an object is for: one of [`component`].
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// The Etcd that an EtcdMember belongs to, by name.
pub const OWNED_BY: &str = "gardener.cloud/owned-by";
/// The revision of the pod template that a pod runs, set by Kubernetes.
pub const POD_REVISION: &str = "controller-revision-hash";

/// Labels of compaction pods that open the way to the object store where such network policies exist.
pub const NETWORK_ALLOWED: [(&str, &str); 3] = [
    ("networking.gardener.cloud/to-dns", "allowed"),
    ("networking.gardener.cloud/to-private-networks", "allowed"),
    ("networking.gardener.cloud/to-public-networks", "allowed"),
];

/// Values of [`COMPONENT`].
pub mod component {
    pub const CLIENT_SERVICE: &str = "etcd-client-service";
    pub const PEER_SERVICE: &str = "etcd-peer-service";
    pub const CONFIG_MAP: &str = "etcd-configmap";
    pub const MEMBER_LEASE: &str = "etcd-member-lease";
    pub const SNAPSHOT_LEASE: &str = "etcd-snapshot-lease";
    pub const POD_DISRUPTION_BUDGET: &str = "etcd-pdb";
    pub const ROLE: &str = "etcd-role";
    pub const ROLE_BINDING: &str = "etcd-role-binding";
    pub const SERVICE_ACCOUNT: &str = "etcd-service-account";
    pub const STATEFUL_SET: &str = "etcd-statefulset";
    pub const COMPACTION_JOB: &str = "etcd-snapshot-compaction-job";
    pub const COPY_BACKUPS_JOB: &str = "etcd-copy-backups-job";
    pub const MEMBER: &str = "etcd-member";
    pub const STEWARD_TLS: &str = "etcd-steward-tls";
    pub const ETCD_TLS: &str = "etcd-tls";
}

/// Annotations, on an Etcd unless said otherwise.
pub mod annotation {
    /// Asks for one reconcile of the spec when its value is [`OPERATION_RECONCILE`]; removed after success.
    pub const OPERATION: &str = "druid.gardener.cloud/operation";
    /// Older spelling of [`OPERATION`].
    pub const OPERATION_LEGACY: &str = "gardener.cloud/operation";
    /// The value of [`OPERATION`] that asks for a reconcile.
    pub const OPERATION_RECONCILE: &str = "reconcile";
    /// Present with any value: the spec isn't reconciled; status goes on and deletion isn't held up.
    pub const SUSPEND_SPEC_RECONCILE: &str = "druid.gardener.cloud/suspend-etcd-spec-reconcile";
    /// Present with any value: children of the Etcd may be changed by anyone.
    pub const DISABLE_COMPONENT_PROTECTION: &str = "druid.gardener.cloud/disable-etcd-component-protection";
    /// Present with any value: only ConfigMap and StatefulSet (at 0 replicas) are kept.
    pub const DISABLE_RUNTIME_COMPONENTS: &str =
        "druid.gardener.cloud/disable-etcd-runtime-component-creation";
    /// Present with any value: the disruption budget lets unhealthy pods be evicted always.
    pub const ALLOW_UNHEALTHY_POD_EVICTION: &str =
        "resources.druid.gardener.cloud/allow-unhealthy-pod-eviction";
    /// On an EtcdMember made by scale-out: the member joins as a learner; removed by the member once it votes.
    pub const CREATE_AS_LEARNER: &str = "druid.gardener.cloud/create-as-learner";
    /// On an EtcdMember: the hash of the configuration that its etcd is to run with, as `status.observedConfigHash`.
    pub const WANTED_CONFIG_HASH: &str = "druid.gardener.cloud/wanted-config-hash";
    /// On the pod template made by etcd-druid: hash of the configuration.
    pub const CONFIG_CHECKSUM: &str = "checksum/etcd-configmap";
    /// On a member's lease: whether the member serves its peers with TLS (`true` or `false`).
    pub const PEER_TLS_ENABLED: &str = "member.etcd.gardener.cloud/tls-enabled";

    /// On a member's Lease: `<memberID>:<clusterID>:<index>`, the Raft index that the member is known to have stored. A volume
    /// that holds less was put back to an earlier state.
    pub const RAFT_INDEX: &str = "druid.gardener.cloud/raft-index";
    /// On pods: keeps the cluster autoscaler from evicting them; never copied to compaction pods.
    pub const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
}

/// Finalizers.
pub mod finalizer {
    /// On Etcd, EtcdCopyBackupsTask and Secrets that they refer to.
    pub const DRUID: &str = "druid.gardener.cloud/etcd-druid";
    /// On EtcdOpsTask.
    pub const OPS_TASK: &str = "druid.gardener.cloud/etcd-ops-task";
}

/// The labels that every child of an Etcd carries; also the selector of its StatefulSet.
pub fn of_etcd(etcd: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (MANAGED_BY.to_owned(), MANAGED_BY_VALUE.to_owned()),
        (PART_OF.to_owned(), etcd.to_owned()),
    ])
}

/// The labels of one child: [`of_etcd`] with its component and name.
pub fn of_component(etcd: &str, component: &str, name: &str) -> BTreeMap<String, String> {
    let mut labels = of_etcd(etcd);
    labels.insert(COMPONENT.to_owned(), component.to_owned());
    labels.insert(NAME.to_owned(), value(name));
    labels
}

/// A label selector in text form, keys in ascending order: `a=1,b=2`.
pub fn selector(labels: &BTreeMap<String, String>) -> String {
    labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(",")
}

/// The longest label value that Kubernetes takes.
const MAX_VALUE: usize = 63;

/// A name as a label value: `:` becomes `-`, and what is too long ends in a hash of the whole name instead.
pub fn value(name: &str) -> String {
    let plain = name.replace(':', "-");
    if plain.len() <= MAX_VALUE {
        return plain;
    }
    // FNV-1a: stable across versions, and short names need no cryptography.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let kept: String = plain.chars().take(MAX_VALUE - 17).collect();
    format!("{}-{hash:016x}", kept.trim_end_matches(['-', '.', '_']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names;

    /// The selector of StatefulSets that are taken over can't be changed, so neither can these words.
    #[test]
    fn selector_is_etcd_druids() {
        let selector = selector(&of_etcd("main"));
        assert_eq!(
            selector,
            "app.kubernetes.io/managed-by=etcd-druid,app.kubernetes.io/part-of=main"
        );
    }

    #[test]
    fn short_names_stay() {
        assert_eq!(value("main-client"), "main-client");
        assert_eq!(
            value("druid.gardener.cloud:etcd:main"),
            "druid.gardener.cloud-etcd-main"
        );
        assert_eq!(value(&"a".repeat(63)), "a".repeat(63));
    }

    /// Long names differ at their ends, so what stays of them must still tell them apart.
    #[test]
    fn long_names_end_in_a_hash() {
        let role = |etcd: String| value(&names::role(&etcd));
        let (one, two) = (role("a".repeat(51) + "b"), role("a".repeat(51) + "c"));
        assert_ne!(one, two);
        for label in [
            one,
            two,
            value(&"-".repeat(100)),
            value(&format!("{}.{}", "a".repeat(45), "b".repeat(45))),
        ] {
            assert!(label.len() <= 63, "{label}");
            assert!(label.ends_with(|c: char| c.is_ascii_alphanumeric()), "{label}");
        }
    }

    /// Labels are stored: the hash must be the same in every version.
    #[test]
    fn hash_is_stable() {
        assert_eq!(
            value(&"a".repeat(64)),
            format!("{}-{}", "a".repeat(46), "db007849f35ebbe5")
        );
    }
}
