//! What the custodian says about an Etcd: the part of its status that it owns. Pure.

use api::{
    conditions::{
        all_members_ready, all_members_updated, backup_ready, cluster_id_mismatch, ready, shared, tls_ready,
    },
    v1alpha1::{Condition, ConditionStatus, EtcdStatus, MemberRole, find_condition},
};
use jiff::Timestamp;
use semver::Version;

use crate::{
    backup,
    cluster::Cluster,
    health,
    member::{self, Assessed, Thresholds},
};

/// The fields of the status that the custodian owns.
pub const FIELDS: [&str; 12] = [
    "clusterID",
    "conditions",
    "currentReplicas",
    "lastBackupTime",
    "members",
    "membersReady",
    "peerUrlTLSEnabled",
    "ready",
    "readyReplicas",
    "reason",
    "replicas",
    "version",
];

/// What needs attention, the most urgent first: a condition's type, and the statuses in which it does.
const ATTENTION: [(&str, &[ConditionStatus]); 8] = [
    (cluster_id_mismatch::TYPE, &[ConditionStatus::True]),
    (ready::TYPE, &[ConditionStatus::False, ConditionStatus::Unknown]),
    (backup_ready::TYPE, &[ConditionStatus::False]),
    (tls_ready::TYPE, &[ConditionStatus::False]),
    (all_members_ready::TYPE, &[ConditionStatus::False]),
    (all_members_updated::TYPE, &[ConditionStatus::False]),
    (all_members_ready::TYPE, &[ConditionStatus::Unknown]),
    (backup_ready::TYPE, &[ConditionStatus::Unknown]),
];

/// What is so at one moment.
#[derive(Clone, Debug)]
pub struct Report {
    /// The status, with the custodian's fields only.
    pub status: EtcdStatus,
    /// When it changes by the mere passing of time.
    pub until: Option<Timestamp>,
}

impl Report {
    /// Works out the status; `previous` is the one that was reported before.
    pub fn new(cluster: &Cluster, previous: &EtcdStatus, thresholds: Thresholds, now: Timestamp) -> Self {
        let members = member::assess(&cluster.members, thresholds, now);
        let moment = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let backup = backup::assess(&cluster.etcd.spec, &members, previous, moment);
        let until = members
            .iter()
            .filter_map(|member| member.until)
            .chain(backup.as_ref().and_then(|backup| backup.until))
            .min();
        let covered = backup.as_ref().and_then(|backup| backup.covered.clone());
        let generation = cluster.etcd.metadata.generation;
        let dated = dated(cluster, previous);
        let conditions: Vec<_> = conditions(cluster, &members, backup.map(|backup| backup.condition))
            .into_iter()
            .map(|condition| unchecked(cluster, condition, previous))
            .map(|condition| condition.observed(generation).since(&dated, moment))
            .collect();
        let set = cluster.set.as_deref().and_then(|set| set.status.as_ref());
        let status = EtcdStatus {
            current_replicas: i32::try_from(health::updated_pods(cluster)).ok(),
            replicas: Some(set.map_or(0, |set| set.replicas)),
            ready_replicas: Some(set.and_then(|set| set.ready_replicas).unwrap_or(0)),
            ready: Some(set_is_ready(cluster)),
            members: members
                .iter()
                .map(|m| m.summary(&previous.members, moment))
                .collect(),
            peer_url_tls_enabled: peer_tls(&members),
            members_ready: Some(format!(
                "{}/{}",
                health::ready_count(cluster, &members),
                cluster.wanted()
            )),
            cluster_id: cluster_id(&members, previous),
            version: lowest_version(&members),
            last_backup_time: covered,
            reason: attention(&conditions, cluster),
            conditions,
            ..EtcdStatus::default()
        };
        Self { status, until }
    }
}

/// The name of the member that leads.
pub fn leader(status: &EtcdStatus) -> Option<&str> {
    let leader = status
        .members
        .iter()
        .find(|member| member.role == Some(MemberRole::Leader));
    leader.map(|member| member.name.as_str())
}

fn conditions(cluster: &Cluster, members: &[Assessed<'_>], backup: Option<Condition>) -> Vec<Condition> {
    let mut conditions = vec![
        health::all_ready(cluster, members),
        health::all_updated(cluster, members),
        health::mismatch(members),
        health::quorum(cluster, members),
    ];
    conditions.extend(backup);
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    conditions
}

/// With no member wanted there is nothing to judge: each condition stays as it was, and says so.
fn unchecked(cluster: &Cluster, condition: Condition, previous: &EtcdStatus) -> Condition {
    if cluster.wanted() > 0 {
        return condition;
    }
    let before = find_condition(&previous.conditions, &condition.type_);
    Condition::new(
        condition.type_,
        before.map_or(ConditionStatus::Unknown, |before| before.status.clone()),
        shared::NOT_CHECKED,
        "the Etcd is scaled to zero: the status is the last one before",
    )
}

/// The conditions that tell since when something is so. Of a time when nobody looked nothing is known.
fn dated(cluster: &Cluster, previous: &EtcdStatus) -> Vec<Condition> {
    let looked = |condition: &&Condition| cluster.wanted() == 0 || condition.reason != shared::NOT_CHECKED;
    previous.conditions.iter().filter(looked).cloned().collect()
}

/// Whether all pods are there, ready and of the newest template.
fn set_is_ready(cluster: &Cluster) -> bool {
    let expected = if cluster.carried_out() {
        cluster.wanted()
    } else {
        cluster.scaled_to()
    };
    cluster.set.as_deref().is_some_and(|set| {
        let status = set.status.as_ref();
        let ready = status.and_then(|status| status.ready_replicas).unwrap_or(0);
        status.and_then(|status| status.observed_generation) >= set.metadata.generation
            && u32::try_from(ready) == Ok(expected)
            && health::updated_pods(cluster) >= expected.min(cluster.wanted())
    })
}

/// The cluster's ID, once it is known for good: members that disagree don't change it.
fn cluster_id(members: &[Assessed<'_>], previous: &EtcdStatus) -> Option<String> {
    let ids = health::cluster_ids(members);
    let agreed = (ids.len() == 1).then(|| ids.first().copied()).flatten();
    agreed
        .map(str::to_owned)
        .or_else(|| previous.cluster_id.clone())
        .or_else(|| ids.first().map(|id| (*id).to_owned()))
}

/// The lowest version of etcd that runs; when nothing serves, of what ran last.
fn lowest_version(members: &[Assessed<'_>]) -> Option<String> {
    let lowest = |serving: bool| {
        members
            .iter()
            .filter(|member| member.is_ready() || !serving)
            .filter_map(|member| member.told?.etcd_version.as_deref())
            .filter_map(|version| Version::parse(version).ok())
            .min()
    };
    lowest(true)
        .or_else(|| lowest(false))
        .map(|version| version.to_string())
}

/// Whether all members serve their peers with TLS; `None` until all have told.
fn peer_tls(members: &[Assessed<'_>]) -> Option<bool> {
    let told: Option<Vec<bool>> = members
        .iter()
        .map(|member| member.told?.peer_tls_enabled)
        .collect();
    told.filter(|told| !told.is_empty())
        .map(|told| told.into_iter().all(|enabled| enabled))
}

/// The reason of the condition that needs attention most, else that of `Ready`.
fn attention(conditions: &[Condition], cluster: &Cluster) -> Option<String> {
    let of_others = cluster.etcd.status.as_ref().map_or(&[][..], |s| &s.conditions);
    let tls = find_condition(of_others, tls_ready::TYPE);
    let mut all = conditions.iter().chain(tls);
    let needy = ATTENTION
        .iter()
        .find_map(|(type_, bad)| all.clone().find(|c| c.type_ == *type_ && bad.contains(&c.status)));
    needy
        .or_else(|| all.find(|condition| condition.type_ == ready::TYPE))
        .map(|condition| condition.reason.clone())
}

#[cfg(test)]
mod tests;
