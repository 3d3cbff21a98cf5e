//! Gzip on several threads: the input is cut into blocks, each block becomes a gzip member of its own, and the
//! members are written in order. RFC 1952 and Go's reader take members one after the other as one stream. What was
//! written so is read on several threads as well; any other stream is read as it comes.

use std::io::{self, BufReader, Chain, Cursor, Read, Write};
use std::{mem, thread};

use flate2::bufread::MultiGzDecoder;

use super::member::{BLOCK, HEADER, compress, inflate, is_short, stated_len};
use super::pool::Pool;

/// More threads would inflate faster than anything here can take it.
const MOST_READERS: usize = 4;

/// A gzip encoder that compresses blocks on up to `threads` threads; at most `2 × threads` blocks are held.
pub(super) struct ParallelGzip<W> {
    sink: W,
    room: usize,
    block: Vec<u8>,
    wrote_any: bool,
    pool: Pool,
}

impl<W: Write> ParallelGzip<W> {
    pub(super) fn new(sink: W, level: i32, threads: usize) -> Self {
        Self {
            sink,
            room: if threads < 2 { 0 } else { 2 * threads },
            block: Vec::new(),
            wrote_any: false,
            pool: Pool::new(threads, move |block| compress(block, level)),
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.block.len() == BLOCK {
            self.submit()?;
        }
        let taken = bytes.len().min(BLOCK - self.block.len());
        self.block.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }

    pub(super) fn finish(mut self) -> io::Result<W> {
        // An empty input is still one (empty) member: an empty object is no gzip stream.
        if !self.block.is_empty() || !self.wrote_any {
            self.submit()?;
        }
        self.write_down_to(0)?;
        self.sink.flush()?;
        Ok(self.sink)
    }

    fn submit(&mut self) -> io::Result<()> {
        self.wrote_any = true;
        let block = mem::take(&mut self.block);
        let is_short = block.len() < BLOCK;
        self.write_down_to(self.room.saturating_sub(1))?;
        self.pool.push(block, is_short)?;
        self.write_down_to(self.room)
    }

    /// Writes the oldest members until no more than so many are left.
    fn write_down_to(&mut self, left: usize) -> io::Result<()> {
        while self.pool.len() > left
            && let Some(member) = self.pool.pop()
        {
            self.sink.write_all(&member?)?;
        }
        Ok(())
    }
}

/// A gzip decoder that inflates members on several threads, as far as they say how long they are.
pub(super) struct ParallelGunzip<R: Read> {
    source: Source<R>,
    ahead: usize,
    pool: Pool,
    block: Vec<u8>,
    used: usize,
}

/// A stream of which the first bytes are read already.
type Begun<R> = Chain<Cursor<Vec<u8>>, BufReader<R>>;

/// What is still to be read.
enum Source<R: Read> {
    /// As far as known members that are told apart. `true` once there was one.
    Members(BufReader<R>, bool),
    /// Something else.
    Stream(Box<MultiGzDecoder<Begun<R>>>),
    /// Nothing.
    End,
}

impl<R: Read> ParallelGunzip<R> {
    pub(super) fn new(source: BufReader<R>) -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.min(MOST_READERS);
        Self {
            source: Source::Members(source, false),
            ahead: threads + 1,
            pool: Pool::new(threads, inflate),
            block: Vec::new(),
            used: 0,
        }
    }

    /// Puts members into the queue as long as there is room.
    fn read_ahead(&mut self) -> io::Result<()> {
        while self.pool.len() < self.ahead {
            let Source::Members(source, begun) = &mut self.source else {
                break;
            };
            let mut head = Vec::with_capacity(HEADER);
            source.by_ref().take(HEADER as u64).read_to_end(&mut head)?;
            if head.is_empty() && *begun {
                self.source = Source::End;
                break;
            }
            let len = head.first_chunk().and_then(stated_len);
            if let Some(len) = len {
                *begun = true;
                self.read_member(head, len)?;
            } else {
                self.read_on_as_stream(head);
            }
        }
        Ok(())
    }

    fn read_member(&mut self, mut member: Vec<u8>, len: usize) -> io::Result<()> {
        let Source::Members(source, _) = &mut self.source else {
            return Ok(());
        };
        member.resize(len, 0);
        match source.read_exact(&mut member[HEADER..]) {
            Ok(()) => {
                let is_short = is_short(&member);
                self.pool.push(member, is_short)
            }
            Err(error) => {
                // After what came before it.
                self.pool.fail(error);
                self.source = Source::End;
                Ok(())
            }
        }
    }

    fn read_on_as_stream(&mut self, head: Vec<u8>) {
        if let Source::Members(source, _) = mem::replace(&mut self.source, Source::End) {
            let decoder = MultiGzDecoder::new(Cursor::new(head).chain(source));
            self.source = Source::Stream(Box::new(decoder));
        }
    }
}

impl<R: Read> Read for ParallelGunzip<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.used == self.block.len() {
            self.read_ahead()?;
            match (self.pool.pop(), &mut self.source) {
                (Some(block), _) => (self.block, self.used) = (block?, 0),
                (None, Source::Stream(stream)) => return stream.read(out),
                (None, _) => return Ok(0),
            }
        }
        let count = out.len().min(self.block.len() - self.used);
        out[..count].copy_from_slice(&self.block[self.used..self.used + count]);
        self.used += count;
        Ok(count)
    }
}
