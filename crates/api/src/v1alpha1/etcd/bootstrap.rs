//! Joining a running cluster instead of forming a new one.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tolerant::null_as_default;

/// The running cluster that the members of this Etcd join. Its certificates must be trusted by this Etcd's own TLS
/// settings and the other way round.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapWithExistingClusterSpec {
    /// The members of the running cluster.
    #[schemars(length(min = 1, max = 10))]
    pub members: Vec<BootstrapMember>,
    /// Client URLs of the running cluster.
    #[schemars(length(min = 1, max = 10))]
    pub client_endpoints: Vec<String>,
}

/// A member of the running cluster.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapMember {
    /// Name of the member in etcd.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its peer URLs.
    #[schemars(length(min = 1, max = 5))]
    pub peer_urls: Vec<String>,
}

/// How the join of a running cluster went.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapWithExistingClusterStatus {
    /// When all members of this Etcd had joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined_at: Option<Time>,
    /// The members of the running cluster, as they were then.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub members: Vec<BootstrapMember>,
}
