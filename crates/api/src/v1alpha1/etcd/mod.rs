//! `Etcd`: an etcd cluster with its backups.

mod backup;
mod bootstrap;
mod config;
mod defaults;
mod rules;
mod status;
mod tls;

use std::collections::BTreeMap;

pub use backup::{
    BackupSpec, CompressionPolicy, CompressionSpec, GarbageCollectionPolicy, LeaderElectionSpec,
    RevisionAfterRestore, SecondarySpec, SignaturePolicy, SigningSpec, SnapshotCompactionSpec,
};
pub use bootstrap::{BootstrapMember, BootstrapWithExistingClusterSpec, BootstrapWithExistingClusterStatus};
pub use config::{
    AdditionalAdvertisePeerUrls, ClientServiceConfig, EtcdConfig, FreelistType, MetricsLevel,
    TrafficDistribution,
};
use k8s_openapi::{
    api::core::v1::{Affinity, TopologySpreadConstraint},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::LabelSelector},
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use status::{CrossVersionObjectReference, EtcdMemberRef, EtcdMemberSummary, EtcdStatus, MemberStatus};
pub use tls::{PeerTlsConfig, SecretKeyReference, StewardTlsConfig, TlsConfig, UnusedSecretReference};

use crate::{
    open_enum::open_enum,
    schema::{embedded, labels, quantity},
    tolerant::null_as_default,
};

/// The wanted state of an etcd cluster.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "druid.gardener.cloud",
    version = "v1alpha1",
    kind = "Etcd",
    plural = "etcds",
    category = "druid",
    namespaced,
    status = "EtcdStatus",
    derive = "PartialEq",
    doc = "An etcd cluster with its backups.",
    validation = rules::name_form(),
    validation = rules::name_length(),
    validation = rules::additional_urls_are_of_members(),
    validation = rules::existing_members_have_other_names(),
    validation = rules::bootstrap_fixed_while_joining(),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Quorate",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "whether a majority of the members serves"
    ),
    printcolumn(
        name = "Members",
        type_ = "string",
        json_path = ".status.membersReady",
        description = "members that serve, of those wanted"
    ),
    printcolumn(
        name = "Backup",
        type_ = "date",
        json_path = ".status.lastBackupTime",
        description = "age of the newest point that backups cover"
    ),
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".status.version",
        description = "lowest version of etcd that runs"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.reason",
        description = "what needs attention most"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Replicas",
        type_ = "integer",
        json_path = ".spec.replicas",
        description = "members wanted",
        priority = 1
    ),
    printcolumn(
        name = "All Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="AllMembersReady")].status"#,
        priority = 1
    ),
    printcolumn(
        name = "Updated",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="AllMembersUpdated")].status"#,
        priority = 1
    ),
    printcolumn(
        name = "Backup Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="BackupReady")].status"#,
        priority = 1
    ),
    printcolumn(
        name = "Cluster ID",
        type_ = "string",
        json_path = ".status.clusterID",
        priority = 1
    ),
    printcolumn(
        name = "Operation",
        type_ = "string",
        json_path = ".status.lastOperation.state",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::immutable("memberNamePrefix", "members keep their names"),
    validation = rules::immutable("storageClass", "volumes keep their class"),
    validation = rules::immutable("volumeClaimTemplate", "volumes are found by it"),
    validation = rules::ports_differ(),
    validation = rules::quota_fits_volume(),
    validation = rules::additional_urls_within_replicas(),
    validation = rules::bootstrap_only_at_creation()
)]
pub struct EtcdSpec {
    /// Comes before the pod's name, with a dash, in each member's name in etcd and in the names of EtcdMember and
    /// member Lease: `<prefix>-<pod>`. Can't be set, changed or removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = rules::dns_label())]
    pub member_name_prefix: Option<String>,
    /// Deprecated and ignored: pods are selected by labels of Druid's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embedded::<LabelSelector>")]
    pub selector: Option<LabelSelector>,
    /// Labels of the pods. Druid's own labels win over them.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    #[schemars(schema_with = "labels")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods, and of compaction pods (without the one that forbids eviction).
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub annotations: BTreeMap<String, String>,
    /// How etcd runs.
    #[serde(default, deserialize_with = "null_as_default")]
    pub etcd: EtcdConfig,
    /// How the cluster is backed up.
    #[serde(default, deserialize_with = "null_as_default")]
    pub backup: BackupSpec,
    /// Settings that etcd and its backup share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_config: Option<SharedConfig>,
    /// Where pods may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_constraints: Option<SchedulingConstraints>,
    /// Number of members: 0 to hibernate, else an odd number up to 9. It can be raised, or set to 0, but not lowered
    /// otherwise.
    #[x_kube(validation = rules::replicas_odd(), validation = rules::replicas_not_lowered())]
    pub replicas: i32,
    /// Priority class of the pods. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub priority_class_name: Option<String>,
    /// Storage class of the volumes. Default: the cluster's. Can't be set, changed or removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class: Option<String>,
    /// Size of each member's volume. Default: 16Gi. At least `etcd.quota`; twice that leaves room for
    /// defragmentation and restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub storage_capacity: Option<Quantity>,
    /// Name of the volume claim template. Default: the Etcd's name. Can't be set, changed or removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = rules::dns_label())]
    pub volume_claim_template: Option<String>,
    /// Runs the containers as root. Default: false, they run as user and group 65532.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_root: Option<bool>,
}

/// Settings that etcd and its backup share.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::retention_of_revisions(), validation = rules::retention_of_time())]
pub struct SharedConfig {
    /// What `autoCompactionRetention` counts: `periodic` (time) or `revision`. Default: `periodic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_compaction_mode: Option<CompactionMode>,
    /// How much history etcd keeps: a duration like `30m` or a number of revisions, by mode. Default: `30m`, which mode `revision`
    /// takes for 1.8 × 10¹² revisions: etcd then drops no history by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub auto_compaction_retention: Option<String>,
}

open_enum! {
    /// What the retention of etcd's history counts.
    pub enum CompactionMode {
        /// Time.
        Periodic = "periodic",
        /// Revisions.
        Revision = "revision",
    }
}

/// Where pods may run.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingConstraints {
    /// Affinity of the pods. Default: none; spread members over nodes and zones with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embedded::<Affinity>")]
    pub affinity: Option<Affinity>,
    /// How pods spread over the topology. Default: none.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "embedded::<Vec<TopologySpreadConstraint>>")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
}
