//! What is wrong with a chain, in words and as data.

use std::{error::Error as StdError, fmt, io};

use etcd_storage::{assemble, full};
use operator::reconcile::chain as causes;
use serde::Serialize;
use snapstore::Class;

/// A range of revisions, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Revisions {
    /// The first.
    pub from: i64,
    /// The last.
    pub to: i64,
}

impl Revisions {
    /// The range, unless it is empty.
    pub fn between(from: i64, to: i64) -> Option<Self> {
        (from <= to).then_some(Self { from, to })
    }
}

impl fmt::Display for Revisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to } = self;
        write!(f, "revisions {from} to {to}")
    }
}

/// A snapshot that can't be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Its name.
    pub object: String,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "snapshot {}: {}", self.object, self.reason)
    }
}

/// Why a chain is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// One of its snapshots can't be used.
    Bad(Fault),
    /// There is no snapshot between these two.
    Hole {
        /// The one before the hole.
        before: String,
        /// The one behind it.
        behind: String,
    },
    /// There are deltas, but no full snapshot before them.
    NoFull,
}

/// Usable snapshots from which most of what was wanted can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rescue {
    /// The revision that they reach.
    pub revision: i64,
    /// What they don't have.
    pub lost: Option<Revisions>,
}

/// A broken chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// What broke it.
    pub cause: Cause,
    /// Revisions that no usable snapshot has.
    pub missing: Option<Revisions>,
    /// What can be had all the same.
    pub rescue: Option<Rescue>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.cause, &self.missing) {
            (Cause::Bad(fault), None) => fault.fmt(f),
            (Cause::Bad(fault), Some(missing)) => write!(f, "{fault}; without it {missing} are missing"),
            (Cause::Hole { before, behind }, Some(missing)) => {
                write!(f, "{missing} are missing between {before} and {behind}")
            }
            (Cause::Hole { before, behind }, None) => {
                write!(f, "there is a hole between {before} and {behind}")
            }
            (Cause::NoFull, Some(missing)) => {
                write!(
                    f,
                    "there is no full snapshot to begin with: {missing} are missing"
                )
            }
            (Cause::NoFull, None) => f.write_str("there is no full snapshot to begin with"),
        }
    }
}

/// Whether the error means that a snapshot is bad, rather than that the store or a disk failed or that too much was asked.
pub fn is_damage(error: &assemble::Error) -> bool {
    use assemble::Error as E;
    match error {
        E::Base {
            source: full::Error::Scratch(_),
            ..
        }
        | E::TargetCompacted { .. }
        | E::TargetNotReached { .. }
        | E::NoTime { .. }
        | E::RevisionTooHigh { .. }
        | E::Write(_)
        | E::Io { .. }
        | E::Stopped => false,
        E::Base { .. } | E::Delta { .. } => store_error(error).is_none_or(|class| class == Class::Corrupt),
        E::BaseDatabase { .. } | E::Gap { .. } | E::EndsElsewhere { .. } => true,
    }
}

/// What the store said, when it is the cause. An `io::Error` hides it from the usual chain of causes.
pub fn store_error(error: &(dyn StdError + 'static)) -> Option<Class> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(|error| error.get_ref());
        let inner = inner.and_then(|inner| inner.downcast_ref::<snapstore::Error>());
        if let Some(failed) = inner.or_else(|| error.downcast_ref()) {
            return Some(failed.class());
        }
        cause = error.source();
    }
    None
}

/// The error without the object's name, which is told beside it.
pub(super) fn reason(error: &assemble::Error) -> String {
    use assemble::Error as E;
    match error {
        E::Base { source, .. } => causes(source),
        E::BaseDatabase { source, .. } => causes(source),
        E::Delta { source, .. } => causes(source),
        E::Gap { from, to, .. } => format!("revisions {from} to {to} are missing in it"),
        E::EndsElsewhere { stated, found, .. } => {
            format!("ends at revision {found}, but its name says {stated}")
        }
        other => causes(other),
    }
}
