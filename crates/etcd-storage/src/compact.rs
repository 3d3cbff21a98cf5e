//! Compacts a chain into a full snapshot that holds what etcd's own compaction and defragmentation would leave.
//!
//! Of every key its newest record up to the compact revision stays, and everything later. A tombstone is left out,
//! but one exactly at the compact revision stays: so do etcd 3.5.16, 3.4.34 and all newer versions (older ones
//! drop it; their hashes agree all the same).
//!
//! The chain is put together in one temporary file, which is then read twice more: once to lay the result out, once
//! to stream it. Nothing else is on disk, and memory doesn't grow with the data.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::assemble::{Durable, Error, LeaseReport, OnProgress, Rewrite, assemble};
use crate::bolt::{self, BulkWriter, Db, Layout};
use crate::full::{Consent, Warnings};
use crate::mvcc::{KeyValue, RecordKey, Revision};
use crate::object::{Chain, Target};
use crate::schema::{Overview, bucket, key};
use crate::survivors::{Kept, Survivors};
use crate::trailer::{self, Hash};

/// How full the pages of buckets are that change all over.
const FILL_PERCENT: usize = 90;

/// How to compact.
#[derive(Clone, Debug)]
pub struct Options {
    /// A folder for the temporary file, which becomes as large as the uncompacted database.
    pub work_dir: PathBuf,
    /// The compact revision; the end of the chain when it isn't given.
    pub revision: Option<i64>,
    /// Drop a tombstone at the compact revision, as etcd before 3.4.34 and 3.5.16 did.
    pub drop_last_tombstone: bool,
}

/// What a compaction made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Revision of the database: the end of the chain. It belongs into the snapshot's name.
    pub revision: i64,
    /// Revision up to which the history is compacted.
    pub compact_revision: i64,
    /// Records that stayed, and that were left out.
    pub records_kept: u64,
    /// Records that were left out.
    pub records_dropped: u64,
    /// Length of the database in bytes, without the trailer.
    pub db_size: u64,
    /// SHA-256 of the database, as in the trailer.
    pub sha256: Hash,
    /// What wasn't as it should be in the full snapshot that the chain begins with.
    pub warnings: Warnings,
    /// What became of the leases.
    pub leases: LeaseReport,
}

/// Writes the compacted chain to `out` as a full snapshot, uncompressed and with its trailer.
///
/// # Errors
/// An object is missing revisions or damaged, or something can't be written. Then `out` is no snapshot.
pub fn compact(
    chain: &Chain,
    options: &Options,
    out: impl Write,
    progress: OnProgress<'_>,
) -> Result<Compacted, Error> {
    let temporary = tempfile::Builder::new()
        .prefix(".compaction-")
        .tempdir_in(&options.work_dir)
        .map_err(Error::io("creation of a folder in", &options.work_dir))?;
    let path = temporary.path().join("db");
    let assembly = assemble(
        chain,
        Target::Latest,
        &path,
        (Durable::No, Consent::default()),
        progress,
    )?;
    let warnings = assembly.warnings;
    let assembled = assembly.seal(&[], None, &|_, _| Rewrite::Keep)?;
    // The name is of no use any more: whatever happens now, the file goes with its handle.
    fs::remove_file(&path).map_err(Error::io("removal of", &path))?;

    let source = Source::new(&assembled.db, options, &chain.base.name, temporary.path())?;
    let layout = source.write(io::sink())?.1;
    let mut out = Hashing {
        out,
        hasher: Sha256::new(),
    };
    let write = |error| Error::Write(bolt::Error::io("write of the snapshot")(error));
    out.write_all(&layout.head()).map_err(write)?;
    let (mut out, again) = source.write(out)?;
    if again != layout {
        return Err(write(io::Error::other("the database changed while it was read")));
    }
    let sha256 = Hash::of(out.hasher);
    out.out
        .write_all(&sha256.0)
        .and_then(|()| out.out.flush())
        .map_err(write)?;
    debug_assert_eq!(sha256.0.len(), trailer::LEN);
    Ok(Compacted {
        revision: assembled.revision,
        compact_revision: source.at,
        records_kept: source.kept.count + source.later,
        records_dropped: source.examined - source.kept.count,
        db_size: layout.len(),
        sha256,
        warnings,
        leases: assembled.leases,
    })
}

/// The assembled chain and what of it stays.
struct Source<'a> {
    db: &'a Db,
    /// The compact revision.
    at: i64,
    /// Of the records up to it.
    kept: Kept,
    /// How many they are.
    examined: u64,
    /// Records after the compact revision.
    later: u64,
}

impl<'a> Source<'a> {
    fn new(db: &'a Db, options: &Options, base: &str, temporary: &std::path::Path) -> Result<Self, Error> {
        let overview = Overview::read(db).map_err(Error::Write)?;
        let at = options.revision.unwrap_or(overview.revision);
        if at > overview.revision {
            return Err(Error::TargetNotReached {
                target: at,
                reached: overview.revision,
            });
        }
        let compacted = overview.finished_compact.max(overview.scheduled_compact);
        if at < compacted {
            return Err(Error::TargetCompacted {
                object: base.to_owned(),
                target: at,
                compacted,
            });
        }
        let mut survivors = Survivors::new(temporary.to_owned());
        let (mut examined, mut later) = (0, 0);
        each_record(db, |page, key, value| {
            if key.revision.main > at {
                later += 1;
                return Ok(());
            }
            examined += 1;
            let what = "holds a value that is no record";
            let record = KeyValue::parse(value).ok_or(bolt::Error::Page { page, what })?;
            let stays = key.revision.main == at && !options.drop_last_tombstone;
            let added = survivors.add(record.key, key.tombstone && !stays);
            added.map_err(bolt::Error::io("write of a temporary file"))
        })
        .map_err(Error::Write)?;
        let kept = survivors
            .finish()
            .map_err(bolt::Error::io("read of a temporary file"));
        Ok(Self {
            db,
            at,
            kept: kept.map_err(Error::Write)?,
            examined,
            later,
        })
    }

    /// Writes the pages behind the head.
    fn write<W: Write>(&self, out: W) -> Result<(W, Layout), Error> {
        let mut writer = BulkWriter::new(out, self.db.page_size());
        self.buckets(&mut writer)
            .and_then(|()| writer.finish())
            .map_err(Error::Write)
    }

    fn buckets<W: Write>(&self, writer: &mut BulkWriter<W>) -> Result<(), bolt::Error> {
        for found in self.db.buckets()? {
            match found.name() {
                bucket::KEY => {
                    writer.bucket(bucket::KEY, found.sequence(), 100)?;
                    let mut ordinal = 0;
                    each_record(self.db, |_, key, value| {
                        let stays = key.revision.main > self.at || self.kept.contains(ordinal);
                        ordinal += 1;
                        if stays {
                            writer.put(key.bytes().as_ref(), &[value])
                        } else {
                            Ok(())
                        }
                    })?;
                }
                name => {
                    writer.bucket(name, found.sequence(), FILL_PERCENT)?;
                    self.copy(&found, writer)?;
                }
            }
        }
        Ok(())
    }

    fn copy<W: Write>(&self, found: &bolt::Bucket, writer: &mut BulkWriter<W>) -> Result<(), bolt::Error> {
        let is_meta = found.name() == bucket::META;
        // In the order of their names, behind every other key of the bucket that sorts before.
        let mut compaction = [key::FINISHED_COMPACT, key::SCHEDULED_COMPACT]
            .into_iter()
            .peekable();
        let at = RecordKey {
            revision: Revision {
                main: self.at,
                sub: 0,
            },
            tombstone: false,
        }
        .bytes();
        let mut cursor = found.cursor(self.db);
        while let Some(entry) = cursor.next_entry()? {
            if entry.is_bucket {
                let what = "is the root of a bucket that holds buckets";
                return Err(bolt::Error::Page {
                    page: found.root(),
                    what,
                });
            }
            while let Some(name) = compaction.next_if(|name| is_meta && *name <= entry.key) {
                writer.put(name, &[at.as_ref()])?;
            }
            let replaced = is_meta && matches!(entry.key, key::FINISHED_COMPACT | key::SCHEDULED_COMPACT);
            if !replaced {
                writer.put(entry.key, &[entry.value])?;
            }
        }
        for name in compaction.filter(|_| is_meta) {
            writer.put(name, &[at.as_ref()])?;
        }
        Ok(())
    }
}

fn each_record(
    db: &Db,
    mut each: impl FnMut(u64, RecordKey, &[u8]) -> Result<(), bolt::Error>,
) -> Result<(), bolt::Error> {
    let Some(records) = db.bucket(bucket::KEY)? else {
        return Ok(());
    };
    let page = records.root();
    let mut cursor = records.cursor(db);
    while let Some(entry) = cursor.next_entry()? {
        let what = "is the root of bucket key, which holds a key that is no revision";
        let key = RecordKey::parse(entry.key).ok_or(bolt::Error::Page { page, what })?;
        each(page, key, entry.value)?;
    }
    Ok(())
}

struct Hashing<W> {
    out: W,
    hasher: Sha256,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
