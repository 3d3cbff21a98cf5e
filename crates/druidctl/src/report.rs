//! How an Etcd is, out of its status and its members'. Pure.

use api::{
    conditions::{
        all_members_ready, all_members_updated, backup_ready, bootstrapped_with_existing_cluster,
        cluster_id_mismatch, compaction, data_volumes_ready, ready, tls_ready,
    },
    labels, quantity,
    v1alpha1::{Condition, ConditionStatus, Etcd, EtcdMember, MemberRole, find_condition},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::output::{age, columns};

/// Types of conditions that say something about health, and the status that they should have.
const WANTED: [(&str, ConditionStatus); 11] = [
    (ready::TYPE, ConditionStatus::True),
    (all_members_ready::TYPE, ConditionStatus::True),
    (all_members_updated::TYPE, ConditionStatus::True),
    (backup_ready::TYPE, ConditionStatus::True),
    (backup_ready::FULL_TYPE, ConditionStatus::True),
    (backup_ready::DELTA_TYPE, ConditionStatus::True),
    (data_volumes_ready::TYPE, ConditionStatus::True),
    (cluster_id_mismatch::TYPE, ConditionStatus::False),
    (bootstrapped_with_existing_cluster::TYPE, ConditionStatus::True),
    (compaction::TYPE, ConditionStatus::True),
    (tls_ready::TYPE, ConditionStatus::True),
];

/// How an Etcd is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether nothing is definitely wrong, and a majority of the members serves (or none is wanted).
    pub healthy: bool,
    /// Status of the condition `Ready`; `Unknown` without one.
    pub quorate: String,
    /// Members that serve, of those wanted: `2/3`.
    pub members_ready: String,
    /// The member that leads.
    pub leader: Option<String>,
    /// Lowest version of etcd that runs.
    pub version: Option<String>,
    /// Size of the largest database on disk, in bytes.
    pub db_size_bytes: Option<u64>,
    /// Part of the largest database that holds data, in bytes.
    pub db_size_in_use_bytes: Option<u64>,
    /// The newest point that backups cover.
    pub last_backup_time: Option<Timestamp>,
    /// What isn't as it should be.
    pub problems: Vec<Problem>,
    /// Its members.
    pub members: Vec<Member>,
}

/// Something that isn't as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// What it is about: the type of a condition, or `Alarm`.
    pub about: String,
    /// Whether it is so, or can only not be told.
    pub certain: bool,
    /// Why, as one word.
    pub reason: String,
    /// Why, in a sentence.
    pub message: String,
}

/// A member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its part in Raft.
    pub role: Option<String>,
    /// Where it is in its life.
    pub state: Option<String>,
    /// Version of etcd that it runs.
    pub version: Option<String>,
    /// Size of its database on disk.
    pub db_size: Option<String>,
    /// Part of it that holds data.
    pub db_size_in_use: Option<String>,
    /// Raft entries that it is behind.
    pub behind: Option<i64>,
    /// Alarms.
    pub alarms: Vec<String>,
}

impl Report {
    /// The report on an Etcd; `members` may hold those of others too.
    pub fn new(etcd: &Etcd, members: &[EtcdMember]) -> Self {
        let (namespace, name) = (etcd.namespace().unwrap_or_default(), etcd.name_any());
        let own = |member: &&EtcdMember| {
            member.namespace().as_deref() == Some(&namespace)
                && member.labels().get(labels::OWNED_BY) == Some(&name)
        };
        let own: Vec<_> = members.iter().filter(own).collect();
        let mut problems = of_conditions(etcd);
        problems.extend(own.iter().flat_map(|member| of_alarms(member)));
        let status = etcd.status.clone().unwrap_or_default();
        let quorate = find_condition(&status.conditions, ready::TYPE);
        let quorate = quorate.map_or(ConditionStatus::Unknown, |ready| ready.status.clone());
        let asleep = etcd.spec.replicas == 0;
        let leader = own
            .iter()
            .find(|member| role(member) == Some(&MemberRole::Leader));
        Self {
            healthy: (asleep || quorate == ConditionStatus::True) && !problems.iter().any(|p| p.certain),
            quorate: if asleep {
                "Asleep".to_owned()
            } else {
                quorate.to_string()
            },
            members_ready: status
                .members_ready
                .unwrap_or_else(|| format!("?/{}", etcd.spec.replicas)),
            leader: leader.map(|member| member.name_any()),
            version: status.version,
            db_size_bytes: largest(&own, |status| status.db_size.as_ref()),
            db_size_in_use_bytes: largest(&own, |status| status.db_size_in_use.as_ref()),
            last_backup_time: status.last_backup_time.map(|time| time.0),
            problems,
            members: own.iter().map(|member| Member::new(member)).collect(),
            namespace,
            name,
        }
    }

    fn row(&self, with_namespace: bool, now: Timestamp) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let size = |bytes: Option<u64>| or_dash(bytes.map(|bytes| quantity::from_bytes(bytes).0));
        let backup = self.last_backup_time.map(|time| age(time, now));
        let mut row = vec![
            self.name.clone(),
            self.quorate.clone(),
            self.members_ready.clone(),
            or_dash(self.leader.clone()),
            or_dash(self.version.clone()),
            size(self.db_size_bytes),
            size(self.db_size_in_use_bytes),
            or_dash(backup),
            self.attention(),
        ];
        if with_namespace {
            row.insert(0, self.namespace.clone());
        }
        row
    }

    fn attention(&self) -> String {
        let told = |problem: &Problem| {
            let mark = if problem.certain { "" } else { "?" };
            format!("{}{mark} ({})", problem.about, problem.reason)
        };
        self.problems.iter().map(told).collect::<Vec<_>>().join(", ")
    }
}

fn of_conditions(etcd: &Etcd) -> Vec<Problem> {
    let conditions = etcd.status.iter().flat_map(|status| &status.conditions);
    let problem = |condition: &Condition| {
        let (_, wanted) = WANTED.iter().find(|(type_, _)| *type_ == condition.type_)?;
        // While an Etcd sleeps its conditions are those of the time before.
        if condition.status == *wanted || etcd.spec.replicas == 0 {
            return None;
        }
        let known = [ConditionStatus::True, ConditionStatus::False];
        Some(Problem {
            about: condition.type_.clone(),
            certain: known.contains(&condition.status),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        })
    };
    conditions.filter_map(problem).collect()
}

fn of_alarms(member: &EtcdMember) -> Vec<Problem> {
    let alarms = member.status.iter().flat_map(|status| &status.alarms);
    let problem = |alarm: &api::v1alpha1::Alarm| Problem {
        about: "Alarm".to_owned(),
        certain: true,
        reason: alarm.to_string(),
        message: format!("etcd has raised alarm {alarm} for member {}", member.name_any()),
    };
    alarms.map(problem).collect()
}

fn role(member: &EtcdMember) -> Option<&MemberRole> {
    member.status.as_ref()?.role.as_ref()
}

fn largest(
    members: &[&EtcdMember],
    size: fn(&api::v1alpha1::EtcdMemberStatus) -> Option<&Quantity>,
) -> Option<u64> {
    let sizes = members.iter().filter_map(|member| size(member.status.as_ref()?));
    sizes.filter_map(|size| quantity::bytes(size).ok()).max()
}

impl Member {
    fn new(member: &EtcdMember) -> Self {
        let status = member.status.clone().unwrap_or_default();
        Self {
            name: member.name_any(),
            role: status.role.map(|role| role.to_string()),
            state: status.state.map(|state| state.to_string()),
            version: status.etcd_version,
            db_size: status.db_size.map(|size| size.0),
            db_size_in_use: status.db_size_in_use.map(|size| size.0),
            behind: status.behind,
            alarms: status.alarms.iter().map(ToString::to_string).collect(),
        }
    }

    fn row(&self) -> Vec<String> {
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            self.name.clone(),
            or_dash(&self.role),
            or_dash(&self.state),
            or_dash(&self.version),
            or_dash(&self.db_size),
            or_dash(&self.db_size_in_use),
            or_dash(&self.behind.map(|behind| behind.to_string())),
            self.alarms.join(","),
        ]
    }
}

/// Reports as columns.
pub fn table(reports: &[Report], with_namespace: bool, now: Timestamp) -> String {
    let mut head = vec![
        "NAME",
        "QUORATE",
        "MEMBERS",
        "LEADER",
        "VERSION",
        "DB",
        "IN USE",
        "BACKUP",
        "ATTENTION",
    ];
    if with_namespace {
        head.insert(0, "NAMESPACE");
    }
    let rows = reports
        .iter()
        .map(|report| report.row(with_namespace, now))
        .collect();
    columns(&head, rows)
}

/// One report at length: its row, its members, and each problem in its own words.
pub fn details(report: &Report, now: Timestamp) -> String {
    let mut text = table(std::slice::from_ref(report), false, now);
    if !report.members.is_empty() {
        let head = [
            "MEMBER", "ROLE", "STATE", "VERSION", "DB", "IN USE", "BEHIND", "ALARMS",
        ];
        let rows = report.members.iter().map(Member::row).collect();
        text.push('\n');
        text.push_str(&columns(&head, rows));
    }
    if !report.problems.is_empty() {
        let row = |problem: &Problem| {
            vec![
                problem.about.clone(),
                problem.reason.clone(),
                problem.message.clone(),
            ]
        };
        text.push('\n');
        let rows = report.problems.iter().map(row).collect();
        text.push_str(&columns(&["ATTENTION", "REASON", "MESSAGE"], rows));
    }
    text
}

#[cfg(test)]
mod tests;
