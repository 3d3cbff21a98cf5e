//! Is a data dir one that etcd can start from? Nothing is written, and a dir that is in use is left alone.
//!
//! [`sanity`] looks at what must be there after a clean end: folders, meta pages, the last revision, who wrote it.
//! [`full`] reads everything, as after a crash: every page of the database, every record of the log, the newest
//! `.snap` file, and whether the three belong together.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::beneath::Beneath;
use crate::bolt::{self, Db};
use crate::cluster::Id;
use crate::mvcc::Revision;
use crate::schema::{self, Overview, StoredMember};
use crate::snap;
use crate::wal::{self, LogPosition};

/// Pause between two tries for the lock: `flock` has no deadline of its own.
const LOCK_RETRY: Duration = Duration::from_millis(50);

/// What is known of a data dir.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is none, or nothing is in it.
    Missing,
    /// etcd ended before it had a log: its database holds nothing yet, and etcd takes the data dir for a new one.
    Unformed,
    /// etcd can start from it.
    Valid(DataDir),
    /// etcd can't start from it, or would have lost data.
    Invalid {
        /// What is wrong, and where.
        reason: String,
    },
    /// Another process has it open.
    Locked,
    /// It could not be read; that says nothing about what is in it.
    Unknown {
        /// What failed.
        reason: String,
    },
}

/// A data dir from which etcd can start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataDir {
    /// Revision of the database. The log may hold newer entries that are applied when etcd starts.
    pub revision: i64,
    /// Revision up to which the history was compacted; 0 for none.
    pub compact_revision: i64,
    /// Index of the last raft entry in the database; 0 when it isn't stored.
    pub consistent_index: u64,
    /// Index of the last raft entry in the log, or of the newest snapshot if that is newer; only after a full validation.
    pub last_log_index: Option<u64>,
    /// Index up to which the log knows its entries to be committed; only after a full validation.
    pub commit_index: Option<u64>,
    /// The members that the database lists.
    pub members: Vec<StoredMember>,
    /// Id of the cluster, from the log.
    pub cluster_id: Option<Id>,
    /// Id of the member, from the log.
    pub member_id: Option<Id>,
    /// Length of the database in bytes.
    pub db_size: u64,
    /// Bytes of the database that hold data; only after a full validation.
    pub db_size_in_use: Option<u64>,
    /// Version of the storage, from 3.6 on.
    pub storage_version: Option<String>,
    /// Version of the cluster.
    pub cluster_version: Option<String>,
    /// Members that vote, as the database lists them; `None` when it lists none.
    pub voters: Option<usize>,
}

/// Why a data dir isn't valid.
enum Fault {
    Missing,
    Unformed,
    Invalid(String),
    Locked,
    Unknown(String),
}

/// Looks at the parts of a data dir; takes milliseconds. Waits at most `wait` for another process to let go of it.
pub fn sanity(data_dir: &Path, wait: Duration) -> Verdict {
    verdict(data_dir, wait, None)
}

/// Reads and checks all of a data dir. Waits at most `wait` for another process to let go of it.
pub fn full(data_dir: &Path, wait: Duration) -> Verdict {
    full_metered(data_dir, wait, &Meter::default())
}

/// As [`full`]; how far it is can be seen in `meter`, from another thread.
pub fn full_metered(data_dir: &Path, wait: Duration, meter: &Meter) -> Verdict {
    verdict(data_dir, wait, Some(meter))
}

/// How far a validation is, in bytes of the database that were read.
#[derive(Debug, Default)]
pub struct Meter {
    read: AtomicU64,
    size: AtomicU64,
}

impl Meter {
    /// Bytes that were read, and how many there are; 0 of 0 before the database is open.
    pub fn progress(&self) -> (u64, u64) {
        (
            self.read.load(Ordering::Relaxed),
            self.size.load(Ordering::Relaxed),
        )
    }
}

fn verdict(data_dir: &Path, wait: Duration, all: Option<&Meter>) -> Verdict {
    match examine(data_dir, wait, all) {
        Ok(found) => Verdict::Valid(found),
        Err(Fault::Missing) => Verdict::Missing,
        Err(Fault::Unformed) => Verdict::Unformed,
        Err(Fault::Invalid(reason)) => Verdict::Invalid { reason },
        Err(Fault::Locked) => Verdict::Locked,
        Err(Fault::Unknown(reason)) => Verdict::Unknown { reason },
    }
}

fn examine(data_dir: &Path, wait: Duration, all: Option<&Meter>) -> Result<DataDir, Fault> {
    let member = Beneath::of(data_dir).join("member");
    if is_absent_or_empty(&member)? {
        return Err(Fault::Missing);
    }
    let (snap, wal) = (member.join("snap"), member.join("wal"));
    let path = snap.join("db");
    if !exists(&wal)? && is_unformed(&snap, &path, wait)? {
        return Err(Fault::Unformed);
    }
    for part in [&snap, &wal, &path] {
        if !exists(part)? {
            return Err(invalid(format!("{} is missing", part.path().display())));
        }
    }
    let (db, db_size) = open(&path, wait)?;
    let overview = Overview::read(&db).map_err(from_bolt)?;
    let mut found = DataDir {
        revision: overview.revision,
        compact_revision: overview.finished_compact.max(overview.scheduled_compact),
        consistent_index: overview.consistent_index,
        db_size,
        members: schema::members(&db).map_err(from_bolt)?,
        storage_version: overview.storage_version,
        cluster_version: overview.cluster_version,
        voters: overview.voters,
        ..DataDir::default()
    };
    let log = if let Some(meter) = all {
        meter.size.store(db_size, Ordering::Relaxed);
        let (log, pages) = read_all(&db, &wal, meter)?;
        let newest = log.snapshots.iter().map(|snapshot| snapshot.index).max();
        found.last_log_index = Some(log.last_index.max(newest.unwrap_or(0)));
        found.commit_index = Some(log.commit);
        found.db_size_in_use = Some(pages.used * db.page_size() as u64);
        belong_together(&snap, &log, overview.consistent_index)?;
        log
    } else {
        wal::read_identity(&wal).map_err(from_wal)?
    };
    (found.cluster_id, found.member_id) = (log.cluster_id, log.member_id);
    Ok(found)
}

/// Opens the database. The lock goes with the file, so it is held until the database is dropped.
fn open(path: &Beneath, wait: Duration) -> Result<(Db, u64), Fault> {
    let unreadable = |error: io::Error| unreadable(path, &error);
    let file = path.open().map_err(unreadable)?;
    lock(&file, wait)?;
    let size = file.metadata().map_err(unreadable)?.len();
    Ok((Db::from_file(file).map_err(from_bolt)?, size))
}

/// Whether a data dir without a log is what a first start left that came no further: etcd makes the database first, and
/// stores nothing in it before there is a log.
fn is_unformed(snap: &Beneath, path: &Beneath, wait: Duration) -> Result<bool, Fault> {
    let names = match snap.names() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        names => names.map_err(|error| unreadable(snap, &error))?,
    };
    if names.iter().any(|name| snap.join(name) != *path) {
        return Ok(false);
    }
    if !exists(path)? {
        return Ok(true);
    }
    let (db, _) = open(path, wait)?;
    let overview = Overview::read(&db).map_err(from_bolt)?;
    let compacted = overview.finished_compact.max(overview.scheduled_compact);
    Ok(overview.consistent_index == 0 && overview.last_record == Revision::default() && compacted == 0)
}

/// Database and log are read at the same time.
fn read_all(db: &Db, wal: &Beneath, meter: &Meter) -> Result<(wal::Contents, bolt::PageCount), Fault> {
    let checked = AtomicBool::new(false);
    let (log, pages) = thread::scope(|scope| {
        let log = scope.spawn(|| wal::read(wal));
        scope.spawn(|| db.prefetch(&checked, &meter.read));
        let pages = bolt::check(db);
        checked.store(true, Ordering::Relaxed);
        (log.join(), pages)
    });
    let log = log.map_err(|_| Fault::Unknown("reading of the log ended early".to_owned()))?;
    Ok((log.map_err(from_wal)?, pages.map_err(from_bolt)?))
}

fn belong_together(snap: &Beneath, log: &wal::Contents, consistent_index: u64) -> Result<(), Fault> {
    snap::verify_newest(snap, &log.snapshots).map_err(|error| match error {
        snap::Error::Io { source, .. } => unknown(&source),
        damaged @ snap::Error::Damaged { .. } => invalid(damaged.to_string()),
    })?;
    let newest = log.snapshots.iter().max().copied().unwrap_or_default();
    // Zero: the index was never stored. A database that a leader has sent waits beside, and counts instead.
    if consistent_index != 0 && consistent_index < newest.index && !exists(&received(snap, newest))? {
        return Err(invalid(format!(
            "database has applied raft index {consistent_index}, but the newest snapshot is at {}",
            newest.index
        )));
    }
    let end = log.last_index.max(newest.index);
    if consistent_index > end {
        return Err(invalid(format!(
            "database has applied raft index {consistent_index}, but the write-ahead log ends at {end}"
        )));
    }
    Ok(())
}

fn received(snap: &Beneath, position: LogPosition) -> Beneath {
    snap.join(format!("{:016x}.snap.db", position.index))
}

/// Takes a shared lock, as bbolt does for reading; etcd holds an exclusive one as long as it runs.
fn lock(file: &File, wait: Duration) -> Result<(), Fault> {
    let deadline = Instant::now() + wait;
    loop {
        match file.try_lock_shared() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(unknown(&error)),
            Err(TryLockError::WouldBlock) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Fault::Locked);
                }
                thread::sleep(LOCK_RETRY.min(left));
            }
        }
    }
}

fn is_absent_or_empty(dir: &Beneath) -> Result<bool, Fault> {
    match dir.names() {
        Ok(names) => Ok(names.is_empty()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(invalid(format!("{} is no folder", dir.path().display())))
        }
        Err(error) => Err(unreadable(dir, &error)),
    }
}

fn exists(path: &Beneath) -> Result<bool, Fault> {
    path.exists().map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Beneath, error: &io::Error) -> Fault {
    Fault::Unknown(format!("{} {error}", path.path().display()))
}

fn invalid(reason: String) -> Fault {
    Fault::Invalid(reason)
}

fn unknown(error: &io::Error) -> Fault {
    Fault::Unknown(error.to_string())
}

fn from_bolt(error: bolt::Error) -> Fault {
    match error {
        bolt::Error::Io { action, source } => Fault::Unknown(format!("{action} failed: {source}")),
        other => invalid(other.to_string()),
    }
}

fn from_wal(error: wal::Error) -> Fault {
    match error {
        wal::Error::Io(source) => Fault::Unknown(format!("read of the write-ahead log failed: {source}")),
        other => invalid(other.to_string()),
    }
}

#[cfg(test)]
mod tests;
