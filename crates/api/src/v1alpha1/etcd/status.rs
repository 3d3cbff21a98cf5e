//! `status` of an Etcd.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::BootstrapWithExistingClusterStatus;
use crate::{
    open_enum::open_enum,
    schema::embedded,
    tolerant::null_as_default,
    v1alpha1::{Condition, LastError, LastOperation, MemberRole},
};

/// The observed state of an etcd cluster. Each field has one writer: etcd-controller (`observedGeneration`, `etcd`,
/// `lastOperation`, `lastErrors`, `selector`, `memberRefs`, `bootstrapWithExistingCluster`), custodian (all others),
/// compaction-controller (its one condition).
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdStatus {
    /// The generation of the spec that was last carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The StatefulSet that runs the members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<CrossVersionObjectReference>,
    /// What is so at the moment, one entry per type.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// Errors of the last run.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = 10))]
    pub last_errors: Vec<LastError>,
    /// What was last done to the Etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// Pods of the current revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_replicas: Option<i32>,
    /// Pods that exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Pods that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Whether all wanted pods are ready and up to date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Deprecated and not written: see `selector`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embedded::<LabelSelector>")]
    pub label_selector: Option<LabelSelector>,
    /// The members, by name.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = 32))]
    pub members: Vec<EtcdMemberSummary>,
    /// The EtcdMember objects of this Etcd, in the same namespace.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub member_refs: Vec<EtcdMemberRef>,
    /// Whether all members serve their peers with TLS.
    #[serde(
        rename = "peerUrlTLSEnabled",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub peer_url_tls_enabled: Option<bool>,
    /// Selects the pods of the members, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub selector: Option<String>,
    /// How the join of a running cluster went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_with_existing_cluster: Option<BootstrapWithExistingClusterStatus>,
    /// Members that serve, of those wanted: `2/3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub members_ready: Option<String>,
    /// ID of the etcd cluster, in hexadecimal. Once set it never goes away: a cluster that has formed isn't formed
    /// again.
    #[serde(rename = "clusterID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub cluster_id: Option<String>,
    /// Lowest version of etcd that a member runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub version: Option<String>,
    /// The newest point that backups cover: everything written up to then can be restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_backup_time: Option<Time>,
    /// The reason of the condition that needs attention most; that of `Ready` if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
}

/// An object, without its namespace.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CrossVersionObjectReference {
    /// Kind of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub kind: Option<String>,
    /// Name of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// Group and version of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub api_version: Option<String>,
}

/// An EtcdMember of this Etcd.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdMemberRef {
    /// Name of the EtcdMember.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// A member, in short.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdMemberSummary {
    /// Name of the member.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(length(max = 253))]
    pub name: String,
    /// ID of the member in etcd, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub id: Option<String>,
    /// `Leader`, `Follower` or `Learner`; older objects have `Member` for both of the latter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<MemberRole>,
    /// `Ready`, `NotReady` or `Unknown`.
    pub status: MemberStatus,
    /// Why, as one word.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// When `status` last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

open_enum! {
    /// Whether a member serves.
    pub enum MemberStatus {
        /// It serves.
        Ready = "Ready",
        /// It doesn't.
        NotReady = "NotReady",
        /// It can't be told.
        Unknown = "Unknown",
    }
}
