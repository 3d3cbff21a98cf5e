//! Threads that turn blocks into other blocks, which come out in the order in which they went in.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

pub(super) type Block = io::Result<Vec<u8>>;

type Work = dyn Fn(&[u8]) -> Block + Send + Sync;

/// A queue of blocks that up to `threads` threads work on. They are started when there is something for them.
pub(super) struct Pool {
    threads: usize,
    work: Arc<Work>,
    jobs: Option<Sender<Job>>,
    queue: VecDeque<Slot>,
}

struct Job {
    block: Vec<u8>,
    reply: SyncSender<Block>,
}

enum Slot {
    Done(Block),
    Working(Receiver<Block>),
}

impl Pool {
    pub(super) fn new(threads: usize, work: impl Fn(&[u8]) -> Block + Send + Sync + 'static) -> Self {
        Self {
            threads,
            work: Arc::new(work),
            jobs: None,
            queue: VecDeque::new(),
        }
    }

    /// Blocks that went in and didn't come out yet.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Takes a block in. A small one is the last one: if it is also the first one, no thread is started for it.
    pub(super) fn push(&mut self, block: Vec<u8>, small: bool) -> io::Result<()> {
        if self.threads < 2 || (self.jobs.is_none() && small) {
            self.queue.push_back(Slot::Done((self.work)(&block)));
            return Ok(());
        }
        let jobs = match &mut self.jobs {
            Some(jobs) => jobs,
            none => none.insert(start(self.threads, &self.work)?),
        };
        let (reply, done) = sync_channel(1);
        jobs.send(Job { block, reply }).map_err(|_| lost_thread())?;
        self.queue.push_back(Slot::Working(done));
        Ok(())
    }

    /// Queues an error in the place of a block that can't be had.
    pub(super) fn fail(&mut self, error: io::Error) {
        self.queue.push_back(Slot::Done(Err(error)));
    }

    /// Waits for the oldest block. `None` when there is none.
    pub(super) fn pop(&mut self) -> Option<Block> {
        Some(match self.queue.pop_front()? {
            Slot::Done(block) => block,
            Slot::Working(done) => done.recv().unwrap_or_else(|_| Err(lost_thread())),
        })
    }
}

/// Threads that take jobs from one channel and end when it is dropped.
fn start(threads: usize, work: &Arc<Work>) -> io::Result<Sender<Job>> {
    let (jobs, channel) = channel::<Job>();
    let channel = Arc::new(Mutex::new(channel));
    for _ in 0..threads {
        let (channel, work) = (Arc::clone(&channel), Arc::clone(work));
        thread::Builder::new().name("gzip".to_owned()).spawn(move || {
            loop {
                // The guard is dropped at the end of the statement, before the work.
                let job = channel.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(Job { block, reply }) = job else { break };
                // A reply that nobody waits for belongs to a coder that was dropped.
                let _ = reply.send(work(&block));
            }
        })?;
    }
    Ok(jobs)
}

fn lost_thread() -> io::Error {
    io::Error::other("a compression thread ended early")
}
