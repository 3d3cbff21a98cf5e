//! What happened between two reports, as Events tell it. Pure.

use api::{
    conditions::{backup_ready, cluster_id_mismatch, ready, shared},
    v1alpha1::{Condition, ConditionStatus, EtcdMemberSummary, EtcdStatus, MemberStatus, find_condition},
};

use crate::report::leader;

/// Reasons of the Events.
pub mod event {
    pub const MEMBER_READY: &str = "MemberReady";
    pub const MEMBER_NOT_READY: &str = "MemberNotReady";
    pub const LEADER_CHANGED: &str = "LeaderChanged";
    pub const QUORATE: &str = "Quorate";
    pub const QUORUM_LOST: &str = "QuorumLost";
    pub const CLIENT_TLS_MISMATCH: &str = "ClientTLSMismatch";
    pub const CLUSTER_ID_MISMATCH: &str = "ClusterIDMismatch";
    pub const CLUSTER_ID_AGREED: &str = "ClusterIDAgreed";
    pub const BACKUP_FAILED: &str = "BackupFailed";
    pub const BACKUP_RECOVERED: &str = "BackupRecovered";
}

/// One thing that happened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Transition {
    /// Whether somebody should look at it.
    pub warning: bool,
    pub reason: &'static str,
    pub note: String,
    /// The member that it is about.
    pub member: Option<String>,
}

impl Transition {
    fn of(self, member: &str) -> Self {
        Self {
            member: Some(member.to_owned()),
            ..self
        }
    }
}

/// What changed from `before` to `after`. `led` is the member that last led, before there was perhaps no leader.
pub fn between(before: &EtcdStatus, after: &EtcdStatus, led: Option<&str>) -> Vec<Transition> {
    let hibernated = find_condition(&after.conditions, ready::TYPE).is_none_or(unchecked);
    let members = after.members.iter().filter_map(|member| {
        let old = before.members.iter().find(|old| old.name == member.name);
        of_member(old, member).filter(|transition| !(hibernated && transition.warning))
    });
    let pair = |type_| {
        let after = find_condition(&after.conditions, type_)?;
        Some((find_condition(&before.conditions, type_), after))
    };
    members
        .chain(of_leader(led, leader(after)))
        .chain(pair(ready::TYPE).and_then(|(old, new)| of_quorum(old, new)))
        .chain(pair(cluster_id_mismatch::TYPE).and_then(|(old, new)| of_mismatch(old, new)))
        .chain(pair(backup_ready::TYPE).and_then(|(old, new)| of_backup(old, new)))
        .collect()
}

fn of_member(old: Option<&EtcdMemberSummary>, new: &EtcdMemberSummary) -> Option<Transition> {
    if old.is_some_and(|old| old.status == new.status) {
        return None;
    }
    let name = &new.name;
    let transition = match new.status {
        MemberStatus::Ready => normal(event::MEMBER_READY, format!("member {name} serves")),
        // A member that is new hasn't served before.
        MemberStatus::NotReady if old.is_some() => {
            let note = format!("member {name} doesn't serve: {}", new.reason);
            warning(event::MEMBER_NOT_READY, note)
        }
        _ => return None,
    };
    Some(transition.of(name))
}

fn of_leader(old: Option<&str>, new: Option<&str>) -> Option<Transition> {
    let (old, new) = (old?, new?);
    let note = || format!("member {new} leads the cluster");
    (old != new).then(|| normal(event::LEADER_CHANGED, note()).of(new))
}

/// A quorum is lost only if there was one: not while a cluster forms or wakes up.
fn of_quorum(old: Option<&Condition>, new: &Condition) -> Option<Transition> {
    let had = |old: &Condition| (old.is_true() && !unchecked(old)) || old.reason == ready::STALE;
    if new.is_false() && new.reason == ready::CLIENT_TLS_MISMATCH {
        let is_news = old.is_none_or(|old| old.reason != new.reason);
        is_news.then(|| warning(event::CLIENT_TLS_MISMATCH, new.message.clone()))
    } else if new.is_false() && old.is_some_and(had) {
        Some(warning(event::QUORUM_LOST, new.message.clone()))
    } else if new.is_true() && !unchecked(new) && old.is_none_or(|old| !old.is_true()) {
        Some(normal(event::QUORATE, new.message.clone()))
    } else {
        None
    }
}

fn of_mismatch(old: Option<&Condition>, new: &Condition) -> Option<Transition> {
    let was = old.is_some_and(Condition::is_true);
    if new.is_true() && !was {
        Some(warning(event::CLUSTER_ID_MISMATCH, new.message.clone()))
    } else if new.is_false() && was {
        Some(normal(event::CLUSTER_ID_AGREED, new.message.clone()))
    } else {
        None
    }
}

fn of_backup(old: Option<&Condition>, new: &Condition) -> Option<Transition> {
    let was = old.map(|old| &old.status);
    match (was, &new.status) {
        (was, ConditionStatus::False) if was != Some(&ConditionStatus::False) => Some(warning(
            event::BACKUP_FAILED,
            format!("{}: {}", new.reason, new.message),
        )),
        (Some(ConditionStatus::False), ConditionStatus::True) => {
            Some(normal(event::BACKUP_RECOVERED, new.message.clone()))
        }
        _ => None,
    }
}

fn unchecked(condition: &Condition) -> bool {
    condition.reason == shared::NOT_CHECKED
}

fn normal(reason: &'static str, note: String) -> Transition {
    Transition {
        warning: false,
        reason,
        note,
        member: None,
    }
}

fn warning(reason: &'static str, note: String) -> Transition {
    Transition {
        warning: true,
        ..normal(reason, note)
    }
}
