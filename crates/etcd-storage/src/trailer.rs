//! The 32-byte SHA-256 that ends every backup object, full or delta: over all bytes before it, before compression.

use std::fmt::{self, Write as _};
use std::io::{self, Read};

use sha2::{Digest, Sha256};

/// Length of the trailer in bytes.
pub const LEN: usize = 32;

/// Bytes that are read at a time.
const CHUNK: usize = 256 << 10;

/// A SHA-256 value; shown as lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; LEN]);

impl Hash {
    pub(crate) fn of(hasher: Sha256) -> Self {
        Self(hasher.finalize().into())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        write!(text, "{self}")?;
        f.debug_tuple("Hash").field(&text).finish()
    }
}

/// Why a stream and its trailer don't fit together.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The stream could not be read or decompressed.
    #[error("read failed at byte {at} of the uncompressed data")]
    Read {
        /// Offset in the uncompressed stream.
        at: u64,
        /// What the reader said.
        #[source]
        source: io::Error,
    },
    /// There is no room for a trailer and a single byte.
    #[error("only {len} bytes long: too short to hold data and its SHA-256")]
    TooShort {
        /// Length of the whole stream.
        len: u64,
    },
    /// The data isn't what was hashed: it was cut or altered.
    #[error("SHA-256 does not match: the trailer says {stated}, the {len} bytes before it have {found}")]
    Mismatch {
        /// The hash in the trailer.
        stated: Hash,
        /// The hash of the data.
        found: Hash,
        /// Length of the data, without the trailer.
        len: u64,
    },
}

/// A reader that hands out everything but the trailer, hashing as it goes.
pub(crate) struct Body<R> {
    source: R,
    hasher: Sha256,
    buffer: Box<[u8]>,
    start: usize,
    /// End of the bytes that are certainly not the trailer; they are hashed already.
    released: usize,
    end: usize,
    eof: bool,
    position: u64,
}

impl<R: Read> Body<R> {
    pub(crate) fn new(source: R) -> Self {
        let buffer = vec![0; CHUNK + LEN].into_boxed_slice();
        Self {
            source,
            hasher: Sha256::new(),
            buffer,
            start: 0,
            released: 0,
            end: 0,
            eof: false,
            position: 0,
        }
    }

    /// Offset of the next byte that [`Body::fill`] returns.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The bytes at hand; reads on when there are none. Empty only at the end of the data.
    #[inline]
    pub(crate) fn fill(&mut self) -> Result<&[u8], Error> {
        if self.start == self.released {
            self.refill()?;
        }
        Ok(&self.buffer[self.start..self.released])
    }

    #[inline]
    pub(crate) fn consume(&mut self, count: usize) {
        debug_assert!(
            count <= self.released - self.start,
            "consumed more than was handed out"
        );
        self.start += count;
        self.position += count as u64;
    }

    #[cold]
    fn refill(&mut self) -> Result<(), Error> {
        while self.start == self.released && !self.eof {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            (self.start, self.released) = (0, 0);
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.eof = true,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => {
                    return Err(Error::Read {
                        at: self.position,
                        source,
                    });
                }
            }
            self.released = self.end.saturating_sub(LEN);
            self.hasher.update(&self.buffer[..self.released]);
        }
        Ok(())
    }

    /// Reads what is left and compares the hash with the trailer.
    pub(crate) fn verify(mut self) -> Result<Hash, Error> {
        loop {
            let rest = self.fill()?.len();
            if rest == 0 {
                break;
            }
            self.consume(rest);
        }
        let trailer = &self.buffer[self.start..self.end];
        let stated = match <[u8; LEN]>::try_from(trailer) {
            Ok(stated) if self.position > 0 => Hash(stated),
            _ => {
                return Err(Error::TooShort {
                    len: self.position + trailer.len() as u64,
                });
            }
        };
        let found = Hash::of(self.hasher);
        if stated == found {
            Ok(found)
        } else {
            Err(Error::Mismatch {
                stated,
                found,
                len: self.position,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives out so many bytes at a time, so that the trailer crosses every border.
    struct Slowly<'a>(&'a [u8], usize);

    impl Read for Slowly<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(out.len());
            out[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn with_trailer(data: &[u8]) -> Vec<u8> {
        let mut whole = data.to_vec();
        whole.extend_from_slice(&Sha256::digest(data));
        whole
    }

    #[test]
    fn data_and_trailer_part_at_any_read_size() {
        let data: Vec<u8> = (0..200).collect();
        for step in 1..70 {
            let whole = with_trailer(&data);
            let mut body = Body::new(Slowly(&whole, step));
            let mut seen = Vec::new();
            loop {
                let chunk = body.fill().unwrap();
                if chunk.is_empty() {
                    break;
                }
                seen.extend_from_slice(chunk);
                let count = chunk.len();
                body.consume(count);
            }
            assert_eq!(seen, data, "step {step}");
            assert_eq!(body.verify().unwrap().0[..], whole[200..]);
        }
    }

    #[test]
    fn short_cut_and_altered_data_is_refused() {
        for len in 0..=LEN {
            let short = vec![7; len];
            assert!(
                matches!(Body::new(&short[..]).verify(), Err(Error::TooShort { len: l }) if l == len as u64)
            );
        }
        let whole = with_trailer(b"some data");
        for at in 0..whole.len() {
            let mut altered = whole.clone();
            altered[at] ^= 0x10;
            assert!(matches!(
                Body::new(&altered[..]).verify(),
                Err(Error::Mismatch { .. })
            ));
        }
        assert!(Body::new(&whole[..whole.len() - 1]).verify().is_err());
    }
}
