//! The configuration that the running etcd was started with.

use std::{io, path::Path, sync::Arc};

use etcd_storage::beneath::Beneath;
use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::bootstrap::config::{self, ConfigError};

/// The largest one that is read; etcd-controller's have some KiB.
const MAX_SIZE: u64 = 1 << 20;

/// What this process sent to the launcher. What an earlier one sent lies in the folder that it shares with the launcher, and
/// with whatever else runs in etcd's container: it's read, but no link there leads anywhere.
#[derive(Debug, Clone)]
pub struct RunningConfig {
    sent: Arc<watch::Sender<Option<String>>>,
    file: Beneath,
}

impl RunningConfig {
    /// That of an etcd whose launcher keeps it in a file.
    pub fn new(file: &Path) -> Self {
        Self {
            sent: Arc::default(),
            file: Beneath::of(file),
        }
    }

    /// etcd is started with this.
    pub fn sent(&self, config: &str) {
        self.sent.send_replace(Some(config.to_owned()));
    }

    /// The YAML text.
    ///
    /// # Errors
    /// etcd wasn't started yet, or the file can't be read.
    pub fn text(&self) -> io::Result<String> {
        let sent = self.sent.borrow().clone();
        match sent {
            Some(sent) => Ok(sent),
            None => self.file.read_text(MAX_SIZE),
        }
    }

    /// Its options.
    ///
    /// # Errors
    /// As [`text`](Self::text), or it is no YAML mapping.
    pub fn options(&self) -> Result<Map<String, Value>, ConfigError> {
        let path = self.file.path();
        let text = self.text().map_err(|source| ConfigError::Read {
            path: path.clone(),
            source,
        })?;
        config::parse(&text, &path)
    }

    /// One of its options.
    pub fn option(&self, name: &str) -> Option<Value> {
        self.options().ok()?.remove(name)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn what_was_sent_counts_and_links_lead_nowhere() {
        let (run, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (file, key) = (run.path().join("etcd.conf.yaml"), keys.path().join("key"));
        let running = RunningConfig::new(&file);
        assert_eq!(running.text().unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&key, "quota-backend-bytes: 5\n").unwrap();
        for target in [key.as_path(), Path::new("/dev/zero")] {
            symlink(target, &file).unwrap();
            running.text().unwrap_err();
            assert_eq!(running.option("quota-backend-bytes"), None);
            fs::remove_file(&file).unwrap();
        }
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        running.text().unwrap_err();
        fs::remove_file(&file).unwrap();
        fs::copy(&key, &file).unwrap();
        assert_eq!(running.option("quota-backend-bytes"), Some(5.into()));
        running.sent("quota-backend-bytes: 6\n");
        assert_eq!(running.option("quota-backend-bytes"), Some(6.into()));
        fs::write(&file, vec![b'#'; 2 << 20]).unwrap();
        assert!(running.text().is_ok());
        RunningConfig::new(&file).text().unwrap_err();
    }
}
