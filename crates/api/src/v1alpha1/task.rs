//! `EtcdOpsTask`: one operation on an etcd cluster or its backups, done once.

mod result;

use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time};
use kube::{CustomResource, KubeSchema};
pub use result::{
    CopyBackupsResult, MaintenanceResult, MemberMaintenanceResult, QuorumLossRecoveryResult, RecoveryOption,
    SnapshotCompactionResult, SnapshotResult, TaskResult,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Condition, LastError, LastOperation, StoreSpec, WaitForFinalSnapshotSpec,
    copy::{stores_differ, stores_set},
};
use crate::{
    open_enum::open_enum,
    schema::quantity,
    tolerant::{is_default, null_as_default},
};

/// The operation, and on what.
#[derive(Clone, CustomResource, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "druid.gardener.cloud",
    version = "v1alpha1",
    kind = "EtcdOpsTask",
    plural = "etcdopstasks",
    shortname = "eot",
    category = "druid",
    namespaced,
    status = "EtcdOpsTaskStatus",
    derive = "PartialEq",
    doc = "One operation on an etcd cluster or its backups, done once. Removes itself some time after it has ended.",
    validation = Rule::new(
        "oldSelf.hasValue() || !has(self.spec.config.etcdCopyBackups) || size(self.metadata.name) <= 56"
    ).optional_old_self(true).message(
        "the name of a task with etcdCopyBackups must not be longer than 56 characters: the name of the Job is made \
         of it"
    ),
    selectable = ".spec.etcdName",
    printcolumn(name = "Type", type_ = "string", json_path = ".status.type"),
    printcolumn(name = "Etcd", type_ = "string", json_path = ".spec.etcdName"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Progress", type_ = "string", json_path = ".status.progress"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Phase",
        type_ = "string",
        json_path = ".status.lastOperation.type",
        priority = 1
    ),
    printcolumn(
        name = "TTL",
        type_ = "integer",
        json_path = ".spec.ttlSecondsAfterFinished",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self == oldSelf").message(
        "a task can't be changed: delete it if it hasn't begun, and create a new one"
    ),
    validation = Rule::new("has(self.config.etcdCopyBackups) || (has(self.etcdName) && self.etcdName != '')")
        .field_path(".etcdName")
        .message("set etcdName: only etcdCopyBackups works without an Etcd")
)]
pub struct EtcdOpsTaskSpec {
    /// What to do: exactly one of its fields.
    pub config: EtcdOpsTaskConfig,
    /// How long the task stays after it has ended, in seconds.
    #[serde(default = "default_ttl")]
    #[schemars(range(min = 1))]
    pub ttl_seconds_after_finished: i32,
    /// Name of the Etcd, in the same namespace. Only `etcdCopyBackups` does without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub etcd_name: Option<String>,
}

fn default_ttl() -> i32 {
    3600
}

/// What to do: exactly one field is set.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(
    "[has(self.onDemandSnapshot), has(self.onDemandMaintenance), has(self.quorumLossRecovery), \
      has(self.etcdCopyBackups), has(self.onDemandSnapshotCompaction)].exists_one(set, set)"
).message(
    "set exactly one of onDemandSnapshot, onDemandMaintenance, quorumLossRecovery, etcdCopyBackups and \
     onDemandSnapshotCompaction"
))]
pub struct EtcdOpsTaskConfig {
    /// Takes a snapshot now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_demand_snapshot: Option<OnDemandSnapshotConfig>,
    /// Compacts etcd's history or defragments its members now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_demand_maintenance: Option<OnDemandMaintenanceConfig>,
    /// Brings a cluster back that has lost the majority of its members for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum_loss_recovery: Option<QuorumLossRecoveryConfig>,
    /// Copies backups from one store to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_copy_backups: Option<EtcdCopyBackupsConfig>,
    /// Compacts the stored snapshots into one full snapshot now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_demand_snapshot_compaction: Option<OnDemandSnapshotCompactionConfig>,
}

/// The one operation that a config asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Task<'a> {
    OnDemandSnapshot(&'a OnDemandSnapshotConfig),
    OnDemandMaintenance(&'a OnDemandMaintenanceConfig),
    QuorumLossRecovery(&'a QuorumLossRecoveryConfig),
    EtcdCopyBackups(&'a EtcdCopyBackupsConfig),
    OnDemandSnapshotCompaction(&'a OnDemandSnapshotCompactionConfig),
}

/// A config that asks for no operation, or for several, or for one that a newer version brought.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("spec.config must have exactly one operation that this version knows, found {found}")]
pub struct AmbiguousTask {
    /// How many known operations are set.
    pub found: usize,
}

impl EtcdOpsTaskConfig {
    /// The one operation that is asked for.
    pub fn task(&self) -> Result<Task<'_>, AmbiguousTask> {
        let mut tasks = [
            self.on_demand_snapshot.as_ref().map(Task::OnDemandSnapshot),
            self.on_demand_maintenance.as_ref().map(Task::OnDemandMaintenance),
            self.quorum_loss_recovery.as_ref().map(Task::QuorumLossRecovery),
            self.etcd_copy_backups.as_ref().map(Task::EtcdCopyBackups),
            self.on_demand_snapshot_compaction
                .as_ref()
                .map(Task::OnDemandSnapshotCompaction),
        ]
        .into_iter()
        .flatten();
        match (tasks.next(), tasks.count()) {
            (Some(task), 0) => Ok(task),
            (first, others) => Err(AmbiguousTask {
                found: usize::from(first.is_some()) + others,
            }),
        }
    }
}

impl Task<'_> {
    /// The operation's type, as `status.type` and metrics have it.
    pub fn type_(&self) -> TaskType {
        match self {
            Self::OnDemandSnapshot(_) => TaskType::OnDemandSnapshot,
            Self::OnDemandMaintenance(_) => TaskType::OnDemandMaintenance,
            Self::QuorumLossRecovery(_) => TaskType::QuorumLossRecovery,
            Self::EtcdCopyBackups(_) => TaskType::EtcdCopyBackups,
            Self::OnDemandSnapshotCompaction(_) => TaskType::OnDemandSnapshotCompaction,
        }
    }
}

open_enum! {
    /// The operation of a task.
    pub enum TaskType {
        /// Takes a snapshot.
        OnDemandSnapshot = "OnDemandSnapshot",
        /// Compacts etcd's history or defragments its members.
        OnDemandMaintenance = "OnDemandMaintenance",
        /// Brings a cluster back that has lost its quorum.
        QuorumLossRecovery = "QuorumLossRecovery",
        /// Copies backups.
        EtcdCopyBackups = "EtcdCopyBackups",
        /// Compacts stored snapshots.
        OnDemandSnapshotCompaction = "OnDemandSnapshotCompaction",
    }
}

/// Takes a snapshot now. Needs a store and a quorum.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type != 'delta' || !has(self.isFinal) || !self.isFinal")
    .field_path(".isFinal")
    .message("only a full snapshot can be final: set type to full, or remove isFinal"))]
#[x_kube(validation = Rule::new("self.type != 'delta' || !has(self.acceptFewerKeys) || !self.acceptFewerKeys")
    .field_path(".acceptFewerKeys")
    .message("only a full snapshot can take the place of what was before: set type to full, or remove acceptFewerKeys"))]
pub struct OnDemandSnapshotConfig {
    /// `full` or `delta`.
    #[serde(rename = "type")]
    pub type_: SnapshotType,
    /// Marks a full snapshot as the last one before the cluster moves or goes away. Not for `delta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_final: Option<bool>,
    /// Lets a full snapshot take the place of the backups before it, however few keys it has: the answer to the condition
    /// `BackupPlausible` with reason `KeysCollapsed` when the keys were meant to go. Not for `delta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept_fewer_keys: Option<bool>,
    /// Longest time that a delta snapshot may take, in seconds.
    #[serde(default = "default_delta_timeout")]
    #[schemars(range(min = 10))]
    pub timeout_seconds_delta: i32,
    /// Longest time that a full snapshot may take, in seconds.
    #[serde(default = "default_full_timeout")]
    #[schemars(range(min = 120))]
    pub timeout_seconds_full: i32,
}

fn default_delta_timeout() -> i32 {
    60
}

fn default_full_timeout() -> i32 {
    900
}

open_enum! {
    /// Kind of snapshot.
    pub enum SnapshotType {
        /// Everything.
        Full = "full",
        /// The changes since the last snapshot.
        Delta = "delta",
    }
}

/// Compacts etcd's history, defragments its members, or both in this order. Needs all members.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.etcdCompaction) && self.etcdCompaction) || (has(self.etcdDefragmentation) && self.etcdDefragmentation)")
        .message("nothing to do: set etcdCompaction or etcdDefragmentation to true"),
    validation = Rule::new(
        "(has(self.etcdDefragmentation) && self.etcdDefragmentation) || (!has(self.minReclaimable) && !has(self.minQuotaPercent))"
    ).message("minReclaimable and minQuotaPercent are about defragmentation: set etcdDefragmentation to true")
)]
pub struct OnDemandMaintenanceConfig {
    /// Compacts the history up to the current revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_compaction: Option<bool>,
    /// Defragments members one by one, the leader last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_defragmentation: Option<bool>,
    /// Leaves members alone that would win less than this. Default: every member is defragmented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub min_reclaimable: Option<Quantity>,
    /// Leaves members alone whose database is below this share of the quota, in percent. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub min_quota_percent: Option<i32>,
    /// Goes on where it means a short outage, as with a single member. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
}

/// Brings a cluster back that has lost the majority of its members for good. Without `source` nothing is changed:
/// the task only finds out what there is to choose from, and ends.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.survivor) || (has(self.source) && self.source == 'Survivor')")
        .field_path(".survivor")
        .message("a survivor is chosen only with source Survivor: set the source, or remove the survivor"),
    validation = Rule::new("!has(self.minRevision) || has(self.source)")
        .field_path(".minRevision")
        .message("minRevision needs a source: set source to Backup or Survivor")
)]
pub struct QuorumLossRecoveryConfig {
    /// Where the data comes from: `Backup` or `Survivor`. Choosing one is the consent to lose what it lacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<RecoverySource>,
    /// The member whose data is taken with `Survivor`. Default: the one with the highest revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub survivor: Option<String>,
    /// Ends without a change if the source doesn't reach this revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_revision: Option<i64>,
}

open_enum! {
    /// Where the data of a recovered cluster comes from.
    pub enum RecoverySource {
        /// The object store.
        Backup = "Backup",
        /// The data directory of a member that is left.
        Survivor = "Survivor",
    }
}

/// Copies backups from one store to another. Needs no Etcd.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = stores_set(),
    validation = stores_differ()
)]
pub struct EtcdCopyBackupsConfig {
    /// Where backups are read.
    pub source_store: StoreSpec,
    /// Where backups are written.
    pub target_store: StoreSpec,
    /// Copies only backups that are at most this many days old. Unset copies all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = u32::MAX))]
    pub max_backup_age: Option<i64>,
    /// Copies at most this many backups, newest first. Unset copies all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = u32::MAX))]
    pub max_backups: Option<i64>,
    /// Waits for the final full snapshot of the source before copying.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_final_snapshot: Option<WaitForFinalSnapshotSpec>,
}

/// Compacts the stored snapshots into one full snapshot now. Needs a store, but no running member.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OnDemandSnapshotCompactionConfig {}

open_enum! {
    /// How a task stands.
    pub enum TaskState {
        /// Not admitted yet, or waiting for another task.
        Pending = "Pending",
        /// Under way.
        InProgress = "InProgress",
        /// Ended well.
        Succeeded = "Succeeded",
        /// Ended badly.
        Failed = "Failed",
        /// Not begun, since a precondition isn't met.
        Rejected = "Rejected",
    }
}

impl TaskState {
    /// Whether a task in this state has ended. A state that isn't known has not.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Rejected)
    }
}

/// How a task stands, and what came of it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdOpsTaskStatus {
    /// `Pending`, `InProgress`, `Succeeded`, `Failed` or `Rejected`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
    /// The operation of `spec.config`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<TaskType>,
    /// When `state` last changed; the time to live counts from the change to its last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// When the work began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// The newest errors, newest last.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = MAX_LAST_ERRORS))]
    pub last_errors: Vec<LastError>,
    /// What was last done for the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// `Admitted`, `Progressing` and `Succeeded`.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// How far the task is, in a few words: `2/3 members`, `40%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub progress: Option<String>,
    /// The steward's operation that does the work; it outlives the controller that asked for it.
    #[serde(rename = "operationID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub operation_id: Option<String>,
    /// Steps that have been begun, in order. A step that is done isn't done again.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub steps: Vec<TaskStep>,
    /// What came of the task.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "is_default"
    )]
    pub result: TaskResult,
}

/// How many errors a task keeps.
pub const MAX_LAST_ERRORS: usize = 10;

/// A step of a task.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskStep {
    /// Name of the step, unique in its task.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// What it did, or waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
}

impl EtcdOpsTaskStatus {
    /// Adds an error, forgetting the oldest one beyond [`MAX_LAST_ERRORS`].
    pub fn push_error(&mut self, error: LastError) {
        self.last_errors.push(error);
        let surplus = self.last_errors.len().saturating_sub(MAX_LAST_ERRORS);
        self.last_errors.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(value: serde_json::Value) -> EtcdOpsTaskConfig {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn one_operation_is_the_task() {
        let table = [
            (
                json!({"onDemandSnapshot": {"type": "full"}}),
                TaskType::OnDemandSnapshot,
            ),
            (
                json!({"onDemandMaintenance": {"etcdCompaction": true}}),
                TaskType::OnDemandMaintenance,
            ),
            (json!({"quorumLossRecovery": {}}), TaskType::QuorumLossRecovery),
            (
                json!({"etcdCopyBackups": {"sourceStore": {}, "targetStore": {}}}),
                TaskType::EtcdCopyBackups,
            ),
            (
                json!({"onDemandSnapshotCompaction": {}}),
                TaskType::OnDemandSnapshotCompaction,
            ),
        ];
        for (value, expected) in table {
            assert_eq!(config(value).task().map(|task| task.type_()), Ok(expected));
        }
    }

    /// An operation of a newer version reads as none: the task is refused, not taken for another one.
    #[test]
    fn other_counts_are_refused() {
        let both = json!({"onDemandSnapshot": {"type": "full"}, "onDemandSnapshotCompaction": {}});
        for (value, found) in [(json!({}), 0), (json!({"restart": {}}), 0), (both, 2)] {
            assert_eq!(config(value).task(), Err(AmbiguousTask { found }));
        }
    }

    #[test]
    fn unset_fields_mean_what_the_schema_says() {
        let task: EtcdOpsTaskSpec =
            serde_json::from_value(json!({"config": {"onDemandSnapshot": {"type": "delta"}}})).unwrap();
        assert_eq!(task.ttl_seconds_after_finished, 3600);
        let Ok(Task::OnDemandSnapshot(snapshot)) = task.config.task() else {
            panic!("not a snapshot")
        };
        assert_eq!(
            (snapshot.timeout_seconds_delta, snapshot.timeout_seconds_full),
            (60, 900)
        );
    }

    #[test]
    fn only_the_newest_errors_stay() {
        let mut status = EtcdOpsTaskStatus::default();
        for n in 0..=MAX_LAST_ERRORS {
            let error = LastError {
                code: format!("ERR_{n}"),
                description: String::new(),
                observed_at: None,
            };
            status.push_error(error);
        }
        let codes: Vec<&str> = status
            .last_errors
            .iter()
            .map(|error| error.code.as_str())
            .collect();
        assert_eq!((codes.len(), codes[0], codes[9]), (10, "ERR_1", "ERR_10"));
    }
}
