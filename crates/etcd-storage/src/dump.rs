//! Prints what a database holds, record by record, and computes the hash by which etcd compares members.

use std::io::{self, Write};

use base64_simd::STANDARD;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::bolt::{self, Db};
use crate::mvcc::{KeyValue, RecordKey};
use crate::schema::{Overview, bucket};
use crate::trailer::Hash;

/// Why a database can't be dumped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It can't be read.
    #[error(transparent)]
    Database(#[from] bolt::Error),
    /// Bucket `key` holds something else than records.
    #[error("bucket key holds {0:?}, which is no record")]
    NoRecord(Vec<u8>),
    /// The output failed.
    #[error("write of the dump failed")]
    Write(#[from] io::Error),
}

/// One line of a dump.
#[derive(Serialize)]
struct Line<'a> {
    rev: i64,
    sub: i64,
    tombstone: bool,
    key: &'a str,
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    lease: i64,
    value_sha256: &'a str,
}

/// Writes one JSON object a line for each record, in the order of revisions: `rev`, `sub`, `tombstone`, `key`
/// (standard base64), `create_revision`, `mod_revision`, `version`, `lease`, `value_sha256` (hex).
///
/// # Errors
/// The database can't be read or is damaged, or the output failed.
pub fn dump(db: &Db, mut out: impl Write) -> Result<(), Error> {
    each_record(db, |key, value| {
        let record = KeyValue::parse(value).ok_or_else(|| Error::NoRecord(key.bytes().as_ref().to_vec()))?;
        let line = Line {
            rev: key.revision.main,
            sub: key.revision.sub,
            tombstone: key.tombstone,
            key: &STANDARD.encode_to_string(record.key),
            create_revision: record.create_revision,
            mod_revision: record.mod_revision,
            version: record.version,
            lease: record.lease,
            value_sha256: &Hash(Sha256::digest(record.value).into()).to_string(),
        };
        serde_json::to_writer(&mut out, &line).map_err(io::Error::from)?;
        Ok(out.write_all(b"\n")?)
    })?;
    Ok(out.flush()?)
}

/// Calls `each` with every record's key and stored value, in the order of revisions.
///
/// # Errors
/// The database can't be read or is damaged, or the first error of `each`.
pub fn each_record(
    db: &Db,
    mut each: impl FnMut(RecordKey, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let Some(records) = db.bucket(bucket::KEY)? else {
        return Ok(());
    };
    let mut cursor = records.cursor(db);
    while let Some(entry) = cursor.next_entry()? {
        let key = RecordKey::parse(entry.key).ok_or_else(|| Error::NoRecord(entry.key.to_vec()))?;
        each(key, entry.value)?;
    }
    Ok(())
}

/// What etcd's `HashKV` call answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKv {
    /// CRC-32C of the records.
    pub hash: u32,
    /// Revision up to which they were taken.
    pub revision: i64,
    /// Revision of the last compaction that has ended.
    pub compact_revision: i64,
}

/// Computes what an etcd that runs on this database answers to `HashKV` at its last revision.
///
/// The database must not be in the middle of a compaction: etcd would finish it first.
///
/// # Errors
/// The database can't be read or is damaged.
pub fn hash_kv(db: &Db) -> Result<HashKv, Error> {
    let overview = Overview::read(db)?;
    let compact_revision = overview.finished_compact;
    let mut hash = crc32c::crc32c(bucket::KEY);
    each_record(db, |key, value| {
        // Versions differ in whether they keep a tombstone at the compact revision, so it never counts.
        if !(key.tombstone && key.revision.main == compact_revision) {
            hash = crc32c::crc32c_append(crc32c::crc32c_append(hash, key.bytes().as_ref()), value);
        }
        Ok(())
    })?;
    Ok(HashKv {
        hash,
        revision: overview.revision,
        compact_revision,
    })
}
