//! The S3 documents that are read or written here, <https://docs.aws.amazon.com/AmazonS3/latest/API/>.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    document,
    error::{Class, Error, Result},
};

/// A document, by the name of its outermost element.
pub(super) trait Document: for<'de> Deserialize<'de> {
    const ROOT: &'static str;
}

macro_rules! roots {
    ($($document:ty = $root:literal),* $(,)?) => {$(
        impl Document for $document {
            const ROOT: &'static str = $root;
        }
    )*};
}

roots! {
    ListObjects = "ListBucketResult",
    ListVersions = "ListVersionsResult",
    ListUploads = "ListMultipartUploadsResult",
    Versioning = "VersioningConfiguration",
    ObjectLock = "ObjectLockConfiguration",
    Tagging = "Tagging",
    Begun = "InitiateMultipartUploadResult",
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ListObjects {
    pub contents: Vec<Contents>,
    pub is_truncated: Option<bool>,
    pub next_continuation_token: Option<String>,
}

/// Without its size an object would look like one that holds nothing.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Contents {
    pub key: String,
    pub size: u64,
    #[serde(rename = "ETag")]
    pub etag: Option<String>,
    pub last_modified: Option<Timestamp>,
    /// In lists of versions only; "null" for objects older than the bucket's versioning.
    pub version_id: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ListVersions {
    /// Newest first for each key.
    #[serde(rename = "Version")]
    pub versions: Vec<Contents>,
    #[serde(rename = "DeleteMarker")]
    pub delete_markers: Vec<DeleteMarker>,
    pub is_truncated: Option<bool>,
    pub next_key_marker: Option<String>,
    pub next_version_id_marker: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct DeleteMarker {
    pub key: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ListUploads {
    #[serde(rename = "Upload")]
    pub uploads: Vec<Upload>,
    pub is_truncated: Option<bool>,
    pub next_key_marker: Option<String>,
    pub next_upload_id_marker: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Upload {
    pub key: String,
    #[serde(rename = "UploadId")]
    pub id: String,
    pub initiated: Option<Timestamp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Versioning {
    /// `Enabled`, `Suspended` or nothing.
    pub status: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ObjectLock {
    pub rule: Option<LockRule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct LockRule {
    pub default_retention: Option<DefaultRetention>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct DefaultRetention {
    pub days: Option<i64>,
    pub years: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Tagging {
    pub tag_set: TagSet,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
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

/// Of `CreateMultipartUpload`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Begun {
    pub upload_id: String,
}

/// Of `CompleteMultipartUpload`: an error may come with status 200 after the headers were sent.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Completed {
    pub code: Option<String>,
    pub message: Option<String>,
}

pub(super) fn parse<T: Document>(body: &[u8], action: &str) -> Result<T> {
    document::parse(body, T::ROOT, action)
}

/// The answer to `CompleteMultipartUpload`.
pub(super) fn completed(body: &[u8], action: &str) -> Result<Completed> {
    document::parse_any(body, &["CompleteMultipartUploadResult", "Error"], action)
}

/// The request of `CompleteMultipartUpload`.
#[derive(Debug, Serialize)]
#[serde(rename = "CompleteMultipartUpload")]
pub(super) struct Complete<'a> {
    #[serde(rename = "@xmlns")]
    namespace: &'static str,
    #[serde(rename = "Part")]
    parts: &'a [Part],
}

/// An uploaded part.
#[derive(Debug, Serialize)]
pub(super) struct Part {
    #[serde(rename = "PartNumber")]
    pub number: usize,
    #[serde(rename = "ETag")]
    pub etag: String,
    /// Base64.
    #[serde(rename = "ChecksumSHA256", skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
}

impl<'a> Complete<'a> {
    pub(super) fn document(parts: &'a [Part], action: &str) -> Result<String> {
        let request = Self {
            namespace: "http://s3.amazonaws.com/doc/2006-03-01/",
            parts,
        };
        quick_xml::se::to_string(&request).map_err(|e| Error::new(Class::Other, action, e.to_string()))
    }
}
