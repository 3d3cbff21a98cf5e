//! Lets deltas go first where a full snapshot and they share a narrow way to the store.

use std::{path::Path, time::Duration};

use bytes::Bytes;
use futures::{Stream, TryStreamExt as _};
use snapstore::Body;
use tokio::{fs::File, sync::watch, time::timeout};
use tokio_util::io::ReaderStream;

/// Bytes between two pauses: what object stores send in one request.
const PART: usize = 8 << 20;
/// Bytes that are read at once.
const READ: usize = 256 << 10;
/// A delta that takes longer isn't waited for: its store may be down, or slow for another reason.
const LONGEST: Duration = Duration::from_secs(30);

/// The content of a file, which pauses after each part until the delta that is on its way then is stored. Only that one is
/// waited for: a store that is always busy with deltas gets the full snapshot too.
pub(super) async fn body(file: &Path, deltas: watch::Receiver<u64>) -> std::io::Result<Body> {
    let file = File::open(file).await?;
    let length = file.metadata().await?.len();
    let pieces = ReaderStream::with_capacity(file, READ);
    Ok(Body::from_stream(paced(pieces, deltas, PART), Some(length)))
}

fn paced(
    pieces: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    deltas: watch::Receiver<u64>,
    part: usize,
) -> impl Stream<Item = std::io::Result<Bytes>> + Send + 'static {
    let mut passed = 0;
    pieces.and_then(move |piece| {
        passed += piece.len();
        let pauses = passed > part;
        if pauses {
            passed = piece.len();
        }
        let mut deltas = deltas.clone();
        async move {
            let under_way = *deltas.borrow();
            if pauses && under_way != 0 {
                // When the term has ended, so does the upload.
                let _ = timeout(LONGEST, deltas.wait_for(|now| *now != under_way)).await;
            }
            Ok(piece)
        }
    })
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _, stream};

    use super::*;

    #[tokio::test]
    async fn parts_wait_for_the_delta_that_is_on_its_way() {
        let (deltas, watched) = watch::channel(0);
        let pieces = stream::iter((0..6).map(|_| Ok(Bytes::from_static(b"12345678"))));
        let mut paced = Box::pin(paced(pieces, watched, 16));
        for _ in 0..2 {
            assert!(paced.next().now_or_never().is_some());
        }
        deltas.send_replace(1);
        assert!(paced.next().now_or_never().is_none(), "a part passed the delta");
        // The next one is under way already: it comes after this part.
        deltas.send_replace(2);
        assert!(paced.next().now_or_never().is_some());
        assert!(paced.next().now_or_never().is_some(), "no pause within a part");
        assert!(paced.next().now_or_never().is_none());
        deltas.send_replace(0);
        assert_eq!(paced.count().await, 2);
    }
}
