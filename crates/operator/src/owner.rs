//! Where the stewards of an Etcd are, and which of them to ask for backups. Pure.

use std::sync::Arc;

use api::{
    names,
    steward::server_name,
    v1alpha1::{Etcd, EtcdMember, MemberRole},
};
use kube::ResourceExt as _;

use crate::steward::Target;

/// The steward in a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The pod.
    pub pod: String,
    /// Where it listens.
    pub target: Target,
}

/// All stewards of an Etcd, the most likely owner of the backups first. Members that don't tell their role are asked
/// last: any steward knows the owner.
pub fn locations(etcd: &Etcd, members: &[Arc<EtcdMember>]) -> Vec<Location> {
    let mut ranked: Vec<(u8, u32)> = members
        .iter()
        .filter_map(|member| Some((rank(member), ordinal(etcd, &member.name_any())?)))
        .collect();
    if ranked.is_empty() {
        let summaries = etcd.status.iter().flat_map(|status| &status.members);
        ranked = summaries
            .filter_map(|member| {
                let leads = member.role == Some(MemberRole::Leader);
                Some((u8::from(!leads), ordinal(etcd, &member.name)?))
            })
            .collect();
    }
    ranked.sort_unstable();
    ranked
        .into_iter()
        .map(|(_, ordinal)| location(etcd, ordinal))
        .collect()
}

/// The steward in a pod of this Etcd.
pub fn in_pod(etcd: &Etcd, pod: &str) -> Option<Location> {
    let ordinal = names::ordinal(&etcd.name_any(), None, pod)?;
    Some(location(etcd, ordinal))
}

/// The steward behind a URL, if it is one of this Etcd's.
pub fn behind(url: &str, locations: &[Location]) -> Option<Location> {
    let address = url.strip_prefix("https://")?.trim_end_matches('/');
    locations
        .iter()
        .find(|location| location.target.address == address)
        .cloned()
}

/// A hash of what [`locations`] goes by, to tell changes that matter from the others.
pub fn part_in_backups(member: &EtcdMember) -> Option<u64> {
    Some(rank(member).into())
}

fn rank(member: &EtcdMember) -> u8 {
    match &member.status {
        Some(status) if status.backup_owner == Some(true) => 0,
        Some(status) if status.role == Some(MemberRole::Leader) => 1,
        _ => 2,
    }
}

fn ordinal(etcd: &Etcd, member: &str) -> Option<u32> {
    names::ordinal(&etcd.name_any(), etcd.spec.member_name_prefix.as_deref(), member)
}

fn location(etcd: &Etcd, ordinal: u32) -> Location {
    let (name, namespace) = (etcd.name_any(), etcd.namespace().unwrap_or_default());
    let host = names::pod_host(&name, &namespace, ordinal);
    Location {
        pod: names::pod(&name, ordinal),
        target: Target {
            address: format!("{host}:{}", etcd.spec.backup.port()),
            server_name: server_name(&name, &namespace),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn etcd(prefix: Option<&str>) -> Etcd {
        serde_json::from_value(json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd",
            "metadata": {"name": "main", "namespace": "ns"},
            "spec": {"replicas": 3, "memberNamePrefix": prefix, "backup": {"port": 9000}},
            "status": {"members": [
                {"name": "main-0", "status": "Ready"},
                {"name": "main-1", "role": "Leader", "status": "Ready"},
            ]},
        }))
        .unwrap()
    }

    fn member(name: &str, status: &serde_json::Value) -> Arc<EtcdMember> {
        let member = serde_json::from_value(json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdMember",
            "metadata": {"name": name, "namespace": "ns"}, "status": status,
        }));
        Arc::new(member.unwrap())
    }

    fn pods(locations: &[Location]) -> Vec<&str> {
        locations.iter().map(|location| location.pod.as_str()).collect()
    }

    #[test]
    fn the_owner_comes_first_then_the_leader() {
        let members = [
            member("main-0", &json!({"role": "Follower"})),
            member("main-1", &json!({"role": "Leader"})),
            member("main-2", &json!({"role": "Follower", "backupOwner": true})),
            member("main-x", &json!({"backupOwner": true})),
        ];
        let found = locations(&etcd(None), &members);
        assert_eq!(pods(&found), ["main-2", "main-1", "main-0"]);
        assert_eq!(found[0].target.address, "main-2.main-peer.ns.svc:9000");
        assert_eq!(
            found[0].target.server_name,
            "main.ns.steward.druid.gardener.cloud"
        );
    }

    /// Member objects carry the prefix, pods and their hosts don't.
    #[test]
    fn a_prefix_is_no_part_of_the_pod() {
        let members = [member("eu-main-1", &json!({"backupOwner": true}))];
        assert_eq!(pods(&locations(&etcd(Some("eu")), &members)), ["main-1"]);
    }

    /// As when member objects are switched off.
    #[test]
    fn without_member_objects_the_status_of_the_etcd_tells_the_leader() {
        assert_eq!(pods(&locations(&etcd(None), &[])), ["main-1", "main-0"]);
    }

    /// What a steward tells must not lead to a foreign host.
    #[test]
    fn only_stewards_of_the_etcd_are_followed() {
        let known = locations(&etcd(None), &[]);
        let found = behind("https://main-0.main-peer.ns.svc:9000", &known);
        assert_eq!(found, in_pod(&etcd(None), "main-0"));
        for url in [
            "https://evil.example:9000",
            "http://main-0.main-peer.ns.svc:9000",
            "",
        ] {
            assert_eq!(behind(url, &known), None, "{url}");
        }
        assert_eq!(in_pod(&etcd(None), "other-0"), None);
    }
}
