//! `spec.etcd`: how etcd runs.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::api::resource::Quantity};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BootstrapWithExistingClusterSpec, PeerTlsConfig, TlsConfig, rules};
use crate::{
    duration::GoDuration,
    open_enum::open_enum,
    schedule::CronSchedule,
    schema::{embedded, labels, quantity},
    tolerant::null_as_default,
    v1alpha1::{HttpUrl, SecretReference},
};

/// How etcd runs.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::additional_urls_have_scheme(),
    validation = rules::existing_peers_have_scheme(),
    validation = rules::existing_clients_have_scheme()
)]
pub struct EtcdConfig {
    /// Size of the database at which etcd stops taking writes. Default: 8Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub quota: Option<Quantity>,
    /// Raft entries that etcd keeps in memory before it writes a Raft snapshot; 0 means etcd's own default.
    /// Default: 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub snapshot_count: Option<i64>,
    /// Serves etcd's JSON gateway. Default: false.
    #[serde(
        rename = "enableGRPCGateway",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub enable_grpc_gateway: Option<bool>,
    /// When members are defragmented, one after the other, the leader last, if there is something to win. Default:
    /// `0 0 */3 * *`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defragmentation_schedule: Option<CronSchedule>,
    /// How long the defragmentation of one member may take before it is told to be slow; it is waited for even so. Default: 1m, and 1s for each 8Mi of its database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_defrag_timeout: Option<GoDuration>,
    /// Port for peers. Default: 2380.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub server_port: Option<i32>,
    /// Port for clients. Default: 2379.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub client_port: Option<i32>,
    /// Port of the launcher, for probes. Default: 9095.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub wrapper_port: Option<i32>,
    /// Image with an `etcd` binary. Default: the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub image: Option<String>,
    /// Secret with the user name and password of etcd's root user (keys `username`, `password`), needed by Druid
    /// once authentication is on in etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_secret_ref: Option<SecretReference>,
    /// How much etcd tells in its metrics: `basic` or `extensive` (adds histograms per RPC). Default: `basic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsLevel>,
    /// Resources of the etcd container. Default: requests of 50m CPU and 128Mi memory, no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embedded::<ResourceRequirements>")]
    pub resources: Option<ResourceRequirements>,
    /// Certificates of the client port. Unset serves plain HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_url_tls: Option<TlsConfig>,
    /// Certificates of the peer port. Unset serves plain HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_url_tls: Option<PeerTlsConfig>,
    /// Further URLs under which peers reach a member, for example through a load balancer.
    #[serde(
        rename = "additionalAdvertisePeerURLs",
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(
        length(max = 10),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["memberName"])
    )]
    pub additional_advertise_peer_urls: Vec<AdditionalAdvertisePeerUrls>,
    /// How often a member renews its Lease, which says for how long each heartbeat holds: four times as long, from 15m on an hour,
    /// and never less than a quarter longer than until the next one. A member that dies is known to be dead only then. Default: 10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::heartbeat_not_too_fast())]
    pub heartbeat_duration: Option<GoDuration>,
    /// Labels, annotations and routing of the client Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_service: Option<ClientServiceConfig>,
    /// How etcd's database keeps its list of free pages: `array` or `map`. Default: `array`, since `map` makes
    /// databases larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_bbolt_freelist_type: Option<FreelistType>,
    /// Joins a running cluster instead of forming a new one. Only when the Etcd is created; may be removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_with_existing_cluster: Option<BootstrapWithExistingClusterSpec>,
}

/// Further peer URLs of one member.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AdditionalAdvertisePeerUrls {
    /// Name of the member in etcd: `<etcd>-<ordinal>`, after the member name prefix and a dash where there is one.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::member_ordinal())]
    pub member_name: String,
    /// The URLs, each with a port and without a path.
    #[schemars(length(min = 1, max = 5), extend("x-kubernetes-list-type" = "set"))]
    #[x_kube(validation = rules::peer_urls())]
    pub urls: Vec<HttpUrl>,
}

/// The client Service.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientServiceConfig {
    /// Annotations of the Service.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub annotations: BTreeMap<String, String>,
    /// Labels of the Service. Druid's own win over them.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    #[schemars(schema_with = "labels")]
    pub labels: BTreeMap<String, String>,
    /// Which endpoints are preferred: `PreferSameZone`, `PreferSameNode` or `PreferClose`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<TrafficDistribution>,
}

open_enum! {
    /// How much etcd tells in its metrics.
    pub enum MetricsLevel {
        /// Without histograms per RPC.
        Basic = "basic",
        /// With histograms per RPC.
        Extensive = "extensive",
    }
}

open_enum! {
    /// How etcd's database keeps its list of free pages.
    pub enum FreelistType {
        /// A sorted array.
        Array = "array",
        /// A hash map by size.
        Map = "map",
    }
}

open_enum! {
    /// Which endpoints of a Service are preferred.
    pub enum TrafficDistribution {
        /// Those in the client's zone.
        PreferSameZone = "PreferSameZone",
        /// Those on the client's node.
        PreferSameNode = "PreferSameNode",
        /// Older name of `PreferSameZone`.
        PreferClose = "PreferClose",
    }
}
