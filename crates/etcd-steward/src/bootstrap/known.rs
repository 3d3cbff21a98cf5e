//! What a check of the data directory has found, for as long as nothing has changed there: whoever waits for the other
//! members must not read a large database again and again.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use etcd_storage::validate::Verdict;

/// Files that are kept in mind at the most.
const MAX_FILES: usize = 10_000;

/// The last check, if what it found can be relied on.
#[derive(Debug, Default)]
pub(super) struct Known {
    last: Option<(State, Verdict)>,
}

/// What was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    clean: bool,
    files: BTreeMap<PathBuf, File>,
}

/// A file as it was: whoever writes to it changes this, and can't change it back.
#[derive(Debug, Clone, PartialEq, Eq)]
struct File {
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds.
    changed: (i64, i64),
}

impl State {
    /// `None` if it can't be told.
    pub(super) fn of(data_dir: &Path, clean: bool) -> Option<Self> {
        let mut files = BTreeMap::new();
        if !fs::symlink_metadata(data_dir).ok()?.is_dir() {
            return None;
        }
        add(data_dir, &mut files).ok()?;
        Some(Self { clean, files })
    }
}

fn add(folder: &Path, files: &mut BTreeMap<PathBuf, File>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let meta = fs::symlink_metadata(&path)?;
        if meta.is_dir() {
            add(&path, files)?;
        }
        let file = File {
            inode: meta.ino(),
            size: meta.size(),
            changed: (meta.ctime(), meta.ctime_nsec()),
        };
        files.insert(path, file);
        if files.len() > MAX_FILES {
            return Err(io::Error::other("more files than etcd makes"));
        }
    }
    Ok(())
}

impl Known {
    /// What a check of this would find.
    pub(super) fn verdict(&self, state: Option<&State>) -> Option<Verdict> {
        let (checked, verdict) = self.last.as_ref()?;
        (state == Some(checked)).then(|| verdict.clone())
    }

    /// `state` is that of before the check. What says nothing of the data itself isn't remembered.
    pub(super) fn remember(&mut self, state: Option<State>, verdict: &Verdict) {
        let lasts = match verdict {
            Verdict::Valid(_) | Verdict::Invalid { .. } | Verdict::Unformed => true,
            Verdict::Missing | Verdict::Locked | Verdict::Unknown { .. } => false,
        };
        self.last = state.filter(|_| lasts).map(|state| (state, verdict.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Somebody may repair the data meanwhile.
    #[test]
    fn a_verdict_holds_until_something_changes() {
        let dir = tempfile::tempdir().unwrap();
        let wal = dir.path().join("member/wal");
        fs::create_dir_all(&wal).unwrap();
        fs::write(wal.join("0.wal"), "log").unwrap();
        let damaged = Verdict::Invalid {
            reason: "byte 1".to_owned(),
        };
        let state = |clean| State::of(dir.path(), clean);
        let mut known = Known::default();
        known.remember(state(false), &damaged);
        assert_eq!(known.verdict(state(false).as_ref()), Some(damaged.clone()));
        assert_eq!(known.verdict(state(true).as_ref()), None, "another kind of check");
        // The clock of files ticks every few milliseconds.
        std::thread::sleep(Duration::from_millis(50));
        fs::write(wal.join("0.wal"), "goo").unwrap();
        assert_eq!(known.verdict(state(false).as_ref()), None, "of the same length");
        known.remember(state(false), &damaged);
        fs::write(wal.join("1.wal"), "").unwrap();
        assert_eq!(known.verdict(state(false).as_ref()), None, "one more file");
        known.remember(state(false), &Verdict::Locked);
        assert_eq!(known.verdict(state(false).as_ref()), None, "that passes");
        known.remember(State::of(&dir.path().join("none"), false), &damaged);
        assert_eq!(known.verdict(None), None, "it can't be told");
    }
}
