//! The last operation and the last errors of an object's controller.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{open_enum::open_enum, tolerant::null_as_default};

open_enum! {
    /// What a controller last did to an object.
    pub enum LastOperationType {
        /// First reconcile of an Etcd.
        Create = "Create",
        /// Reconcile of an Etcd's spec.
        Reconcile = "Reconcile",
        /// Deletion of an Etcd's children.
        Delete = "Delete",
        /// Check of a task's preconditions.
        Admit = "Admit",
        /// A task's work.
        Execution = "Execution",
        /// Removal of what a task left.
        Cleanup = "Cleanup",
    }
}

open_enum! {
    /// How far an operation got.
    pub enum LastOperationState {
        /// An Etcd's operation is under way.
        Processing = "Processing",
        /// An Etcd's operation is done.
        Succeeded = "Succeeded",
        /// An Etcd's operation failed and is tried again.
        Error = "Error",
        /// An Etcd's operation waits for something and goes on later.
        Requeue = "Requeue",
        /// A task's operation is under way.
        InProgress = "InProgress",
        /// A task's operation is done.
        Completed = "Completed",
        /// A task's operation failed.
        Failed = "Failed",
    }
}

/// What a controller last did to an object, and how far it got.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LastOperation {
    /// `Create`, `Reconcile` or `Delete` of an Etcd; `Admit`, `Execution` or `Cleanup` of a task.
    #[serde(rename = "type")]
    pub type_: LastOperationType,
    /// `Processing`, `Succeeded`, `Error` or `Requeue` of an Etcd; `InProgress`, `Completed` or `Failed` of a task.
    pub state: LastOperationState,
    /// What is done or waited for, in a sentence.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(length(max = 4096))]
    pub description: String,
    /// Names the run in logs and traces.
    #[serde(rename = "runID", default, deserialize_with = "null_as_default")]
    #[schemars(length(max = 128))]
    pub run_id: String,
    /// When any of this last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
}

/// An error of the last run.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LastError {
    /// Kind of error, like `ERR_SYNC_STATEFULSET`.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(length(max = 128))]
    pub code: String,
    /// What failed, on which object, and what to do.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(length(max = 4096))]
    pub description: String,
    /// When it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<Time>,
}
