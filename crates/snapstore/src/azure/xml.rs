//! The documents of Azure's Blob service that are read or written here,
//! <https://learn.microsoft.com/rest/api/storageservices/blob-service-rest-api>.

use serde::{Deserialize, Serialize};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ListBlobs {
    pub blobs: Blobs,
    pub next_marker: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Blobs {
    #[serde(rename = "Blob")]
    pub blobs: Vec<Blob>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Blob {
    pub name: String,
    pub properties: Properties,
    pub tags: Option<Tags>,
}

/// Without its length a blob would look like one that holds nothing.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Properties {
    #[serde(rename = "Content-Length")]
    pub length: u64,
    #[serde(rename = "Etag")]
    pub etag: Option<String>,
    #[serde(rename = "Last-Modified")]
    pub last_modified: Option<String>,
    /// As `Last-Modified`.
    pub immutability_policy_until_date: Option<String>,
    pub legal_hold: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Tags {
    pub tag_set: TagSet,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TagSet {
    #[serde(rename = "Tag")]
    pub tags: Vec<Tag>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Tag {
    pub key: String,
    pub value: String,
}

/// The request of `Put Block List`.
#[derive(Debug, Serialize)]
pub(super) struct BlockList<'a> {
    /// Identifiers, base64.
    #[serde(rename = "Uncommitted")]
    pub blocks: &'a [String],
}
