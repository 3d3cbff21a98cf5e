//! Checks a snapshot while it passes: decompresses it and compares the SHA-256 that ends it. The stream ends cleanly
//! only after that, so that an upload fed by it can't be completed with a damaged snapshot.

use std::io::{self, Read};

use bytes::{Buf as _, Bytes};
use etcd_storage::{
    compression::{Compression, Decoder},
    trailer::LEN,
};
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use sha2::{Digest as _, Sha256};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::body::ByteStream;

/// Pieces on their way to the check.
const PIECES: usize = 4;

/// The bytes of `stream`, and an error in place of the end if they aren't a whole snapshot.
pub(super) fn verified(
    stream: ByteStream,
    compression: Compression,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let state = (
        stream.map_err(io::Error::from).boxed(),
        Some(Check::start(compression)),
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
    fn start(compression: Compression) -> Self {
        let (pieces, receiver) = mpsc::channel(PIECES);
        let source = Pieces {
            receiver,
            current: Bytes::new(),
        };
        let verdict = tokio::task::spawn_blocking(move || check_hash(Decoder::new(compression, source)?));
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

/// Reads to the end; the last 32 bytes must be the SHA-256 of all before them.
fn check_hash(mut source: impl Read) -> io::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    // Bytes at the front of the buffer that may be the hash.
    let mut held = 0;
    let (mut hasher, mut is_empty) = (Sha256::new(), true);
    loop {
        let read = match source.read(&mut buffer[held..]) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read == 0 {
            break;
        }
        let end = held + read;
        let sure = end.saturating_sub(LEN);
        hasher.update(&buffer[..sure]);
        is_empty &= sure == 0;
        buffer.copy_within(sure..end, 0);
        held = end - sure;
    }
    if is_empty || held < LEN {
        return Err(invalid("too short to hold anything and its SHA-256"));
    }
    if hasher.finalize()[..] != buffer[..LEN] {
        return Err(invalid("the SHA-256 at its end doesn't match"));
    }
    Ok(())
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use etcd_storage::compression::Encoder;

    use super::*;

    fn snapshot(data: &[u8], compression: Compression) -> Vec<u8> {
        let mut encoder = Encoder::new(compression, Vec::new(), 1).unwrap();
        encoder.write_all(data).unwrap();
        encoder.write_all(&Sha256::digest(data)).unwrap();
        encoder.finish().unwrap()
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
        let pieces: Vec<Bytes> = verified(stream::iter(pieces).boxed(), compression)
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
            let whole = snapshot(&b"some events of a cluster".repeat(9), compression);
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
    async fn a_hash_alone_is_no_snapshot() {
        assert!(
            check(&snapshot(b"", Compression::None), 64, Compression::None)
                .await
                .is_err()
        );
    }
}
