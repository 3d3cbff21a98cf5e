//! Writes databases: pages in ascending order to any sink, and whole files that appear only when they are complete.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::Error;
use super::format::{BUCKET_ELEMENT, BucketHeader, FREELIST_PAGE, HEADER, META, Meta, PageHeader};
use super::tree::{Root, TreeBuilder};

/// Bytes that are held before they are written to a file.
const BUFFER: usize = 1 << 20;

/// The first page after two meta pages and the (empty) list of free pages.
const FIRST_PAGE: u64 = 3;

/// A sequence of pages that goes to a sink.
pub(crate) struct Pages<W> {
    sink: W,
    page_size: usize,
    next: u64,
}

impl<W: Write> Pages<W> {
    /// The next page written gets the number `next`; the sink stands at its place.
    pub(crate) fn new(sink: W, page_size: usize, next: u64) -> Self {
        Self {
            sink,
            page_size,
            next,
        }
    }

    pub(crate) fn page_size(&self) -> usize {
        self.page_size
    }

    /// Number of the next page: the high-water mark.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn into_sink(self) -> W {
        self.sink
    }

    /// Writes a page run and returns its number. The tail is zero, so that equal content makes equal files.
    pub(crate) fn append(&mut self, flags: u16, count: usize, parts: &[&[u8]]) -> io::Result<u64> {
        let len = HEADER + parts.iter().map(|part| part.len()).sum::<usize>();
        let run = len.div_ceil(self.page_size);
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let overflow = u32::try_from(run - 1).map_err(invalid)?;
        let count = u16::try_from(count).map_err(invalid)?;
        let mut header = [0; HEADER];
        PageHeader {
            id: self.next,
            flags,
            count,
            overflow,
        }
        .write(&mut header);
        self.sink.write_all(&header)?;
        for part in parts {
            self.sink.write_all(part)?;
        }
        write_zeros(&mut self.sink, run * self.page_size - len)?;
        let page = self.next;
        self.next += run as u64;
        Ok(page)
    }
}

fn write_zeros(sink: &mut impl Write, mut count: usize) -> io::Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    while count > 0 {
        let step = count.min(ZEROS.len());
        sink.write_all(&ZEROS[..step])?;
        count -= step;
    }
    Ok(())
}

/// The outline of a finished database: what its meta pages say. Two runs over the same records have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout(Meta);

impl Layout {
    /// Length of the database in bytes.
    pub fn len(&self) -> u64 {
        self.0.high_water * self.0.page_size as u64
    }

    /// Never: a database has meta pages at least.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The pages before the tree: both meta pages and an empty list of free pages.
    pub fn head(&self) -> Vec<u8> {
        let mut head = vec![0; 3 * self.0.page_size];
        for txid in 0..2 {
            let at = usize::from(txid == 1) * self.0.page_size;
            Meta { txid, ..self.0 }.write(&mut head[at..at + HEADER + META]);
        }
        let freelist = PageHeader {
            id: 2,
            flags: FREELIST_PAGE,
            count: 0,
            overflow: 0,
        };
        freelist.write(&mut head[2 * self.0.page_size..]);
        head
    }
}

/// Writes the pages behind a database's head (see [`Layout::head`]) from sorted records, bucket by bucket.
///
/// Memory is a few pages for each level of the tree, whatever the number and the size of the records.
pub struct BulkWriter<W> {
    pages: Pages<W>,
    open: Option<(Vec<u8>, u64, TreeBuilder)>,
    buckets: Vec<(Vec<u8>, Vec<u8>)>,
}

impl<W: Write> BulkWriter<W> {
    /// Writes pages of `page_size` bytes (a power of two) to `sink`.
    pub fn new(sink: W, page_size: usize) -> Self {
        Self {
            pages: Pages::new(sink, page_size, FIRST_PAGE),
            open: None,
            buckets: Vec::new(),
        }
    }

    /// Begins a bucket and ends the one before. `fill_percent` is 100 for a bucket that only grows at its end, and
    /// less for one that is changed all over.
    ///
    /// # Errors
    /// The sink failed.
    pub fn bucket(&mut self, name: &[u8], sequence: u64, fill_percent: usize) -> Result<(), Error> {
        self.end_bucket()?;
        let tree = TreeBuilder::new(name, self.pages.page_size(), fill_percent);
        self.open = Some((name.to_vec(), sequence, tree));
        Ok(())
    }

    /// Adds a record to the open bucket; its value comes in parts.
    ///
    /// # Errors
    /// The key isn't above the one before, the record is too large, or the sink failed.
    pub fn put(&mut self, key: &[u8], value: &[&[u8]]) -> Result<(), Error> {
        match &mut self.open {
            Some((_, _, tree)) => tree.push(&mut self.pages, key, value, 0),
            None => Err(Error::Order {
                bucket: String::new(),
                key: key.to_vec(),
            }),
        }
    }

    fn end_bucket(&mut self) -> Result<(), Error> {
        if let Some((name, sequence, tree)) = self.open.take() {
            let value = bucket_value(tree, sequence, &mut self.pages)?;
            self.buckets.push((name, value));
        }
        Ok(())
    }

    /// Ends the last bucket, writes the root bucket, and gives the sink back.
    ///
    /// # Errors
    /// Two buckets have one name, or the sink failed.
    pub fn finish(mut self) -> Result<(W, Layout), Error> {
        self.end_bucket()?;
        let page_size = self.pages.page_size();
        let root = root_bucket(self.buckets, &mut self.pages)?;
        let root = BucketHeader { root, sequence: 0 };
        let meta = Meta {
            page_size,
            root,
            freelist: 2,
            high_water: self.pages.next(),
            txid: 1,
        };
        Ok((self.pages.into_sink(), Layout(meta)))
    }
}

impl<W> fmt::Debug for BulkWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkWriter")
            .field("buckets", &self.buckets.len())
            .finish_non_exhaustive()
    }
}

/// Ends a bucket's tree; the result is the bucket's value in the root bucket.
pub(crate) fn bucket_value<W: Write>(
    tree: TreeBuilder,
    sequence: u64,
    pages: &mut Pages<W>,
) -> Result<Vec<u8>, Error> {
    // bbolt keeps a leaf within the entry up to a quarter of a page.
    let inline_up_to = pages.page_size() / 4;
    Ok(match tree.finish(pages, inline_up_to)? {
        Root::Page(root) => BucketHeader { root, sequence }.bytes().to_vec(),
        Root::Inline(page) => [&BucketHeader { root: 0, sequence }.bytes()[..], &page].concat(),
    })
}

/// Writes the root bucket and returns its page.
pub(crate) fn root_bucket<W: Write>(
    mut buckets: Vec<(Vec<u8>, Vec<u8>)>,
    pages: &mut Pages<W>,
) -> Result<u64, Error> {
    buckets.sort_unstable();
    let mut tree = TreeBuilder::new(b"", pages.page_size(), 100);
    for (name, value) in &buckets {
        tree.push(pages, name, &[value], BUCKET_ELEMENT)?;
    }
    match tree.finish(pages, 0)? {
        Root::Page(root) => Ok(root),
        Root::Inline(_) => Err(Error::Page {
            page: 0,
            what: "is the root bucket, which has no entry to be in",
        }),
    }
}

/// Writes a database file: `records` puts them, then the file is synced and gets its name. Until then it lies
/// beside as `<path>.part`; one that a crash has left is overwritten.
///
/// # Errors
/// Those of `records`, and of the file system.
pub fn create(
    path: &Path,
    page_size: usize,
    records: impl FnOnce(&mut BulkWriter<BufWriter<&File>>) -> Result<(), Error>,
) -> Result<(), Error> {
    let io = Error::io("write of the database");
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let mut options = File::options();
    let file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)
        .map_err(&io)?;
    let mut sink = BufWriter::with_capacity(BUFFER, &file);
    write_zeros(&mut sink, 3 * page_size).map_err(&io)?;
    let mut writer = BulkWriter::new(sink, page_size);
    records(&mut writer)?;
    let (mut sink, layout) = writer.finish()?;
    sink.flush().map_err(&io)?;
    drop(sink);
    // The head comes last: until then it is no database.
    file.sync_data().map_err(&io)?;
    file.write_all_at(&layout.head(), 0).map_err(&io)?;
    file.sync_all().map_err(&io)?;
    fs::rename(&part, path).map_err(&io)?;
    let dir = path
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or_else(|| Path::new("."));
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(&io)
}
