//! Reads several objects ahead of the one that is being used: opened and decompressed on threads of their own, in a
//! window of a few objects and a few chunks each.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::compression::Decoder;
use crate::object::Object;

/// Objects that are open at a time.
const WINDOW: usize = 4;

/// Bytes of a chunk, and chunks that wait for each object: 1 MiB an object.
const CHUNK: usize = 256 << 10;
const DEPTH: usize = 4;

type Chunk = io::Result<Vec<u8>>;

/// Hands each object's decompressed bytes to `body`, which takes the readers in the order of `objects`.
pub(super) fn with_feed<'o, T>(
    objects: &[&'o Object],
    body: impl FnOnce(&mut dyn Iterator<Item = (&'o Object, Feed)>) -> T,
) -> T {
    let (senders, receivers): (Vec<_>, Vec<_>) = objects.iter().map(|_| sync_channel(DEPTH)).unzip();
    let queue = Mutex::new(objects.iter().copied().zip(senders));
    thread::scope(|scope| {
        for _ in 0..WINDOW.min(objects.len()) {
            scope.spawn(|| {
                loop {
                    // The guard is dropped at the end of the statement, before the work.
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((object, sender)) = next else { break };
                    if !send_all(object, &sender) {
                        break;
                    }
                }
            });
        }
        // Dropping what is left of the readers makes the threads' next send fail, and so ends them.
        body(&mut objects.iter().copied().zip(receivers.into_iter().map(Feed::new)))
    })
}

/// Sends an object's bytes; false when nobody wants them any more.
fn send_all(object: &Object, sender: &SyncSender<Chunk>) -> bool {
    let opened = (object.open)().and_then(|source| Decoder::new(object.compression, source));
    let mut decoder = match opened {
        Ok(decoder) => decoder,
        Err(error) => return sender.send(Err(error)).is_ok(),
    };
    loop {
        let mut chunk = vec![0; CHUNK];
        let mut filled = 0;
        let mut failed = None;
        while filled < CHUNK {
            match decoder.read(&mut chunk[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        let last = filled < CHUNK;
        chunk.truncate(filled);
        if filled > 0 && sender.send(Ok(chunk)).is_err() {
            return false;
        }
        if let Some(error) = failed {
            return sender.send(Err(error)).is_ok();
        }
        if last {
            // An empty chunk is the end; without it the thread has died.
            return sender.send(Ok(Vec::new())).is_ok();
        }
    }
}

/// The decompressed bytes of one object.
pub(super) struct Feed {
    chunks: Receiver<Chunk>,
    chunk: Vec<u8>,
    used: usize,
    done: bool,
}

impl Feed {
    fn new(chunks: Receiver<Chunk>) -> Self {
        Self {
            chunks,
            chunk: Vec::new(),
            used: 0,
            done: false,
        }
    }
}

impl Read for Feed {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.used == self.chunk.len() && !self.done {
            self.chunk = self
                .chunks
                .recv()
                .map_err(|_| io::Error::other("the reading thread ended early"))??;
            self.used = 0;
            self.done = self.chunk.is_empty();
        }
        let count = out.len().min(self.chunk.len() - self.used);
        out[..count].copy_from_slice(&self.chunk[self.used..self.used + count]);
        self.used += count;
        Ok(count)
    }
}
