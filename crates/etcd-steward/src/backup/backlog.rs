//! Deltas that are closed and not stored yet, in the order of their revisions. A store that is slow for a while, or a full
//! snapshot that takes its time, costs no history: what etcd may compact meanwhile waits here, in memory up to one limit
//! and in the scratch space up to another. Beyond both the watch isn't read, and etcd holds the events back.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use futures::{Stream, stream};
use snapstore::Body;
use tokio::task::spawn_blocking;
use tracing::warn;

use super::{collector::Delta, pieces::Pieces};

/// Compressed bytes that are held in memory, the delta on its way into the store included.
const IN_MEMORY: u64 = 16 << 20;
/// Compressed bytes that are held in the scratch space.
const ON_DISK: u64 = 512 << 20;
/// However small they are.
const DELTAS: usize = 1000;
/// Bytes that are read from the scratch space at once.
const READ: usize = 256 << 10;

/// The bytes of a delta.
#[derive(Debug)]
pub(super) enum Content {
    Memory(Pieces),
    Disk(Spilled),
}

impl Content {
    /// All of it, as the content of an upload.
    pub(super) fn body(&self) -> Body {
        match self {
            Self::Memory(pieces) => pieces.body(),
            Self::Disk(spilled) => spilled.body(),
        }
    }
}

/// Bytes in a file without a name: it is gone when nobody has it open, however the process ends.
#[derive(Debug)]
pub(super) struct Spilled {
    file: Arc<File>,
    length: u64,
}

impl Spilled {
    async fn write(pieces: Pieces, folder: PathBuf) -> io::Result<Self> {
        let write = move || {
            std::fs::create_dir_all(&folder)?;
            let mut file = tempfile::tempfile_in(&folder)?;
            pieces.copy_to(&mut file)?;
            Ok(Self {
                file: Arc::new(file),
                length: pieces.len(),
            })
        };
        spawn_blocking(write).await.map_err(io::Error::other)?
    }

    fn body(&self) -> Body {
        Body::from_stream(self.pieces(), Some(self.length))
    }

    fn pieces(&self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        let file = Arc::clone(&self.file);
        stream::try_unfold(0, move |offset| {
            let file = Arc::clone(&file);
            async move {
                let read = spawn_blocking(move || read_at(&file, offset));
                let piece = read.await.map_err(io::Error::other)??;
                let next = offset + piece.len() as u64;
                Ok((!piece.is_empty()).then_some((piece, next)))
            }
        })
    }
}

fn read_at(file: &File, offset: u64) -> io::Result<Bytes> {
    let mut piece = vec![0; READ];
    let count = file.read_at(&mut piece, offset)?;
    piece.truncate(count);
    Ok(piece.into())
}

#[derive(Debug)]
struct Pending {
    delta: Delta,
    /// Revisions are missing before it: it may be stored only when a full snapshot of at least this revision is.
    after_full: Option<i64>,
}

/// The deltas that wait.
#[derive(Debug)]
pub(super) struct Backlog {
    waiting: VecDeque<Pending>,
    /// Bytes in memory of the delta that was taken out last.
    in_flight: u64,
    folder: PathBuf,
    /// Why nothing more can be written to the scratch space, until nothing waits.
    disk_fails: bool,
}

impl Backlog {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            waiting: VecDeque::new(),
            in_flight: 0,
            folder: folder.to_owned(),
            disk_fails: false,
        }
    }

    /// Adds the next delta. `after_full`: the revision before it, if nothing in the store or here ends with that.
    pub(super) async fn push(&mut self, mut delta: Delta, after_full: Option<i64>) {
        if let Content::Memory(pieces) = &delta.content
            && self.in_memory() + pieces.len() > IN_MEMORY
            && !self.disk_fails
        {
            match Spilled::write(pieces.clone(), self.folder.clone()).await {
                Ok(spilled) => delta.content = Content::Disk(spilled),
                Err(error) => {
                    self.disk_fails = true;
                    warn!(%error, folder = %self.folder.display(), "the scratch space takes no deltas, etcd holds events back");
                }
            }
        }
        self.waiting.push_back(Pending { delta, after_full });
    }

    /// Whether one more fits in.
    pub(super) fn has_room(&self) -> bool {
        let fits = self.in_memory() < IN_MEMORY || (!self.disk_fails && self.on_disk() < ON_DISK);
        fits && self.waiting.len() < DELTAS
    }

    /// Whether nothing waits that may be stored.
    pub(super) fn is_idle(&self) -> bool {
        let next = self.waiting.front();
        next.is_none_or(|next| next.after_full.is_some())
    }

    /// Takes out the next one that may be stored. The one before counts as stored.
    pub(super) fn next(&mut self) -> Option<Delta> {
        self.in_flight = 0;
        if self.is_idle() {
            return None;
        }
        let next = self.waiting.pop_front()?.delta;
        if let Content::Memory(pieces) = &next.content {
            self.in_flight = pieces.len();
        }
        self.disk_fails &= !self.waiting.is_empty();
        Some(next)
    }

    /// A full snapshot is stored. Deltas that have waited for it may follow; what it holds of those is dropped.
    pub(super) fn full_stored(&mut self, revision: i64) {
        let closes = |after_full: Option<i64>| after_full.is_some_and(|base| base <= revision);
        self.waiting
            .retain(|next| !closes(next.after_full) || next.delta.summary.last_revision > revision);
        for next in &mut self.waiting {
            if closes(next.after_full) {
                next.after_full = None;
            }
        }
    }

    fn in_memory(&self) -> u64 {
        let held = |next: &Pending| match &next.delta.content {
            Content::Memory(pieces) => pieces.len(),
            Content::Disk(_) => 0,
        };
        self.in_flight + self.waiting.iter().map(held).sum::<u64>()
    }

    fn on_disk(&self) -> u64 {
        let held = |next: &Pending| match &next.delta.content {
            Content::Disk(spilled) => spilled.length,
            Content::Memory(_) => 0,
        };
        self.waiting.iter().map(held).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use etcd_storage::{delta::Summary, trailer::Hash};
    use futures::TryStreamExt as _;
    use jiff::Timestamp;

    use super::*;

    fn delta(start: i64, last: i64, bytes: usize) -> Delta {
        let mut pieces = Pieces::default();
        pieces.write_all(&vec![7; bytes]).unwrap();
        Delta {
            content: Content::Memory(pieces.seal()),
            start,
            summary: Summary {
                events: 1,
                first_revision: start,
                last_revision: last,
                len: bytes as u64,
                sha256: Hash([0; 32]),
            },
            closed_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn starts(backlog: &mut Backlog) -> Vec<i64> {
        std::iter::from_fn(|| backlog.next().map(|delta| delta.start)).collect()
    }

    /// Deltas of one chain, and then a gap after which etcd is watched from revision 30 on.
    async fn with_gap() -> Backlog {
        let mut backlog = Backlog::new(Path::new("/nowhere"));
        backlog.push(delta(5, 9, 10), None).await;
        for (start, last) in [(31, 40), (41, 50)] {
            backlog.push(delta(start, last, 10), Some(30)).await;
        }
        backlog
    }

    #[tokio::test]
    async fn nothing_is_stored_beyond_a_gap_before_a_full_snapshot_closes_it() {
        for (full, expected) in [
            (None, vec![5]),
            // Begun before the gap: it doesn't close it.
            (Some(29), vec![5]),
            (Some(30), vec![5, 31, 41]),
            // It lies within a delta, which stays whole: readers skip what they have.
            (Some(35), vec![5, 31, 41]),
            (Some(40), vec![5, 41]),
            (Some(60), vec![5]),
        ] {
            let mut backlog = with_gap().await;
            if let Some(full) = full {
                backlog.full_stored(full);
            }
            assert_eq!(starts(&mut backlog), expected, "{full:?}");
        }
    }

    #[tokio::test]
    async fn what_doesnt_fit_into_memory_waits_on_disk_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let mut backlog = Backlog::new(folder.path());
        let mebibytes = |count: usize| (count << 20) + 3;
        for (number, count) in [(1, 10), (2, 8), (3, 4)] {
            backlog.push(delta(number, number, mebibytes(count)), None).await;
        }
        let places: Vec<_> = backlog.waiting.iter().map(|next| &next.delta.content).collect();
        assert!(
            matches!(
                places[..],
                [Content::Memory(_), Content::Disk(_), Content::Memory(_)]
            ),
            "{places:?}"
        );
        assert!(backlog.has_room());
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 0, "files have no names");
        backlog.next().unwrap();
        let second = backlog.next().unwrap();
        let Content::Disk(spilled) = second.content else {
            panic!("it is in memory");
        };
        let read = spilled.pieces().try_collect::<Vec<_>>().await.unwrap().concat();
        assert!(read == vec![7; mebibytes(8)], "{} bytes differ", read.len());
    }

    /// Without a scratch space memory stays bounded all the same.
    #[tokio::test]
    async fn a_full_backlog_takes_no_more_until_something_is_stored() {
        let mut backlog = Backlog::new(Path::new("/proc/none"));
        for number in 1..=2 {
            assert!(backlog.has_room());
            backlog.push(delta(number, number, 9 << 20), None).await;
        }
        assert!(!backlog.has_room());
        assert_eq!(backlog.next().unwrap().start, 1);
        assert!(!backlog.has_room(), "it is on its way, and still held");
        assert_eq!(backlog.next().unwrap().start, 2);
        assert!(backlog.has_room());
    }
}
