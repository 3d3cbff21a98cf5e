//! An open database file: its valid meta page, its pages, its buckets.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::cursor::Cursor;
use super::format::{
    BRANCH_PAGE, BUCKET, BucketHeader, HEADER, LEAF_PAGE, META, Meta, MetaFault, PageHeader,
};
use super::{Error, format};

/// Bytes that are prefetched at a time.
const PREFETCH: usize = 1 << 20;

/// A database that is read in place, page by page; nothing is ever written to it.
#[derive(Debug)]
pub struct Db {
    file: File,
    meta: Meta,
}

/// A bucket at the top level.
#[derive(Clone, Debug)]
pub struct Bucket {
    name: Vec<u8>,
    pub(super) header: BucketHeader,
    /// The leaf page that stands in for a tree, when the bucket is inline.
    pub(super) inline: Vec<u8>,
}

impl Db {
    /// Opens a database for reading. No lock is taken: the caller knows that nobody writes.
    ///
    /// # Errors
    /// The file can't be read, is cut, or has no valid meta page.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::from_file(File::open(path).map_err(Error::io("open of the database"))?)
    }

    /// Takes a file that is open for reading.
    ///
    /// # Errors
    /// As [`Db::open`].
    pub fn from_file(file: File) -> Result<Self, Error> {
        let io = Error::io("read of the meta pages");
        let len = file.metadata().map_err(&io)?.len();
        let meta = read_meta(&file, len)?;
        // A file can be longer than its pages, as bbolt grows it ahead; it must not be shorter.
        if meta
            .high_water
            .checked_mul(meta.page_size as u64)
            .is_none_or(|need| need > len)
        {
            return Err(Error::Cut {
                len,
                pages: meta.high_water,
                page_size: meta.page_size,
            });
        }
        Ok(Self { file, meta })
    }

    /// Size of a page in bytes.
    pub fn page_size(&self) -> usize {
        self.meta.page_size
    }

    /// Number of pages in use or free.
    pub fn page_count(&self) -> u64 {
        self.meta.high_water
    }

    /// Id of the newest transaction.
    pub fn txid(&self) -> u64 {
        self.meta.txid
    }

    pub(crate) fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The buckets, in the order of their names.
    ///
    /// # Errors
    /// The file can't be read or is damaged.
    pub fn buckets(&self) -> Result<Vec<Bucket>, Error> {
        let mut cursor = self.root_cursor();
        let mut buckets = Vec::new();
        while let Some(entry) = cursor.next_entry()? {
            let page = self.meta.root.root;
            if !entry.is_bucket {
                return Err(Error::Page {
                    page,
                    what: "holds a plain key beside the buckets",
                });
            }
            buckets.push(Bucket::read(entry.key, entry.value, page)?);
        }
        Ok(buckets)
    }

    /// The bucket of that name, if there is one.
    ///
    /// # Errors
    /// The file can't be read or is damaged.
    pub fn bucket(&self, name: &[u8]) -> Result<Option<Bucket>, Error> {
        Ok(self.buckets()?.into_iter().find(|bucket| bucket.name == name))
    }

    /// Reads the file from start to end, so that what others read in the order of keys is in memory already: disks
    /// are slow at anything else. Ends early when told to, or when the file can't be read; the others will see that. How
    /// many bytes were read is kept in `read`.
    pub(crate) fn prefetch(&self, stop: &AtomicBool, read: &AtomicU64) {
        let mut chunk = vec![0; PREFETCH];
        let mut offset = 0;
        while !stop.load(Ordering::Relaxed) {
            match self.file.read_at(&mut chunk, offset) {
                Ok(count) if count > 0 => {
                    offset += count as u64;
                    read.store(offset, Ordering::Relaxed);
                }
                _ => break,
            }
        }
    }

    pub(super) fn root_cursor(&self) -> Cursor<'_> {
        Cursor::new(self, self.meta.root.root, &[])
    }

    /// Reads the page run that begins at `page` and checks that it is a branch or a leaf.
    pub(super) fn read_page(&self, page: u64, into: &mut Vec<u8>) -> Result<PageHeader, Error> {
        let fault = |what| Error::Page { page, what };
        if !(2..self.meta.high_water).contains(&page) {
            return Err(fault("is outside of the file"));
        }
        self.read_at(page, into, self.meta.page_size, 0)?;
        let header = PageHeader::read(into).ok_or_else(|| fault("has no header"))?;
        if header.id != page {
            return Err(fault("has the number of another page"));
        }
        if !matches!(header.flags, BRANCH_PAGE | LEAF_PAGE) {
            return Err(fault("is neither a branch nor a leaf"));
        }
        if page + u64::from(header.overflow) >= self.meta.high_water {
            return Err(fault("runs over the end of the file"));
        }
        let whole = self.meta.page_size * (header.overflow as usize + 1);
        self.read_at(page, into, whole, self.meta.page_size)?;
        Ok(header)
    }

    /// Makes `into` the first `len` bytes of the page; `have` of them are there.
    pub(super) fn read_at(
        &self,
        page: u64,
        into: &mut Vec<u8>,
        len: usize,
        have: usize,
    ) -> Result<(), Error> {
        into.resize(len, 0);
        let offset = page * self.meta.page_size as u64 + have as u64;
        self.file
            .read_exact_at(&mut into[have..], offset)
            .map_err(Error::io("read of a page"))
    }
}

impl Bucket {
    pub(super) fn read(name: &[u8], value: &[u8], page: u64) -> Result<Self, Error> {
        let short = || Error::Page {
            page,
            what: "holds a bucket without a header",
        };
        let header = BucketHeader::read(value).ok_or_else(short)?;
        let inline = if header.root == 0 {
            value[BUCKET..].to_vec()
        } else {
            Vec::new()
        };
        Ok(Self {
            name: name.to_vec(),
            header,
            inline,
        })
    }

    /// Name of the bucket.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The bucket's counter, which etcd doesn't use.
    pub fn sequence(&self) -> u64 {
        self.header.sequence
    }

    /// Reads the bucket in the order of its keys.
    pub fn cursor<'a>(&'a self, db: &'a Db) -> Cursor<'a> {
        Cursor::new(db, self.header.root, &self.inline)
    }

    /// The last key of the bucket; only the pages on the way to it are read.
    ///
    /// # Errors
    /// The file can't be read or is damaged.
    pub fn last_key(&self, db: &Db) -> Result<Option<Vec<u8>>, Error> {
        self.cursor(db).last_key()
    }

    /// The value of `key`, if there is one. Reads the bucket up to there: meant for small buckets.
    ///
    /// # Errors
    /// The file can't be read or is damaged.
    pub fn get(&self, db: &Db, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut cursor = self.cursor(db);
        while let Some(entry) = cursor.next_entry()? {
            if entry.key == key {
                return Ok(Some(entry.value.to_vec()));
            }
        }
        Ok(None)
    }

    /// The value that stands for the bucket in the root bucket.
    pub(crate) fn to_value(&self) -> Vec<u8> {
        [&self.header.bytes()[..], &self.inline].concat()
    }

    pub(crate) fn root(&self) -> u64 {
        self.header.root
    }
}

/// The valid meta page with the higher transaction id.
fn read_meta(file: &File, len: u64) -> Result<Meta, Error> {
    let at = |offset: u64| {
        let mut page = [0; HEADER + META];
        match file.read_exact_at(&mut page, offset) {
            Ok(()) => Ok(Meta::read(&page)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Err(MetaFault::Short)),
            Err(error) => Err(Error::io("read of the meta pages")(error)),
        }
    };
    let first = at(0)?;
    let second = if let Ok(first) = first {
        at(first.page_size as u64)?
    } else {
        // Without the first, the second says where it is itself.
        let mut offsets = format::page_sizes().take_while(|size| (*size as u64) < len);
        let probe =
            |offset: usize| at(offset as u64).map(|meta| meta.ok().filter(|meta| meta.page_size == offset));
        offsets
            .find_map(|offset| probe(offset).transpose())
            .transpose()?
            .ok_or(MetaFault::Magic)
    };
    match (first, second) {
        (Ok(first), Ok(second)) if second.txid > first.txid && second.page_size == first.page_size => {
            Ok(second)
        }
        (Ok(meta), _) | (Err(_), Ok(meta)) => Ok(meta),
        (Err(first), Err(second)) => Err(Error::NoMeta { first, second }),
    }
}
