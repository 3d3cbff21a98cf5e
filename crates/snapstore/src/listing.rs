//! What a store holds: snapshots, leftovers of chunked uploads, and what can't be understood. Built from raw objects
//! in one place, whatever the provider.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use crate::{
    manifest,
    name::{NameError, SnapshotName},
};

/// Where a snapshot lies below the store's prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `v2/<name>`, the only one that is written.
    V2,
    /// `v1/<dir>/<name>`, written by old releases of etcd-backup-restore.
    V1 { dir: String },
}

/// One object as the store describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// The whole key within the bucket, or the absolute path of a local file.
    pub key: String,
    /// Bytes.
    pub size: u64,
    pub etag: Option<String>,
    pub last_modified: Option<Timestamp>,
    /// The version that counts: the oldest one of a versioned bucket.
    pub version: Option<String>,
    /// Until when the store refuses to delete it.
    pub immutable_until: Option<Timestamp>,
}

/// A snapshot in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSnapshot {
    pub name: SnapshotName,
    pub layout: Layout,
    pub object: Object,
    /// Marked as not to be used (`x-etcd-snapshot-exclude`): never a base or part of a restore.
    pub excluded: bool,
    /// What describes it, see [`manifest`].
    pub manifest: Option<Object>,
}

impl StoredSnapshot {
    /// Whether a restore may use it, as far as can be told without reading it.
    pub fn is_usable(&self) -> bool {
        !self.excluded && self.object.size > HASH_SIZE
    }
}

/// A manifest follows its snapshot within this time, or not at all.
const SETTLED_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// Every snapshot ends in a SHA-256; shorter ones hold nothing.
const HASH_SIZE: u64 = 32;

/// A piece of a chunked upload, below the name of the snapshot that it is part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub parent: SnapshotName,
    pub object: Object,
}

/// A manifest whose snapshot isn't there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    pub snapshot: SnapshotName,
    pub object: Object,
}

/// An object below the store's prefix that is no snapshot as far as known here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unparsable {
    pub object: Object,
    pub reason: NameError,
}

/// Everything below the store's `v2/` and `v1/`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Ascending, see [`SnapshotName`]; excluded ones included.
    pub snapshots: Vec<StoredSnapshot>,
    pub chunks: Vec<Chunk>,
    pub orphans: Vec<Orphan>,
    /// Snapshots whose manifest may be on its way, in a store where those without one don't count.
    pub unsettled: Vec<StoredSnapshot>,
    pub unparsable: Vec<Unparsable>,
}

impl Listing {
    /// Whether nothing says that there has ever been a snapshot.
    pub fn is_empty(&self) -> bool {
        let others = self.unparsable.is_empty() && self.orphans.is_empty() && self.unsettled.is_empty();
        self.snapshots.is_empty() && others
    }

    /// Sets apart what was stored a moment ago and has no manifest yet.
    pub(crate) fn set_apart_unsettled(&mut self, now: Timestamp) {
        let is_unsettled = |stored: &mut StoredSnapshot| {
            // Its name has the time before the upload.
            let stored_at = stored.object.last_modified.max(Some(stored.name.created_on));
            stored.manifest.is_none() && stored_at.is_some_and(|at| now.duration_since(at) < SETTLED_AFTER)
        };
        self.unsettled = self.snapshots.extract_if(.., is_unsettled).collect();
    }

    /// Sorts the objects below `prefix` into their classes.
    pub(crate) fn classify(prefix: &str, objects: impl IntoIterator<Item = Raw>) -> Self {
        let mut listing = Self::default();
        let mut manifests = HashMap::new();
        for Raw { object, excluded } in objects {
            let path = object.key.strip_prefix(prefix).unwrap_or(&object.key);
            match Place::parse(path) {
                Ok(Place::Snapshot(name, layout)) => {
                    listing.snapshots.push(StoredSnapshot {
                        name,
                        layout,
                        object,
                        excluded,
                        manifest: None,
                    });
                }
                Ok(Place::Manifest(snapshot)) => {
                    manifests.insert(snapshot, object);
                }
                Ok(Place::Chunk(parent)) => listing.chunks.push(Chunk { parent, object }),
                // Folders made by hand are objects whose names end in a slash.
                Err(_) if path.ends_with('/') => {}
                Err(reason) => listing.unparsable.push(Unparsable { object, reason }),
            }
        }
        listing.snapshots.sort_by(|a, b| a.name.cmp(&b.name));
        for stored in &mut listing.snapshots {
            if stored.layout == Layout::V2 {
                stored.manifest = manifests.remove(&stored.name.clone().with_final(false));
            }
        }
        listing.orphans = manifests
            .into_iter()
            .map(|(snapshot, object)| Orphan { snapshot, object })
            .collect();
        listing.orphans.sort_by(|a, b| a.snapshot.cmp(&b.snapshot));
        listing
    }
}

/// An object as found below the prefix.
#[derive(Debug)]
pub(crate) struct Raw {
    pub object: Object,
    pub excluded: bool,
}

/// Name of the tag or metadata field that hides a snapshot which can't be deleted, when its value is `true`.
pub(crate) const EXCLUDE_MARK: &str = "x-etcd-snapshot-exclude";

enum Place {
    Snapshot(SnapshotName, Layout),
    Chunk(SnapshotName),
    Manifest(SnapshotName),
}

impl Place {
    fn parse(path: &str) -> Result<Self, NameError> {
        match *path.split('/').collect::<Vec<_>>() {
            ["v2", name] => match name.strip_prefix(manifest::PREFIX) {
                Some(snapshot) => Ok(Self::Manifest(snapshot.parse()?)),
                None => Ok(Self::Snapshot(name.parse()?, Layout::V2)),
            },
            ["v2", parent, chunk] if is_chunk(chunk) => Ok(Self::Chunk(parent.parse()?)),
            ["v1", dir, name] => Ok(Self::Snapshot(name.parse()?, Layout::V1 { dir: dir.to_owned() })),
            ["v1", _, parent, chunk] if is_chunk(chunk) => Ok(Self::Chunk(parent.parse()?)),
            _ => Err(NameError::Form),
        }
    }
}

fn is_chunk(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_its_class() {
        let full = "Full-00000000-00000007-1700000000.gz";
        let raw = |path: String| Raw {
            object: Object {
                key: format!("p/{path}"),
                size: 1,
                etag: None,
                last_modified: None,
                version: None,
                immutable_until: None,
            },
            excluded: false,
        };
        let classes = |path: &str| {
            let listing = Listing::classify("p/", [raw(path.to_owned())]);
            (
                listing.snapshots.len(),
                listing.chunks.len(),
                listing.unparsable.len(),
            )
        };
        for (path, expected) in [
            (format!("v2/{full}"), (1, 0, 0)),
            (format!("v1/Backup-1700000000/{full}"), (1, 0, 0)),
            (format!("v2/{full}/0000000001"), (0, 1, 0)),
            (format!("v1/Backup-1700000000/{full}/0000000001"), (0, 1, 0)),
            (format!("v1/{full}"), (0, 0, 1)),
            (format!("v2/Backup-1700000000/{full}"), (0, 0, 1)),
            (format!("v2/{full}/readme"), (0, 0, 1)),
            (format!("v2/{full}.part"), (0, 0, 1)),
            (format!("v2/Manifest-{full}.part"), (0, 0, 1)),
            ("v2/".to_owned(), (0, 0, 0)),
        ] {
            assert_eq!(classes(&path), expected, "{path}");
        }
    }
}
