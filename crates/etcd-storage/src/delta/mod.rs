//! Delta snapshots: the events after a full snapshot or another delta, in the format of etcd-backup-restore.
//!
//! # Format (before compression)
//!
//! A JSON array of events, directly followed by the 32 raw bytes of its SHA-256 (see [`crate::trailer`]):
//!
//! ```text
//! [{"etcdEvent":{"kv":{"key":"L2E=","create_revision":7,"mod_revision":9,"version":2,"value":"eA==","lease":123}},"time":"2024-05-01T08:00:00.123456789Z","leaseTTL":60},
//!  {"etcdEvent":{"type":1,"kv":{"key":"L2E=","mod_revision":10}},"time":"2024-05-01T08:00:00.2Z"}]‖sha256
//! ```
//!
//! - It is what Go's `encoding/json` makes of etcd's watch events: `type` is a number (0 put, 1 delete), zero
//!   and empty fields are left out, keys and values are standard base64 with padding, `time` is RFC 3339.
//! - Integers are 64 bit and exact; a lease id may be above 2^53.
//! - Events are ordered by `mod_revision`; all events of a revision are in one delta, next to each other, in the
//!   order of the transaction. The place among them is the record's sub-revision.
//! - `leaseTTL` is ours: the granted TTL, in seconds, of the lease that the key carries. It stands beside
//!   `etcdEvent`, so that readers which don't know it skip it, as Go's do. It lets a restore bring back leases
//!   that were granted after the full snapshot. Unknown fields are skipped here as well.

mod decode;
mod encode;
mod json;

use jiff::Timestamp;

pub use decode::{Decoder, Positioned};
pub use encode::{EncodeError, Encoder, Summary};

use crate::trailer;

/// Most bytes of one event's key and value together. etcd takes 1.5 MiB by default and advises against more than 10; one
/// event is held in memory, and what is longer than this was made to fill it.
pub const LARGEST_EVENT: usize = 64 << 20;

/// What happened to a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventKind {
    /// A new value.
    #[default]
    Put,
    /// The end of the key.
    Delete,
}

/// A change of one key, as etcd's watch reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Put or delete.
    pub kind: EventKind,
    /// The key.
    pub key: Vec<u8>,
    /// The value; empty for a delete.
    pub value: Vec<u8>,
    /// Revision in which the key came to be; 0 for a delete.
    pub create_revision: i64,
    /// Revision of this change.
    pub mod_revision: i64,
    /// Number of puts since the key came to be; 0 for a delete.
    pub version: i64,
    /// Id of the lease that the key hangs on; 0 for none.
    pub lease: i64,
    /// Granted TTL of that lease in seconds, when it is known.
    pub lease_ttl: Option<i64>,
    /// When the event was received; `None` when that wasn't said in a readable form.
    pub time: Option<Timestamp>,
}

/// Why a delta can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It can't be read, or isn't what was written.
    #[error(transparent)]
    Damaged(#[from] trailer::Error),
    /// The hash fits, but the data is no delta.
    #[error("malformed delta: {what} at byte {at} of the uncompressed data")]
    Malformed {
        /// Offset in the uncompressed data.
        at: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// An event is larger than any that etcd can be made to take. The rest wasn't read.
    #[error(
        "malformed delta: an event of more than {LARGEST_EVENT} bytes, at byte {at} of the uncompressed data"
    )]
    TooLarge {
        /// Offset in the uncompressed data.
        at: u64,
    },
    /// The events aren't in order.
    #[error(
        "malformed delta: revision {found} follows revision {last} at byte {at} of the uncompressed data"
    )]
    Order {
        /// Offset behind the event.
        at: u64,
        /// Revision of the event before.
        last: i64,
        /// Revision of the event.
        found: i64,
    },
}

#[cfg(test)]
mod tests;
