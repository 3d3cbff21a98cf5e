//! The compressions of backup objects: which suffix means what, and streaming coders.
//!
//! A decoder never takes a cut stream for a finished one, and an encoder's output is whole only after
//! [`Encoder::finish`]. The bytes inside carry a hash of their own (see [`crate::trailer`]).

mod decode;
mod encode;
mod member;
mod parallel;
mod pool;

use std::fmt;
use std::str::FromStr;

pub use decode::Decoder;
pub use encode::Encoder;

/// How the bytes of a backup object are compressed.
///
/// The names are those of etcd-backup-restore's `--compression-policy`, the suffixes those of its object
/// names. `Zstd` is ours: etcd-backup-restore can't read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// The bytes as they are; no suffix.
    None,
    /// RFC 1952, one member or several; `.gz`.
    #[default]
    Gzip,
    /// RFC 1950; `.zlib`.
    Zlib,
    /// LZW as in GIF: least significant bit first, 8 bit literals; `.Z`, though not the format of Unix `compress`.
    Lzw,
    /// Zstandard (RFC 8878); `.zst`.
    Zstd,
}

impl Compression {
    /// Every compression there is.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Zlib, Self::Lzw, Self::Zstd];

    /// The suffix of an object's name, with its dot; empty for no compression.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gzip => ".gz",
            Self::Zlib => ".zlib",
            Self::Lzw => ".Z",
            Self::Zstd => ".zst",
        }
    }

    /// The compression that a suffix (with its dot, or empty) stands for.
    ///
    /// # Errors
    /// A suffix that no compression here has: the object can be listed, but not read.
    pub fn from_suffix(suffix: &str) -> Result<Self, UnknownCompression> {
        let found = Self::ALL.into_iter().find(|one| one.suffix() == suffix);
        found.ok_or_else(|| UnknownCompression(suffix.to_owned()))
    }

    /// The name used in flags and configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
            Self::Lzw => "lzw",
            Self::Zstd => "zstd",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| UnknownCompression(name.to_owned()))
    }
}

/// A suffix or a name that stands for no compression known here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown compression {0:?}: expected one of none, gzip, zlib, lzw, zstd")]
pub struct UnknownCompression(pub String);

#[cfg(test)]
mod tests;
