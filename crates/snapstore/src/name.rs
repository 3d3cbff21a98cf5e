//! Names of snapshots: `<Kind>-<start>-<last>-<unix>[<compression>][.final]`, the grammar of etcd-backup-restore.
//! The name is all the metadata that a stored snapshot has, so that it is parsed strictly and written exactly.

use std::{cmp::Ordering, fmt, str::FromStr};

use etcd_storage::compression::Compression;
use jiff::Timestamp;

/// What a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The events of a range of revisions.
    Delta,
    /// A whole database.
    Full,
}

impl Kind {
    /// The word in object names and metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delta => "Incr",
            Self::Full => "Full",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name of one snapshot.
///
/// Ordered by what it holds: last revision, then time of creation, deltas before fulls. The text must not be sorted:
/// revisions are padded to eight digits only.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SnapshotName {
    pub kind: Kind,
    /// First revision of a delta: the revision after the one that the snapshot before it ended with. 0 for a full.
    pub start_revision: i64,
    /// Last revision that is in the snapshot.
    pub last_revision: i64,
    /// Whole seconds.
    pub created_on: Timestamp,
    pub compression: Compression,
    /// The last snapshot before its cluster went away or moved.
    pub is_final: bool,
}

/// Why a text is no snapshot name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("not of the form <Kind>-<start>-<last>-<unix>[.suffix][.final]")]
    Form,
    #[error("unknown kind {0:?}")]
    Kind(String),
    #[error("invalid revision {0:?}")]
    Revision(String),
    #[error("last revision {last} is before start revision {start}")]
    Range { start: i64, last: i64 },
    #[error("invalid creation time {0:?}")]
    Time(String),
    #[error("unknown compression suffix {0:?}")]
    Compression(String),
}

impl SnapshotName {
    pub fn full(last_revision: i64, created_on: Timestamp, compression: Compression) -> Self {
        Self {
            kind: Kind::Full,
            start_revision: 0,
            last_revision,
            created_on: whole_seconds(created_on),
            compression,
            is_final: false,
        }
    }

    pub fn delta(start: i64, last: i64, created_on: Timestamp, compression: Compression) -> Self {
        Self {
            kind: Kind::Delta,
            start_revision: start,
            last_revision: last,
            created_on: whole_seconds(created_on),
            compression,
            is_final: false,
        }
    }

    #[must_use]
    pub fn with_final(self, is_final: bool) -> Self {
        Self { is_final, ..self }
    }
}

/// Names hold whole seconds only.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            start_revision,
            last_revision,
            created_on,
            compression,
            is_final,
        } = self;
        write!(
            f,
            "{kind}-{start_revision:08}-{last_revision:08}-{}",
            created_on.as_second()
        )?;
        f.write_str(compression.suffix())?;
        f.write_str(if *is_final { ".final" } else { "" })
    }
}

impl FromStr for SnapshotName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let mut fields = text.split('-');
        let (Some(kind), Some(start), Some(last), Some(rest), None) = (
            fields.next(),
            fields.next(),
            fields.next(),
            fields.next(),
            fields.next(),
        ) else {
            return Err(NameError::Form);
        };
        let kind = match kind {
            "Full" => Kind::Full,
            "Incr" => Kind::Delta,
            other => return Err(NameError::Kind(other.to_owned())),
        };
        let (start, last) = (revision(start)?, revision(last)?);
        if last < start {
            return Err(NameError::Range { start, last });
        }
        let (rest, is_final) = rest
            .strip_suffix(".final")
            .map_or((rest, false), |rest| (rest, true));
        let (seconds, suffix) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
        let created_on = digits(seconds)
            .and_then(|s| Timestamp::from_second(s).ok())
            .ok_or_else(|| NameError::Time(seconds.to_owned()))?;
        let compression =
            Compression::from_suffix(suffix).map_err(|_| NameError::Compression(suffix.to_owned()))?;
        Ok(Self {
            kind,
            start_revision: start,
            last_revision: last,
            created_on,
            compression,
            is_final,
        })
    }
}

fn revision(text: &str) -> Result<i64, NameError> {
    digits(text).ok_or_else(|| NameError::Revision(text.to_owned()))
}

/// Plain decimal digits; no sign, no blank.
fn digits(text: &str) -> Option<i64> {
    text.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

impl Ord for SnapshotName {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |n: &Self| {
            let ties = (n.kind, n.start_revision, n.is_final, n.compression.suffix());
            (n.last_revision, n.created_on, ties)
        };
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for SnapshotName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
