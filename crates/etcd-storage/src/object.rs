//! A backup object as the engine sees it: a way to read its bytes, and what its name says about them.

use std::fmt;
use std::io::{self, Read};

use crate::compression::Compression;

/// Opens an object from its start; called again for another pass.
pub type Open = Box<dyn Fn() -> io::Result<Box<dyn Read + Send>> + Send + Sync>;

/// A full or delta snapshot in a store.
pub struct Object {
    /// Its name, for errors and progress.
    pub name: String,
    /// How its bytes are compressed.
    pub compression: Compression,
    /// First revision that its name claims; 0 for a full.
    pub start: i64,
    /// Last revision that its name claims.
    pub last: i64,
    /// Opens its (compressed) bytes.
    pub open: Open,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A full snapshot and the deltas after it, in order.
#[derive(Debug)]
pub struct Chain {
    /// The full snapshot.
    pub base: Object,
    /// Deltas in ascending order. They may overlap the base and each other, but must leave no gap.
    pub deltas: Vec<Object>,
}

/// Where to stop in a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// At its end.
    #[default]
    Latest,
    /// After this revision. It may lie within the base, as long as the base is not compacted beyond it.
    Revision(i64),
    /// Before the first revision of the deltas that was received after this time.
    Time(jiff::Timestamp),
}
