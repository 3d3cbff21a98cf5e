//! Gzip on several threads: the input is cut into blocks, each block becomes a gzip member of its own, and the
//! members are written in order. RFC 1952 and Go's reader take members one after the other as one stream.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::mem;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Input of one member. Large enough that fresh dictionaries cost well below 1 % of size.
const BLOCK: usize = 1 << 20;

type Member = io::Result<Vec<u8>>;

/// A gzip encoder that compresses blocks on up to `threads` threads; at most `2 × threads` blocks are held.
pub(super) struct ParallelGzip<W> {
    sink: W,
    level: u32,
    threads: usize,
    block: Vec<u8>,
    wrote_any: bool,
    pool: Option<Pool>,
    waiting: VecDeque<Receiver<Member>>,
}

impl<W: Write> ParallelGzip<W> {
    pub(super) fn new(sink: W, level: u32, threads: usize) -> Self {
        let block = Vec::new();
        Self {
            sink,
            level,
            threads,
            block,
            wrote_any: false,
            pool: None,
            waiting: VecDeque::new(),
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
        self.pool = None;
        while !self.waiting.is_empty() {
            self.write_oldest()?;
        }
        self.sink.flush()?;
        Ok(self.sink)
    }

    /// Hands the block to a thread, or compresses it here when there is but one thread or one short block.
    fn submit(&mut self) -> io::Result<()> {
        self.wrote_any = true;
        let block = mem::take(&mut self.block);
        if self.threads < 2 || (self.pool.is_none() && block.len() < BLOCK) {
            let member = compress(&block, self.level)?;
            return self.sink.write_all(&member);
        }
        while self.waiting.len() >= 2 * self.threads {
            self.write_oldest()?;
        }
        let (threads, level) = (self.threads, self.level);
        let pool = match &mut self.pool {
            Some(pool) => pool,
            none => none.insert(Pool::start(threads, level)?),
        };
        self.waiting.push_back(pool.submit(block)?);
        Ok(())
    }

    fn write_oldest(&mut self) -> io::Result<()> {
        if let Some(oldest) = self.waiting.pop_front() {
            let member = oldest.recv().map_err(|_| lost_thread())??;
            self.sink.write_all(&member)?;
        }
        Ok(())
    }
}

struct Job {
    block: Vec<u8>,
    reply: SyncSender<Member>,
}

/// Threads that take jobs from one queue and end when the queue is dropped.
struct Pool {
    jobs: Sender<Job>,
}

impl Pool {
    fn start(threads: usize, level: u32) -> io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..threads {
            let queue = Arc::clone(&queue);
            thread::Builder::new().name("gzip".to_owned()).spawn(move || {
                loop {
                    // The guard is dropped at the end of the statement, before the work.
                    let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(Job { block, reply }) = job else { break };
                    // A reply that nobody waits for belongs to an encoder that was dropped.
                    let _ = reply.send(compress(&block, level));
                }
            })?;
        }
        Ok(Self { jobs })
    }

    fn submit(&self, block: Vec<u8>) -> io::Result<Receiver<Member>> {
        let (reply, member) = sync_channel(1);
        self.jobs.send(Job { block, reply }).map_err(|_| lost_thread())?;
        Ok(member)
    }
}

fn compress(block: &[u8], level: u32) -> Member {
    let out = Vec::with_capacity(block.len() / 2 + 64);
    let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::new(level));
    encoder.write_all(block)?;
    encoder.finish()
}

fn lost_thread() -> io::Error {
    io::Error::other("a compression thread ended early")
}
