//! What etcd keeps in which bucket of its database, for every minor version that is supported.
//!
//! | bucket | content |
//! |---|---|
//! | `key` | the records, see [`crate::mvcc`] |
//! | `meta` | consistent index and term of the last applied raft entry, membership of raft, storage version, compaction |
//! | `lease` | 8 bytes of id → `leasepb.Lease` |
//! | `alarm` | `etcdserverpb.AlarmMember` → nothing |
//! | `auth`, `authUsers`, `authRoles` | whether auth is on and its revision; users; roles |
//! | `cluster` | version of the cluster, downgrade in progress |
//! | `members`, `members_removed` | hex id → member as JSON; ids that may not come back |

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use crate::bolt::{Bucket, Db, Error};
use crate::mvcc::{RecordKey, Revision};

/// Names of buckets.
pub mod bucket {
    /// Alarms of members.
    pub const ALARM: &[u8] = b"alarm";
    /// Whether authentication is on.
    pub const AUTH: &[u8] = b"auth";
    /// Roles.
    pub const AUTH_ROLES: &[u8] = b"authRoles";
    /// Users.
    pub const AUTH_USERS: &[u8] = b"authUsers";
    /// Version of the cluster.
    pub const CLUSTER: &[u8] = b"cluster";
    /// The records.
    pub const KEY: &[u8] = b"key";
    /// Leases.
    pub const LEASE: &[u8] = b"lease";
    /// Members.
    pub const MEMBERS: &[u8] = b"members";
    /// Members that were removed.
    pub const MEMBERS_REMOVED: &[u8] = b"members_removed";
    /// State of the store.
    pub const META: &[u8] = b"meta";
}

/// Keys of the `meta` and `cluster` buckets.
pub(crate) mod key {
    pub(crate) const CONSISTENT_INDEX: &[u8] = b"consistent_index";
    pub(crate) const TERM: &[u8] = b"term";
    pub(crate) const CONF_STATE: &[u8] = b"confState";
    pub(crate) const STORAGE_VERSION: &[u8] = b"storageVersion";
    pub(crate) const SCHEDULED_COMPACT: &[u8] = b"scheduledCompactRev";
    pub(crate) const FINISHED_COMPACT: &[u8] = b"finishedCompactRev";
    pub(crate) const CLUSTER_VERSION: &[u8] = b"clusterVersion";
}

/// A minor version of etcd, as far as it decides what a database looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Minor {
    /// 3.5: the storage version isn't stored.
    V3_5,
    /// 3.6
    V3_6,
    /// 3.7
    V3_7,
}

impl Minor {
    /// All that are supported.
    pub const ALL: [Self; 3] = [Self::V3_5, Self::V3_6, Self::V3_7];

    /// The version as etcd stores it.
    pub const fn version(self) -> &'static str {
        match self {
            Self::V3_5 => "3.5.0",
            Self::V3_6 => "3.6.0",
            Self::V3_7 => "3.7.0",
        }
    }

    /// What stands under `storageVersion`.
    pub(crate) fn storage_version(self) -> Option<&'static str> {
        (self >= Self::V3_6).then(|| self.version())
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.version().trim_end_matches(".0"))
    }
}

/// A version that is no `3.5`, `3.6` or `3.7`, with or without a patch level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported etcd version {0:?}: expected 3.5, 3.6 or 3.7")]
pub struct UnknownMinor(pub String);

impl FromStr for Minor {
    type Err = UnknownMinor;

    fn from_str(version: &str) -> Result<Self, Self::Err> {
        let minor = version
            .trim_start_matches('v')
            .splitn(3, '.')
            .take(2)
            .collect::<Vec<_>>()
            .join(".");
        let found = Self::ALL.into_iter().find(|one| one.to_string() == minor);
        found.ok_or_else(|| UnknownMinor(version.to_owned()))
    }
}

/// What a database says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overview {
    /// The revision that an etcd has which starts from this database.
    pub revision: i64,
    /// Revision of the last record; zero when there is none.
    pub last_record: Revision,
    /// Revision up to which a compaction has ended; 0 for none.
    pub finished_compact: i64,
    /// Revision up to which a compaction was begun; 0 for none.
    pub scheduled_compact: i64,
    /// Index of the last raft entry that was applied; 0 when it isn't stored.
    pub consistent_index: u64,
    /// Term of that entry; 0 when it isn't stored.
    pub term: u64,
    /// `storageVersion`, from 3.6 on.
    pub storage_version: Option<String>,
    /// `clusterVersion`.
    pub cluster_version: Option<String>,
    /// Members that vote; `None` when the database lists none, as before 3.5 or before the first start has ended.
    pub voters: Option<usize>,
}

impl Overview {
    /// Reads what the database says of itself; only the small buckets and the end of the large one are touched.
    ///
    /// # Errors
    /// The file can't be read or is damaged.
    pub fn read(db: &Db) -> Result<Self, Error> {
        let mut overview = Self::default();
        for bucket in db.buckets()? {
            match bucket.name() {
                bucket::KEY => overview.last_record = last_record(db, &bucket)?,
                bucket::META => overview.meta(db, &bucket)?,
                bucket::CLUSTER => {
                    let version = bucket.get(db, key::CLUSTER_VERSION)?;
                    overview.cluster_version = version.map(|bytes| text(&bytes));
                }
                bucket::MEMBERS => overview.voters = voters(db, &bucket)?,
                _ => {}
            }
        }
        let compact = overview.finished_compact.max(overview.scheduled_compact);
        overview.revision = overview.last_record.main.max(compact).max(1);
        Ok(overview)
    }

    fn meta(&mut self, db: &Db, bucket: &Bucket) -> Result<(), Error> {
        let mut cursor = bucket.cursor(db);
        while let Some(entry) = cursor.next_entry()? {
            let number = || entry.value.first_chunk().copied().map_or(0, u64::from_be_bytes);
            let revision = || RecordKey::parse(entry.value).map_or(0, |key| key.revision.main);
            match entry.key {
                key::CONSISTENT_INDEX => self.consistent_index = number(),
                key::TERM => self.term = number(),
                key::FINISHED_COMPACT => self.finished_compact = revision(),
                key::SCHEDULED_COMPACT => self.scheduled_compact = revision(),
                key::STORAGE_VERSION => self.storage_version = Some(text(entry.value)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A member as the database lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StoredMember {
    /// Its id.
    pub id: u64,
    /// Its name; empty as long as it has never started.
    pub name: String,
    /// Where the other members reach it.
    #[serde(rename = "peerURLs")]
    pub peer_urls: Vec<String>,
    /// Whether it has no vote.
    pub is_learner: bool,
}

/// The members that a database lists. One that can't be understood is left out.
///
/// # Errors
/// The file can't be read or is damaged.
pub fn members(db: &Db) -> Result<Vec<StoredMember>, Error> {
    let mut members = Vec::new();
    if let Some(bucket) = db.bucket(bucket::MEMBERS)? {
        let mut cursor = bucket.cursor(db);
        while let Some(entry) = cursor.next_entry()? {
            members.extend(serde_json::from_slice(entry.value).ok());
        }
    }
    Ok(members)
}

fn last_record(db: &Db, bucket: &Bucket) -> Result<Revision, Error> {
    match bucket.last_key(db)? {
        None => Ok(Revision::default()),
        Some(key) => match RecordKey::parse(&key) {
            Some(key) => Ok(key.revision),
            None => Err(Error::Page {
                page: bucket.root(),
                what: "is bucket key, which has a key that is no revision",
            }),
        },
    }
}

/// Members that can't be understood count as voters: there may be more of them, not fewer.
fn voters(db: &Db, bucket: &Bucket) -> Result<Option<usize>, Error> {
    let (mut listed, mut learners) = (0, 0);
    let mut cursor = bucket.cursor(db);
    while let Some(entry) = cursor.next_entry()? {
        let member: serde_json::Value = serde_json::from_slice(entry.value).unwrap_or_default();
        listed += 1;
        learners += usize::from(member["isLearner"] == true);
    }
    Ok((listed > 0).then_some(listed - learners))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minors_are_read_with_and_without_a_patch_level() {
        for (text, minor) in [
            ("3.5", Minor::V3_5),
            ("v3.6.16", Minor::V3_6),
            ("3.7.0-rc.1", Minor::V3_7),
        ] {
            assert_eq!(text.parse(), Ok(minor));
        }
        for text in ["3", "3.4.1", "3.55", "4.5", ""] {
            assert!(text.parse::<Minor>().is_err(), "{text}");
        }
    }
}
