//! Walks the whole tree from a root, by what was kept of its pages: every page is where its parent says, none is used
//! twice, all keys are in order, and the buckets are those of an etcd.

use super::Error;
use super::note::{Child, Entry, Note, Place};
use super::run::NOT_IN_ORDER;
use super::skeleton::Skeleton;
use crate::mvcc::RecordKey;
use crate::schema::bucket;

/// Deepest tree that is followed. At two children a page it would hold 2^32 pages.
const MAX_DEPTH: usize = 32;

const OUTSIDE: &str = "is outside of the file";
const USED_TWICE: &str = "is used twice";

/// A set of pages; one bit each.
#[derive(Clone, Debug)]
pub(super) struct PageSet {
    bits: Vec<u64>,
    len: u64,
    count: u64,
}

impl PageSet {
    /// An empty set of pages below `len`.
    pub(super) fn new(len: u64) -> Self {
        let words = usize::try_from(len.div_ceil(64)).unwrap_or(0);
        let bits = vec![0; words];
        Self { bits, len, count: 0 }
    }

    pub(super) fn add(&mut self, page: u64) -> Result<(), &'static str> {
        let word = usize::try_from(page / 64).ok().filter(|_| page < self.len);
        let word = word.and_then(|word| self.bits.get_mut(word)).ok_or(OUTSIDE)?;
        let bit = 1 << (page % 64);
        if *word & bit != 0 {
            return Err(USED_TWICE);
        }
        *word |= bit;
        self.count += 1;
        Ok(())
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.bits
            .iter()
            .zip(&other.bits)
            .any(|(one, other)| one & other != 0)
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }
}

/// What a tree holds.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) used: PageSet,
    /// Main revision of the last record; 0 for none.
    pub(super) last_revision: i64,
    pub(super) compact_revision: i64,
    /// Live keys at the last revision; none while a compaction is under way, which may have left old records.
    pub(super) keys: Option<i64>,
}

/// Walks everything below `root`, in a file whose pages end at `high_water`.
pub(super) fn walk(skeleton: &Skeleton, root: u64, high_water: u64) -> Result<Tree, Error> {
    let mut used = PageSet::new(high_water);
    // The meta pages.
    let metas = used.add(0).and_then(|()| used.add(1));
    metas.map_err(|what| Error::Structure { page: 0, what })?;
    let mut walker = Walker {
        skeleton,
        used,
        last: Vec::new(),
        strict: false,
        last_record: Vec::new(),
        bytes: Vec::new(),
    };
    let mut buckets = Vec::new();
    walker.tree(root, &mut |page, note| match note {
        Note::Directory {
            entries,
            has_plain: false,
            ..
        } => {
            buckets.extend(entries);
            Ok(())
        }
        // An empty root: there are no buckets.
        Note::Leaf { first, .. } if first.is_empty() => Ok(()),
        _ => Err(fault(page, "holds a plain key beside the buckets")),
    })?;
    for name in [bucket::KEY, bucket::META] {
        if buckets.iter().all(|entry| entry.name != name) {
            return Err(Error::NoBucket {
                name: String::from_utf8_lossy(name).into_owned(),
            });
        }
    }
    // What records mean depends on where the history is compacted.
    buckets.sort_by_key(|entry| entry.name != bucket::META);
    let (mut last_revision, mut keys) = (0, 0);
    let mut compaction = Compaction::default();
    for entry in buckets {
        match entry.name.as_slice() {
            bucket::META => walker.bucket(&entry, root, &mut |note| compaction.add(note))?,
            bucket::KEY => {
                let compacted = compaction.begun;
                walker.bucket(&entry, root, &mut |note| {
                    if let Note::Leaf { changes, .. } = note {
                        keys += changes.net(compacted);
                    }
                })?;
                last_revision = RecordKey::parse(&walker.last_record).map_or(0, |key| key.revision.main);
            }
            _ => walker.bucket(&entry, root, &mut |_| {})?,
        }
    }
    Ok(Tree {
        used: walker.used,
        last_revision,
        compact_revision: compaction.begun,
        keys: (compaction.begun == compaction.finished).then_some(keys),
    })
}

/// Where the history is compacted.
#[derive(Debug, Default)]
struct Compaction {
    begun: i64,
    finished: i64,
}

impl Compaction {
    fn add(&mut self, note: &Note) {
        if let Note::Leaf {
            compacted, finished, ..
        } = note
        {
            self.begun = self.begun.max(*compacted);
            self.finished = self.finished.max(*finished);
        }
    }
}

fn fault(page: u64, what: &'static str) -> Error {
    Error::Structure { page, what }
}

struct Walker<'a> {
    skeleton: &'a Skeleton,
    used: PageSet,
    /// The key before, and whether the next one must differ from it.
    last: Vec<u8>,
    strict: bool,
    /// The last key of a leaf.
    last_record: Vec<u8>,
    bytes: Vec<u8>,
}

impl Walker<'_> {
    /// Walks a bucket and hands over its leaves. Its last key is left.
    fn bucket(&mut self, entry: &Entry, root: u64, each: &mut dyn FnMut(&Note)) -> Result<(), Error> {
        let only_records = entry.name == bucket::KEY;
        let mut leaf = |page: u64, note: Note| match note {
            Note::Leaf { records: false, .. } if only_records => Err(fault(
                page,
                "is of bucket key, but holds something that is no record",
            )),
            Note::Leaf { .. } => {
                each(&note);
                Ok(())
            }
            _ => Err(fault(page, "holds a bucket within a bucket")),
        };
        match &entry.place {
            Place::Page(page) => self.tree(*page, &mut leaf)?,
            Place::Inline(note) => {
                leaf(root, (**note).clone())?;
                self.last_record.clear();
                if let Note::Leaf { last, .. } = &**note {
                    self.last_record.clone_from(last);
                }
            }
        }
        Ok(())
    }

    /// Walks a tree in the order of its keys and hands over its leaves.
    fn tree(&mut self, root: u64, leaf: &mut dyn FnMut(u64, Note) -> Result<(), Error>) -> Result<(), Error> {
        self.last.clear();
        self.last_record.clear();
        self.strict = false;
        let mut stack: Vec<(u64, std::vec::IntoIter<Child>)> = Vec::new();
        let mut next = Some(root);
        loop {
            if let Some(page) = next.take() {
                match self.page(page)? {
                    Note::Branch(_) if stack.len() == MAX_DEPTH => {
                        return Err(fault(page, "lies too deep: the tree has a cycle"));
                    }
                    Note::Branch(children) => stack.push((page, children.into_iter())),
                    note => {
                        self.leaf_keys(page, &note)?;
                        leaf(page, note)?;
                    }
                }
            }
            let Some((page, children)) = stack.last_mut() else {
                return Ok(());
            };
            let page = *page;
            if let Some(Child { page: child, key }) = children.next() {
                self.step(page, &key, false)?;
                next = Some(child);
            } else {
                stack.pop();
            }
        }
    }

    fn leaf_keys(&mut self, page: u64, note: &Note) -> Result<(), Error> {
        if let Note::Leaf { first, last, .. } | Note::Directory { first, last, .. } = note
            && !first.is_empty()
        {
            self.step(page, first, true)?;
            self.last.clone_from(last);
            self.last_record.clone_from(last);
        }
        Ok(())
    }

    /// Checks a key against the one before. A branch's key may be that of the record that follows.
    fn step(&mut self, page: u64, key: &[u8], is_record: bool) -> Result<(), Error> {
        if key < self.last.as_slice() || (self.strict && key == self.last) {
            return Err(fault(page, NOT_IN_ORDER));
        }
        self.strict = is_record;
        self.last.clear();
        self.last.extend_from_slice(key);
        Ok(())
    }

    /// What was kept of a page. It and what follows in its run are in use from now on.
    fn page(&mut self, page: u64) -> Result<Note, Error> {
        if page >= self.used.len() {
            return Err(fault(page, OUTSIDE));
        }
        let found = self.skeleton.read(page, &mut self.bytes);
        let is_there = found.map_err(Error::Scratch)?;
        let read = Note::read(&self.bytes).filter(|_| is_there);
        let (note, overflow) = read.ok_or_else(|| fault(page, "is no page of a tree"))?;
        if let Note::Fault(code) = note {
            return Err(fault(page, self.skeleton.fault(code)));
        }
        for page in page..=page + u64::from(overflow) {
            self.used.add(page).map_err(|what| fault(page, what))?;
        }
        Ok(note)
    }
}
