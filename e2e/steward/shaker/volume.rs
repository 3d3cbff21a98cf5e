//! What is done to a member's volume while nothing of the member runs.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};

use super::story::Part;

/// Copies a folder with all that is in it.
pub(crate) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status()?;
    ensure!(status.success(), "cp -a {} {}", from.display(), to.display());
    Ok(())
}

/// Damages the data directory. What isn't there can't be.
pub(crate) fn corrupt(data_dir: &Path, part: Part) -> anyhow::Result<()> {
    let db = data_dir.join("member/snap/db");
    let (file, offset) = match part {
        Part::Page => {
            let size = db.metadata()?.len();
            (db, size / 2 / 4096 * 4096)
        }
        // The first of two; the file says by itself which of them counts.
        Part::Meta => (db, 0),
        Part::Log => {
            let log = newest_log(&data_dir.join("member/wal"))?;
            (log, 4096)
        }
    };
    let file = File::options().write(true).open(file)?;
    Ok(file.write_all_at(&[0xA5; 512], offset)?)
}

fn newest_log(folder: &Path) -> anyhow::Result<PathBuf> {
    let mut logs: Vec<_> = folder
        .read_dir()?
        .map(|entry| Ok(entry?.path()))
        .collect::<anyhow::Result<_>>()?;
    logs.retain(|path| path.extension().is_some_and(|extension| extension == "wal"));
    logs.sort();
    logs.pop().context("a write-ahead log")
}
