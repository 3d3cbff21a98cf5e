//! bbolt database files, the format in which etcd keeps its data: a reader that trusts nothing it reads, and a
//! writer that lays sorted records down from the leaves up, in one pass.
//!
//! bbolt's own file is the source of the format: pages of equal size; two meta pages, the valid one with the
//! higher transaction id counts; a B+tree of buckets, each of which is a B+tree of its own or, when small, a leaf
//! page inside its entry. etcd on Linux does not store the list of free pages; both forms are read here.

mod check;
mod cursor;
mod db;
pub(crate) mod format;
mod tree;
mod write;

use std::io;

pub use check::{PageCount, check};
pub use cursor::{Cursor, Entry};
pub use db::{Bucket, Db};
pub use format::MetaFault;
pub(crate) use tree::{Edge, TreeBuilder};
pub use write::{BulkWriter, Layout, create};
pub(crate) use write::{Pages, bucket_value, root_bucket};

/// Why a database can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be opened, read or written.
    #[error("{action} failed")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Neither meta page is valid.
    #[error("not a usable database: first meta page: {first}; second meta page: {second}")]
    NoMeta {
        /// What is wrong with the first.
        first: MetaFault,
        /// What is wrong with the second.
        second: MetaFault,
    },
    /// The file is shorter than its pages.
    #[error("database is cut: {len} bytes, but its {pages} pages need {pages} x {page_size}")]
    Cut {
        /// Length of the file.
        len: u64,
        /// Number of pages.
        pages: u64,
        /// Size of a page.
        page_size: usize,
    },
    /// A page isn't what its place in the tree asks for.
    #[error("database is damaged: page {page}: {what}")]
    Page {
        /// Number of the page.
        page: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Keys come in ascending order, each once.
    #[error("key {key:?} of bucket {bucket:?} is not above the one before it")]
    Order {
        /// Name of the bucket.
        bucket: String,
        /// The key.
        key: Vec<u8>,
    },
    /// bbolt has no room for it.
    #[error("record in bucket {bucket:?} is too large: key of {key_len} bytes, value of {value_len} bytes")]
    TooLarge {
        /// Name of the bucket.
        bucket: String,
        /// Length of the key.
        key_len: usize,
        /// Length of the value.
        value_len: usize,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }
}

#[cfg(test)]
mod tests;
