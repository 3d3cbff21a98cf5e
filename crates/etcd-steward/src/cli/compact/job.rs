//! One compaction: reads a chain, and stores the snapshot while it is made.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use etcd_storage::{
    assemble::{OnProgress, Progress},
    compact::{Compacted, Options, compact},
    compression::{Compression, Encoder},
    full::Scanner,
};
use jiff::Timestamp;
use snapstore::{SnapStore, SnapshotName, StoredSnapshot, manifest::Facts};
use tokio::runtime::Handle;

use super::Args;
use crate::{
    chain::{Catalog, Route, Source},
    cli::{error::CliError, progress::Bar, signal::Stop, upload::Upload},
};

/// Compressing threads.
const THREADS: usize = 2;

/// A compaction, for a thread that may block.
pub(super) struct Job {
    source: Source,
    options: Options,
    store: Arc<dyn SnapStore>,
    runtime: Handle,
    compression: Compression,
    /// A final full alone stays final; with deltas after it the cluster has gone on.
    is_final: bool,
    /// What the snapshots say of their cluster.
    facts: Facts,
    bar: Bar,
    stop: Stop,
}

impl Job {
    pub(super) fn new(
        args: &Args,
        store: &Arc<dyn SnapStore>,
        catalog: &Catalog,
        route: &Route,
        facts: Facts,
        stop: Stop,
    ) -> Self {
        let runtime = Handle::current();
        let source = catalog.open(store, &route.plan, &runtime);
        let newest = catalog.snapshots(&route.plan).last();
        let chosen = newest.map(|stored| stored.name.compression);
        Self {
            bar: Bar::new(source.size, "compacting"),
            source,
            options: Options {
                work_dir: args.temp_dir.clone(),
                revision: args.revision,
                drop_last_tombstone: false,
            },
            store: Arc::clone(store),
            runtime,
            compression: args.compression.or(chosen).unwrap_or_default(),
            is_final: newest.is_some_and(|stored| stored.name.is_final),
            facts,
            stop,
        }
    }

    pub(super) fn run(self) -> Result<(Compacted, StoredSnapshot), CliError> {
        // All is read before the first byte is written, so that the name can tell the revision that was found.
        let reached = Arc::new(AtomicI64::new(0));
        let name = {
            let (reached, compression, is_final) = (Arc::clone(&reached), self.compression, self.is_final);
            move || {
                let revision = reached.load(Ordering::Relaxed);
                SnapshotName::full(revision, Timestamp::now(), compression).with_final(is_final)
            }
        };
        let mut upload = Upload::new(Arc::clone(&self.store), self.runtime.clone(), name);
        let mut tell = |progress: Progress| {
            reached.store(progress.revision, Ordering::Relaxed);
            self.bar.follow("compacting", progress, &self.source.fetched);
            self.stop.go_on()
        };
        match self.write(&mut upload, &mut tell) {
            Ok((made, keys)) => {
                let facts = Facts {
                    keys,
                    database_sha256: Some(made.sha256.to_string()),
                    ..self.facts
                };
                Ok((made, upload.finish(facts)?))
            }
            Err(error) => Err(upload.give_up().unwrap_or(error)),
        }
    }

    /// What is written is checked on its way, as any snapshot is before it counts. Returns the number of keys too.
    fn write(&self, upload: impl Write, tell: OnProgress<'_>) -> Result<(Compacted, Option<i64>), CliError> {
        let encode = || CliError::io("compress the snapshot");
        let mut out = Checked {
            encoder: Encoder::new(self.compression, upload, THREADS).map_err(encode())?,
            scanner: Scanner::new(),
        };
        let made = compact(&self.source.chain, &self.options, &mut out, tell)?;
        let found = out
            .scanner
            .finish()
            .map_err(|error| CliError::Miscomputed(error.to_string()))?;
        if (found.revision, found.compact_revision, found.sha256)
            != (made.revision, made.compact_revision, made.sha256)
        {
            return Err(CliError::Miscomputed(format!("{found:?} instead of {made:?}")));
        }
        out.encoder.finish().map_err(encode())?;
        Ok((made, found.keys))
    }
}

/// Compresses, and follows what is compressed.
struct Checked<W: Write> {
    encoder: Encoder<W>,
    scanner: Scanner,
}

impl<W: Write> Write for Checked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.encoder.write(bytes)?;
        self.scanner.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.encoder.flush()
    }
}
