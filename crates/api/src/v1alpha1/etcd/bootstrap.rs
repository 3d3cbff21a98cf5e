//! Joining a running cluster instead of forming a new one.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;
use crate::{tolerant::null_as_default, v1alpha1::HttpUrl};

/// The running cluster that the members of this Etcd join. Its certificates must be trusted by this Etcd's own TLS
/// settings and the other way round.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapWithExistingClusterSpec {
    /// The members of the running cluster.
    #[schemars(length(min = 1, max = 10))]
    #[x_kube(validation = rules::existing_members_unique())]
    pub members: Vec<BootstrapMember>,
    /// Client URLs of the running cluster.
    #[schemars(length(min = 1, max = 10), extend("x-kubernetes-list-type" = "set"))]
    pub client_endpoints: Vec<HttpUrl>,
}

/// A member of the running cluster.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapMember {
    /// Name of the member in etcd.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::existing_member_name())]
    pub name: String,
    /// Its peer URLs, each with a port and without a path.
    #[schemars(length(min = 1, max = 5), extend("x-kubernetes-list-type" = "set"))]
    #[x_kube(validation = rules::peer_urls())]
    pub peer_urls: Vec<HttpUrl>,
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
    #[schemars(length(max = 10))]
    pub members: Vec<BootstrapMember>,
}
