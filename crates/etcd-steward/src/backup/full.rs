//! Takes a full snapshot: etcd's stream is checked and compressed on its way into the scratch space, and gets the name
//! of the revision that is really in it.

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    path::Path,
};

use etcd_client::Client;
use etcd_storage::{
    compression::{Compression, Encoder},
    full::{FullSummary, Scanner},
};
use tempfile::NamedTempFile;
use tokio::sync::mpsc;
use tracing::instrument;

use super::BackupError;
use crate::etcd::{CALL_TIMEOUT, Connector, EtcdError, call};

/// Compressing with more threads would take them from etcd.
const THREADS: usize = 2;
/// Pieces of the stream that may wait to be compressed.
const WINDOW: usize = 16;

/// A checked snapshot in the scratch space, which is freed when this is dropped.
#[derive(Debug)]
pub(crate) struct Spooled {
    /// The compressed file.
    pub file: NamedTempFile,
    /// What is in it.
    pub summary: FullSummary,
}

/// Fetches a snapshot from the member beside us.
pub(super) async fn fetch(
    connector: &Connector,
    compression: Compression,
    temp: &Path,
) -> Result<Spooled, BackupError> {
    fetch_from(connector.local().await?, compression, temp).await
}

/// Fetches a snapshot from the etcd that a client is connected to.
#[instrument(name = "fetch", skip_all)]
pub(crate) async fn fetch_from(
    mut client: Client,
    compression: Compression,
    temp: &Path,
) -> Result<Spooled, BackupError> {
    std::fs::create_dir_all(temp)?;
    let file = tempfile::Builder::new().prefix("full-").tempfile_in(temp)?;
    let mut stream = call("start a snapshot", CALL_TIMEOUT, client.snapshot()).await?;
    let (pieces, received) = mpsc::channel::<Vec<u8>>(WINDOW);
    let sink = file.reopen()?;
    let spool = tokio::task::spawn_blocking(move || spool(received, sink, compression));
    let pumped = async {
        loop {
            let piece = stream.message().await.map_err(|source| EtcdError::Call {
                call: "read the snapshot",
                source: Box::new(source),
            })?;
            match piece {
                // The spool only ends early when it failed, which it says itself.
                Some(piece) if pieces.send(piece.blob().to_vec()).await.is_err() => return Ok(()),
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }
    .await;
    drop(pieces);
    let spooled = spool.await.map_err(|error| io::Error::other(error.to_string()))?;
    // A stream that broke off is the cause of whatever the check then says.
    pumped.map_err(BackupError::Etcd)?;
    Ok(Spooled {
        file,
        summary: spooled?,
    })
}

fn spool(
    mut pieces: mpsc::Receiver<Vec<u8>>,
    sink: File,
    compression: Compression,
) -> Result<FullSummary, BackupError> {
    let mut scanner = Scanner::new();
    let mut encoder = Encoder::new(compression, BufWriter::with_capacity(1 << 20, sink), THREADS)?;
    while let Some(piece) = pieces.blocking_recv() {
        scanner.update(&piece);
        encoder.write_all(&piece)?;
    }
    let mut sink = encoder.finish()?;
    sink.flush()?;
    Ok(scanner.finish()?)
}
