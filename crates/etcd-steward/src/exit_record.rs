//! How etcd last ended, kept on the data volume. The launcher writes it, and the steward reads it to choose between a
//! quick and a complete check of the data directory.
//!
//! Two files: `exit-record.json` is ours; `exit_code` is what etcd-wrapper wrote and read, kept in step so that the
//! way back to it stays open.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

use etcd_storage::beneath::Beneath;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

const FILE: &str = "exit-record.json";
const WRAPPER_FILE: &str = "exit_code";
/// No record is longer.
const MAX_SIZE: u64 = 4096;
/// What etcd-wrapper took for a clean end.
const WRAPPER_CLEAN: [&str; 2] = ["terminated", "interrupt"];

/// How etcd's last run stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitRecord {
    /// How it stands.
    pub state: ExitState,
    /// When that was written.
    pub time: Timestamp,
    /// Exit code, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Signal, where one ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

/// How etcd's last run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitState {
    /// It was started; if it doesn't run any more, nobody saw it end.
    Running,
    /// It was asked to stop and did.
    Clean,
    /// It ended by itself, crashed, or was killed, before or after it was asked to stop.
    Unclean,
}

impl ExitRecord {
    /// A record that is written now.
    pub fn now(state: ExitState) -> Self {
        Self {
            state,
            time: Timestamp::now(),
            exit_code: None,
            signal: None,
        }
    }

    /// Reads the record; `None` when there is none or it can't be understood, which is no clean end.
    pub fn read(volume: &Path) -> Option<Self> {
        match Beneath::new(volume, FILE).read(MAX_SIZE) {
            Ok(text) => return serde_json::from_slice(&text).ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => return None,
        }
        let code = Beneath::new(volume, WRAPPER_FILE).read_text(MAX_SIZE).ok()?;
        WRAPPER_CLEAN
            .contains(&code.trim())
            .then(|| Self::now(ExitState::Clean))
    }

    /// Writes the record durably.
    pub fn write(&self, volume: &Path) -> io::Result<()> {
        let wrapper = volume.join(WRAPPER_FILE);
        if self.state == ExitState::Clean {
            replace(volume, WRAPPER_FILE, WRAPPER_CLEAN[0].as_bytes())?;
        } else if let Err(error) = fs::remove_file(wrapper)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        replace(volume, FILE, &serde_json::to_vec(self)?)
    }

    /// Whether the data directory was left in order.
    pub fn is_clean(&self) -> bool {
        self.state == ExitState::Clean
    }
}

/// Writes a file beside its name, then swaps it in, so that a crash leaves the old or the new one.
pub fn replace(folder: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let mut file = tempfile::Builder::new().prefix(name).tempfile_in(folder)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(folder.join(name)).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_written_clean_end_is_clean() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ExitRecord::read(dir.path()), None);
        for (state, clean) in [
            (ExitState::Clean, true),
            (ExitState::Running, false),
            (ExitState::Unclean, false),
        ] {
            ExitRecord::now(state).write(dir.path()).unwrap();
            assert_eq!(
                ExitRecord::read(dir.path()).unwrap().is_clean(),
                clean,
                "{state:?}"
            );
            assert_eq!(dir.path().join(WRAPPER_FILE).exists(), clean);
        }
        fs::write(dir.path().join(FILE), "{").unwrap();
        assert_eq!(ExitRecord::read(dir.path()), None);
    }

    /// etcd's container can make them as well: a link is no record, and neither is a pipe, which isn't waited for.
    #[test]
    fn links_and_pipes_are_no_record() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        ExitRecord::now(ExitState::Clean).write(other.path()).unwrap();
        for file in [FILE, WRAPPER_FILE] {
            std::os::unix::fs::symlink(other.path().join(file), dir.path().join(file)).unwrap();
            assert_eq!(ExitRecord::read(dir.path()), None, "{file}");
            fs::remove_file(dir.path().join(file)).unwrap();
            nix::unistd::mkfifo(&dir.path().join(file), nix::sys::stat::Mode::S_IRWXU).unwrap();
            assert_eq!(ExitRecord::read(dir.path()), None, "{file}");
            fs::remove_file(dir.path().join(file)).unwrap();
        }
        fs::write(dir.path().join(FILE), vec![b' '; 5000]).unwrap();
        assert_eq!(ExitRecord::read(dir.path()), None);
        std::os::unix::fs::symlink(other.path(), dir.path().join(WRAPPER_FILE)).unwrap();
        ExitRecord::now(ExitState::Running).write(dir.path()).unwrap();
        assert!(ExitRecord::read(dir.path()).is_some() && other.path().join(FILE).exists());
    }

    /// A volume that etcd-wrapper used before.
    #[test]
    fn the_wrappers_file_is_understood() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(WRAPPER_FILE), "interrupt\n").unwrap();
        assert!(ExitRecord::read(dir.path()).unwrap().is_clean());
        fs::write(dir.path().join(WRAPPER_FILE), "exit status 1").unwrap();
        assert_eq!(ExitRecord::read(dir.path()), None);
    }
}
