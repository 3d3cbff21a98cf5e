//! A folder as a store: `<container>/<prefix>/v2/<name>`. Files are written beside, synced and then named, so that a
//! name means a whole snapshot whatever happens to the process or the machine.

use std::{
    fs, io,
    ops::Range,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use async_trait::async_trait;
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};
use tokio_util::io::ReaderStream;

use crate::{
    body::{Body, ByteStream, Content, READ_SIZE},
    config::StoreConfig,
    error::{Class, Error, Result},
    listing::{Listing, Object, Raw},
    store::{Immutability, SnapStore},
};

/// Begins the names of files that aren't whole yet.
const UPLOAD_PREFIX: &str = ".upload-";

/// A store in the file system.
#[derive(Debug)]
pub struct LocalStore {
    container: PathBuf,
    /// `<container>/<prefix>`.
    root: PathBuf,
    location: String,
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
        })
    }

    fn check_container(&self, action: &str) -> Result<()> {
        match fs::metadata(&self.container) {
            Ok(meta) if meta.is_dir() => Ok(()),
            Ok(_) => Err(Error::new(
                Class::InvalidConfig,
                action,
                "the container is not a folder",
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let hint = format!("{} doesn't exist; mount or create it", self.container.display());
                Err(Error::new(Class::BucketNotFound, action, hint))
            }
            Err(error) => Err(from_io(&error, action)),
        }
    }

    /// Writes the body beside its final place. The file vanishes when dropped.
    async fn spool(
        &self,
        folder: &Path,
        content: &mut Content,
        action: &str,
    ) -> Result<(NamedTempFile, u64)> {
        let temp = tempfile::Builder::new().prefix(UPLOAD_PREFIX).tempfile_in(folder);
        let temp = temp.map_err(|e| from_io(&e, action))?;
        let file = temp.reopen().map_err(|e| from_io(&e, action))?;
        let mut file = tokio::fs::File::from_std(file);
        let mut written = 0;
        while let Some(bytes) = content.next(action).await? {
            file.write_all(&bytes).await.map_err(|e| from_io(&e, action))?;
            written += bytes.len() as u64;
        }
        file.flush().await.map_err(|e| from_io(&e, action))?;
        file.sync_all().await.map_err(|e| from_io(&e, action))?;
        Ok((temp, written))
    }
}

#[async_trait]
impl SnapStore for LocalStore {
    fn location(&self) -> &str {
        &self.location
    }

    async fn list(&self) -> Result<Listing> {
        let action = format!("list {}", self.location);
        self.check_container(&action)?;
        let root = self.root.clone();
        blocking(move || {
            let mut found = Vec::new();
            for layout in ["v1", "v2"] {
                walk(&root, layout, &mut found).map_err(|e| from_io(&e, &action))?;
            }
            Ok(Listing::classify(&format!("{}/", root.display()), found))
        })
        .await
    }

    async fn put_object(&self, file: &str, body: Body) -> Result<Object> {
        let folder = self.root.join("v2");
        let path = folder.join(file);
        let action = format!("write {}", path.display());
        self.check_container(&action)?;
        let make = || fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        make().map_err(|e| from_io(&e, &action))?;
        if path.exists() {
            return Err(Error::new(Class::AlreadyExists, action, ""));
        }
        let (mut content, seal) = body.split();
        let (temp, written) = self.spool(&folder, &mut content, &action).await?;
        seal.check(written, &action).await?;
        blocking(move || {
            let file = temp
                .persist_noclobber(&path)
                .map_err(|e| from_io(&e.error, &action))?;
            file.set_permissions(fs::Permissions::from_mode(0o600))
                .map_err(|e| from_io(&e, &action))?;
            sync_folder(&folder).map_err(|e| from_io(&e, &action))?;
            let object = describe(&path).map_err(|e| from_io(&e, &action))?;
            if object.size != written {
                let detail = format!("wrote {written} bytes, the file has {}", object.size);
                return Err(Error::new(Class::Corrupt, action, detail));
            }
            Ok(object)
        })
        .await
    }

    async fn get(&self, object: &Object, range: Option<Range<u64>>) -> Result<ByteStream> {
        let action = format!("read {}", object.key);
        let failed = |e| from_io(&e, &action);
        let mut file = tokio::fs::File::open(&object.key).await.map_err(failed)?;
        let size = file.metadata().await.map_err(failed)?.len();
        let range = range.unwrap_or(0..size);
        let range = range.start.min(size)..range.end.min(size);
        file.seek(io::SeekFrom::Start(range.start))
            .await
            .map_err(failed)?;
        let file = file.take(range.end.saturating_sub(range.start));
        Ok(ReaderStream::with_capacity(file, READ_SIZE)
            .map_err(move |e| from_io(&e, &action))
            .boxed())
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
        blocking(move || {
            match fs::remove_file(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                Ok(()) => path.parent().map_or(Ok(()), sync_folder),
                Err(e) => Err(e),
            }
            .map_err(|e| from_io(&e, &action))
        })
        .await
    }

    async fn immutability(&self) -> Result<Immutability> {
        Ok(Immutability::default())
    }

    async fn abort_stale_uploads(&self, started_before: Timestamp) -> Result<u64> {
        let folder = self.root.join("v2");
        let action = format!("remove unfinished files from {}", self.location);
        self.check_container(&action)?;
        blocking(move || remove_stale(&folder, started_before).map_err(|e| from_io(&e, &action))).await
    }
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

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let finished = tokio::task::spawn_blocking(work).await;
    finished.unwrap_or_else(|e| Err(Error::new(Class::Other, "work on files", e.to_string())))
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
