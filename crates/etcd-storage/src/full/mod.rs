//! Full snapshots: the raw bbolt file that etcd's Snapshot call streams, followed by its SHA-256.
//!
//! [`Scanner`] checks such a stream while it passes and finds the last revision that is *in* it. The revision that
//! the server had when the call began is only a lower bound: etcd starts to write the file later.

mod pages;

use std::fmt;
use std::io;

use sha2::{Digest, Sha256};

use self::pages::Pages;
use crate::bolt::MetaFault;
use crate::trailer::{self, Hash};

/// What a full snapshot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullSummary {
    /// Length of the database in bytes, without the trailer.
    pub db_size: u64,
    /// Page size of the database in bytes.
    pub page_size: usize,
    /// The revision that an etcd has which starts from this database.
    pub revision: i64,
    /// Revision up to which the history was compacted; 0 for none.
    pub compact_revision: i64,
    /// SHA-256 of the database, as in the trailer.
    pub sha256: Hash,
}

/// Why a stream is no full snapshot.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The stream isn't what was written.
    #[error(transparent)]
    Damaged(#[from] trailer::Error),
    /// It doesn't begin with a meta page.
    #[error("not a database: {0}")]
    Meta(#[from] MetaFault),
    /// The database isn't made of whole pages.
    #[error("database of {len} bytes is cut: its pages have {page_size} bytes")]
    Cut {
        /// Length of the database.
        len: u64,
        /// Page size of the database.
        page_size: usize,
    },
    /// The hash fits, but the tree has a hole.
    #[error("database is damaged: page {page} is not {expected}")]
    Structure {
        /// Number of the page.
        page: u64,
        /// What the page had to be.
        expected: &'static str,
    },
}

/// Follows the bytes of a full snapshot; memory is 8 bytes for each page (16 MiB for 8 GiB of 4 KiB pages).
pub struct Scanner {
    /// The newest bytes: the trailer, if nothing follows.
    held: [u8; trailer::LEN],
    held_len: usize,
    hasher: Sha256,
    pages: Pages,
    len: u64,
}

impl Scanner {
    /// Starts a scan.
    pub fn new() -> Self {
        Self {
            held: [0; trailer::LEN],
            held_len: 0,
            hasher: Sha256::new(),
            pages: Pages::new(),
            len: 0,
        }
    }

    /// Takes the next bytes of the stream (uncompressed). What is wrong with them is said by [`Scanner::finish`].
    pub fn update(&mut self, bytes: &[u8]) {
        let total = self.held_len + bytes.len();
        let passed = total.saturating_sub(trailer::LEN);
        let from_held = passed.min(self.held_len);
        let held = self.held;
        self.pass(&held[..from_held]);
        self.pass(&bytes[..passed - from_held]);
        self.held.copy_within(from_held..self.held_len, 0);
        self.held_len -= from_held;
        let rest = &bytes[passed - from_held..];
        self.held[self.held_len..self.held_len + rest.len()].copy_from_slice(rest);
        self.held_len += rest.len();
    }

    fn pass(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.pages.update(bytes);
        self.len += bytes.len() as u64;
    }

    /// Checks the hash and the structure, and says what the snapshot holds.
    ///
    /// # Errors
    /// The stream was cut or altered, or is no database.
    pub fn finish(self) -> Result<FullSummary, Error> {
        if self.len == 0 {
            return Err(trailer::Error::TooShort {
                len: self.held_len as u64,
            }
            .into());
        }
        let (stated, found) = (Hash(self.held), Hash::of(self.hasher));
        if stated != found {
            return Err(trailer::Error::Mismatch {
                stated,
                found,
                len: self.len,
            }
            .into());
        }
        let contents = self.pages.finish()?;
        Ok(FullSummary {
            db_size: self.len,
            page_size: contents.page_size,
            revision: contents.last_revision.max(contents.compact_revision).max(1),
            compact_revision: contents.compact_revision,
            sha256: found,
        })
    }
}

impl Default for Scanner {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Scanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scanner")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// So that a stream can be copied into the scanner.
impl io::Write for Scanner {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
