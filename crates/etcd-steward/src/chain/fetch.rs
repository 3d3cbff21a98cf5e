//! Fetches one object ahead of its reader: several ranges at once, handed out in order, in bounded memory.

use std::{
    collections::VecDeque,
    io::{self, Read},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::{Buf as _, Bytes};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use snapstore::{
    Class, Error, Object, SnapStore,
    manifest::{Digest, Manifest},
};
use tokio::{runtime::Handle, sync::mpsc};
use tokio_util::task::AbortOnDropHandle;

/// Bytes of a range.
const PART: u64 = 2 << 20;

/// Ranges that are on their way or wait for the reader. The engine reads four objects ahead: 40 MiB in all.
const AHEAD: usize = 4;

type Part = Result<Vec<Bytes>, Error>;

/// The bytes of an object, to be read on a thread outside the runtime.
#[derive(Debug)]
pub(super) struct Fetch {
    parts: mpsc::Receiver<Part>,
    pieces: VecDeque<Bytes>,
    /// Bytes that are still to come in parts.
    left: u64,
    _pump: AbortOnDropHandle<()>,
}

impl Fetch {
    /// Begins to fetch. Dropping it ends that.
    pub(super) fn start(
        store: Arc<dyn SnapStore>,
        object: Object,
        manifest: Option<Manifest>,
        fetched: Arc<AtomicU64>,
        runtime: &Handle,
    ) -> Self {
        let (sender, parts) = mpsc::channel(1);
        let (size, spawner) = (object.size, runtime.clone());
        let pump = async move {
            let fetches = ranges(size).map(|range| {
                let fetch = part(Arc::clone(&store), object.clone(), range, Arc::clone(&fetched));
                AbortOnDropHandle::new(spawner.spawn(fetch))
            });
            let mut fetches = stream::iter(fetches).buffered(AHEAD - 1);
            let mut proof = manifest.map(|manifest| Proof::new(manifest, size));
            while let Some(fetched) = fetches.next().await {
                let part = fetched.unwrap_or_else(|error| Err(broken_off(&error.to_string())));
                let part = match &mut proof {
                    Some(proof) => part.and_then(|part| proof.pass(part)),
                    None => part,
                };
                let failed = part.is_err();
                if sender.send(part).await.is_err() || failed {
                    return;
                }
            }
        };
        Self {
            parts,
            pieces: VecDeque::new(),
            left: size,
            _pump: AbortOnDropHandle::new(runtime.spawn(pump)),
        }
    }
}

/// Lets the last part pass only when all of them are what the manifest says.
struct Proof {
    manifest: Manifest,
    digest: Digest,
    left: u64,
}

impl Proof {
    fn new(manifest: Manifest, size: u64) -> Self {
        Self {
            manifest,
            digest: Digest::default(),
            left: size,
        }
    }

    fn pass(&mut self, part: Vec<Bytes>) -> Part {
        for piece in &part {
            self.digest.update(piece);
        }
        self.left -= length(&part);
        if self.left == 0 {
            self.manifest.check(std::mem::take(&mut self.digest))?;
        }
        Ok(part)
    }
}

fn ranges(size: u64) -> impl Iterator<Item = Range<u64>> + Send {
    let starts = (0..size.div_ceil(PART)).map(|number| number * PART);
    starts.map(move |start| start..size.min(start + PART))
}

/// What arrives is counted at once, however slowly the rest of the part follows.
async fn part(store: Arc<dyn SnapStore>, object: Object, range: Range<u64>, fetched: Arc<AtomicU64>) -> Part {
    let wanted = range.end - range.start;
    let stream = store.get(&object, Some(range)).await?;
    let mut counted = stream.inspect_ok(|piece| {
        fetched.fetch_add(piece.len() as u64, Ordering::Relaxed);
    });
    let (mut pieces, mut len) = (Vec::new(), 0);
    // A store that doesn't stop where it was told to isn't waited for, nor held in memory.
    while len <= wanted
        && let Some(piece) = counted.try_next().await?
    {
        len += piece.len() as u64;
        pieces.push(piece);
    }
    if len == wanted {
        return Ok(pieces);
    }
    let detail = format!("{len} bytes came, or more, where {wanted} were listed");
    Err(Error::new(Class::Corrupt, format!("read {}", object.key), detail))
}

fn length(pieces: &[Bytes]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

fn broken_off(why: &str) -> Error {
    Error::new(
        Class::Unreachable,
        "read a snapshot",
        format!("broken off: {why}"),
    )
}

impl Read for Fetch {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.pieces.front_mut() {
                Some(piece) if piece.is_empty() => {
                    self.pieces.pop_front();
                }
                Some(piece) => {
                    let count = out.len().min(piece.len());
                    piece.copy_to_slice(&mut out[..count]);
                    return Ok(count);
                }
                None => {
                    if self.left == 0 {
                        return Ok(0);
                    }
                    let part = self.parts.blocking_recv();
                    let pieces = part.unwrap_or_else(|| Err(broken_off("the program ends")))?;
                    self.left -= length(&pieces);
                    self.pieces = pieces.into();
                }
            }
        }
    }
}
