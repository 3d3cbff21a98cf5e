//! A stored snapshot, as statuses tell of it.

use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tolerant::null_as_default;

/// A snapshot in the object store.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotInfo {
    /// When it was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Time>,
    /// The object's name, relative to the store's prefix.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(length(max = 1024))]
    pub name: String,
    /// Size before compression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// First revision in it; 0 for a full snapshot.
    #[serde(default, deserialize_with = "null_as_default")]
    pub start_revision: i64,
    /// Last revision in it.
    #[serde(default, deserialize_with = "null_as_default")]
    pub end_revision: i64,
}
