//! Writes a delta event by event. Memory does not grow with the number or the size of the events.

use std::fmt;
use std::io::{self, Write};

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::{Event, EventKind, LARGEST_EVENT};
use crate::trailer::{self, Hash};

/// Bytes that are held before they are hashed and written.
const BUFFER: usize = 64 << 10;

/// Bytes of a value that are turned into base64 at a time; a multiple of 3, so that the pieces need no padding.
const PIECE: usize = 48 << 10;

/// Why a delta can't be written.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The sink refused.
    #[error("write of the delta failed")]
    Write(#[from] io::Error),
    /// Events come in the order of their revisions.
    #[error("event of revision {found} after one of revision {last}: deltas are written in order")]
    Order {
        /// Revision of the event before (0: none).
        last: i64,
        /// Revision of the event.
        found: i64,
    },
    /// No reader would take it.
    #[error(
        "event of revision {revision} has {len} bytes: more than {LARGEST_EVENT} are not written to a delta"
    )]
    TooLarge {
        /// Revision of the event.
        revision: i64,
        /// Bytes of its key and its value.
        len: usize,
    },
    /// A delta covers at least one event.
    #[error("a delta without events is not written")]
    Empty,
}

/// What a finished delta holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Number of events.
    pub events: u64,
    /// Revision of the first event.
    pub first_revision: i64,
    /// Revision of the last event.
    pub last_revision: i64,
    /// Uncompressed length in bytes, trailer included.
    pub len: u64,
    /// SHA-256 of the JSON, as in the trailer.
    pub sha256: Hash,
}

/// Writes the uncompressed bytes of a delta into `W`.
#[must_use = "a delta is whole only after finish()"]
pub struct Encoder<W> {
    sink: W,
    buffer: Vec<u8>,
    hasher: Sha256,
    flushed: u64,
    events: u64,
    first: i64,
    last: i64,
}

impl<W: Write> Encoder<W> {
    /// Starts a delta.
    pub fn new(sink: W) -> Self {
        let buffer = Vec::with_capacity(BUFFER + 2 * PIECE);
        Self {
            sink,
            buffer,
            hasher: Sha256::new(),
            flushed: 0,
            events: 0,
            first: 0,
            last: 0,
        }
    }

    /// Uncompressed length so far.
    pub fn len(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    /// Whether there is no event yet.
    pub fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// Adds an event. Its sub-revision is its place among the events of its revision.
    ///
    /// # Errors
    /// The event is older than the one before or too large, or the sink failed.
    pub fn push(&mut self, event: &Event) -> Result<(), EncodeError> {
        if event.mod_revision < self.last.max(1) {
            return Err(EncodeError::Order {
                last: self.last,
                found: event.mod_revision,
            });
        }
        let len = event.key.len() + event.value.len();
        if len > LARGEST_EVENT {
            let revision = event.mod_revision;
            return Err(EncodeError::TooLarge { revision, len });
        }
        self.buffer.push(if self.is_empty() { b'[' } else { b',' });
        self.event(event)?;
        if self.is_empty() {
            self.first = event.mod_revision;
        }
        self.last = event.mod_revision;
        self.events += 1;
        Ok(())
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        self.buffer.extend_from_slice(match event.kind {
            EventKind::Put => br#"{"etcdEvent":{"kv":{"#,
            EventKind::Delete => br#"{"etcdEvent":{"type":1,"kv":{"#,
        });
        // `mod_revision` is never zero, so the commas around it are known.
        if !event.key.is_empty() {
            self.base64("key", &event.key)?;
            self.buffer.push(b',');
        }
        if event.create_revision != 0 {
            write!(self.buffer, r#""create_revision":{},"#, event.create_revision)?;
        }
        write!(self.buffer, r#""mod_revision":{}"#, event.mod_revision)?;
        if event.version != 0 {
            write!(self.buffer, r#","version":{}"#, event.version)?;
        }
        if !event.value.is_empty() {
            self.buffer.push(b',');
            self.base64("value", &event.value)?;
        }
        if event.lease != 0 {
            write!(self.buffer, r#","lease":{}"#, event.lease)?;
        }
        // Go's reader wants a time; the zero of this clock is as good as any for an event without one.
        write!(
            self.buffer,
            r#"}}}},"time":"{}""#,
            event.time.unwrap_or(Timestamp::UNIX_EPOCH)
        )?;
        if let Some(ttl) = event.lease_ttl {
            write!(self.buffer, r#","leaseTTL":{ttl}"#)?;
        }
        self.buffer.push(b'}');
        self.flush_full()
    }

    fn base64(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        write!(self.buffer, r#""{name}":""#)?;
        for piece in bytes.chunks(PIECE) {
            base64_simd::STANDARD.encode_append(piece, &mut self.buffer);
            self.flush_full()?;
        }
        self.buffer.push(b'"');
        Ok(())
    }

    fn flush_full(&mut self) -> io::Result<()> {
        if self.buffer.len() < BUFFER {
            Ok(())
        } else {
            self.flush()
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hasher.update(&self.buffer);
        self.sink.write_all(&self.buffer)?;
        self.flushed += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the end and the trailer, and gives the sink back.
    ///
    /// # Errors
    /// There was no event, or the sink failed.
    pub fn finish(mut self) -> Result<(W, Summary), EncodeError> {
        if self.is_empty() {
            return Err(EncodeError::Empty);
        }
        self.buffer.push(b']');
        self.flush()?;
        let sha256 = Hash::of(self.hasher);
        self.sink.write_all(&sha256.0)?;
        let summary = Summary {
            events: self.events,
            first_revision: self.first,
            last_revision: self.last,
            len: self.flushed + trailer::LEN as u64,
            sha256,
        };
        Ok((self.sink, summary))
    }
}

impl<W> fmt::Debug for Encoder<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder")
            .field("events", &self.events)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
