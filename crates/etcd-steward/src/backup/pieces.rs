//! Bytes that are held in pieces. One buffer that grows would be moved again and again, and leave holes behind that
//! together are larger than what it holds.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures::stream;
use snapstore::Body;

/// Bytes of a piece.
const PIECE: usize = 256 << 10;

/// What was written, in order. Clones share the pieces.
#[derive(Debug, Clone, Default)]
pub(super) struct Pieces {
    full: Vec<Bytes>,
    last: Vec<u8>,
    written: Arc<AtomicU64>,
}

impl Pieces {
    /// Counts the bytes, also when something else has the pieces to write to.
    pub(super) fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.written)
    }

    /// Number of bytes.
    pub(super) fn len(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Closes the last piece.
    pub(super) fn seal(mut self) -> Self {
        if !self.last.is_empty() {
            self.full.push(std::mem::take(&mut self.last).into());
        }
        self
    }

    /// Writes all of it to a sink.
    pub(super) fn copy_to(&self, sink: &mut impl Write) -> io::Result<()> {
        let pieces = self.full.iter().map(|piece| &piece[..]);
        pieces
            .chain([&self.last[..]])
            .try_for_each(|piece| sink.write_all(piece))
    }

    /// All of it, as the content of an upload.
    pub(super) fn body(&self) -> Body {
        let sealed = self.clone().seal();
        let length = sealed.len();
        Body::from_stream(stream::iter(sealed.full.into_iter().map(Ok)), Some(length))
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.last.capacity() == 0 {
            self.last.reserve_exact(PIECE);
        }
        let count = bytes.len().min(PIECE - self.last.len());
        self.last.extend_from_slice(&bytes[..count]);
        self.written.fetch_add(count as u64, Ordering::Relaxed);
        if self.last.len() == PIECE {
            self.full.push(std::mem::take(&mut self.last).into());
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_hold_what_was_written() {
        let mut pieces = Pieces::default();
        let written: Vec<u8> = (0..=250).cycle().take(PIECE * 2 + 17).collect();
        for part in written.chunks(1000) {
            pieces.write_all(part).unwrap();
        }
        assert_eq!(pieces.len(), written.len() as u64);
        let sealed = pieces.seal();
        assert_eq!(sealed.full.len(), 3);
        assert_eq!(sealed.full.concat(), written);
        assert_eq!(Pieces::default().seal().full.len(), 0);
    }
}
