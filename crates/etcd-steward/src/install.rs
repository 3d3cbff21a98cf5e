//! `install`: copies this binary to a folder that the etcd container shares, since etcd's image is not ours.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// Flags of `install`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder to copy the binary to.
    folder: PathBuf,
}

/// The binary couldn't be copied.
#[derive(Debug, thiserror::Error)]
#[error("set up {folder}: {source}")]
pub struct InstallError {
    folder: PathBuf,
    source: io::Error,
}

/// Copies the binary beside its final name first, so that a half-written one is never run.
pub fn run(args: &Args) -> Result<(), InstallError> {
    install(&args.folder).map_err(|source| InstallError {
        folder: args.folder.clone(),
        source,
    })
}

fn install(folder: &Path) -> io::Result<()> {
    let target = folder.join("etcd-steward");
    let beside = target.with_extension("new");
    fs::copy("/proc/self/exe", &beside)?;
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o755))?;
    File::open(&beside)?.sync_all()?;
    fs::rename(&beside, &target)
}

/// Flags of `own`.
#[derive(Debug, clap::Args)]
pub struct OwnArgs {
    /// Folders to give away.
    #[arg(required = true)]
    folders: Vec<PathBuf>,
    /// ID of the user and group that get it.
    #[arg(long)]
    user: u32,
}

/// Gives folders of the node, which are made for root, to the user that the steward runs as.
pub fn own(args: &OwnArgs) -> Result<(), InstallError> {
    for folder in &args.folders {
        std::os::unix::fs::chown(folder, Some(args.user), Some(args.user)).map_err(|source| {
            InstallError {
                folder: folder.clone(),
                source,
            }
        })?;
    }
    Ok(())
}
