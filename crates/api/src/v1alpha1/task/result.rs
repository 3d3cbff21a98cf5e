//! What came of a task, per type.

use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RecoverySource;
use crate::{tolerant::null_as_default, v1alpha1::SnapshotInfo};

/// What came of a task: at most one field, that of the task's type.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskResult {
    /// The snapshot that was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_demand_snapshot: Option<SnapshotResult>,
    /// What maintenance won.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_demand_maintenance: Option<MaintenanceResult>,
    /// What there was to recover from, and what was recovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum_loss_recovery: Option<QuorumLossRecoveryResult>,
    /// What was copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_copy_backups: Option<CopyBackupsResult>,
    /// The full snapshot that replaces the compacted ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_demand_snapshot_compaction: Option<SnapshotCompactionResult>,
}

/// The snapshot that was taken.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotResult {
    /// The stored object, read back after upload. Unset when there was nothing new to save.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotInfo>,
    /// What was done, in a sentence.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(length(max = 4096))]
    pub message: String,
}

/// What maintenance won.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MaintenanceResult {
    /// The revision that history was compacted up to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compacted_revision: Option<i64>,
    /// Each member, in the order of defragmentation.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub members: Vec<MemberMaintenanceResult>,
    /// Bytes won over all members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaimed: Option<Quantity>,
}

/// What maintenance won on one member.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberMaintenanceResult {
    /// Name of the member.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Size of the database before.
    #[serde(rename = "initialDBSize", default, skip_serializing_if = "Option::is_none")]
    pub initial_db_size: Option<Quantity>,
    /// Size of the database after.
    #[serde(rename = "finalDBSize", default, skip_serializing_if = "Option::is_none")]
    pub final_db_size: Option<Quantity>,
    /// Why the member was left alone, or what failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
}

/// What there was to recover from, and what was recovered.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QuorumLossRecoveryResult {
    /// Every source of data that was found.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = 32))]
    pub options: Vec<RecoveryOption>,
    /// The revision that the recovered cluster began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// ID of the recovered cluster, in hexadecimal.
    #[serde(rename = "clusterID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub cluster_id: Option<String>,
}

/// A source of data that a cluster could be recovered from.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryOption {
    /// `Backup` or `Survivor`.
    pub source: RecoverySource,
    /// The member that survived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub member: Option<String>,
    /// The last revision that it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// When that revision was saved, for a backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Time>,
    /// What speaks for or against it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
}

/// What was copied.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CopyBackupsResult {
    /// Objects that were copied.
    #[serde(default, deserialize_with = "null_as_default")]
    pub copied: i64,
    /// Objects that the target had already.
    #[serde(default, deserialize_with = "null_as_default")]
    pub skipped: i64,
    /// Bytes that were copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// The last revision that the target holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_revision: Option<i64>,
    /// Whether the final snapshot of the source is among them, where it was waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_snapshot: Option<bool>,
}

/// The full snapshot that replaces the compacted ones.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotCompactionResult {
    /// The new full snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotInfo>,
    /// Snapshots that a restore no longer has to read.
    #[serde(default, deserialize_with = "null_as_default")]
    pub replaced: i64,
    /// Bytes that a restore no longer has to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<Quantity>,
}
