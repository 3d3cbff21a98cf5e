//! A writer whose bytes go up as a snapshot. It is for threads outside the runtime; the snapshot exists only once
//! [`Upload::finish`] has said so.

use std::{
    io::{self, Write},
    mem,
    sync::{Arc, OnceLock},
};

use bytes::{Bytes, BytesMut};
use futures::{Stream, stream};
use snapstore::{Body, SnapStore, SnapshotName, StoredSnapshot, manifest::Facts};
use tokio::{runtime::Handle, sync::mpsc, task::JoinHandle};

use super::error::CliError;

/// Bytes of a piece, and pieces that wait for the store.
const PIECE: usize = 256 << 10;
const WINDOW: usize = 8;

enum Piece {
    Bytes(Bytes),
    End,
}

/// An upload that begins with the first byte: only then its name is known.
pub(super) struct Upload<F> {
    store: Arc<dyn SnapStore>,
    runtime: Handle,
    name: F,
    facts: Arc<OnceLock<Facts>>,
    started: Option<Started>,
    piece: BytesMut,
}

struct Started {
    pieces: mpsc::Sender<Piece>,
    stored: JoinHandle<snapstore::Result<StoredSnapshot>>,
}

impl<F: Fn() -> SnapshotName> Upload<F> {
    pub(super) fn new(store: Arc<dyn SnapStore>, runtime: Handle, name: F) -> Self {
        Self {
            store,
            runtime,
            name,
            facts: Arc::default(),
            started: None,
            piece: BytesMut::new(),
        }
    }

    fn send(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let (store, runtime, name, facts) = (&self.store, &self.runtime, &self.name, &self.facts);
        let started = self
            .started
            .get_or_insert_with(|| Started::begin(Arc::clone(store), runtime, name(), Arc::clone(facts)));
        let piece = Piece::Bytes(mem::take(&mut self.piece).freeze());
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the upload has ended");
        started.pieces.blocking_send(piece).map_err(gone)
    }

    /// Says that all bytes were written, and what they are; waits until they are stored.
    pub(super) fn finish(mut self, facts: Facts) -> Result<StoredSnapshot, CliError> {
        let _ = self.facts.set(facts);
        // When this fails the store says why.
        let _ = self.send();
        let runtime = self.runtime.clone();
        let started = self.take_started()?;
        let _ = started.pieces.blocking_send(Piece::End);
        Ok(runtime.block_on(started.stored)??)
    }

    /// Gives up, and tells the store's error if that is why; `None` when the store isn't at fault.
    pub(super) fn give_up(mut self) -> Option<CliError> {
        let Started { pieces, stored } = self.started.take()?;
        let refused = pieces.is_closed();
        drop(pieces);
        let outcome = self.runtime.block_on(stored).ok()?;
        outcome.err().filter(|_| refused).map(CliError::Store)
    }

    fn take_started(&mut self) -> Result<Started, CliError> {
        let nothing = || CliError::Miscomputed("it is empty".to_owned());
        self.started.take().ok_or_else(nothing)
    }
}

impl Started {
    fn begin(
        store: Arc<dyn SnapStore>,
        runtime: &Handle,
        name: SnapshotName,
        facts: Arc<OnceLock<Facts>>,
    ) -> Self {
        let (pieces, receiver) = mpsc::channel(WINDOW);
        let body = Body::from_stream(content(receiver), None)
            .with_facts(move || facts.get().cloned().unwrap_or_default());
        Self {
            pieces,
            stored: runtime.spawn(async move { store.put(&name, body).await }),
        }
    }
}

/// The pieces up to the end mark. Without it they aren't a whole.
fn content(pieces: mpsc::Receiver<Piece>) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::try_unfold(pieces, |mut pieces| async move {
        match pieces.recv().await {
            Some(Piece::Bytes(bytes)) => Ok(Some((bytes, pieces))),
            Some(Piece::End) => Ok(None),
            None => Err(io::Error::other("its making was broken off")),
        }
    })
}

impl<F: Fn() -> SnapshotName> Write for Upload<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.len() >= PIECE {
            self.send()?;
        }
        self.piece.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}
