//! Full snapshots: the raw bbolt file that etcd's Snapshot call streams, followed by its SHA-256.
//!
//! [`Scanner`] judges such a stream while it passes: its hash, and the whole tree in it. It is the one judge of full
//! snapshots: of those that are verified, restored, compacted, copied, and of those that are about to be uploaded. It
//! also finds the last revision that is *in* the stream. The revision that the server had when the call began is only a
//! lower bound: etcd starts to write the file later.

mod freelist;
mod keys;
mod note;
mod pages;
mod record;
mod run;
mod skeleton;
mod walk;

use std::fmt;
use std::io;
use std::path::Path;

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
    /// Live keys at that revision, counted by the records; none while a compaction is under way, which may have left old
    /// records.
    pub keys: Option<i64>,
    /// SHA-256 of the database, as in the trailer.
    pub sha256: Hash,
    /// What isn't as it should be, though nothing of the data is concerned.
    pub warnings: Warnings,
}

/// What isn't as it should be in a database whose data is whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warnings {
    /// The list of free pages is wrong. A restore leaves it out, and etcd makes it anew.
    pub freelist: Option<&'static str>,
    /// The newest transaction is lost.
    pub previous: Option<Previous>,
    /// There is no hash, or it isn't that of the data: what is in values wasn't checked.
    pub hash: Option<HashFault>,
}

impl Warnings {
    /// In words; `None` when there are none.
    pub fn text(&self) -> Option<String> {
        let freelist = self
            .freelist
            .map(|what| format!("the list of free pages {what}; etcd makes it anew"));
        let previous = self.previous.map(|previous| {
            format!(
                "the newest transaction is lost; the one before it ({}) is whole, at revision {}",
                previous.txid, previous.revision
            )
        });
        let hash = self.hash.map(|fault| match fault {
            HashFault::Absent => "there is no SHA-256 to compare the data with".to_owned(),
            HashFault::Mismatch => "the SHA-256 isn't that of the data, of which some is altered".to_owned(),
        });
        let all: Vec<_> = [freelist, previous, hash].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// Why a database is only as good as its structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashFault {
    /// It ends with its last page, as a database in a data directory does.
    Absent,
    /// Its hash is that of something else.
    Mismatch,
}

/// The state before the newest transaction, which is whole while the newest isn't.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Previous {
    /// Number of the meta page that leads nowhere, or isn't one any more.
    pub lost_meta: u64,
    /// Id of the transaction.
    pub txid: u64,
    /// Revision of its state.
    pub revision: i64,
}

/// What a user has agreed to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consent {
    /// Take the state before the newest transaction when the newest isn't whole.
    pub use_previous_meta: bool,
    /// Do without a SHA-256 that fits.
    pub skip_hash_check: bool,
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
    /// It goes on where a database has ended.
    #[error(
        "goes on behind the end of its database: {len} bytes so far, but its {pages} pages need {pages} x {page_size}"
    )]
    Overlong {
        /// Bytes so far.
        len: u64,
        /// Number of pages.
        pages: u64,
        /// Size of a page.
        page_size: usize,
    },
    /// The hash fits, but the tree is broken.
    #[error("database is damaged: page {page} {what}")]
    Structure {
        /// Number of the page.
        page: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// It is a database of something else.
    #[error("not a database of etcd: it has no bucket {name:?}")]
    NoBucket {
        /// Name of the bucket.
        name: String,
    },
    /// The newest state is lost, but the one before is there.
    #[error(
        "{source}; the transaction before it ({}) is whole, at revision {}: `restore --use-previous-meta` restores that, and what was written later is lost",
        previous.txid, previous.revision
    )]
    Previous {
        /// What is wrong with the newest.
        source: Box<Self>,
        /// What is left.
        previous: Previous,
    },
    /// The tree is whole, but there is nothing to compare its data with.
    #[error(
        "has no SHA-256 at its end, as a database that was copied out of a data directory; its tree is whole: `restore --skip-hash-check` restores it"
    )]
    NoHash,
    /// The temporary file for the walk failed.
    #[error("the temporary file for the check can't be read")]
    Scratch(#[source] io::Error),
}

/// Follows the bytes of a full snapshot. Memory is 8 bytes for each page (16 MiB for 8 GiB of 4 KiB pages) and 24 MiB;
/// the rest of what the check needs goes to a temporary file, which large databases need only.
pub struct Scanner {
    /// The newest bytes: the trailer, if nothing follows.
    held: [u8; trailer::LEN],
    held_len: usize,
    hasher: Sha256,
    pages: Pages,
    len: u64,
    consent: Consent,
}

impl Scanner {
    /// Starts a scan, with temporary files where the system has them.
    pub fn new() -> Self {
        Self::with(None, Consent::default())
    }

    /// Starts a scan with temporary files in a folder.
    pub fn with(scratch: Option<&Path>, consent: Consent) -> Self {
        Self {
            held: [0; trailer::LEN],
            held_len: 0,
            hasher: Sha256::new(),
            pages: Pages::new(scratch),
            len: 0,
            consent,
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

    /// Whether enough was seen to refuse it: nothing that follows can make it a full snapshot.
    pub fn is_hopeless(&self) -> bool {
        self.pages.is_overlong()
    }

    /// Checks the hash and the structure, and says what the snapshot holds.
    ///
    /// # Errors
    /// The stream was cut or altered, or is no database.
    pub fn finish(mut self) -> Result<FullSummary, Error> {
        if self.len == 0 {
            return Err(trailer::Error::TooShort {
                len: self.held_len as u64,
            }
            .into());
        }
        let stated = Hash(self.held);
        let found = Hash::of(self.hasher.clone());
        let hash = self.hash_fault(stated, found);
        if hash == Some(HashFault::Absent) {
            let held = self.held;
            self.pass(&held);
        }
        if hash == Some(HashFault::Mismatch) && !self.consent.skip_hash_check && !self.is_hopeless() {
            let len = self.len;
            return Err(trailer::Error::Mismatch { stated, found, len }.into());
        }
        let contents = self.pages.finish(self.consent.use_previous_meta)?;
        if hash == Some(HashFault::Absent) && !self.consent.skip_hash_check {
            return Err(Error::NoHash);
        }
        Ok(FullSummary {
            db_size: self.len,
            page_size: contents.page_size,
            revision: contents.last_revision.max(contents.compact_revision).max(1),
            compact_revision: contents.compact_revision,
            keys: contents.keys,
            sha256: Hash::of(self.hasher),
            warnings: Warnings {
                freelist: contents.freelist,
                previous: contents.previous,
                hash,
            },
        })
    }

    /// What is wrong with the hash. A database without one is made of whole pages to its last byte.
    fn hash_fault(&self, stated: Hash, found: Hash) -> Option<HashFault> {
        let ends_with_page = self
            .pages
            .page_size()
            .is_some_and(|page_size| (self.len + self.held_len as u64).is_multiple_of(page_size as u64));
        match (stated == found, ends_with_page) {
            (true, _) => None,
            (false, true) => Some(HashFault::Absent),
            (false, false) => Some(HashFault::Mismatch),
        }
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
