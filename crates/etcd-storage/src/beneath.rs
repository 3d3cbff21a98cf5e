//! Files in folders that somebody else writes to as well, such as the data volume, on which etcd's container has the same
//! rights. Whoever can make a link there must not choose what is read, and nothing that is found there may block or
//! fill the memory: on the way below a trusted folder no link is followed, only regular files are opened, without
//! waiting, and each read has a bound.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstatat};

/// Names that are listed of one folder at the most; etcd makes a few dozen.
const MAX_NAMES: usize = 100_000;

const LINK: &str = "is a link, and links aren't followed here";

/// A file or folder below a trusted folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beneath {
    trusted: PathBuf,
    below: PathBuf,
}

impl Beneath {
    /// `name` in a folder whose own path leads nowhere else, such as the mount point of a volume.
    pub fn new(trusted: impl Into<PathBuf>, name: impl Into<PathBuf>) -> Self {
        Self {
            trusted: trusted.into(),
            below: name.into(),
        }
    }

    /// A path of which only the last part is in question.
    pub fn of(path: &Path) -> Self {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        match path.file_name() {
            Some(name) => Self::new(parent.unwrap_or_else(|| Path::new(".")), name),
            None => Self::new(path, ""),
        }
    }

    /// Something in it.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> Self {
        Self::new(self.trusted.clone(), self.below.join(name))
    }

    /// Its whole path, for messages.
    pub fn path(&self) -> PathBuf {
        self.trusted.join(&self.below)
    }

    /// Opens the file for reading.
    ///
    /// # Errors
    /// It isn't there, a link is on the way or in its place, or it is no regular file.
    pub fn open(&self) -> io::Result<File> {
        let (folder, name) = self.parent()?;
        let name = name.ok_or_else(|| refused("is a folder"))?;
        let flags =
            OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let opened = openat(&folder, name, flags, Mode::empty());
        let file = File::from(opened.map_err(|error| match error {
            nix::Error::ELOOP => refused(LINK),
            // A socket.
            nix::Error::ENXIO => refused("is no regular file"),
            error => error.into(),
        })?);
        if file.metadata()?.is_file() {
            Ok(file)
        } else {
            Err(refused("is no regular file"))
        }
    }

    /// Reads the whole file, which may have so many bytes.
    ///
    /// # Errors
    /// As [`open`](Self::open), or it is larger.
    pub fn read(&self, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // It may grow while it is read.
        self.open()?
            .take(limit.saturating_add(1))
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("has more than {limit} bytes, the most that is read of it"),
            ));
        }
        Ok(bytes)
    }

    /// The same as text.
    ///
    /// # Errors
    /// As [`read`](Self::read), or it isn't UTF-8.
    pub fn read_text(&self, limit: u64) -> io::Result<String> {
        let text = String::from_utf8(self.read(limit)?);
        text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "isn't UTF-8"))
    }

    /// The names in the folder.
    ///
    /// # Errors
    /// It isn't there, is no folder, a link is on the way or in its place, or there are too many.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let folder = match self.parent()? {
            (folder, Some(name)) => into_folder(&folder, name)?,
            (folder, None) => folder,
        };
        // By its descriptor: its name may be another folder's by now.
        let entries = fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))?;
        let mut names = Vec::new();
        for entry in entries {
            if names.len() == MAX_NAMES {
                return Err(refused("has too many files in it"));
            }
            names.push(entry?.file_name());
        }
        Ok(names)
    }

    /// Whether there is anything of this name, be it a link that leads nowhere.
    ///
    /// # Errors
    /// It can't be told.
    pub fn exists(&self) -> io::Result<bool> {
        let found = match self.parent() {
            Ok((folder, Some(name))) => {
                fstatat(&folder, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(io::Error::from)
            }
            Ok((_, None)) => return Ok(true),
            Err(error) => Err(error),
        };
        match found {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Size of the file in bytes, or of whatever else has its name.
    ///
    /// # Errors
    /// It isn't there, or a link is on the way.
    pub fn size(&self) -> io::Result<u64> {
        let (folder, name) = self.parent()?;
        let name = name.ok_or_else(|| refused("is a folder"))?;
        let found = fstatat(&folder, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        Ok(u64::try_from(found.st_size).unwrap_or(0))
    }

    /// The folder that it is in, opened step by step, and its name there; no name for the trusted folder itself.
    fn parent(&self) -> io::Result<(OwnedFd, Option<&OsStr>)> {
        let mut folder = OwnedFd::from(File::open(&self.trusted)?);
        let mut name = None;
        for component in self.below.components() {
            let Component::Normal(next) = component else {
                return Err(refused("leads out of its folder"));
            };
            if let Some(through) = name.replace(next) {
                folder = into_folder(&folder, through)?;
            }
        }
        Ok((folder, name))
    }
}

fn into_folder(folder: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(folder, name, flags, Mode::empty()).map_err(|error| {
        let found = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFLNK)
        {
            refused(LINK)
        } else {
            error.into()
        }
    })
}

fn refused(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn what_is_there_is_read() {
        let volume = tempfile::tempdir().unwrap();
        fs::create_dir_all(volume.path().join("a/b")).unwrap();
        fs::write(volume.path().join("a/b/c"), "text").unwrap();
        let file = Beneath::new(volume.path(), "a").join("b").join("c");
        assert_eq!(file.read_text(4).unwrap(), "text");
        assert!(file.exists().unwrap() && !file.join("d").exists().is_ok_and(|there| there));
        assert_eq!(file.size().unwrap(), 4);
        assert_eq!(file.path(), volume.path().join("a/b/c"));
        assert_eq!(Beneath::of(&volume.path().join("a")).names().unwrap(), ["b"]);
        assert_eq!(Beneath::new(volume.path(), "").names().unwrap(), ["a"]);
        let none = Beneath::new(volume.path(), "a/none");
        assert_eq!(none.open().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!none.exists().unwrap());
        assert!(!Beneath::new(volume.path(), "none/x").exists().unwrap());
        let large = file.read(3).unwrap_err();
        assert_eq!(large.kind(), io::ErrorKind::FileTooLarge, "{large}");
        assert!(file.open().is_ok() && Beneath::of(&file.path()).open().is_ok());
    }

    /// None of it is followed, waited for, or read without end.
    #[test]
    fn what_is_no_file_of_the_folder_is_refused() {
        let volume = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("key"), "secret").unwrap();
        let at = |name: &str| volume.path().join(name);
        symlink(outside.path().join("key"), at("link")).unwrap();
        symlink(outside.path(), at("folder-link")).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        for name in [
            "link",
            "folder-link/key",
            "zero",
            "dangling",
            "fifo",
            "socket",
            "folder",
            "folder/../folder-link/key",
            "..",
        ] {
            let error = Beneath::new(volume.path(), name).read(1 << 20).unwrap_err();
            assert_ne!(error.kind(), io::ErrorKind::NotFound, "{name}: {error}");
        }
        let outside = outside.path().join("key");
        let absolute = Beneath::new(volume.path(), outside).read(1 << 20).unwrap_err();
        assert_eq!(absolute.to_string(), "leads out of its folder");
        assert!(Beneath::new(volume.path(), "folder-link").names().is_err());
        assert!(
            Beneath::new(volume.path(), "dangling").exists().unwrap(),
            "it is there"
        );
    }
}
