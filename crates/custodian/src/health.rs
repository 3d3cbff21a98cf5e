//! Conditions about the members: `Ready`, `AllMembersReady`, `AllMembersUpdated` and `ClusterIDMismatch`. Pure.

use std::collections::BTreeSet;

use api::{
    conditions::{all_members_ready, all_members_updated, cluster_id_mismatch, member_summary, ready},
    labels,
    v1alpha1::{Condition, ConditionStatus, MemberStatus},
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use crate::{
    client_tls,
    cluster::{Cluster, Member},
    member::Assessed,
};

/// `Ready`: whether the members that serve are a majority of those that vote.
pub fn quorum(cluster: &Cluster, members: &[Assessed<'_>]) -> Condition {
    let condition = |status, reason, message: String| Condition::new(ready::TYPE, status, reason, message);
    if !reported(cluster, members) {
        let message = "no member has reported yet".to_owned();
        return condition(ConditionStatus::Unknown, ready::NO_MEMBERS, message);
    }
    let voters = voters(cluster, members);
    let needed = voters / 2 + 1;
    let serve = members.iter().filter(|member| member.is_ready()).count();
    let unclear = of_status(members, &MemberStatus::Unknown).count();
    let message = format!(
        "{serve} of {voters} members serve, {needed} are needed{}",
        others(cluster, members)
    );
    if serve >= needed {
        if let Some(mismatch) = client_tls::mismatch(cluster, members) {
            return condition(ConditionStatus::False, ready::CLIENT_TLS_MISMATCH, mismatch);
        }
        condition(ConditionStatus::True, ready::QUORATE, message)
    } else if serve + unclear >= needed {
        condition(ConditionStatus::Unknown, ready::STALE, message)
    } else {
        condition(ConditionStatus::False, ready::QUORUM_LOST, message)
    }
}

/// `AllMembersReady`: whether every wanted member is there and serves.
pub fn all_ready(cluster: &Cluster, members: &[Assessed<'_>]) -> Condition {
    let condition =
        |status, reason, message: String| Condition::new(all_members_ready::TYPE, status, reason, message);
    if !reported(cluster, members) {
        let message = "no member has reported yet".to_owned();
        return condition(ConditionStatus::Unknown, all_members_ready::NO_MEMBERS, message);
    }
    let wanted = cluster.wanted();
    let (serve, known) = (
        ready_count(cluster, members),
        wanted_members(cluster, members).count(),
    );
    let message = format!("{serve} of {wanted} members serve{}", others(cluster, members));
    let dead = wanted_members(cluster, members).any(|member| member.status == MemberStatus::NotReady);
    if serve == wanted {
        condition(ConditionStatus::True, all_members_ready::ALL_READY, message)
    } else if dead || known < wanted as usize {
        condition(ConditionStatus::False, all_members_ready::NOT_ALL_READY, message)
    } else {
        condition(ConditionStatus::Unknown, ready::STALE, message)
    }
}

/// `AllMembersUpdated`: whether every wanted member's pod is of the newest template, and its etcd runs with the newest
/// configuration.
pub fn all_updated(cluster: &Cluster, members: &[Assessed<'_>]) -> Condition {
    let condition =
        |status, reason, message: String| Condition::new(all_members_updated::TYPE, status, reason, message);
    let Some(set) = cluster.set.as_deref() else {
        return condition(
            ConditionStatus::Unknown,
            all_members_updated::STATEFUL_SET_NOT_FOUND,
            "the StatefulSet isn't there".to_owned(),
        );
    };
    let pending = |message: String| {
        condition(
            ConditionStatus::False,
            all_members_updated::NOT_ALL_UPDATED,
            message,
        )
    };
    if !cluster.carried_out() {
        return pending("the newest spec isn't carried out yet".to_owned());
    }
    let observed = set.status.as_ref().and_then(|status| status.observed_generation);
    if observed < set.metadata.generation {
        return pending("the StatefulSet's newest template isn't seen yet".to_owned());
    }
    let (updated, wanted) = (updated_pods(cluster), cluster.wanted());
    let message = format!("{updated} of {wanted} pods are of the newest template");
    let behind: Vec<_> = wanted_members(cluster, members)
        .filter(|member| member.is_behind())
        .map(|member| member.member.name.as_str())
        .collect();
    if !behind.is_empty() {
        let names = behind.join(", ");
        pending(format!(
            "{message}; not with the newest configuration yet: {names}"
        ))
    } else if updated == wanted {
        condition(ConditionStatus::True, all_members_updated::ALL_UPDATED, message)
    } else {
        pending(message)
    }
}

/// `ClusterIDMismatch`: whether members belong to different clusters. Unknown members don't count.
pub fn mismatch(members: &[Assessed<'_>]) -> Condition {
    let condition =
        |status, reason, message: String| Condition::new(cluster_id_mismatch::TYPE, status, reason, message);
    let ids = cluster_ids(members);
    match ids.len() {
        0 => condition(
            ConditionStatus::Unknown,
            cluster_id_mismatch::NO_CLUSTER_ID,
            "no member tells the ID of its cluster".to_owned(),
        ),
        1 => condition(
            ConditionStatus::False,
            cluster_id_mismatch::NONE,
            "all members belong to one cluster".to_owned(),
        ),
        _ => condition(
            ConditionStatus::True,
            cluster_id_mismatch::MULTIPLE,
            format!(
                "members belong to different clusters: {}. Clients may read and write either: stop the members of the \
                 wrong one",
                told_ids(members)
            ),
        ),
    }
}

/// The cluster IDs of the members whose state is known.
pub fn cluster_ids<'a>(members: &'a [Assessed<'_>]) -> BTreeSet<&'a str> {
    known_ids(members).map(|(_, id)| id).collect()
}

/// Wanted members that serve.
pub fn ready_count(cluster: &Cluster, members: &[Assessed<'_>]) -> u32 {
    let serve = wanted_members(cluster, members).filter(|member| member.is_ready());
    u32::try_from(serve.count()).unwrap_or(u32::MAX)
}

/// Wanted members' pods that are of the StatefulSet's newest template. The StatefulSet's own counts don't tell: with
/// updates on deletion its current revision stays behind for ever.
pub fn updated_pods(cluster: &Cluster) -> u32 {
    let newest = cluster
        .set
        .as_deref()
        .and_then(|set| set.status.as_ref()?.update_revision.as_ref());
    let is_newest = |pod: &Pod| {
        pod.metadata.deletion_timestamp.is_none() && pod.labels().get(labels::POD_REVISION) == newest
    };
    if newest.is_none() {
        return 0;
    }
    let pods = cluster
        .members
        .iter()
        .filter(|member| member.ordinal < cluster.wanted())
        .filter(|member| member.pod.as_deref().is_some_and(is_newest));
    u32::try_from(pods.count()).unwrap_or(u32::MAX)
}

/// Whether any member ever told something, or the cluster is known to have formed.
fn reported(cluster: &Cluster, members: &[Assessed<'_>]) -> bool {
    let formed = cluster
        .etcd
        .status
        .as_ref()
        .is_some_and(|status| status.cluster_id.is_some());
    formed || members.iter().any(|member| member.id.is_some())
}

/// How many members vote. While the cluster forms or is scaled, those that are to vote count too, but not those that
/// join as learners and so leave the quorum as it is.
fn voters(cluster: &Cluster, members: &[Assessed<'_>]) -> usize {
    let meant = match cluster.scaled_to() {
        0 => cluster.wanted(),
        scaled => scaled,
    };
    let learners = members.iter().filter(|member| member.joins_as_learner()).count();
    let known = members.iter().filter(|member| member.votes()).count();
    known.max((meant as usize).saturating_sub(learners))
}

fn wanted_members<'a, 'b>(
    cluster: &Cluster,
    members: &'b [Assessed<'a>],
) -> impl Iterator<Item = &'b Assessed<'a>> {
    let wanted = cluster.wanted();
    members
        .iter()
        .filter(move |member| member.member.ordinal < wanted)
}

fn of_status<'a, 'b>(
    members: &'b [Assessed<'a>],
    status: &'b MemberStatus,
) -> impl Iterator<Item = &'b Assessed<'a>> {
    members.iter().filter(move |member| member.status == *status)
}

/// Names the members that don't serve, with their reasons.
fn others(cluster: &Cluster, members: &[Assessed<'_>]) -> String {
    let assessed = |name: &str| members.iter().find(|member| member.member.name == name);
    let wanted = |member: &Member| member.ordinal < cluster.wanted();
    let others: Vec<_> = cluster
        .members
        .iter()
        .filter_map(|member| match assessed(&member.name) {
            Some(assessed) => (!assessed.is_ready()).then_some((member, assessed.reason.as_str())),
            // Neither an EtcdMember nor a heartbeat.
            None => wanted(member).then_some((member, member_summary::NOT_REPORTED)),
        })
        .map(|(member, reason)| format!("{} ({reason})", member.name))
        .collect();
    if others.is_empty() {
        String::new()
    } else {
        format!("; not serving: {}", others.join(", "))
    }
}

fn known_ids<'a>(members: &'a [Assessed<'_>]) -> impl Iterator<Item = (&'a str, &'a str)> {
    members
        .iter()
        .filter(|member| member.status != MemberStatus::Unknown)
        .filter_map(|member| Some((member.member.name.as_str(), member.cluster_id.as_deref()?)))
        .filter(|(_, id)| !id.is_empty())
}

fn told_ids(members: &[Assessed<'_>]) -> String {
    let told: Vec<_> = known_ids(members)
        .map(|(name, id)| format!("{name} to {id}"))
        .collect();
    told.join(", ")
}
