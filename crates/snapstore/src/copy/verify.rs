//! Checks a snapshot while it passes, as it is checked wherever it is used. The stream ends cleanly only after that, so that
//! an upload fed by it can't be completed with a damaged snapshot.

use std::io::{self, Read};

use bytes::{Buf as _, Bytes};
use etcd_storage::{compression::Decoder, full::Scanner, verify};
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use tokio::{sync::mpsc, task::JoinHandle};
use tracing::warn;

use crate::{
    body::ByteStream,
    name::{Kind, SnapshotName},
};

/// Pieces on their way to the check.
const PIECES: usize = 4;

/// The bytes of `stream`, and an error in place of the end if they aren't a whole snapshot.
pub(super) fn verified(
    stream: ByteStream,
    name: &SnapshotName,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let state = (
        stream.map_err(io::Error::from).boxed(),
        Some(Check::start(name.clone())),
    );
    stream::try_unfold(state, |(mut stream, check)| async move {
        let Some(mut check) = check else { return Ok(None) };
        let Some(piece) = stream.try_next().await? else {
            return check.finish().await.map(|()| None);
        };
        if check.take(&piece).await {
            return Ok(Some((piece, (stream, Some(check)))));
        }
        // It has seen enough to refuse.
        check.finish().await?;
        Err(invalid("there is more after its end"))
    })
}

/// A check that runs beside the transfer.
struct Check {
    pieces: mpsc::Sender<Bytes>,
    verdict: JoinHandle<io::Result<()>>,
}

impl Check {
    fn start(name: SnapshotName) -> Self {
        let (pieces, receiver) = mpsc::channel(PIECES);
        let source = Pieces {
            receiver,
            current: Bytes::new(),
        };
        let verdict = tokio::task::spawn_blocking(move || check(&name, source));
        Self { pieces, verdict }
    }

    /// False when the check has ended already.
    async fn take(&mut self, piece: &Bytes) -> bool {
        self.pieces.send(piece.clone()).await.is_ok()
    }

    async fn finish(self) -> io::Result<()> {
        drop(self.pieces);
        self.verdict.await.map_err(io::Error::other)?
    }
}

/// The pieces as a reader, for the thread that decompresses.
struct Pieces {
    receiver: mpsc::Receiver<Bytes>,
    current: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.current = piece,
                None => return Ok(0),
            }
        }
        let count = out.len().min(self.current.len());
        self.current.copy_to_slice(&mut out[..count]);
        Ok(count)
    }
}

/// Reads to the end, and says whether it is a whole snapshot of this name.
fn check(name: &SnapshotName, source: impl Read + Send) -> io::Result<()> {
    let source = Decoder::new(name.compression, source)?;
    let checked = match name.kind {
        Kind::Full => verify::full(source, Scanner::new(), name.last_revision).map(|found| {
            if let Some(warning) = found.warnings.text() {
                warn!(%name, warning, "copies it all the same");
            }
        }),
        Kind::Delta => verify::delta(source, name.start_revision, name.last_revision).map(drop),
    };
    checked.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, in_words(&error)))
}

/// An error and its causes.
fn in_words(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use etcd_storage::{
        compression::{Compression, Encoder},
        delta::{self, Event},
    };
    use jiff::Timestamp;

    use super::*;

    fn name(compression: Compression) -> SnapshotName {
        SnapshotName::delta(7, 7, Timestamp::UNIX_EPOCH, compression)
    }

    /// A delta of one event.
    fn snapshot(data: &[u8], compression: Compression) -> Vec<u8> {
        let mut encoder = delta::Encoder::new(Encoder::new(compression, Vec::new(), 1).unwrap());
        let (key, value) = (b"key".to_vec(), data.to_vec());
        let event = Event {
            key,
            value,
            mod_revision: 7,
            ..Event::default()
        };
        encoder.push(&event).unwrap();
        encoder.finish().unwrap().0.finish().unwrap()
    }

    fn inflate(bytes: &[u8], compression: Compression) -> Vec<u8> {
        let mut content = Vec::new();
        Decoder::new(compression, bytes)
            .unwrap()
            .read_to_end(&mut content)
            .unwrap();
        content
    }

    async fn check(bytes: &[u8], piece: usize, compression: Compression) -> io::Result<Vec<u8>> {
        let pieces: Vec<_> = bytes
            .chunks(piece)
            .map(|piece| Ok(Bytes::copy_from_slice(piece)))
            .collect();
        let pieces: Vec<Bytes> = verified(stream::iter(pieces).boxed(), &name(compression))
            .try_collect()
            .await?;
        Ok(pieces.concat())
    }

    #[tokio::test]
    async fn whole_snapshots_pass_unchanged() {
        let data: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        for compression in Compression::ALL {
            let whole = snapshot(&data, compression);
            for piece in [1 << 10, 1 << 20] {
                assert!(
                    check(&whole, piece, compression).await.unwrap() == whole,
                    "{compression}"
                );
            }
        }
    }

    /// One bit anywhere, or a cut anywhere, must never pass.
    #[tokio::test]
    async fn damaged_snapshots_do_not_end() {
        for compression in Compression::ALL {
            let whole = snapshot(b"some of it", compression);
            for at in 0..whole.len() {
                let mut flipped = whole.clone();
                flipped[at] ^= 4;
                if check(&flipped, 64, compression).await.is_ok() {
                    // Some header fields, such as gzip's time, mean nothing.
                    assert_eq!(
                        inflate(&flipped, compression),
                        inflate(&whole, compression),
                        "bit at {at}"
                    );
                }
                assert!(
                    check(&whole[..at], 64, compression).await.is_err(),
                    "{compression} cut at {at}"
                );
            }
            let longer = [whole.as_slice(), &[7; 100]].concat();
            assert!(
                check(&longer, 64, compression).await.is_err(),
                "{compression} with more behind"
            );
        }
    }

    #[tokio::test]
    async fn what_is_named_otherwise_does_not_end() {
        let whole = snapshot(b"data", Compression::None);
        let at = Timestamp::UNIX_EPOCH;
        for name in [
            SnapshotName::delta(7, 8, at, Compression::None),
            SnapshotName::delta(6, 7, at, Compression::None),
            SnapshotName::full(7, at, Compression::None),
        ] {
            let stream = stream::iter([Ok(Bytes::from(whole.clone()))]).boxed();
            let passed: io::Result<Vec<Bytes>> = verified(stream, &name).try_collect().await;
            assert!(passed.is_err(), "{name}");
        }
        let alone = stream::iter([Ok(Bytes::from_static(&[0xe3; 32]))]).boxed();
        let passed: io::Result<Vec<Bytes>> = verified(alone, &name(Compression::None)).try_collect().await;
        assert!(passed.is_err());
    }
}
