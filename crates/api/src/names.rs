//! Names of everything that is derived from an Etcd or a task, each rule in one place.
//!
//! `etcd` is always the name of the Etcd object. Names that etcd-druid gave are kept, so that its clusters are taken
//! over in place.

/// The longest Etcd name: its StatefulSet's pods carry `<name>-<hash of up to ten characters>` as a label value.
pub const MAX_ETCD_NAME: usize = 52;
/// The longest name of a task that runs a Job: [`task_job`] must fit a label value.
pub const MAX_JOB_TASK_NAME: usize = 56;

/// StatefulSet, PodDisruptionBudget and ServiceAccount carry the Etcd's own name.
pub fn stateful_set(etcd: &str) -> String {
    etcd.to_owned()
}

pub fn pod_disruption_budget(etcd: &str) -> String {
    etcd.to_owned()
}

pub fn service_account(etcd: &str) -> String {
    etcd.to_owned()
}

/// The pod of a member, by ordinal.
pub fn pod(etcd: &str, ordinal: u32) -> String {
    format!("{etcd}-{ordinal}")
}

/// The ordinal in the name of a pod, member or lease of this Etcd.
pub fn ordinal(etcd: &str, prefix: Option<&str>, member: &str) -> Option<u32> {
    let name = match prefix {
        Some(prefix) => member.strip_prefix(prefix)?.strip_prefix('-')?,
        None => member,
    };
    let digits = name.strip_prefix(etcd)?.strip_prefix('-')?;
    let canonical = digits == "0" || !digits.starts_with('0');
    (canonical && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| digits.parse().ok())
        .flatten()
}

/// The name of a member in etcd, of its EtcdMember and of its heartbeat Lease: the pod's, after the member name
/// prefix and a dash where there is one.
pub fn member(etcd: &str, prefix: Option<&str>, ordinal: u32) -> String {
    member_prefix(etcd, prefix) + &ordinal.to_string()
}

/// What the names of all members of this Etcd begin with.
pub fn member_prefix(etcd: &str, prefix: Option<&str>) -> String {
    match prefix {
        Some(prefix) => format!("{prefix}-{etcd}-"),
        None => format!("{etcd}-"),
    }
}

/// The heartbeat Lease of a member.
pub fn member_lease(etcd: &str, prefix: Option<&str>, ordinal: u32) -> String {
    member(etcd, prefix, ordinal)
}

/// The Lease that tells the last revision in a full snapshot, in lease mode.
pub fn full_snapshot_lease(etcd: &str) -> String {
    format!("{etcd}-full-snap")
}

/// The Lease that tells the last revision in a delta snapshot, in lease mode.
pub fn delta_snapshot_lease(etcd: &str) -> String {
    format!("{etcd}-delta-snap")
}

pub fn client_service(etcd: &str) -> String {
    format!("{etcd}-client")
}

/// The headless Service that gives each pod its DNS name.
pub fn peer_service(etcd: &str) -> String {
    format!("{etcd}-peer")
}

/// The DNS name of a pod below the peer Service. There is no cluster domain in it: search paths add it.
pub fn pod_host(etcd: &str, namespace: &str, ordinal: u32) -> String {
    format!("{}.{}.{namespace}.svc", pod(etcd, ordinal), peer_service(etcd))
}

/// The DNS name of the client Service.
pub fn client_host(etcd: &str, namespace: &str) -> String {
    format!("{}.{namespace}.svc", client_service(etcd))
}

/// The name by which containers of one pod reach each other; server certificates hold it.
pub fn local_host(etcd: &str) -> String {
    format!("{etcd}-local")
}

pub fn config_map(etcd: &str) -> String {
    format!("{etcd}-config")
}

/// Name of the Role of the members. Not a DNS name: see [`crate::labels::value`] for its label.
pub fn role(etcd: &str) -> String {
    format!("druid.gardener.cloud:etcd:{etcd}")
}

/// Name of the RoleBinding of the members.
pub fn role_binding(etcd: &str) -> String {
    role(etcd)
}

/// The Secret with the certificate that the stewards of an Etcd serve with, and its CA.
pub fn steward_tls_secret(etcd: &str) -> String {
    format!("{etcd}-steward-tls")
}

/// The Secret with the certificate that controllers present to the stewards of an Etcd.
pub fn steward_client_secret(etcd: &str) -> String {
    format!("{etcd}-steward-client")
}

/// The Job that compacts the snapshots of an Etcd.
pub fn compaction_job(etcd: &str) -> String {
    format!("{etcd}-compactor")
}

/// The Job of an EtcdCopyBackupsTask or EtcdOpsTask, by the task's name.
pub fn task_job(task: &str) -> String {
    format!("{task}-worker")
}

/// The volume claim of a pod, by the name of the volume claim template.
pub fn volume_claim(template: &str, etcd: &str, ordinal: u32) -> String {
    format!("{template}-{}", pod(etcd, ordinal))
}

/// The EtcdOpsTask that takes the full snapshot before hibernation.
pub fn hibernation_snapshot_task(etcd: &str, attempt: u32) -> String {
    format!("{etcd}-hibernation-snapshot-{attempt}")
}

/// The EtcdOpsTask that takes the full snapshot before an upgrade of etcd.
pub fn upgrade_snapshot_task(etcd: &str, attempt: u32) -> String {
    format!("{etcd}-upgrade-snapshot-{attempt}")
}

/// The Secret with etcd's certificates, copied from those that the Etcd names, under fixed keys.
pub fn etcd_tls_secret(etcd: &str) -> String {
    format!("{etcd}-etcd-tls")
}

/// In the controllers' own namespace: the authority that signs the stewards' and the controllers' certificates.
pub const DRUID_CA_SECRET: &str = "druid-ca";

/// The controllers that call stewards.
pub const STEWARD_CALLERS: [&str; 2] = ["compaction-controller", "opstask-controller"];

/// In the controllers' own namespace: the certificate that a controller presents to stewards.
pub fn controller_client_secret(controller: &str) -> String {
    format!("druid-{controller}-client")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names that etcd-druid's objects have: another one would make a second object beside the first.
    #[test]
    fn names_are_etcd_druids() {
        let table = [
            (stateful_set("main"), "main"),
            (pod("main", 2), "main-2"),
            (member("main", Some("blue"), 2), "blue-main-2"),
            (member_lease("main", None, 2), "main-2"),
            (full_snapshot_lease("main"), "main-full-snap"),
            (delta_snapshot_lease("main"), "main-delta-snap"),
            (client_service("main"), "main-client"),
            (peer_service("main"), "main-peer"),
            (pod_host("main", "lab", 0), "main-0.main-peer.lab.svc"),
            (client_host("main", "lab"), "main-client.lab.svc"),
            (local_host("main"), "main-local"),
            (config_map("main"), "main-config"),
            (role("main"), "druid.gardener.cloud:etcd:main"),
            (compaction_job("main"), "main-compactor"),
            (task_job("copy"), "copy-worker"),
            (volume_claim("data", "main", 1), "data-main-1"),
        ];
        for (name, expected) in table {
            assert_eq!(name, expected);
        }
    }

    #[test]
    fn ordinal_is_the_inverse_of_member() {
        for ordinal in [0, 7, 10] {
            assert_eq!(
                super::ordinal("main", None, &member("main", None, ordinal)),
                Some(ordinal)
            );
            assert_eq!(
                super::ordinal("main", Some("b"), &member("main", Some("b"), ordinal)),
                Some(ordinal)
            );
        }
        for other in [
            "main",
            "main-",
            "main-x",
            "main-01",
            "main-+1",
            "main-events-0",
            "other-0",
            "b-main-0",
        ] {
            assert_eq!(super::ordinal("main", None, other), None, "{other}");
        }
    }

    /// The limits of the CRDs are those that the names need: one character more wouldn't fit a label or a DNS name.
    #[test]
    fn limits_fit() {
        let etcd = "a".repeat(MAX_ETCD_NAME);
        let revision = format!("{}-{}", stateful_set(&etcd), "0123456789");
        assert_eq!(revision.len(), 63);
        let bounded = [
            pod(&etcd, 999),
            client_service(&etcd),
            peer_service(&etcd),
            compaction_job(&etcd),
        ];
        assert!(bounded.iter().all(|name| name.len() <= 63), "{bounded:?}");
        assert_eq!(task_job(&"a".repeat(MAX_JOB_TASK_NAME)).len(), 63);
    }
}
