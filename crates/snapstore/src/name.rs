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

/// The last revision that a name may have. No etcd comes near it, and whoever calculates with revisions can add to it.
const LAST_REVISION: i64 = i64::MAX - (1 << 40);

fn revision(text: &str) -> Result<i64, NameError> {
    let revision = digits(text).filter(|revision| *revision <= LAST_REVISION);
    revision.ok_or_else(|| NameError::Revision(text.to_owned()))
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> SnapshotName {
        text.parse().unwrap()
    }

    /// Names as etcd-backup-restore writes them, field by field.
    #[test]
    fn reads_every_form() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let full = |last, seconds, compression| SnapshotName::full(last, at(seconds), compression);
        for (text, expected) in [
            (
                "Full-00000000-00002088-1518427675.gz",
                full(2088, 1_518_427_675, Compression::Gzip),
            ),
            (
                "Full-00000000-123456789-1700000000",
                full(123_456_789, 1_700_000_000, Compression::None),
            ),
            ("Full-00000000-00000123-1700000000.final", {
                full(123, 1_700_000_000, Compression::None).with_final(true)
            }),
            ("Full-00000000-00000123-1700000000.zlib.final", {
                full(123, 1_700_000_000, Compression::Zlib).with_final(true)
            }),
            (
                "Full-00000000-00000001-1700000000.zst",
                full(1, 1_700_000_000, Compression::Zstd),
            ),
            ("Incr-00002089-00002100-1518428000.Z", {
                SnapshotName::delta(2089, 2100, at(1_518_428_000), Compression::Lzw)
            }),
        ] {
            assert_eq!(name(text), expected, "{text}");
            assert_eq!(expected.to_string(), text);
        }
    }

    #[test]
    fn refuses_what_is_none() {
        for (text, expected) in [
            ("", NameError::Form),
            ("Full-0-1", NameError::Form),
            ("Full-0-1-2-3", NameError::Form),
            (
                "Chunk-00000000-00000001-1700000000",
                NameError::Kind("Chunk".into()),
            ),
            (
                "Full-00000000-0000000x-1700000000",
                NameError::Revision("0000000x".into()),
            ),
            ("Full-00000000--1700000000", NameError::Revision(String::new())),
            (
                "Full-+0000000-00000001-1700000000",
                NameError::Revision("+0000000".into()),
            ),
            (
                "Incr-00000009-00000008-1700000000",
                NameError::Range { start: 9, last: 8 },
            ),
            ("Full-00000000-00000001-", NameError::Time(String::new())),
            ("Full-00000000-00000001-17e8.gz", NameError::Time("17e8".into())),
            (
                "Full-00000000-00000001-1700000000.xz",
                NameError::Compression(".xz".into()),
            ),
            (
                "Full-00000000-00000001-1700000000.gz.gz",
                NameError::Compression(".gz.gz".into()),
            ),
            (
                "Full-00000000-00000001-1700000000.final.gz",
                NameError::Compression(".final.gz".into()),
            ),
            (
                "Full-00000000-99999999999999999999-1",
                NameError::Revision("99999999999999999999".into()),
            ),
            (
                "Incr-43-9223372036854775807-1700000000.gz",
                NameError::Revision("9223372036854775807".into()),
            ),
        ] {
            assert_eq!(text.parse::<SnapshotName>(), Err(expected), "{text}");
        }
    }

    /// The order of text would put the last one first.
    #[test]
    fn sorts_by_what_is_inside() {
        let sorted = [
            "Incr-99999990-99999999-1700000000",
            "Incr-100000000-100000001-1700000010.gz",
            // At the same revision a compacted full comes after the delta that it replaces.
            "Full-00000000-100000001-1700000010",
            "Full-00000000-100000001-1700000011",
        ];
        let names: Vec<_> = sorted.iter().map(|text| name(text)).collect();
        assert!(names.is_sorted(), "{names:?}");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            is_full: bool, is_final: bool, a in 0..=LAST_REVISION, b in 0..=LAST_REVISION, seconds in 0..253_402_207_200_i64,
            compression in proptest::sample::select(&Compression::ALL),
        ) {
            let at = Timestamp::from_second(seconds).unwrap();
            let name = if is_full {
                SnapshotName::full(a, at, compression)
            } else {
                SnapshotName::delta(a.min(b), a.max(b), at, compression)
            };
            let name = name.with_final(is_final);
            prop_assert_eq!(name.to_string().parse::<SnapshotName>(), Ok(name));
        }

        /// Foreign names are refused or kept as they are; nothing panics.
        #[test]
        fn no_text_changes_by_reading(text in "(Full|Incr)-[0-9]{1,10}-[0-9]{1,10}-[0-9]{1,12}(\\.[a-zZ]{1,5}){0,2}") {
            if let Ok(name) = text.parse::<SnapshotName>() {
                prop_assert_eq!(name.to_string().parse::<SnapshotName>(), Ok(name));
            }
        }
    }
}
