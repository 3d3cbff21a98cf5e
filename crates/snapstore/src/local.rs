//! A folder as a store: `<container>/<prefix>/v2/<name>`. Files are written beside, synced and then named, so that a
//! name means a whole snapshot whatever happens to the process or the machine.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    ops::Range,
    os::unix::fs::{DirBuilderExt as _, FileExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use tempfile::NamedTempFile;
use tokio::runtime::Handle;

use crate::{
    blocking::Blocking,
    body::{Body, ByteStream, Content, READ_SIZE},
    config::StoreConfig,
    error::{Class, Error, Result},
    listing::{Listing, Object, Raw},
    store::{Immutability, SnapStore},
};

/// Begins the names of files that aren't whole yet.
const UPLOAD_PREFIX: &str = ".upload-";

/// More bytes than this don't wait for the disk: a step takes a bounded time.
const SYNCED_AT_ONCE: u64 = 4 << 20;

/// A store in the file system.
#[derive(Debug)]
pub struct LocalStore {
    container: PathBuf,
    /// `<container>/<prefix>`.
    root: PathBuf,
    location: String,
    blocking: Blocking,
}

impl LocalStore {
    /// The container is an absolute folder or one below `$HOME`; it must exist when the store is used, since a
    /// missing mount must not look like an empty store.
    pub(crate) fn open(config: &StoreConfig) -> Result<Self> {
        let container = config.container().unwrap_or("default.bkp");
        let container = if Path::new(container).is_absolute() {
            PathBuf::from(container)
        } else {
            let home = config.environment.get("HOME").ok_or_else(|| {
                crate::config::invalid(format!("container {container:?} is relative and HOME isn't set"))
            })?;
            Path::new(home).join(container)
        };
        let prefix = StoreConfig {
            prefix: config.prefix.trim_start_matches('/').to_owned(),
            ..config.clone()
        };
        let prefix = prefix.key_prefix()?;
        // Of its components, so that there is no slash at the end.
        let root: PathBuf = container.join(prefix).components().collect();
        Ok(Self {
            location: format!("file://{}", root.display()),
            container,
            root,
            blocking: Blocking::default(),
        })
    }

    /// Does something, away from the threads of the runtime and for a bounded time.
    async fn step<T: Send + 'static>(
        &self,
        action: &str,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let name = action.to_owned();
        let work = move || work().map_err(|e| from_io(&e, &name));
        self.blocking.run(action, work).await
    }

    async fn check_container(&self, action: &str) -> Result<()> {
        let (container, name) = (self.container.clone(), action.to_owned());
        let check = move || check_container(&container, &name);
        self.blocking.run(action, check).await
    }

    /// Writes the body beside its final place.
    async fn spool(&self, folder: &Path, content: &mut Content, action: &str) -> Result<Spool> {
        let folder = folder.to_owned();
        let mut spool = self.step(action, move || Spool::begin(&folder)).await?;
        while let Some(bytes) = content.next(action).await? {
            spool = self.step(action, move || spool.write(&bytes)).await?;
        }
        self.step(action, move || spool.sync()).await
    }
}

/// A file that isn't whole yet. It vanishes when dropped.
struct Spool {
    file: Option<NamedTempFile>,
    written: u64,
    /// Bytes that may not have reached the disk yet.
    unsynced: u64,
}

impl Spool {
    fn begin(folder: &Path) -> io::Result<Self> {
        let file = tempfile::Builder::new()
            .prefix(UPLOAD_PREFIX)
            .tempfile_in(folder)?;
        Ok(Self {
            file: Some(file),
            written: 0,
            unsynced: 0,
        })
    }

    fn file(&mut self) -> io::Result<&mut NamedTempFile> {
        self.file
            .as_mut()
            .ok_or_else(|| io::Error::other("the file has its name"))
    }

    fn write(mut self, bytes: &[u8]) -> io::Result<Self> {
        self.file()?.write_all(bytes)?;
        self.written += bytes.len() as u64;
        self.unsynced += bytes.len() as u64;
        if self.unsynced >= SYNCED_AT_ONCE {
            return self.sync();
        }
        Ok(self)
    }

    fn sync(mut self) -> io::Result<Self> {
        self.file()?.as_file().sync_all()?;
        self.unsynced = 0;
        Ok(self)
    }

    /// Gives it its name, unless there is a file of that name.
    fn persist(mut self, path: &Path) -> io::Result<File> {
        let file = self.file.take();
        let file = file.ok_or_else(|| io::Error::other("the file has its name"))?;
        Ok(file.persist_noclobber(path)?)
    }
}

impl Drop for Spool {
    /// An upload may be broken off at any time, and removing a file may hang.
    fn drop(&mut self) {
        if let (Some(file), Ok(runtime)) = (self.file.take(), Handle::try_current()) {
            drop(runtime.spawn_blocking(|| drop(file)));
        }
    }
}

#[async_trait]
impl SnapStore for LocalStore {
    fn location(&self) -> &str {
        &self.location
    }

    async fn list(&self) -> Result<Listing> {
        let action = format!("list {}", self.location);
        self.check_container(&action).await?;
        let root = self.root.clone();
        let walk = move || {
            let mut found = Vec::new();
            for layout in ["v1", "v2"] {
                walk(&root, layout, &mut found)?;
            }
            Ok(Listing::classify(&format!("{}/", root.display()), found))
        };
        self.step(&action, walk).await
    }

    async fn put_object(&self, file: &str, body: Body) -> Result<Object> {
        let folder = self.root.join("v2");
        let path = folder.join(file);
        let action = format!("write {}", path.display());
        self.check_container(&action).await?;
        let (make, place) = (folder.clone(), path.clone());
        let exists = self.step(&action, move || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&make)?;
            Ok(place.exists())
        });
        if exists.await? {
            return Err(Error::new(Class::AlreadyExists, action, ""));
        }
        let (mut content, seal) = body.split();
        let spool = self.spool(&folder, &mut content, &action).await?;
        let written = spool.written;
        seal.check(written, &action).await?;
        let finish = move || {
            let file = spool.persist(&path)?;
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
            sync_folder(&folder)?;
            describe(&path)
        };
        let object = self.step(&action, finish).await?;
        if object.size != written {
            let state = match self.delete(&object).await {
                Ok(()) => "it was removed".to_owned(),
                Err(error) => format!("it can't be removed ({error}), remove it by hand"),
            };
            let detail = format!("wrote {written} bytes, the file has {}; {state}", object.size);
            return Err(Error::new(Class::Corrupt, action, detail));
        }
        Ok(object)
    }

    async fn get(&self, object: &Object, range: Option<Range<u64>>) -> Result<ByteStream> {
        let action = format!("read {}", object.key);
        let path = object.key.clone();
        let open = move || {
            let file = File::open(&path)?;
            let size = file.metadata()?.len();
            Ok((file, size))
        };
        let (file, size) = self.step(&action, open).await?;
        let range = range.unwrap_or(0..size);
        let range = range.start.min(size)..range.end.min(size);
        let (file, blocking) = (Arc::new(file), self.blocking.clone());
        let read = move |range: Range<u64>| {
            let (file, blocking, action) = (Arc::clone(&file), blocking.clone(), action.clone());
            async move {
                if range.is_empty() {
                    return Ok(None);
                }
                let (from, name) = (range.clone(), action.clone());
                let read = move || read_at(&file, &from).map_err(|e| from_io(&e, &name));
                let piece = blocking.run(&action, read).await?;
                let next = range.start + piece.len() as u64..range.end;
                Ok((!piece.is_empty()).then_some((piece, next)))
            }
        };
        Ok(stream::try_unfold(range, read).boxed())
    }

    async fn delete(&self, object: &Object) -> Result<()> {
        let path = PathBuf::from(&object.key);
        let action = format!("delete {}", object.key);
        if !path.starts_with(&self.root) {
            return Err(Error::new(
                Class::InvalidConfig,
                action,
                "the file is not in this store",
            ));
        }
        let remove = move || match fs::remove_file(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Ok(()) => path.parent().map_or(Ok(()), sync_folder),
            Err(e) => Err(e),
        };
        self.step(&action, remove).await
    }

    async fn immutability(&self) -> Result<Immutability> {
        Ok(Immutability::default())
    }

    async fn abort_stale_uploads(&self, started_before: Timestamp) -> Result<u64> {
        let folder = self.root.join("v2");
        let action = format!("remove unfinished files from {}", self.location);
        self.check_container(&action).await?;
        self.step(&action, move || remove_stale(&folder, started_before))
            .await
    }
}

fn check_container(container: &Path, action: &str) -> Result<()> {
    match fs::metadata(container) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(Error::new(
            Class::InvalidConfig,
            action,
            "the container is not a folder",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let hint = format!("{} doesn't exist; mount or create it", container.display());
            Err(Error::new(Class::BucketNotFound, action, hint))
        }
        Err(error) => Err(from_io(&error, action)),
    }
}

/// The next bytes of a range; none at the end of the file.
fn read_at(file: &File, range: &Range<u64>) -> io::Result<Bytes> {
    let count = usize::try_from(range.end - range.start).map_or(READ_SIZE, |left| left.min(READ_SIZE));
    let mut piece = vec![0; count];
    let count = file.read_at(&mut piece, range.start)?;
    piece.truncate(count);
    Ok(piece.into())
}

/// Adds all files below `root/folder`, named relative to `root`.
fn walk(root: &Path, folder: &str, found: &mut Vec<Raw>) -> io::Result<()> {
    let entries = match fs::read_dir(root.join(folder)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{folder}/{name}");
        if entry.file_type()?.is_dir() {
            walk(root, &path, found)?;
        } else if !name.starts_with(UPLOAD_PREFIX) {
            match describe(&entry.path()) {
                Ok(object) => found.push(Raw {
                    object,
                    excluded: false,
                }),
                // Deleted since the folder was read.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(())
}

fn describe(path: &Path) -> io::Result<Object> {
    let meta = fs::metadata(path)?;
    Ok(Object {
        key: path.to_string_lossy().into_owned(),
        size: meta.len(),
        etag: None,
        last_modified: timestamp(meta.modified()?),
        version: None,
        immutable_until: None,
    })
}

fn timestamp(time: SystemTime) -> Option<Timestamp> {
    Timestamp::try_from(time).ok()
}

fn remove_stale(folder: &Path, started_before: Timestamp) -> io::Result<u64> {
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry?;
        let is_upload = entry.file_name().to_string_lossy().starts_with(UPLOAD_PREFIX);
        // Last written to, not created: a slow upload isn't a dead one.
        let touched = entry
            .metadata()
            .and_then(|meta| meta.modified())
            .ok()
            .and_then(timestamp);
        if is_upload && touched.is_some_and(|touched| touched < started_before) {
            fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

fn from_io(error: &io::Error, action: &str) -> Error {
    use io::ErrorKind as Kind;
    let class = match error.kind() {
        Kind::NotFound => Class::NotFound,
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => Class::AccessDenied,
        Kind::AlreadyExists => Class::AlreadyExists,
        Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => Class::PayloadRejected,
        Kind::TimedOut | Kind::StaleNetworkFileHandle => Class::Unreachable,
        _ => Class::Other,
    };
    Error::new(class, action, error.to_string())
}
