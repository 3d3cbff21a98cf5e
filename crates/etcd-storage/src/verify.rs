//! Reads one snapshot to its end and says whether it is whole: its hash, what is inside, and whether that is what its
//! name says. Whoever wants to know that of a snapshot asks here, so that there is one answer.

use std::io::{self, Read};

use crate::delta;
use crate::full::{self, FullSummary, Scanner};

/// Bytes that are read at a time.
const CHUNK: usize = 256 << 10;

/// Why a snapshot isn't what it should be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It can't be read, or decompressed.
    #[error("can't be read")]
    Read(#[source] io::Error),
    /// It is no full snapshot, or a damaged one.
    #[error(transparent)]
    Full(#[from] full::Error),
    /// It is no delta, or a damaged one.
    #[error(transparent)]
    Delta(#[from] delta::Error),
    /// It has another end than its name says.
    #[error("ends at revision {found}, but its name says {stated}")]
    EndsElsewhere {
        /// The last revision in it.
        found: i64,
        /// The last revision in its name.
        stated: i64,
    },
    /// Revisions are missing.
    #[error("revisions {from} to {to} are missing in it")]
    Gap {
        /// The first one that is missing.
        from: i64,
        /// The last one that is missing.
        to: i64,
    },
}

/// Reads a full snapshot (uncompressed) whose name says that it ends at revision `last`. It may hold more, for that is how
/// etcd-backup-restore names it; never less.
///
/// # Errors
/// It can't be read, or isn't whole.
pub fn full(mut source: impl Read, mut scanner: Scanner, last: i64) -> Result<FullSummary, Error> {
    let mut buffer = vec![0; CHUNK];
    while !scanner.is_hopeless() {
        match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => scanner.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Read(error)),
        }
    }
    let summary = scanner.finish()?;
    ends_at(summary.revision, last).map(|()| summary)
}

/// Whether a full snapshot holds what its name says.
pub(crate) fn ends_at(found: i64, stated: i64) -> Result<(), Error> {
    if found < stated {
        return Err(Error::EndsElsewhere { found, stated });
    }
    Ok(())
}

/// Reads a delta (uncompressed) whose name says that it has the revisions from `start` to `last`. Returns the last one.
///
/// # Errors
/// It can't be read, or isn't whole.
pub fn delta(source: impl Read, start: i64, last: i64) -> Result<i64, Error> {
    let mut decoder = delta::Decoder::without_contents(source);
    let (mut end, mut gap) = (start.saturating_sub(1), None);
    while let Some(positioned) = decoder.next_event()? {
        let revision = positioned.event.mod_revision;
        let next = end.saturating_add(1);
        if revision > next {
            gap.get_or_insert(Error::Gap {
                from: next,
                to: revision - 1,
            });
        }
        end = end.max(revision);
    }
    // Only now the hash is proven: a gap in what was altered is no gap.
    if let Some(gap) = gap {
        return Err(gap);
    }
    if end != last {
        return Err(Error::EndsElsewhere {
            found: end,
            stated: last,
        });
    }
    Ok(end)
}
