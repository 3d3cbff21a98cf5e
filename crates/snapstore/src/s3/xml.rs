//! The S3 documents that are read or written here, <https://docs.aws.amazon.com/AmazonS3/latest/API/>.

use jiff::Timestamp;
use serde::Deserialize;

use crate::error::{Class, Error, Result};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ListObjects {
    pub contents: Vec<Contents>,
    pub is_truncated: bool,
    pub next_continuation_token: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
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
    pub is_truncated: bool,
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
    pub is_truncated: bool,
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

/// Of `CompleteMultipartUpload`: an error may come with status 200 after the headers were sent.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Completed {
    pub code: Option<String>,
    pub message: Option<String>,
}

pub(super) fn parse<T: for<'de> Deserialize<'de>>(body: &[u8], action: &str) -> Result<T> {
    let parsed = quick_xml::de::from_reader(body);
    parsed.map_err(|e| Error::new(Class::Other, action, format!("answer not understood: {e}")))
}

const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// The request of `CompleteMultipartUpload`.
pub(super) fn complete_request(etags: &[String]) -> String {
    let part = |(number, etag): (usize, &String)| {
        let etag = quick_xml::escape::escape(etag);
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
    };
    let parts: String = (1..).zip(etags).map(part).collect();
    format!(r#"<CompleteMultipartUpload xmlns="{NAMESPACE}">{parts}</CompleteMultipartUpload>"#)
}
