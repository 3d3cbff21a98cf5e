//! Whether a member serves, judged by what it says, its heartbeat and its pod. Pure.

use std::time::Duration;

use api::{
    conditions::{member as says, member_summary as reason},
    labels,
    v1alpha1::{Condition, EtcdMemberStatus, EtcdMemberSummary, MemberRole, MemberStatus, find_condition},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt as _;

use crate::cluster::Member;

/// How old a heartbeat may be.
#[derive(Clone, Copy, Debug)]
pub struct Thresholds {
    /// Older ones make the member Unknown, unless its Lease says that they hold longer.
    pub unknown: Duration,
    /// Those older by this much more make it NotReady.
    pub not_ready: Duration,
}

/// A member about which something is known.
#[derive(Clone, Debug)]
pub struct Assessed<'a> {
    pub member: &'a Member,
    /// What the member tells in its EtcdMember.
    pub told: Option<&'a EtcdMemberStatus>,
    pub id: Option<String>,
    pub cluster_id: Option<String>,
    pub role: Option<MemberRole>,
    pub status: MemberStatus,
    pub reason: String,
    /// When the judgement changes by the mere passing of time.
    pub until: Option<Timestamp>,
}

/// A judgement: status, reason, and how long it holds by itself.
type Verdict = (MemberStatus, String, Option<Timestamp>);

impl<'a> Assessed<'a> {
    /// Judges a member; `None` when nothing at all is known of it.
    pub fn new(member: &'a Member, thresholds: Thresholds, now: Timestamp) -> Option<Self> {
        let held = member.lease.as_deref().and_then(holder);
        if member.record.is_none() && held.is_none() {
            return None;
        }
        let told = member
            .record
            .as_deref()
            .and_then(|record| record.0.as_ref().ok())
            .and_then(|record| record.status.as_ref());
        let (status, reason, until) = judge(member, told, thresholds, now);
        let of_lease = |field: fn(&(String, String, MemberRole)) -> String| held.as_ref().map(field);
        Some(Self {
            id: told
                .and_then(|told| told.id.clone())
                .or_else(|| of_lease(|h| h.0.clone())),
            cluster_id: told
                .and_then(|told| told.cluster_id.clone())
                .or_else(|| of_lease(|h| h.1.clone())),
            role: match told {
                Some(told) => told.role.clone(),
                None => held.map(|held| held.2),
            },
            member,
            told,
            status,
            reason,
            until,
        })
    }

    pub fn is_ready(&self) -> bool {
        self.status == MemberStatus::Ready
    }

    /// Whether the member has a vote, as far as is known.
    pub fn votes(&self) -> bool {
        self.id.is_some() && self.role != Some(MemberRole::Learner) && !self.joins_as_learner()
    }

    /// Whether the member was made to join without a vote, and has none yet.
    pub fn joins_as_learner(&self) -> bool {
        self.member.record.as_deref().is_some_and(|record| {
            record
                .annotations()
                .contains_key(labels::annotation::CREATE_AS_LEARNER)
        })
    }

    /// Whether its etcd runs with another configuration than the newest one, or has yet to restart for it.
    pub fn is_behind(&self) -> bool {
        let wanted = self
            .member
            .record
            .as_deref()
            .and_then(|record| record.annotations().get(labels::annotation::WANTED_CONFIG_HASH));
        let runs = self.told.and_then(|told| told.observed_config_hash.as_ref());
        wanted.is_some_and(|wanted| runs != Some(wanted)) || self.condition(says::RESTARTING).is_some()
    }

    /// A condition of the EtcdMember.
    pub fn condition(&self, type_: &str) -> Option<&'a Condition> {
        self.told.and_then(|told| find_condition(&told.conditions, type_))
    }

    /// The member's entry in the Etcd's status, dated like the one in `previous` unless the status differs.
    pub fn summary(&self, previous: &[EtcdMemberSummary], now: Timestamp) -> EtcdMemberSummary {
        let unchanged = previous
            .iter()
            .find(|old| old.name == self.member.name && old.status == self.status);
        EtcdMemberSummary {
            name: self.member.name.clone(),
            id: self.id.clone(),
            role: self.role.clone(),
            status: self.status.clone(),
            reason: self.reason.clone(),
            last_transition_time: unchanged
                .and_then(|old| old.last_transition_time.clone())
                .or(Some(Time(now))),
        }
    }
}

fn judge(
    member: &Member,
    told: Option<&EtcdMemberStatus>,
    thresholds: Thresholds,
    now: Timestamp,
) -> Verdict {
    let verdict = |status, reason: &str| (status, reason.to_owned(), None);
    let Some(pod) = member.pod.as_deref() else {
        return verdict(MemberStatus::NotReady, reason::POD_MISSING);
    };
    if pod.metadata.deletion_timestamp.is_some() {
        return verdict(MemberStatus::NotReady, reason::POD_TERMINATING);
    }
    // Without an EtcdMember the heartbeats alone say that the member serves.
    let mut serving = reason::LEASE_SUCCEEDED;
    if let Some(record) = member.record.as_deref() {
        if record.0.is_err() {
            return verdict(MemberStatus::Unknown, reason::UNREADABLE);
        }
        let conditions = told.map_or(&[][..], |told| &told.conditions);
        match find_condition(conditions, says::READY) {
            Some(ready) if ready.is_true() => serving = word(&ready.reason, says::SERVING),
            Some(ready) if ready.is_false() => {
                return verdict(MemberStatus::NotReady, word(&ready.reason, says::NOT_SERVING));
            }
            Some(ready) => return verdict(MemberStatus::Unknown, word(&ready.reason, says::NOT_SERVING)),
            None => {
                let waits = find_condition(conditions, says::INITIALIZED).filter(|c| c.is_false());
                let why = waits.map_or(reason::NOT_REPORTED, |c| word(&c.reason, reason::NOT_REPORTED));
                return verdict(MemberStatus::NotReady, why);
            }
        }
    }
    if !containers_ready(pod) {
        return verdict(MemberStatus::NotReady, reason::CONTAINERS_NOT_READY);
    }
    let lease = member.lease.as_deref();
    let Some(stale) = lease.and_then(|lease| stale_at(lease, thresholds.unknown)) else {
        return verdict(MemberStatus::Unknown, reason::NO_HEARTBEAT);
    };
    let dead = later(stale, thresholds.not_ready);
    if now < stale {
        (MemberStatus::Ready, serving.to_owned(), Some(stale))
    } else if now < dead {
        (
            MemberStatus::Unknown,
            reason::LEASE_EXPIRED.to_owned(),
            Some(dead),
        )
    } else {
        verdict(MemberStatus::NotReady, reason::GRACE_PERIOD_EXCEEDED)
    }
}

fn word<'a>(reason: &'a str, default: &'a str) -> &'a str {
    if reason.is_empty() { default } else { reason }
}

fn containers_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "ContainersReady" && condition.status == "True")
}

/// When the heartbeat was last renewed.
pub fn renewed(lease: &Lease) -> Option<Timestamp> {
    Some(lease.spec.as_ref()?.renew_time.as_ref()?.0)
}

/// When the last heartbeat is too old: a member that sends one only now and then says in its Lease how long each holds.
fn stale_at(lease: &Lease, threshold: Duration) -> Option<Timestamp> {
    let seconds = lease.spec.as_ref()?.lease_duration_seconds.unwrap_or(0);
    let held = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    Some(later(renewed(lease)?, threshold.max(held)))
}

/// Member ID, cluster ID and role out of `<memberID>:<clusterID>:<role>`; the middle part is missing in older leases.
fn holder(lease: &Lease) -> Option<(String, String, MemberRole)> {
    renewed(lease)?;
    let identity = lease.spec.as_ref()?.holder_identity.as_deref()?;
    let mut parts = identity.splitn(3, ':');
    let (id, cluster_id, role) = (parts.next()?, parts.next()?, parts.next()?);
    (!id.is_empty()).then(|| (id.to_owned(), cluster_id.to_owned(), MemberRole::from(role)))
}

/// `time` and `duration` more, or the end of time.
pub fn later(time: Timestamp, duration: Duration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

/// Judges all members. Who no longer leads can't say so when it is gone, so only the newest of several leaders is one.
pub fn assess(members: &[Member], thresholds: Thresholds, now: Timestamp) -> Vec<Assessed<'_>> {
    let mut assessed: Vec<_> = members
        .iter()
        .filter_map(|member| Assessed::new(member, thresholds, now))
        .collect();
    let term = |member: &Assessed<'_>| member.told.and_then(|told| told.raft_term);
    let leads = |member: &Assessed<'_>| {
        member.role == Some(MemberRole::Leader) && member.status != MemberStatus::NotReady
    };
    let leader = assessed
        .iter()
        .filter(|member| leads(member))
        .max_by_key(|member| (term(member), member.is_ready()))
        .map(|member| member.member.name.clone());
    for member in &mut assessed {
        if member.role == Some(MemberRole::Leader) && leader.as_ref() != Some(&member.member.name) {
            member.role = None;
        }
    }
    assessed
}
