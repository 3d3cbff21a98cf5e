//! `BackupReady`: whether what should be in the object store is there. Pure.
//!
//! A full snapshot is overdue when its successor's time has passed by more than a snapshot may take. Deltas are overdue
//! when backups were last seen to cover everything longer ago than three periods and the time after which a member
//! repeats that they do.

use std::{cmp::Reverse, time::Duration};

use api::{
    conditions::{backup_ready, member as says, shared},
    duration::InvalidDuration,
    schedule::{InvalidSchedule, Schedule},
    v1alpha1::{
        BackupSpec, Condition, ConditionStatus, EtcdSpec, EtcdStatus, MemberRole, SnapshotInfo,
        UnknownStoreProvider, find_condition,
    },
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::member::{Assessed, later};

/// While nothing changes, a member repeats only every ten minutes that backups are current.
const REPEATED: Duration = Duration::from_mins(12);
/// A busy cluster stores a delta every few seconds; it is told in steps.
const STEP: Duration = Duration::from_mins(1);
/// Told until the first delta after a full snapshot.
const NO_DELTA: &str = ", no delta since";

/// How the backups stand.
#[derive(Clone, Debug)]
pub struct Backup {
    pub condition: Condition,
    /// Everything written up to then can be restored.
    pub covered: Option<Time>,
    /// When the judgement changes by the mere passing of time.
    pub until: Option<Timestamp>,
}

/// Why the spec can't be understood.
#[derive(Debug, thiserror::Error)]
enum SpecError {
    #[error("spec.backup.store.provider: {0}")]
    Provider(#[from] UnknownStoreProvider),
    #[error("spec.backup.fullSnapshotSchedule: {0}")]
    Schedule(#[from] InvalidSchedule),
    #[error("spec.backup: {0}")]
    Duration(#[from] InvalidDuration),
}

/// What is to be stored when.
struct Plan {
    schedule: Schedule,
    /// Time between deltas; `None` when they are off.
    period: Option<Duration>,
    /// How long a full snapshot may take.
    timeout: Duration,
}

impl Plan {
    fn new(spec: &BackupSpec) -> Result<Self, SpecError> {
        Ok(Self {
            schedule: spec.full_snapshot_schedule()?,
            period: spec.delta_snapshot_period()?,
            timeout: spec.snapshot_timeout()?,
        })
    }
}

/// What the members tell about the backups, all taken together: any of them may have owned the backups before.
struct Evidence<'a> {
    full: Option<(Timestamp, &'a SnapshotInfo)>,
    delta: Option<(Timestamp, &'a SnapshotInfo)>,
    covered: Option<Timestamp>,
    /// What the owner says of its work.
    owner: Option<&'a Condition>,
}

impl<'a> Evidence<'a> {
    fn new(members: &[Assessed<'a>], previous: &EtcdStatus) -> Self {
        let told = || members.iter().filter_map(|member| member.told);
        let newest = |pick: fn(&'a api::v1alpha1::EtcdMemberStatus) -> Option<&'a SnapshotInfo>| {
            told()
                .filter_map(|told| pick(told).and_then(|info| Some((info.timestamp.as_ref()?.0, info))))
                .max_by_key(|(time, _)| *time)
        };
        let full = newest(|told| told.snapshots.last_full.as_ref());
        let known = told().filter_map(|told| Some(told.snapshots.covered_until.as_ref()?.0));
        let before = previous.last_backup_time.as_ref().map(|time| time.0);
        let owner = members
            .iter()
            .filter(|member| {
                let owns = member.told.and_then(|told| told.backup_owner) == Some(true);
                owns || member.role == Some(MemberRole::Leader)
            })
            .min_by_key(|member| Reverse((member.is_ready(), member.role == Some(MemberRole::Leader))));
        Self {
            delta: newest(|told| told.snapshots.last_delta.as_ref())
                .filter(|(time, _)| full.is_none_or(|(full, _)| *time > full)),
            full,
            // What was covered once stays so, though a member goes back to the newest snapshot after a write.
            covered: known.chain(before).max(),
            owner: owner.and_then(|member| member.condition(says::BACKUP_READY)),
        }
    }
}

/// Whether the spec asks for backups, as far as can be told.
pub fn is_wanted(spec: &EtcdSpec) -> bool {
    !matches!(spec.backup_store(), Ok(None))
}

/// How the backups stand; `None` when the spec asks for none.
pub fn assess(
    spec: &EtcdSpec,
    members: &[Assessed<'_>],
    previous: &EtcdStatus,
    now: Timestamp,
) -> Option<Backup> {
    let plan = match spec.backup_store() {
        Ok(None) => return None,
        Ok(Some(_)) => Plan::new(&spec.backup),
        Err(error) => Err(error.into()),
    };
    let evidence = Evidence::new(members, previous);
    let before = find_condition(&previous.conditions, backup_ready::TYPE);
    let (condition, until) = match plan {
        Ok(plan) => judge(&plan, &evidence, before, now),
        Err(error) => (
            condition(ConditionStatus::Unknown, backup_ready::UNKNOWN, error.to_string()),
            None,
        ),
    };
    Some(settled(condition, until, &evidence, previous, now))
}

fn judge(
    plan: &Plan,
    evidence: &Evidence<'_>,
    before: Option<&Condition>,
    now: Timestamp,
) -> (Condition, Option<Timestamp>) {
    if let Some(owner) = evidence.owner.filter(|owner| owner.is_false()) {
        let reason = if owner.reason.is_empty() {
            backup_ready::FAILED
        } else {
            &owner.reason
        };
        let stored = stored(evidence, plan);
        let message = format!("{}; {stored}", owner.message);
        return (condition(ConditionStatus::False, reason, message), None);
    }
    let (Some((full, _)), Some(covered)) = (evidence.full, evidence.covered) else {
        return first(plan, before, now);
    };
    let full_late = plan
        .schedule
        .next_after(full)
        .map_or(Timestamp::MAX, |due| later(due, plan.timeout));
    let delta_late = plan.period.map_or(Timestamp::MAX, |period| {
        later(covered, period.saturating_mul(3).saturating_add(REPEATED))
    });
    let stored = stored(evidence, plan);
    let late = full_late.min(delta_late);
    if let Some(patience) = patience(plan, before, now).filter(|patience| late <= now && now < *patience) {
        return pending(
            format!("nothing newer is stored yet, it is due by {patience:.0}; {stored}"),
            patience,
        );
    }
    let overdue = |what: &str| {
        let message = format!("{what}; {stored}. See the events and the log of the leading member");
        (
            condition(ConditionStatus::False, backup_ready::OVERDUE, message),
            None,
        )
    };
    if now >= full_late {
        overdue("the full snapshot that is due isn't stored")
    } else if now >= delta_late {
        overdue("newer changes aren't known to be stored")
    } else {
        (
            condition(ConditionStatus::True, backup_ready::SUCCEEDED, stored),
            Some(late),
        )
    }
}

/// Until when what is late isn't overdue: an Etcd that has just woken up gets the time that a full snapshot may take.
fn patience(plan: &Plan, before: Option<&Condition>, now: Timestamp) -> Option<Timestamp> {
    let before = before?;
    let since = match before.reason.as_str() {
        shared::NOT_CHECKED => now,
        backup_ready::PENDING => before.last_transition_time.as_ref().map_or(now, |time| time.0),
        _ => return None,
    };
    Some(later(since, plan.timeout))
}

fn pending(message: String, until: Timestamp) -> (Condition, Option<Timestamp>) {
    (
        condition(ConditionStatus::Unknown, backup_ready::PENDING, message),
        Some(until),
    )
}

/// Nothing is stored yet: that is pending for as long as a full snapshot may take, and overdue from then on.
fn first(plan: &Plan, before: Option<&Condition>, now: Timestamp) -> (Condition, Option<Timestamp>) {
    let late = patience(plan, before, now).unwrap_or_else(|| match before {
        Some(before) if before.is_false() => Timestamp::MIN,
        _ => later(now, plan.timeout),
    });
    if now < late {
        let message = format!("the first full snapshot isn't stored yet; it is due by {late:.0}");
        return pending(message, late);
    }
    let message = "no full snapshot is stored. See the events and the log of the leading member".to_owned();
    (
        condition(ConditionStatus::False, backup_ready::OVERDUE, message),
        None,
    )
}

/// Holds back what moves all the time on a busy cluster, so that the status isn't written for every delta.
fn settled(
    mut condition: Condition,
    until: Option<Timestamp>,
    evidence: &Evidence<'_>,
    previous: &EtcdStatus,
    now: Timestamp,
) -> Backup {
    let before = find_condition(&previous.conditions, backup_ready::TYPE)
        .filter(|before| before.status == condition.status && before.reason == condition.reason);
    let told = previous.last_backup_time.clone();
    let next_step = told.as_ref().map_or(now, |told| later(told.0, STEP));
    let same_chain = |before: &Condition| {
        let named = evidence
            .full
            .is_some_and(|(_, full)| before.message.contains(&full.name));
        named && before.message.contains(NO_DELTA) == evidence.delta.is_none()
    };
    if let Some(before) = before.filter(|before| condition.is_true() && now < next_step && same_chain(before))
    {
        let untold = before.message != condition.message;
        condition.message.clone_from(&before.message);
        return Backup {
            condition,
            covered: told,
            until: if untold {
                until.into_iter().chain([next_step]).min()
            } else {
                until
            },
        };
    }
    Backup {
        condition,
        covered: evidence.covered.map(Time),
        until,
    }
}

/// What is in the store, and when the next full snapshot is due.
fn stored(evidence: &Evidence<'_>, plan: &Plan) -> String {
    let Some((full_time, full)) = evidence.full else {
        return "no full snapshot is stored".to_owned();
    };
    let delta = match evidence.delta {
        Some((time, delta)) => format!(", newest delta {} of {time:.0}", delta.name),
        None if plan.period.is_some() => NO_DELTA.to_owned(),
        None => String::new(),
    };
    let next = plan
        .schedule
        .next_after(full_time)
        .map_or_else(String::new, |due| format!("; next full due at {due:.0}"));
    format!("newest full {} of {full_time:.0}{delta}{next}", full.name)
}

fn condition(status: ConditionStatus, reason: &str, message: impl Into<String>) -> Condition {
    Condition::new(backup_ready::TYPE, status, reason, message)
}
