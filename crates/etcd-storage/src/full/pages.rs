//! Takes a database apart that passes by once, page after page, and walks its tree when all of it has passed.
//!
//! Where the tree begins is known at once (the meta pages come first), but a page may pass before its parent. Pages that
//! are free hold old content, and what looks like the middle of a page run may be a page of today within what was a run
//! yesterday. So every page that looks like the head of a run is read as one, and what is needed of it is kept; the walk
//! from the root then comes to those that are in use.

use std::collections::VecDeque;
use std::mem;
use std::path::Path;

use super::freelist::FreeList;
use super::note::Note;
use super::run::Run;
use super::skeleton::Skeleton;
use super::walk::{Tree, walk};
use super::{Error, Previous};
use crate::bolt::MetaFault;
use crate::bolt::format::{HEADER, META, Meta, NO_FREELIST, PageHeader, page_sizes};

/// Page runs that are followed at once, and bytes that their tables may take. A stale head of a long run lies among the
/// pages of others; beyond this the oldest one is given up.
const MOST_RUNS: usize = 256;
const HEAVIEST_RUNS: usize = 16 << 20;

/// Page sizes that are looked for when the first meta page doesn't tell one: those of real machines.
const LARGEST_PROBED: usize = 64 << 10;

/// bbolt lets a file grow ahead of its pages, by 16 MiB, or by a transaction that failed; what goes on for longer than this
/// behind them is no database.
const LONGEST_TAIL: u64 = 256 << 20;

#[derive(Debug)]
pub(super) struct Contents {
    pub(super) page_size: usize,
    /// Main revision of the last record; 0 for none.
    pub(super) last_revision: i64,
    pub(super) compact_revision: i64,
    /// Live keys at the last revision, unless a compaction is under way.
    pub(super) keys: Option<i64>,
    /// What is wrong with the list of free pages.
    pub(super) freelist: Option<&'static str>,
    pub(super) previous: Option<Previous>,
}

#[derive(Debug)]
pub(super) struct Pages {
    /// The start of a page, or of the database as long as the page size isn't known.
    block: Vec<u8>,
    page_size: Option<Result<usize, MetaFault>>,
    metas: [Result<Meta, MetaFault>; 2],
    skeleton: Skeleton,
    /// Pages that passed.
    count: u64,
    runs: VecDeque<Run>,
    lists: Vec<FreeList>,
    note: Vec<u8>,
}

impl Pages {
    pub(super) fn new(scratch: Option<&Path>) -> Self {
        Self {
            block: Vec::new(),
            page_size: None,
            metas: [Err(MetaFault::Short); 2],
            skeleton: Skeleton::new(scratch),
            count: 0,
            runs: VecDeque::new(),
            lists: Vec::new(),
            note: Vec::new(),
        }
    }

    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        let page_size = match self.page_size {
            Some(Ok(page_size)) => page_size,
            Some(Err(_)) => return,
            None => {
                self.block.extend_from_slice(bytes);
                return self.begin(false);
            }
        };
        while !bytes.is_empty() {
            if self.block.is_empty() && bytes.len() >= page_size {
                let (block, rest) = bytes.split_at(page_size);
                self.page(block);
                bytes = rest;
                continue;
            }
            let (more, rest) = bytes.split_at(bytes.len().min(page_size - self.block.len()));
            self.block.extend_from_slice(more);
            bytes = rest;
            if self.block.len() == page_size {
                let mut block = mem::take(&mut self.block);
                self.page(&block);
                block.clear();
                self.block = block;
            }
        }
    }

    /// Begins with the pages when their size is known, or when nothing more comes.
    fn begin(&mut self, is_end: bool) {
        if self.block.len() < HEADER + META && !is_end {
            return;
        }
        let first = Meta::read(&self.block);
        let found = match first {
            Ok(first) => Ok(first.page_size),
            Err(_) if self.block.len() < LARGEST_PROBED + HEADER + META && !is_end => return,
            // Without the first one, the second meta page says where it is itself.
            Err(fault) => page_sizes()
                .take_while(|size| *size <= LARGEST_PROBED)
                .find(|size| {
                    let second = self.block.get(*size..).map(Meta::read);
                    matches!(second, Some(Ok(second)) if second.page_size == *size)
                })
                .ok_or(fault),
        };
        self.page_size = Some(found);
        let head = mem::take(&mut self.block);
        self.update(&head);
    }

    /// The size of a page, once it is known.
    pub(super) fn page_size(&self) -> Option<usize> {
        self.page_size.and_then(Result::ok)
    }

    /// Whether it goes on for too long behind its pages.
    pub(super) fn is_overlong(&self) -> bool {
        let tail = self.count.saturating_sub(self.high_water());
        self.count >= 2 && tail.saturating_mul(self.page_size().unwrap_or(0) as u64) > LONGEST_TAIL
    }

    fn high_water(&self) -> u64 {
        let pages = self.metas.iter().flatten().map(|meta| meta.high_water);
        pages.max().unwrap_or(0)
    }

    fn page(&mut self, block: &[u8]) {
        let page = self.count;
        self.count += 1;
        if let Ok(index) = usize::try_from(page)
            && let Some(meta) = self.metas.get_mut(index)
        {
            *meta = Meta::read(block);
            self.skeleton.add_page();
            return;
        }
        let high_water = self.high_water();
        if page >= high_water {
            return;
        }
        self.skeleton.add_page();
        self.free_list(page, block, high_water);
        for _ in 0..self.runs.len() {
            let Some(run) = self.runs.pop_front() else { break };
            self.follow(run, block);
        }
        let head = PageHeader::read(block).filter(|header| header.id == page);
        let page_size = block.len();
        if let Some(run) = head.and_then(|header| Run::new(header, page_size, high_water)) {
            self.follow(run, block);
            self.give_up_oldest();
        }
    }

    /// Lets a run have its next page, and keeps it or what was found in it.
    fn follow(&mut self, mut run: Run, block: &[u8]) {
        run.feed(block);
        if run.is_done() {
            let note = run.finish();
            self.keep(run.header(), note);
        } else {
            self.runs.push_back(run);
        }
    }

    fn give_up_oldest(&mut self) {
        let weight = |runs: &VecDeque<Run>| runs.iter().map(Run::weight).sum::<usize>();
        while self.runs.len() > MOST_RUNS || (self.runs.len() > 1 && weight(&self.runs) > HEAVIEST_RUNS) {
            let Some(run) = self.runs.pop_front() else { return };
            self.keep(
                run.header(),
                Err("begins a run among more of them than can be followed"),
            );
        }
    }

    fn keep(&mut self, header: PageHeader, note: Result<Note, &'static str>) {
        let note = note.unwrap_or_else(|fault| Note::Fault(self.skeleton.number_of(fault)));
        let mut bytes = mem::take(&mut self.note);
        bytes.clear();
        note.write(header.overflow, &mut bytes);
        if !self.skeleton.note(header.id, &bytes) {
            let fault = self.skeleton.number_of("holds more than can be followed");
            bytes.clear();
            Note::Fault(fault).write(header.overflow, &mut bytes);
            self.skeleton.note(header.id, &bytes);
        }
        self.note = bytes;
    }

    fn free_list(&mut self, page: u64, block: &[u8], high_water: u64) {
        let is_list = self.metas.iter().flatten().any(|meta| meta.freelist == page);
        if is_list {
            self.lists.push(FreeList::new(page, block, high_water));
        }
        for list in self.lists.iter_mut().filter(|list| list.has(page)) {
            list.feed(block);
        }
    }

    pub(super) fn finish(mut self, use_previous: bool) -> Result<Contents, Error> {
        if self.page_size.is_none() {
            self.begin(true);
        }
        let page_size = self.page_size.unwrap_or(Err(MetaFault::Short))?;
        let len = self.count * page_size as u64 + self.block.len() as u64;
        if self.is_overlong() {
            return Err(Error::Overlong {
                len,
                pages: self.high_water(),
                page_size,
            });
        }
        if !self.block.is_empty() || self.count < 2 {
            return Err(Error::Cut { len, page_size });
        }
        for run in mem::take(&mut self.runs) {
            self.keep(run.header(), Err(super::run::REACHES_OVER));
        }
        let (newest, older) = self.in_order(page_size);
        let found = match newest.1 {
            Ok(meta) => self.tree(meta, page_size),
            Err(_) if older.1.is_ok() => Err(Error::Structure {
                page: newest.0,
                what: "is no valid meta page",
            }),
            Err(fault) => Err(fault.into()),
        };
        let error = match found {
            Ok(tree) => return Ok(self.contents(page_size, &tree, newest.1.ok(), None)),
            Err(error @ (Error::Scratch(_) | Error::NoBucket { .. })) => return Err(error),
            Err(error) => error,
        };
        // What the newest meta page leads to is lost; the one before may lead to a whole tree.
        let is_other = |meta: &Meta| newest.1.ok().is_none_or(|newest| newest.root != meta.root);
        let Some((meta, tree)) = older
            .1
            .ok()
            .filter(is_other)
            .and_then(|meta| Some((meta, self.tree(meta, page_size).ok()?)))
        else {
            return Err(error);
        };
        let previous = Previous {
            lost_meta: newest.0,
            txid: meta.txid,
            revision: tree.last_revision.max(tree.compact_revision).max(1),
        };
        if use_previous {
            return Ok(self.contents(page_size, &tree, Some(meta), Some(previous)));
        }
        Err(Error::Previous {
            source: Box::new(error),
            previous,
        })
    }

    /// The meta page that counts, by number, and the other one. One that can't be read may be the newest.
    fn in_order(&self, page_size: usize) -> (NumberedMeta, NumberedMeta) {
        let metas = self.metas.map(|meta| {
            meta.and_then(|meta| {
                if meta.page_size == page_size {
                    Ok(meta)
                } else {
                    Err(MetaFault::PageSize)
                }
            })
        });
        let [first, second] = [(0, metas[0]), (1, metas[1])];
        match metas {
            [Ok(one), Ok(other)] if other.txid > one.txid => (second, first),
            [Ok(_), Err(_)] => (second, first),
            _ => (first, second),
        }
    }

    fn tree(&self, meta: Meta, page_size: usize) -> Result<Tree, Error> {
        if self.count < meta.high_water {
            return Err(Error::Cut {
                len: self.count * page_size as u64,
                page_size,
            });
        }
        walk(&self.skeleton, meta.root.root, meta.high_water)
    }

    fn contents(
        &self,
        page_size: usize,
        tree: &Tree,
        meta: Option<Meta>,
        previous: Option<Previous>,
    ) -> Contents {
        let stored = meta.map(|meta| meta.freelist).filter(|page| *page != NO_FREELIST);
        let freelist = stored.and_then(|page| match self.lists.iter().find(|list| list.page() == page) {
            Some(list) => list.fault(&tree.used),
            None => Some("is the list of free pages, but outside of the file"),
        });
        Contents {
            page_size,
            last_revision: tree.last_revision,
            compact_revision: tree.compact_revision,
            keys: tree.keys,
            freelist,
            previous,
        }
    }
}

/// A meta page and its number.
type NumberedMeta = (u64, Result<Meta, MetaFault>);
