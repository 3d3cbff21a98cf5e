//! Old data on the data volume: it is moved aside, and stays there until its member votes again and newer old data takes its
//! place.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use etcd_storage::beneath::Beneath;
use jiff::Timestamp;
use tracing::{info, warn};

use crate::exit_record;

/// The note is the name of a file.
const MAX_NOTE: u64 = 1024;

/// What couldn't be done on the volume.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path}: {source}")]
pub struct VolumeError {
    /// What was to be done.
    pub action: &'static str,
    /// With what.
    pub path: PathBuf,
    /// Why it failed.
    pub source: io::Error,
}

impl VolumeError {
    /// For `map_err`.
    pub(crate) fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self {
            action,
            path: path.to_owned(),
            source,
        }
    }
}

/// Keeps a data directory under another name, if there is anything in it.
///
/// Two are kept at the most: the data of the last member that voted here, which a note beside it names, and the newest. What
/// comes between them was left by tries to join or to restore that failed.
pub fn move_aside(data_dir: &Path) -> Result<(), VolumeError> {
    if is_empty(data_dir)? {
        return Ok(());
    }
    let aside = data_dir.with_extension(format!("aside-{}", Timestamp::now().as_second()));
    let kept = match noted(data_dir)? {
        Some(kept) => kept,
        None => note(data_dir, &aside)?,
    };
    info!(from = %data_dir.display(), to = %aside.display(), "moving old data aside");
    fs::rename(data_dir, &aside).map_err(VolumeError::at("move aside", data_dir))?;
    sync(volume_of(data_dir))?;
    if let Err(error) = clear_away(data_dir, &[&kept, &aside]) {
        warn!(%error, "older data that was moved aside is left on the volume");
    }
    Ok(())
}

/// Puts a new data directory in the place of the old one, which is moved aside.
pub fn replace(data_dir: &Path, fresh: &Path) -> Result<(), VolumeError> {
    move_aside(data_dir)?;
    fs::rename(fresh, data_dir).map_err(VolumeError::at("move into its place", fresh))?;
    sync(volume_of(data_dir))
}

/// The member votes: what was moved aside before isn't the last that did.
pub fn votes(data_dir: &Path) -> Result<(), VolumeError> {
    remove(&note_of(data_dir))
}

fn sync(folder: &Path) -> Result<(), VolumeError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(VolumeError::at("sync", folder))
}

/// The note that names the data which stays until the member votes.
fn note_of(data_dir: &Path) -> PathBuf {
    data_dir.with_extension("kept")
}

fn volume_of(data_dir: &Path) -> &Path {
    data_dir.parent().unwrap_or_else(|| Path::new("."))
}

/// What the note names. It is written before the data is moved, so the data may not be there.
fn noted(data_dir: &Path) -> Result<Option<PathBuf>, VolumeError> {
    let note = note_of(data_dir);
    match Beneath::of(&note).read_text(MAX_NOTE) {
        Ok(name) => {
            let kept = data_dir.with_file_name(name.trim());
            if !is_aside(data_dir, &kept) || kept.parent() != data_dir.parent() {
                return Ok(None);
            }
            let exists = Beneath::of(&kept).exists();
            let exists = exists.map_err(VolumeError::at("look for", &kept))?;
            Ok(exists.then_some(kept))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(VolumeError::at("read", &note)(error)),
    }
}

fn note(data_dir: &Path, aside: &Path) -> Result<PathBuf, VolumeError> {
    let note = note_of(data_dir);
    let [file, kept] = [&note, aside].map(|path| path.file_name().unwrap_or_default().to_string_lossy());
    exit_record::replace(volume_of(data_dir), &file, kept.as_bytes())
        .map_err(VolumeError::at("write", &note))?;
    Ok(aside.to_owned())
}

fn is_empty(data_dir: &Path) -> Result<bool, VolumeError> {
    // A link counts by itself, wherever it leads.
    match fs::symlink_metadata(data_dir) {
        Ok(found) if !found.is_dir() => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        _ => {}
    }
    let mut entries = fs::read_dir(data_dir).map_err(VolumeError::at("read", data_dir))?;
    Ok(entries.next().is_none())
}

/// Whether a path has the name of data that was moved aside.
fn is_aside(data_dir: &Path, path: &Path) -> bool {
    let stem = data_dir.file_stem().unwrap_or_default().to_string_lossy();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let second = name
        .strip_prefix(&*stem)
        .and_then(|rest| rest.strip_prefix(".aside-"));
    matches!(second.map(str::parse::<i64>), Some(Ok(_)))
}

/// Removes a folder with all in it, or whatever else has its name; what a link leads to stays.
pub(crate) fn remove(path: &Path) -> Result<(), VolumeError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(VolumeError::at("remove", path)(error)),
        _ => Ok(()),
    }
}

/// What else was moved aside only takes the room of the database that comes.
fn clear_away(data_dir: &Path, kept: &[&PathBuf]) -> Result<(), VolumeError> {
    let volume = volume_of(data_dir);
    for entry in fs::read_dir(volume).map_err(VolumeError::at("read", volume))? {
        let path = entry.map_err(VolumeError::at("read", volume))?.path();
        if is_aside(data_dir, &path) && !kept.contains(&&path) {
            info!(path = %path.display(), "deleting old data that was moved aside before");
            remove(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume with what lies on it.
    struct Volume(tempfile::TempDir);

    impl Volume {
        fn data_dir(&self) -> PathBuf {
            self.0.path().join("new.etcd")
        }

        fn write(&self, what: &str) {
            fs::create_dir_all(self.data_dir()).unwrap();
            fs::write(self.data_dir().join("what"), what).unwrap();
        }

        /// Moves aside, and makes it look as if that were long ago: names have whole seconds.
        fn move_aside(&self, second: i64) {
            let before = self.asides();
            move_aside(&self.data_dir()).unwrap();
            let after = self.asides();
            let new = after.iter().find(|path| !before.contains(path)).unwrap();
            let name = format!("new.aside-{second}");
            let note = note_of(&self.data_dir());
            if fs::read_to_string(&note).unwrap() == new.file_name().unwrap().to_string_lossy() {
                fs::write(note, &name).unwrap();
            }
            fs::rename(new, self.0.path().join(name)).unwrap();
        }

        fn asides(&self) -> Vec<PathBuf> {
            let entries = fs::read_dir(self.0.path()).unwrap();
            let paths = entries.map(|entry| entry.unwrap().path());
            paths
                .filter(|path| path.to_string_lossy().contains("new.aside-"))
                .collect()
        }

        fn kept(&self) -> Vec<String> {
            let mut kept: Vec<_> = self
                .asides()
                .iter()
                .map(|aside| fs::read_to_string(aside.join("what")).unwrap())
                .collect();
            kept.sort();
            kept
        }
    }

    /// What failed starts leave must not take the place of the data that voted; a member that is replaced again and again
    /// must not fill its volume.
    #[test]
    fn what_voted_stays_until_its_successor_votes() {
        let volume = Volume(tempfile::tempdir().unwrap());
        move_aside(&volume.data_dir()).unwrap();
        for (second, what) in [(1, "voted"), (2, "left a"), (3, "left b"), (4, "left c")] {
            volume.write(what);
            volume.move_aside(second);
        }
        assert_eq!(volume.kept(), ["left c", "voted"]);
        votes(&volume.data_dir()).unwrap();
        votes(&volume.data_dir()).unwrap();
        assert_eq!(volume.kept(), ["left c", "voted"], "nothing newer has come");
        volume.write("voted later");
        volume.move_aside(5);
        assert_eq!(volume.kept(), ["voted later"]);
    }

    /// The note comes first: a crash in between leaves one that names nothing.
    #[test]
    fn a_note_without_data_is_not_heeded() {
        let volume = Volume(tempfile::tempdir().unwrap());
        fs::write(note_of(&volume.data_dir()), "new.aside-1").unwrap();
        volume.write("voted");
        volume.move_aside(2);
        for (second, what) in [(3, "left a"), (4, "left b")] {
            volume.write(what);
            volume.move_aside(second);
        }
        assert_eq!(volume.kept(), ["left b", "voted"]);
    }

    /// A link in the place of the data is moved aside, and what it leads to is left alone; a note that isn't ours says nothing.
    #[test]
    fn links_are_not_followed() {
        let (volume, other) = (Volume(tempfile::tempdir().unwrap()), tempfile::tempdir().unwrap());
        fs::write(other.path().join("what"), "others").unwrap();
        std::os::unix::fs::symlink(other.path(), volume.data_dir()).unwrap();
        for note in ["../../x", "new.etcd", "/etc", "new.aside-1/.."] {
            fs::write(note_of(&volume.data_dir()), note).unwrap();
            assert_eq!(noted(&volume.data_dir()).unwrap(), None, "{note}");
        }
        move_aside(&volume.data_dir()).unwrap();
        assert!(
            fs::symlink_metadata(volume.data_dir()).is_err(),
            "it is still there"
        );
        for aside in volume.asides() {
            remove(&aside).unwrap();
        }
        assert!(volume.asides().is_empty() && other.path().join("what").exists());
        let note = note_of(&volume.data_dir());
        fs::remove_file(&note).unwrap();
        std::os::unix::fs::symlink(other.path().join("what"), &note).unwrap();
        noted(&volume.data_dir()).unwrap_err();
    }

    #[test]
    fn what_is_no_old_data_is_left_alone() {
        let volume = Volume(tempfile::tempdir().unwrap());
        let others = ["new.aside-by-hand", "other.aside-1", "new.restored"];
        for name in others {
            fs::create_dir(volume.0.path().join(name)).unwrap();
        }
        fs::create_dir(volume.data_dir()).unwrap();
        move_aside(&volume.data_dir()).unwrap();
        assert!(volume.data_dir().exists(), "there is nothing in it to be kept");
        volume.write("voted");
        move_aside(&volume.data_dir()).unwrap();
        assert!(others.iter().all(|name| volume.0.path().join(name).exists()));
    }
}
