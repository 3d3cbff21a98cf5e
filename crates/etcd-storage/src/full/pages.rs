//! Finds the end of the `key` bucket in a database that passes by once, page after page.
//!
//! Where the tree begins is known at once (the meta pages come first), but a page may pass before its parent. So
//! of every page as little is kept as the later walk from the root to the last record can need: of a branch its
//! last child, of a leaf its last revision. Pages that are free hold old content; the walk never comes there.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::mem;

use super::Error;
use crate::bolt::MetaFault;
use crate::bolt::format::{
    BRANCH_PAGE, BUCKET, BucketHeader, ELEMENT, HEADER, LEAF_PAGE, LeafElement, META, Meta, PageHeader,
    branch_element, leaf_element,
};
use crate::mvcc::RecordKey;

/// Longest page run that is kept as a whole, in pages. Only pages of buckets that etcd keeps small are.
const MAX_RUN: u32 = 64;

/// Deepest tree that is followed. At two children a page it would hold 2^32 pages.
const MAX_DEPTH: usize = 32;

pub(super) struct Contents {
    pub(super) page_size: usize,
    /// Main revision of the last record; 0 for none.
    pub(super) last_revision: i64,
    pub(super) compact_revision: i64,
}

/// What is kept of a page, in 8 bytes.
#[derive(Clone, Copy, Default)]
struct Edge(u64);

impl Edge {
    const BRANCH: u64 = 1 << 63;
    const LEAF: u64 = 1 << 62;

    fn branch(last_child: u64) -> Self {
        if last_child < Self::LEAF {
            Self(Self::BRANCH | last_child)
        } else {
            Self::default()
        }
    }

    fn leaf(last_revision: i64) -> Self {
        let revision = last_revision.cast_unsigned();
        if revision < Self::LEAF {
            Self(Self::LEAF | revision)
        } else {
            Self::default()
        }
    }

    fn last_child(self) -> Option<u64> {
        (self.0 & Self::BRANCH != 0).then_some(self.0 & !Self::BRANCH)
    }

    fn last_revision(self) -> Option<i64> {
        (self.0 & Self::LEAF != 0).then_some((self.0 & !Self::LEAF).cast_signed())
    }
}

/// Where a bucket is, or what was looked for in it when it is inline.
#[derive(Clone, Copy)]
enum Bucket {
    Tree(u64),
    Inline(i64),
}

/// What a leaf of the root bucket says about the two buckets that matter.
#[derive(Clone, Copy, Default)]
struct Directory {
    key: Option<Bucket>,
    meta: Option<Bucket>,
}

/// Bytes to be picked up when they pass.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Capture {
    /// Offset in the database of the next byte that is missing.
    next: u64,
    start: u64,
    len: usize,
    page: u64,
    what: Wanted,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    LastElement,
    LastKey,
    Run,
}

pub(super) struct Pages {
    block: Vec<u8>,
    meta: Option<Result<Meta, MetaFault>>,
    edges: Vec<Edge>,
    directories: HashMap<u64, Directory>,
    /// Compact revisions of leaf pages that may be those of the `meta` bucket.
    compactions: HashMap<u64, i64>,
    /// Children of the root page, if it is a branch.
    root_children: Vec<u64>,
    captures: BinaryHeap<Reverse<Capture>>,
}

impl Pages {
    pub(super) fn new() -> Self {
        Self {
            block: Vec::new(),
            meta: None,
            edges: Vec::new(),
            directories: HashMap::new(),
            compactions: HashMap::new(),
            root_children: Vec::new(),
            captures: BinaryHeap::new(),
        }
    }

    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let wanted = match self.meta {
                None => HEADER + META,
                Some(Ok(meta)) => meta.page_size,
                Some(Err(_)) => return,
            };
            if self.block.is_empty() && self.meta.is_some() && bytes.len() >= wanted {
                let (block, rest) = bytes.split_at(wanted);
                self.page(block);
                bytes = rest;
                continue;
            }
            let (more, rest) = bytes.split_at(bytes.len().min(wanted - self.block.len()));
            self.block.extend_from_slice(more);
            bytes = rest;
            if self.block.len() == wanted {
                self.block_is_full();
            }
        }
    }

    fn block_is_full(&mut self) {
        if self.meta.is_none() {
            self.meta = Some(Meta::read(&self.block));
            // The rest of page 0 is still to come.
            return;
        }
        let block = mem::take(&mut self.block);
        self.page(&block);
        self.block = block;
        self.block.clear();
    }

    fn page(&mut self, block: &[u8]) {
        let id = self.edges.len() as u64;
        self.edges.push(Edge::default());
        if id < 2 {
            self.meta_page(block);
            return;
        }
        // Every page may be the head of a run: what looks like the middle of one may be a page of today within
        // what was a run yesterday.
        if let Some(header) = PageHeader::read(block).filter(|header| header.id == id) {
            match header.flags {
                BRANCH_PAGE => self.branch(block, header),
                LEAF_PAGE => self.leaf(block, header),
                _ => {}
            }
        }
        self.capture(block, id * block.len() as u64);
    }

    fn meta_page(&mut self, block: &[u8]) {
        if let (Some(Ok(current)), Ok(other)) = (&mut self.meta, Meta::read(block))
            && other.txid > current.txid
            && other.page_size == current.page_size
        {
            *current = other;
        }
    }

    fn branch(&mut self, block: &[u8], header: PageHeader) {
        let children = |index| branch_element(block, index).map(|(_, child)| child);
        if let Some(child) = header.count.checked_sub(1).and_then(children) {
            self.set(header.id, Edge::branch(child));
        }
        if matches!(self.meta, Some(Ok(meta)) if meta.root.root == header.id) {
            self.root_children = (0..header.count).filter_map(children).collect();
        }
    }

    fn leaf(&mut self, block: &[u8], header: PageHeader) {
        let Some(last) = header.count.checked_sub(1) else {
            self.set(header.id, Edge::leaf(0));
            self.compactions.insert(header.id, 0);
            return;
        };
        match leaf_element(block, last) {
            Some(element) => self.last_element(block, header, &element),
            None => self.want(
                header.id,
                HEADER + ELEMENT * usize::from(last),
                ELEMENT,
                Wanted::LastElement,
            ),
        }
    }

    /// Keeps what matters of a leaf page, now that its last element is known.
    fn last_element(&mut self, block: &[u8], header: PageHeader, element: &LeafElement) {
        if !element.is_bucket() && matches!(element.key_len, 17 | 18) {
            match element.key_in(block) {
                Some(key) => self.last_key(header.id, key),
                None => self.want(header.id, element.key, element.key_len, Wanted::LastKey),
            }
        } else if header.overflow == 0 {
            self.small_page(header.id, block);
        } else if header.overflow < MAX_RUN {
            let len = block.len() * (header.overflow as usize + 1);
            self.want(header.id, 0, len, Wanted::Run);
        }
    }

    fn last_key(&mut self, page: u64, key: &[u8]) {
        if let Some(key) = RecordKey::parse(key) {
            self.set(page, Edge::leaf(key.revision.main));
        }
    }

    /// Keeps what matters of a leaf of the root bucket, or of the `meta` bucket.
    fn small_page(&mut self, page: u64, bytes: &[u8]) {
        let count = PageHeader::read(bytes).map_or(0, |header| header.count);
        if leaf_element(bytes, 0).is_some_and(|first| first.is_bucket()) {
            self.directories.insert(page, directory(bytes, count));
        } else {
            self.compactions.insert(page, compact_revision(bytes, count));
        }
    }

    fn set(&mut self, page: u64, edge: Edge) {
        if let Some(slot) = usize::try_from(page)
            .ok()
            .and_then(|page| self.edges.get_mut(page))
        {
            *slot = edge;
        }
    }

    fn want(&mut self, page: u64, offset: usize, len: usize, what: Wanted) {
        let Some(Ok(meta)) = self.meta else { return };
        let start = page * meta.page_size as u64 + offset as u64;
        self.captures.push(Reverse(Capture {
            next: start,
            start,
            len,
            page,
            what,
            bytes: Vec::new(),
        }));
    }

    /// Picks up what is wanted of the block, which begins at `start`.
    fn capture(&mut self, block: &[u8], start: u64) {
        let end = start + block.len() as u64;
        while self
            .captures
            .peek()
            .is_some_and(|Reverse(capture)| capture.next < end)
        {
            let Some(Reverse(mut capture)) = self.captures.pop() else {
                return;
            };
            let Some(from) = capture.next.checked_sub(start) else {
                continue;
            };
            #[expect(clippy::cast_possible_truncation, reason = "it is within the block")]
            let from = from as usize;
            let rest = &block[from..];
            capture
                .bytes
                .extend_from_slice(&rest[..rest.len().min(capture.len - capture.bytes.len())]);
            if capture.bytes.len() == capture.len {
                self.captured(block.len(), &capture);
            } else {
                capture.next = end;
                self.captures.push(Reverse(capture));
            }
        }
    }

    fn captured(&mut self, page_size: usize, capture: &Capture) {
        match capture.what {
            Wanted::LastKey => self.last_key(capture.page, &capture.bytes),
            Wanted::Run => self.small_page(capture.page, &capture.bytes),
            Wanted::LastElement => {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "the elements of a page fit into 1 MiB"
                )]
                let offset = (capture.start - capture.page * page_size as u64) as usize;
                let element = LeafElement::read(&capture.bytes, offset);
                if let Some(element) = element.filter(|one| matches!(one.key_len, 17 | 18)) {
                    self.want(capture.page, element.key, element.key_len, Wanted::LastKey);
                }
            }
        }
    }

    pub(super) fn finish(self) -> Result<Contents, Error> {
        let meta = self.meta.unwrap_or(Err(MetaFault::Short))?;
        if !self.block.is_empty() {
            let len = (self.edges.len() * meta.page_size + self.block.len()) as u64;
            return Err(Error::Cut {
                len,
                page_size: meta.page_size,
            });
        }
        if self.edges.len() < 2 || (self.edges.len() as u64) < meta.high_water {
            let len = (self.edges.len() * meta.page_size) as u64;
            return Err(Error::Cut {
                len,
                page_size: meta.page_size,
            });
        }
        let directory = self.root_directory(meta.root.root)?;
        let last_revision = match directory.key {
            None => 0,
            Some(Bucket::Inline(revision)) => revision,
            Some(Bucket::Tree(root)) => self.last_revision(root)?,
        };
        let compact_revision = match directory.meta {
            None => 0,
            Some(Bucket::Inline(revision)) => revision,
            Some(Bucket::Tree(page)) => match self.compactions.get(&page) {
                Some(revision) => *revision,
                None => {
                    return Err(Error::Structure {
                        page,
                        expected: "the leaf of bucket meta",
                    });
                }
            },
        };
        Ok(Contents {
            page_size: meta.page_size,
            last_revision,
            compact_revision,
        })
    }

    fn root_directory(&self, root: u64) -> Result<Directory, Error> {
        let leaves = if self.root_children.is_empty() {
            &[root][..]
        } else {
            &self.root_children
        };
        let mut all = Directory::default();
        for page in leaves {
            let Some(one) = self.directories.get(page) else {
                return Err(Error::Structure {
                    page: *page,
                    expected: "a leaf of the root bucket",
                });
            };
            all = Directory {
                key: all.key.or(one.key),
                meta: all.meta.or(one.meta),
            };
        }
        Ok(all)
    }

    fn last_revision(&self, root: u64) -> Result<i64, Error> {
        let mut page = root;
        for _ in 0..MAX_DEPTH {
            let edge = usize::try_from(page)
                .ok()
                .and_then(|page| self.edges.get(page))
                .copied();
            let edge = edge.unwrap_or_default();
            match (edge.last_child(), edge.last_revision()) {
                (Some(child), _) => page = child,
                (_, Some(revision)) => return Ok(revision),
                _ => break,
            }
        }
        Err(Error::Structure {
            page,
            expected: "part of bucket key",
        })
    }
}

fn directory(page: &[u8], count: u16) -> Directory {
    let mut found = Directory::default();
    for element in (0..count).filter_map(|index| leaf_element(page, index)) {
        let (Some(name), Some(value)) = (element.key_in(page), element.value_in(page)) else {
            continue;
        };
        let Some(header) = BucketHeader::read(value) else {
            continue;
        };
        let bucket = |inline: fn(&[u8], u16) -> i64| {
            let page = &value[BUCKET..];
            match PageHeader::read(page) {
                Some(inlined) if header.root == 0 => Bucket::Inline(inline(page, inlined.count)),
                _ => Bucket::Tree(header.root),
            }
        };
        match name {
            b"key" => found.key = Some(bucket(last_inline_revision)),
            b"meta" => found.meta = Some(bucket(compact_revision)),
            _ => {}
        }
    }
    found
}

fn last_inline_revision(page: &[u8], count: u16) -> i64 {
    let last = count.checked_sub(1).and_then(|last| leaf_element(page, last));
    last.and_then(|last| RecordKey::parse(last.key_in(page)?))
        .map_or(0, |key| key.revision.main)
}

/// The higher of the two revisions at which a compaction was begun or ended; etcd starts with no lower one.
fn compact_revision(page: &[u8], count: u16) -> i64 {
    let revision = |element: LeafElement| match element.key_in(page)? {
        b"finishedCompactRev" | b"scheduledCompactRev" => {
            Some(RecordKey::parse(element.value_in(page)?)?.revision.main)
        }
        _ => None,
    };
    (0..count)
        .filter_map(|index| revision(leaf_element(page, index)?))
        .max()
        .unwrap_or(0)
}
