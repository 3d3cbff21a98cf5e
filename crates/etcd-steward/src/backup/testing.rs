//! What the tests of backups share.

use snapstore::{Layout, Object, StoredSnapshot};

/// A snapshot without a manifest, as a store lists it.
pub(super) fn stored(name: &str) -> StoredSnapshot {
    StoredSnapshot {
        name: name.parse().unwrap(),
        layout: Layout::V2,
        object: Object {
            key: name.to_owned(),
            size: 100,
            etag: None,
            last_modified: None,
            version: None,
            immutable_until: None,
        },
        excluded: false,
        manifest: None,
    }
}
