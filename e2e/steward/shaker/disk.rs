//! A volume that can be full: a file system in memory, where this process may mount one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail, ensure};
use nix::{sys::statvfs::statvfs, unistd::Uid};

use super::volume;

/// In which a member has more than enough room. Only what is used takes memory.
const ROOM: &str = "2g";

/// Mounted until it is dropped.
#[derive(Debug)]
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// `None` where this process may not mount.
    pub(crate) fn mount(at: &Path) -> anyhow::Result<Option<Self>> {
        if !Uid::effective().is_root() {
            return Ok(None);
        }
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("mode=755,size={ROOM}"), "shaker"])
            .arg(at)
            .output()
            .context("mount")?;
        Ok(mounted.status.success().then(|| Self(at.to_owned())))
    }

    /// Takes away all room that isn't used.
    pub(crate) fn fill(&self) -> anyhow::Result<()> {
        // More may be in use by the time that it is said.
        for more in [0, 16, 256, 1024] {
            let known = statvfs(&self.0)?;
            let used = known.blocks() - known.blocks_free() + more;
            if self.resize(&(used * known.fragment_size()).to_string()).is_ok() {
                return Ok(());
            }
        }
        bail!("{} grows too fast to be full", self.0.display())
    }

    pub(crate) fn make_room(&self) -> anyhow::Result<()> {
        self.resize(ROOM)
    }

    fn resize(&self, size: &str) -> anyhow::Result<()> {
        let done = Command::new("mount")
            .args(["-o", &format!("remount,size={size}")])
            .arg(&self.0)
            .output()?;
        ensure!(
            done.status.success(),
            "remount of {} with {size}: {}",
            self.0.display(),
            String::from_utf8_lossy(&done.stderr)
        );
        Ok(())
    }

    /// Leaves in the folder what is on the volume, for somebody to look at.
    pub(crate) fn keep(self) -> anyhow::Result<()> {
        let (at, aside) = (self.0.clone(), self.0.with_extension("kept"));
        volume::copy(&at, &aside)?;
        drop(self);
        fs::remove_dir(&at)?;
        Ok(fs::rename(aside, at)?)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // An etcd that was killed may still be about to end.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
