//! The list of free pages, if one is stored. etcd doesn't need it: it finds the free pages by itself when the list isn't
//! there, as it is after a restore. So what is wrong with it is worth a warning, not a refusal.

use super::walk::PageSet;
use crate::bolt::format::{FREELIST_PAGE, HEADER, PageHeader};

/// A stored list of free pages, as its bytes pass.
#[derive(Debug)]
pub(super) struct FreeList {
    page: u64,
    overflow: u32,
    /// Bytes of the header that are still to pass.
    skip: usize,
    /// Numbers that are still to pass; none as long as a count that doesn't fit into the header isn't known.
    left: Option<u64>,
    /// The start of a number.
    open: Vec<u8>,
    listed: PageSet,
    fault: Option<&'static str>,
}

/// Pages that are followed, whatever the file says that it has: 1 TiB at 4 KiB each.
const MOST_PAGES: u64 = 1 << 28;

impl FreeList {
    pub(super) fn new(page: u64, block: &[u8], high_water: u64) -> Self {
        let header =
            PageHeader::read(block).filter(|header| header.id == page && header.flags == FREELIST_PAGE);
        let mut list = Self {
            page,
            overflow: header.map_or(0, |header| header.overflow),
            skip: HEADER,
            left: header.and_then(|header| (header.count < u16::MAX).then_some(u64::from(header.count))),
            open: Vec::new(),
            listed: PageSet::new(high_water.min(MOST_PAGES)),
            fault: header.is_none().then_some("is no list of free pages"),
        };
        if page + u64::from(list.overflow) >= high_water {
            list.fault.get_or_insert("runs over the end of the file");
        }
        list
    }

    pub(super) fn page(&self) -> u64 {
        self.page
    }

    /// Whether the page belongs to it.
    pub(super) fn has(&self, page: u64) -> bool {
        (self.page..=self.page + u64::from(self.overflow)).contains(&page)
    }

    pub(super) fn feed(&mut self, block: &[u8]) {
        let mut bytes = &block[self.skip.min(block.len())..];
        self.skip = 0;
        while self.fault.is_none() && self.left != Some(0) && !bytes.is_empty() {
            let taken = bytes.len().min(8 - self.open.len());
            self.open.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            let Some(number) = self.open.first_chunk().copied().map(u64::from_le_bytes) else {
                return;
            };
            self.open.clear();
            match &mut self.left {
                None => self.left = Some(number),
                Some(left) => {
                    *left -= 1;
                    self.fault = self.listed.add(number).err();
                }
            }
        }
    }

    /// Compares it with the pages that are in use, which may be those of another list, too.
    pub(super) fn fault(&self, used: &PageSet) -> Option<&'static str> {
        if self.fault.is_some() {
            return self.fault;
        }
        if self.left != Some(0) {
            return Some("lists more pages than it holds");
        }
        let mut used = used.clone();
        let own = self.page..=self.page + u64::from(self.overflow);
        if own.into_iter().any(|page| used.add(page).is_err()) {
            return Some("is used twice");
        }
        if used.overlaps(&self.listed) {
            return Some("lists pages that are in use");
        }
        if used.count() + self.listed.count() != used.len() {
            return Some("does not list every free page");
        }
        None
    }
}
