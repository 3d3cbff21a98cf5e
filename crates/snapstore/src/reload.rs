//! Credentials that are read anew when their files have changed: checked by inode, time and size when a store is
//! used, without a timer or a restart.

use std::{
    fmt,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use tracing::{info, warn};

use crate::error::Result;

/// State of the files at a moment: inode, modification time and size, following links (a projected volume swaps a
/// link); missing files count too.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fingerprint(Vec<(PathBuf, Option<Stat>)>);

type Stat = (u64, i64, i64, u64);

impl Fingerprint {
    fn take(paths: &[PathBuf]) -> Self {
        let mut files = Vec::new();
        for path in paths {
            files.push(path.clone());
            files.extend(entries(path));
        }
        Self(
            files
                .into_iter()
                .map(|path| (path.clone(), stat(&path)))
                .collect(),
        )
    }
}

fn stat(path: &Path) -> Option<Stat> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.size()))
}

/// The files of a folder, in a fixed order; none if it is no folder.
fn entries(path: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    entries.sort();
    entries
}

type Build<T> = Box<dyn Fn() -> Result<T> + Send + Sync>;

/// A client that is built again when the files that it was built from change.
pub(crate) struct Reloading<T> {
    paths: Vec<PathBuf>,
    build: Build<T>,
    current: Mutex<(Fingerprint, Arc<T>)>,
}

impl<T> Reloading<T> {
    pub(crate) fn new(
        paths: Vec<PathBuf>,
        build: impl Fn() -> Result<T> + Send + Sync + 'static,
    ) -> Result<Self> {
        // Taken before reading: a change in between is seen the next time.
        let fingerprint = Fingerprint::take(&paths);
        let first = Arc::new(build()?);
        Ok(Self {
            paths,
            build: Box::new(build),
            current: Mutex::new((fingerprint, first)),
        })
    }

    /// The client for the files as they are now. When new files can't be used, the last good client stays: the
    /// files may be half written, and the old credentials often live on for a while.
    pub(crate) fn get(&self) -> Arc<T> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let fingerprint = Fingerprint::take(&self.paths);
        if fingerprint != current.0 {
            match (self.build)() {
                Ok(client) => {
                    info!("store credentials changed, using the new ones");
                    *current = (fingerprint, Arc::new(client));
                }
                Err(error) => {
                    warn!(%error, "store credentials changed but can't be used, keeping the old ones");
                }
            }
        }
        Arc::clone(&current.1)
    }
}

impl<T> fmt::Debug for Reloading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloading")
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}
