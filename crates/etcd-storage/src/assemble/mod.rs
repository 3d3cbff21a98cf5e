//! Puts a chain together: a full snapshot and the deltas after it become one database, in one pass.
//!
//! The history of an etcd is append-only: in bucket `key` every later record sorts behind every earlier one. So the
//! base is written as it comes, and the records of the deltas are added at the right edge of its tree, in new pages
//! at the end of the file. Nothing is written twice, nothing is replayed, and memory doesn't grow with the data.
//! Until the file is sealed, its meta pages are those of the base.

mod events;
mod feed;
mod leases;
mod seal;

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{io, thread};

use self::events::Appender;
use self::feed::{Feed, with_feed};
use self::leases::LeaseBook;
pub use self::leases::LeaseReport;
pub(crate) use self::seal::Rewrite;
use crate::bolt::format::{HEADER, META};
use crate::bolt::{self, Db};
use crate::full::{self, Consent, Scanner, Warnings};
use crate::mvcc::{MAX_START, RecordKey, Revision};
use crate::object::{Chain, Object, Target};
use crate::schema::{Overview, bucket};
use crate::{delta, trailer};

/// Bytes that are held before they are written to the file.
const BUFFER: usize = 1 << 20;

/// Bytes that are read at a time.
const CHUNK: usize = 256 << 10;

/// How far the work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Objects that are done.
    pub objects_done: usize,
    /// Objects in all: the base and the deltas.
    pub objects: usize,
    /// Uncompressed bytes that were read so far.
    pub bytes: u64,
    /// Last revision that was written; 0 as long as the base is read.
    pub revision: i64,
}

/// Is told how far the work is, every few MiB and after every object; says whether to go on.
pub type OnProgress<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// Why a chain can't be put together.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The base is no full snapshot, or was altered.
    #[error("full snapshot {object}: {source}")]
    Base {
        /// Name of the object.
        object: String,
        /// What is wrong.
        source: full::Error,
    },
    /// The base's hash fits, but its database is damaged.
    #[error("full snapshot {object}: {source}")]
    BaseDatabase {
        /// Name of the object.
        object: String,
        /// What is wrong.
        source: bolt::Error,
    },
    /// A delta is none, or was altered.
    #[error("delta snapshot {object}: {source}")]
    Delta {
        /// Name of the object.
        object: String,
        /// What is wrong.
        source: delta::Error,
    },
    /// Revisions are missing between two objects, or within one.
    #[error("revisions {from} to {to} are missing before those in {object}")]
    Gap {
        /// Name of the object that comes too early.
        object: String,
        /// First revision that is missing.
        from: i64,
        /// Last revision that is missing.
        to: i64,
    },
    /// An object ends elsewhere than its name says.
    #[error("{object} ends at revision {found}, but its name says {stated}")]
    EndsElsewhere {
        /// Name of the object.
        object: String,
        /// Revision in its name.
        stated: i64,
        /// Revision of its last record.
        found: i64,
    },
    /// The chain begins after the target.
    #[error("revision {target} can't be had from {object}: its history begins after {compacted}")]
    TargetCompacted {
        /// Name of the base.
        object: String,
        /// The revision asked for.
        target: i64,
        /// Revision up to which the base is compacted.
        compacted: i64,
    },
    /// The chain ends before the target.
    #[error("revision {target} can't be had: the chain ends at {reached}")]
    TargetNotReached {
        /// The revision asked for.
        target: i64,
        /// Last revision of the chain.
        reached: i64,
    },
    /// A target time needs events that say when they were received.
    #[error("delta snapshot {object} doesn't say when revision {revision} was received")]
    NoTime {
        /// Name of the object.
        object: String,
        /// The revision.
        revision: i64,
    },
    /// The revision can't be raised so far.
    #[error(
        "revision {revision} can't be raised by {amount}: a restored etcd may begin at revision {} at the most, since it \
         panics behind 2^63 - 1",
        MAX_START
    )]
    RevisionTooHigh {
        /// The revision of what is restored.
        revision: i64,
        /// By how much it was to be raised.
        amount: i64,
    },
    /// The result can't be written.
    #[error("write of the database failed")]
    Write(#[source] bolt::Error),
    /// A file or folder can't be made.
    #[error("{action} {path} failed")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The caller said to stop.
    #[error("stopped before the end")]
    Stopped,
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// The name of the object that is at fault, when one is.
    pub fn object(&self) -> Option<&str> {
        match self {
            Self::Base { object, .. }
            | Self::BaseDatabase { object, .. }
            | Self::Delta { object, .. }
            | Self::Gap { object, .. }
            | Self::EndsElsewhere { object, .. }
            | Self::TargetCompacted { object, .. }
            | Self::NoTime { object, .. } => Some(object),
            Self::TargetNotReached { .. }
            | Self::RevisionTooHigh { .. }
            | Self::Write(_)
            | Self::Io { .. }
            | Self::Stopped => None,
        }
    }
}

/// Counts what passes and tells the caller.
struct Meter<'a, 'b> {
    progress: Progress,
    told: u64,
    tell: &'a mut OnProgress<'b>,
}

impl Meter<'_, '_> {
    /// Bytes between two calls.
    const STEP: u64 = 4 << 20;

    fn add(&mut self, bytes: u64) -> Result<(), Error> {
        self.progress.bytes += bytes;
        if self.progress.bytes - self.told >= Self::STEP {
            self.tell()
        } else {
            Ok(())
        }
    }

    fn object_done(&mut self, revision: i64) -> Result<(), Error> {
        self.progress.objects_done += 1;
        self.progress.revision = revision;
        self.tell()
    }

    fn tell(&mut self) -> Result<(), Error> {
        self.told = self.progress.bytes;
        match (self.tell)(self.progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Stopped),
        }
    }
}

/// Whether a database must outlive a crash of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durable {
    Yes,
    /// It is gone before anything relies on it.
    No,
}

/// A chain that is written, but not sealed.
pub(crate) struct Assembly {
    path: PathBuf,
    file: File,
    base: Db,
    appender: Appender,
    durable: Durable,
    /// What the base says of itself.
    pub(crate) overview: Overview,
    /// Last revision that is written.
    pub(crate) revision: i64,
    /// What isn't as it should be in the base.
    pub(crate) warnings: Warnings,
}

/// Writes the chain up to the target into a new file.
///
/// Every object is verified to its end, also when the target lies before it. An error leaves an unsealed file.
pub(crate) fn assemble(
    chain: &Chain,
    target: Target,
    path: &Path,
    (durable, consent): (Durable, Consent),
    mut progress: OnProgress<'_>,
) -> Result<Assembly, Error> {
    let objects: Vec<&Object> = std::iter::once(&chain.base).chain(&chain.deltas).collect();
    let start = Progress {
        objects_done: 0,
        objects: objects.len(),
        bytes: 0,
        revision: 0,
    };
    let mut meter = Meter {
        progress: start,
        told: 0,
        tell: &mut progress,
    };
    with_feed(&objects, |feeds| {
        let Some((object, feed)) = feeds.next() else {
            return Err(Error::Stopped);
        };
        let mut assembly = write_base(object, feed, target, path, (durable, consent), &mut meter)?;
        let Assembly { file, appender, .. } = &mut assembly;
        thread::scope(|scope| {
            // The pages of the base stay as they are, so they can be synced while more is added behind them.
            let sync = (durable == Durable::Yes).then(|| scope.spawn(|| file.sync_data()));
            for (object, feed) in feeds {
                appender.apply(object, feed, target, &mut meter)?;
            }
            let Some(sync) = sync else { return Ok(()) };
            let synced = sync
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the syncing thread died")));
            synced.map_err(Error::io("sync of", path))
        })?;
        assembly.revision = assembly.appender.revision();
        match target {
            Target::Revision(target) if assembly.revision < target => Err(Error::TargetNotReached {
                target,
                reached: assembly.revision,
            }),
            _ => Ok(assembly),
        }
    })
}

fn base_database(object: &Object, source: bolt::Error) -> Error {
    match source {
        bolt::Error::Io { .. } => Error::Write(source),
        source => Error::BaseDatabase {
            object: object.name.clone(),
            source,
        },
    }
}

/// Writes the base as it comes, verifies it, and opens it at its right edge.
fn write_base(
    object: &Object,
    mut feed: Feed,
    target: Target,
    path: &Path,
    (durable, consent): (Durable, Consent),
    meter: &mut Meter<'_, '_>,
) -> Result<Assembly, Error> {
    let io = Error::io("write of", path);
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600);
    let mut file = options.open(path).map_err(&io)?;
    let damaged = |source: full::Error| Error::Base {
        object: object.name.clone(),
        source,
    };
    let mut scanner = Scanner::with(path.parent(), consent);
    let mut chunk = vec![0; CHUNK];
    while !scanner.is_hopeless() {
        let count = match feed.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => {
                let at = meter.progress.bytes;
                return Err(damaged(trailer::Error::Read { at, source }.into()));
            }
        };
        file.write_all(&chunk[..count]).map_err(&io)?;
        scanner.update(&chunk[..count]);
        meter.add(count as u64)?;
    }
    let judged = scanner.finish().map_err(damaged)?;
    if let Some(previous) = judged.warnings.previous {
        // What it leads to isn't whole: nothing may come back to it.
        let at = previous.lost_meta * judged.page_size as u64;
        file.write_all_at(&[0; HEADER + META], at).map_err(&io)?;
    }
    let base = Db::open(path).map_err(|source| base_database(object, source))?;
    let overview = Overview::read(&base).map_err(|source| base_database(object, source))?;
    if overview.revision < object.last && judged.warnings.previous.is_none() {
        let (stated, found) = (object.last, overview.revision);
        return Err(Error::EndsElsewhere {
            object: object.name.clone(),
            stated,
            found,
        });
    }
    let bound = bound_in_base(object, &overview, target)?;
    let appender = open_edge(object, &base, &file, bound, overview.revision)?;
    let revision = appender.revision();
    meter.object_done(revision)?;
    Ok(Assembly {
        path: path.to_owned(),
        file,
        base,
        appender,
        durable,
        overview,
        revision,
        warnings: judged.warnings,
    })
}

/// The revision after which the base is cut, when the target lies within it.
fn bound_in_base(object: &Object, overview: &Overview, target: Target) -> Result<Option<i64>, Error> {
    let Target::Revision(target) = target else {
        return Ok(None);
    };
    let compacted = overview.finished_compact.max(overview.scheduled_compact);
    if target < compacted.max(1) {
        return Err(Error::TargetCompacted {
            object: object.name.clone(),
            target,
            compacted,
        });
    }
    Ok((target < overview.revision).then_some(target))
}

fn open_edge(
    object: &Object,
    base: &Db,
    file: &File,
    bound: Option<i64>,
    revision: i64,
) -> Result<Appender, Error> {
    let in_base = |source| base_database(object, source);
    let records = base.bucket(bucket::KEY).map_err(in_base)?;
    let bound_key = bound.and_then(|bound| bound.checked_add(1)).map(|main| {
        RecordKey {
            revision: Revision { main, sub: 0 },
            tombstone: false,
        }
        .bytes()
    });
    let edge = match &records {
        Some(records) => {
            let bound = bound_key.as_ref().map(AsRef::as_ref);
            records.cursor(base).right_edge(bound).map_err(in_base)?
        }
        None => bolt::Edge::default(),
    };
    let leases = leases_of(base).map_err(in_base)?;
    let end = base.page_count() * base.page_size() as u64;
    let sink = file.try_clone().and_then(|mut file| {
        // A file that bbolt has grown ahead ends behind its last page.
        file.set_len(end)?;
        io::Seek::seek(&mut file, io::SeekFrom::Start(end))?;
        Ok(BufWriter::with_capacity(BUFFER, file))
    });
    let sink = sink.map_err(|source| Error::Write(bolt::Error::io("write of the database")(source)))?;
    let pages = bolt::Pages::new(sink, base.page_size(), base.page_count());
    Appender::new(pages, edge, bound.unwrap_or(revision), LeaseBook::new(leases)).map_err(Error::Write)
}

/// Ids of the leases that a database has.
fn leases_of(db: &Db) -> Result<HashSet<i64>, bolt::Error> {
    let mut ids = HashSet::new();
    if let Some(leases) = db.bucket(bucket::LEASE)? {
        let mut cursor = leases.cursor(db);
        while let Some(entry) = cursor.next_entry()? {
            ids.extend(entry.key.first_chunk().copied().map(i64::from_be_bytes));
        }
    }
    Ok(ids)
}
