//! etcd's write-ahead log: files of framed, checksummed records.
//!
//! A frame is a little-endian u64, whose low 56 bits are the length of the record and whose top byte, when the
//! record is padded to 8 bytes, is `0x80 | padding`; then the record, a protobuf `walpb.Record`. A record's CRC-32C
//! runs over the data of all records before it; a record of type *crc* at the start of each file carries it on from
//! the file before. Files are named `<sequence>-<first index>.wal` in hex and are allocated ahead with zeros.

mod read;
mod write;

use std::io;

pub use read::{Contents, read, read_identity};
pub(crate) use write::create;

/// Types of records.
mod kind {
    pub(super) const METADATA: i64 = 1;
    pub(super) const ENTRY: i64 = 2;
    pub(super) const STATE: i64 = 3;
    pub(super) const CRC: i64 = 4;
    pub(super) const SNAPSHOT: i64 = 5;
}

/// A place in the raft log at which a snapshot was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// Term.
    pub term: u64,
    /// Index.
    pub index: u64,
}

/// Why a log can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder or a file can't be read.
    #[error("read of the write-ahead log failed")]
    Io(#[from] io::Error),
    /// There is no log.
    #[error("no write-ahead log files")]
    Empty,
    /// A file of the sequence is missing.
    #[error("write-ahead log file {0} is missing")]
    Gap(String),
    /// A record is wrong.
    #[error("write-ahead log file {file} is damaged at byte {at}: {what}")]
    Damaged {
        /// Name of the file.
        file: String,
        /// Offset of the record's frame.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
}

#[cfg(test)]
mod tests;
