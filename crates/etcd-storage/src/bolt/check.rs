//! Checks the whole structure of a database, as bbolt's own check does: every page that a bucket reaches is read,
//! none is used twice, and a stored list of free pages has exactly the others.

use super::db::{Bucket, Db};
use super::format::{FREELIST_PAGE, HEADER, NO_FREELIST, PageHeader, u64_at};
use super::{Cursor, Error};

/// Buckets within buckets that are followed; etcd nests none.
const MAX_NESTING: usize = 8;

/// How the pages of a database are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCount {
    /// Pages in the file.
    pub total: u64,
    /// Pages that hold data.
    pub used: u64,
}

/// Reads every page that is in use and checks all of it.
///
/// # Errors
/// The file can't be read, or the first fault that was found.
pub fn check(db: &Db) -> Result<PageCount, Error> {
    let mut pages = PageSet::new(db);
    let mut cursor = db.root_cursor();
    check_bucket(db, &mut cursor, &mut pages, 0)?;
    let used = pages.used;
    check_freelist(db, &mut pages)?;
    Ok(PageCount {
        total: db.page_count(),
        used,
    })
}

fn check_bucket(db: &Db, cursor: &mut Cursor<'_>, pages: &mut PageSet, nesting: usize) -> Result<(), Error> {
    while let Some(entry) = cursor.next_entry_with(&mut |header| pages.add_run(header))? {
        if entry.is_bucket {
            let bucket = Bucket::read(entry.key, entry.value, 0)?;
            if nesting == MAX_NESTING {
                return Err(Error::Page {
                    page: bucket.root(),
                    what: "is the root of a bucket nested too deep",
                });
            }
            check_bucket(db, &mut bucket.cursor(db), pages, nesting + 1)?;
        }
    }
    Ok(())
}

/// The pages met so far; one bit each.
struct PageSet {
    bits: Vec<u64>,
    used: u64,
}

impl PageSet {
    fn new(db: &Db) -> Self {
        // The two meta pages are in use.
        let mut bits = vec![0; usize::try_from(db.page_count() / 64 + 1).unwrap_or(usize::MAX)];
        bits[0] = 0b11;
        Self { bits, used: 2 }
    }

    fn add_run(&mut self, header: PageHeader) -> Result<(), Error> {
        (0..=u64::from(header.overflow)).try_for_each(|offset| self.add(header.id + offset))
    }

    fn add(&mut self, page: u64) -> Result<(), Error> {
        let word = usize::try_from(page / 64)
            .ok()
            .and_then(|word| self.bits.get_mut(word));
        let Some(word) = word else {
            return Err(Error::Page {
                page,
                what: "is outside of the file",
            });
        };
        let bit = 1 << (page % 64);
        if *word & bit != 0 {
            return Err(Error::Page {
                page,
                what: "is used twice",
            });
        }
        *word |= bit;
        self.used += 1;
        Ok(())
    }
}

fn check_freelist(db: &Db, pages: &mut PageSet) -> Result<(), Error> {
    let page = db.meta().freelist;
    if page == NO_FREELIST {
        return Ok(());
    }
    let fault = |what| Error::Page { page, what };
    if !(2..db.page_count()).contains(&page) {
        return Err(fault("is the list of free pages, but outside of the file"));
    }
    let mut bytes = Vec::new();
    db.read_at(page, &mut bytes, db.page_size(), 0)?;
    let header = PageHeader::read(&bytes).filter(|header| header.id == page && header.flags == FREELIST_PAGE);
    let header = header.ok_or_else(|| fault("is no list of free pages"))?;
    if page + u64::from(header.overflow) >= db.page_count() {
        return Err(fault("runs over the end of the file"));
    }
    pages.add_run(header)?;
    db.read_at(
        page,
        &mut bytes,
        db.page_size() * (header.overflow as usize + 1),
        db.page_size(),
    )?;
    // A count that doesn't fit stands in the first place of the list.
    let (start, count) = match header.count {
        u16::MAX => (1, u64_at(&bytes, HEADER).ok_or_else(|| fault("is too short"))?),
        count => (0, u64::from(count)),
    };
    for index in start..start + count {
        let at = usize::try_from(index)
            .ok()
            .and_then(|index| index.checked_mul(8)?.checked_add(HEADER));
        let free = at
            .and_then(|at| u64_at(&bytes, at))
            .ok_or_else(|| fault("lists more pages than it holds"))?;
        if !(2..db.page_count()).contains(&free) {
            return Err(fault("lists a page outside of the file"));
        }
        pages.add(free)?;
    }
    if pages.used == db.page_count() {
        Ok(())
    } else {
        Err(fault("does not list every free page"))
    }
}
