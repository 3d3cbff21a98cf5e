//! Reads a page run (a page and the pages that belong to it) while it passes, and checks all of it: every number within
//! its bounds, keys strictly ascending, records that are records. What the walk needs is left as a [`Note`].

use super::note::{Child, Entry, Note, Place};
use super::record::RecordScan;
use crate::bolt::format::{
    BRANCH_PAGE, BUCKET, BucketHeader, ELEMENT, HEADER, LEAF_PAGE, LeafElement, MAX_KEY, PageHeader, u32_at,
    u64_at,
};
use crate::delta::LARGEST_EVENT;
use crate::mvcc::RecordKey;
use crate::schema::key;

/// Longest page run, in bytes: bbolt may lay two records into one.
const LONGEST_RUN: u64 = 2 * LARGEST_EVENT as u64 + (1 << 20);

/// Longest bucket that stands in its entry, in bytes: bbolt's are no longer than a quarter of a page.
const LONGEST_INLINE: usize = 64 << 10;

pub(super) const REACHES_OVER: &str = "holds an element that reaches over its end";
pub(super) const NOT_IN_ORDER: &str = "holds keys that are not in order";
pub(super) const NO_CHILDREN: &str = "is a branch without children";
pub(super) const OVER_THE_END: &str = "runs over the end of the file";

type Fault = &'static str;

/// A page run that is being read.
#[derive(Debug)]
pub(super) struct Run {
    header: PageHeader,
    /// Bytes of the run.
    len: u64,
    /// Offset of the next byte that passes.
    at: u64,
    table: Vec<u8>,
    index: u16,
    /// The element whose key or value passes.
    element: Element,
    key: Vec<u8>,
    before: Vec<u8>,
    /// The value, if it is one that is needed.
    value: Option<Vec<u8>>,
    scan: RecordScan,
    note: Result<Note, Fault>,
    done: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Element {
    is_bucket: bool,
    child: u64,
    key: u64,
    key_len: usize,
    value_left: u64,
}

impl Run {
    /// Begins a run of `len` bytes with its header, whose bytes pass with the rest. None if it is no part of a tree.
    pub(super) fn new(header: PageHeader, page_size: usize, high_water: u64) -> Option<Self> {
        let note = match header.flags {
            BRANCH_PAGE => Note::Branch(Vec::new()),
            LEAF_PAGE => Note::leaf(),
            _ => return None,
        };
        let len = page_size as u64 * (u64::from(header.overflow) + 1);
        let table = HEADER as u64 + ELEMENT as u64 * u64::from(header.count);
        let note = if header.id + u64::from(header.overflow) >= high_water {
            Err(OVER_THE_END)
        } else if len > LONGEST_RUN {
            Err("is longer than any that etcd writes")
        } else if table > len {
            Err(REACHES_OVER)
        } else if header.flags == BRANCH_PAGE && header.count == 0 {
            Err(NO_CHILDREN)
        } else {
            Ok(note)
        };
        Some(Self {
            header,
            len,
            at: 0,
            table: Vec::new(),
            index: 0,
            element: Element::default(),
            key: Vec::new(),
            before: Vec::new(),
            value: None,
            scan: RecordScan::default(),
            done: note.is_err() || header.count == 0,
            note,
        })
    }

    /// The note of a bucket's inline page.
    fn inline(page: &[u8]) -> Result<Note, Fault> {
        let header = PageHeader::read(page).ok_or("holds an inline bucket without a page")?;
        let header = PageHeader {
            overflow: 0,
            ..header
        };
        if header.flags != LEAF_PAGE {
            return Err("holds an inline bucket whose page is no leaf");
        }
        let mut run = Self::new(PageHeader { id: 0, ..header }, page.len(), 1).ok_or(REACHES_OVER)?;
        run.feed(page);
        match run.finish() {
            Ok(Note::Leaf { .. }) if !run.done => Err(REACHES_OVER),
            Ok(Note::Directory { .. }) => Err("holds a bucket within a bucket"),
            note => note,
        }
    }

    /// Bytes that its table takes in memory.
    pub(super) fn weight(&self) -> usize {
        ELEMENT * usize::from(self.header.count)
    }

    pub(super) fn header(&self) -> PageHeader {
        self.header
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// What was found. The run must be done.
    pub(super) fn finish(&mut self) -> Result<Note, Fault> {
        std::mem::replace(&mut self.note, Err(REACHES_OVER))
    }

    /// Takes the next bytes of the run.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while !self.done && !bytes.is_empty() {
            match self.take(bytes) {
                Ok(taken) => {
                    self.at += taken as u64;
                    bytes = &bytes[taken..];
                }
                Err(fault) => {
                    self.note = Err(fault);
                    self.done = true;
                }
            }
        }
    }

    /// Takes some of the bytes and returns how many.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        let table = ELEMENT * usize::from(self.header.count);
        if self.at < HEADER as u64 {
            return Ok(up_to(HEADER as u64 - self.at, bytes));
        }
        if self.table.len() < table {
            let taken = up_to((table - self.table.len()) as u64, bytes);
            self.table.extend_from_slice(&bytes[..taken]);
            if self.table.len() == table {
                self.begin_element(self.at + taken as u64)?;
            }
            return Ok(taken);
        }
        if self.at < self.element.key {
            return Ok(up_to(self.element.key - self.at, bytes));
        }
        if self.key.len() < self.element.key_len {
            let taken = up_to((self.element.key_len - self.key.len()) as u64, bytes);
            self.key.extend_from_slice(&bytes[..taken]);
            if self.key.len() == self.element.key_len {
                self.end_key()?;
                self.end_value_at(self.at + taken as u64)?;
            }
            return Ok(taken);
        }
        let taken = up_to(self.element.value_left, bytes);
        match &mut self.value {
            Some(value) => value.extend_from_slice(&bytes[..taken]),
            None => self.scan.feed(&bytes[..taken]),
        }
        self.element.value_left -= taken as u64;
        self.end_value_at(self.at + taken as u64)?;
        Ok(taken)
    }

    /// Begins the next element. Everything before `at` has passed.
    fn begin_element(&mut self, at: u64) -> Result<(), Fault> {
        let offset = ELEMENT * usize::from(self.index);
        let bytes = &self.table[offset..offset + ELEMENT];
        let place = HEADER + offset;
        let element = if self.header.flags == LEAF_PAGE {
            let element = LeafElement::read(bytes, place).ok_or(REACHES_OVER)?;
            Element {
                is_bucket: element.is_bucket(),
                child: 0,
                key: element.key as u64,
                key_len: element.key_len,
                value_left: element.value_len as u64,
            }
        } else {
            let number = |at| u32_at(bytes, at).ok_or(REACHES_OVER);
            Element {
                is_bucket: false,
                child: u64_at(bytes, 8).ok_or(REACHES_OVER)?,
                key: place as u64 + u64::from(number(0)?),
                key_len: usize::try_from(number(4)?).map_err(|_| REACHES_OVER)?,
                value_left: 0,
            }
        };
        if element.key + element.key_len as u64 + element.value_left > self.len {
            return Err(REACHES_OVER);
        }
        if element.key < (HEADER + self.table.len()) as u64 {
            return Err("holds an element whose key lies among the elements");
        }
        // bbolt lays keys and values down in the order of the elements.
        if element.key < at {
            return Err("holds elements that overlap");
        }
        if element.key_len == 0 || element.key_len > MAX_KEY {
            return Err("holds a key of a length that no key has");
        }
        self.element = element;
        std::mem::swap(&mut self.before, &mut self.key);
        self.key.clear();
        Ok(())
    }

    fn end_key(&mut self) -> Result<(), Fault> {
        if self.index > 0 && self.key <= self.before {
            return Err(NOT_IN_ORDER);
        }
        let is_needed = self.element.is_bucket
            || matches!(
                self.key.as_slice(),
                key::FINISHED_COMPACT | key::SCHEDULED_COMPACT
            );
        self.value = is_needed.then(Vec::new);
        self.scan = RecordScan::default();
        match &mut self.note {
            Ok(Note::Branch(children)) => children.push(Child {
                page: self.element.child,
                key: self.key.clone(),
            }),
            Ok(Note::Leaf { first, .. } | Note::Directory { first, .. }) if self.index == 0 => {
                first.clone_from(&self.key);
            }
            _ => {}
        }
        if is_needed && self.element.value_left > LONGEST_INLINE as u64 {
            return Err("holds a bucket or a revision that is longer than any");
        }
        Ok(())
    }

    /// Ends the element if its value has passed, and begins the next one.
    fn end_value_at(&mut self, at: u64) -> Result<(), Fault> {
        if self.element.value_left > 0 {
            return Ok(());
        }
        match self.value.take() {
            Some(value) if self.element.is_bucket => self.bucket(&value)?,
            Some(value) => self.compaction(&value),
            None => self.record(),
        }
        self.index += 1;
        if self.index < self.header.count {
            return self.begin_element(at);
        }
        if let Ok(Note::Leaf { last, .. } | Note::Directory { last, .. }) = &mut self.note {
            last.clone_from(&self.key);
        }
        self.done = true;
        Ok(())
    }

    fn record(&mut self) {
        let key = RecordKey::parse(&self.key).filter(|_| self.scan.is_whole());
        match &mut self.note {
            Ok(Note::Leaf { records, changes, .. }) => match key {
                Some(key) => changes.add(key, self.scan.create_revision()),
                None => *records = false,
            },
            Ok(Note::Directory { has_plain, .. }) => *has_plain = true,
            _ => {}
        }
    }

    /// The higher of the two revisions at which a compaction was begun or ended; etcd starts with no lower one.
    fn compaction(&mut self, value: &[u8]) {
        let revision = RecordKey::parse(value).map_or(0, |key| key.revision.main);
        match &mut self.note {
            Ok(Note::Leaf {
                records,
                compacted,
                finished,
                ..
            }) => {
                *records = false;
                *compacted = (*compacted).max(revision);
                if self.key == key::FINISHED_COMPACT {
                    *finished = revision;
                }
            }
            Ok(Note::Directory { has_plain, .. }) => *has_plain = true,
            _ => {}
        }
    }

    fn bucket(&mut self, value: &[u8]) -> Result<(), Fault> {
        let header = BucketHeader::read(value).ok_or("holds a bucket without a header")?;
        let place = if header.root == 0 {
            Place::Inline(Box::new(Self::inline(&value[BUCKET..])?))
        } else {
            Place::Page(header.root)
        };
        let entry = Entry {
            name: self.key.clone(),
            place,
        };
        if let Ok(note) = &mut self.note {
            note.add_bucket(entry, self.index > 0);
        }
        Ok(())
    }
}

fn up_to(count: u64, bytes: &[u8]) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX).min(bytes.len())
}
