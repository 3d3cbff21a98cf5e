//! Reads a bucket in the order of its keys, checking on the way what the order rests on: every number within its
//! page, keys strictly ascending, children where their parent says, no page below itself.

use std::fmt;
use std::mem;

use super::db::Db;
use super::format::{
    BRANCH_PAGE, ELEMENT, HEADER, LEAF_PAGE, LeafElement, PageHeader, branch_element, leaf_element,
};
use super::{Edge, Error};

/// Deepest tree that is followed. At two children a page it would hold 2^32 pages.
const MAX_DEPTH: usize = 32;

const TOO_DEEP: &str = "lies too deep: the tree has a cycle";
const NO_CHILDREN: &str = "is a branch without children";
const REACHES_OVER: &str = "holds an element that reaches over its end";

/// One record of a bucket.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Whether the value is a bucket.
    pub is_bucket: bool,
}

/// A place in a bucket.
pub struct Cursor<'a> {
    db: &'a Db,
    start: Start<'a>,
    stack: Vec<Frame>,
    spare: Vec<Vec<u8>>,
    last: LastKey,
}

/// The key before, and whether the next one must differ from it.
#[derive(Default)]
struct LastKey {
    key: Vec<u8>,
    strict: bool,
}

impl LastKey {
    /// Checks a key against the one before. A branch's key may be that of the record that follows.
    fn step(&mut self, page: u64, key: &[u8], is_record: bool) -> Result<(), Error> {
        if key < self.key.as_slice() || (self.strict && key == self.key) {
            return Err(Error::Page {
                page,
                what: "holds keys that are not in order",
            });
        }
        self.strict = is_record;
        self.key.clear();
        self.key.extend_from_slice(key);
        Ok(())
    }
}

enum Start<'a> {
    Page(u64),
    Inline(&'a [u8]),
    Done,
}

struct Frame {
    page: Vec<u8>,
    header: PageHeader,
    next: u16,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(db: &'a Db, root: u64, inline: &'a [u8]) -> Self {
        let start = if root == 0 {
            Start::Inline(inline)
        } else {
            Start::Page(root)
        };
        Self {
            db,
            start,
            stack: Vec::new(),
            spare: Vec::new(),
            last: LastKey::default(),
        }
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// The file can't be read or is damaged.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>, Error> {
        self.next_entry_with(&mut |_| Ok(()))
    }

    /// As [`Cursor::next_entry`], telling `visit` of every page that is stepped on.
    pub(super) fn next_entry_with(
        &mut self,
        visit: &mut dyn FnMut(PageHeader) -> Result<(), Error>,
    ) -> Result<Option<Entry<'_>>, Error> {
        match mem::replace(&mut self.start, Start::Done) {
            Start::Done => {}
            Start::Page(root) => self.descend(root, visit)?,
            Start::Inline(page) => self.enter_inline(page)?,
        }
        let Some(element) = self.advance(visit)? else {
            return Ok(None);
        };
        let page = self.stack.last().map_or(&[][..], |frame| &frame.page);
        let key = element.key_in(page).unwrap_or_default();
        let value = element.value_in(page).unwrap_or_default();
        Ok(Some(Entry {
            key,
            value,
            is_bucket: element.is_bucket(),
        }))
    }

    /// Steps to the next leaf element and checks it.
    fn advance(
        &mut self,
        visit: &mut dyn FnMut(PageHeader) -> Result<(), Error>,
    ) -> Result<Option<LeafElement>, Error> {
        while let Some(frame) = self.stack.last_mut() {
            let id = frame.header.id;
            if frame.next == frame.header.count {
                self.spare.extend(self.stack.pop().map(|frame| frame.page));
            } else if frame.header.flags == LEAF_PAGE {
                let element = check_leaf_element(frame)?;
                frame.next += 1;
                let key = element.key_in(&frame.page).unwrap_or_default();
                self.last.step(id, key, true)?;
                return Ok(Some(element));
            } else {
                let fault = |what| Error::Page { page: id, what };
                let (key, child) =
                    branch_element(&frame.page, frame.next).ok_or_else(|| fault(REACHES_OVER))?;
                frame.next += 1;
                self.last.step(id, key, false)?;
                self.descend(child, visit)?;
            }
        }
        Ok(None)
    }

    fn descend(
        &mut self,
        page: u64,
        visit: &mut dyn FnMut(PageHeader) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.stack.len() == MAX_DEPTH {
            return Err(Error::Page { page, what: TOO_DEEP });
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        let header = self.db.read_page(page, &mut bytes)?;
        visit(header)?;
        if header.flags == BRANCH_PAGE && header.count == 0 {
            return Err(Error::Page {
                page,
                what: NO_CHILDREN,
            });
        }
        self.stack.push(Frame {
            page: bytes,
            header,
            next: 0,
        });
        Ok(())
    }

    fn enter_inline(&mut self, page: &[u8]) -> Result<(), Error> {
        let fault = |what| Error::Page { page: 0, what };
        let header = PageHeader::read(page).ok_or_else(|| fault("inline bucket without a page"))?;
        if header.flags != LEAF_PAGE {
            return Err(fault("inline bucket whose page is no leaf"));
        }
        self.stack.push(Frame {
            page: page.to_vec(),
            header,
            next: 0,
        });
        Ok(())
    }

    /// The last key; `None` when there is none. The cursor must be fresh.
    pub(crate) fn last_key(mut self) -> Result<Option<Vec<u8>>, Error> {
        match mem::replace(&mut self.start, Start::Done) {
            Start::Done => {}
            Start::Page(root) => self.descend(root, &mut |_| Ok(()))?,
            Start::Inline(page) => self.enter_inline(page)?,
        }
        for _ in 0..MAX_DEPTH {
            let Some(mut frame) = self.stack.pop() else { break };
            let page = frame.header.id;
            let Some(last) = frame.header.count.checked_sub(1) else {
                break;
            };
            if frame.header.flags == LEAF_PAGE {
                frame.next = last;
                let element = check_leaf_element(&frame)?;
                return Ok(element.key_in(&frame.page).map(<[u8]>::to_vec));
            }
            let element = branch_element(&frame.page, last);
            let (_, child) = element.ok_or(Error::Page {
                page,
                what: REACHES_OVER,
            })?;
            self.descend(child, &mut |_| Ok(()))?;
        }
        match self.stack.pop() {
            None => Ok(None),
            Some(frame) => Err(Error::Page {
                page: frame.header.id,
                what: TOO_DEEP,
            }),
        }
    }

    /// Goes to the end of what is below `bound` and takes the tree apart there: what lies left of the path stays as
    /// it is, what lies on it comes back as elements. The cursor must be fresh.
    pub(crate) fn right_edge(mut self, bound: Option<&[u8]>) -> Result<Edge, Error> {
        match mem::replace(&mut self.start, Start::Done) {
            Start::Done => {}
            Start::Page(root) => self.descend(root, &mut |_| Ok(()))?,
            Start::Inline(page) => self.enter_inline(page)?,
        }
        let below = |key: &[u8]| bound.is_none_or(|bound| key < bound);
        let mut branches = Vec::new();
        while let Some(frame) = self.stack.pop() {
            if frame.header.flags == LEAF_PAGE {
                return self.edge_leaf(frame, branches, &below);
            }
            let mut children = children_below(&frame, &below)?;
            let page = frame.header.id;
            let (_, last) = children.pop().ok_or(Error::Page {
                page,
                what: NO_CHILDREN,
            })?;
            branches.push(children);
            if branches.len() == MAX_DEPTH {
                return Err(Error::Page { page, what: TOO_DEEP });
            }
            self.descend(last, &mut |_| Ok(()))?;
        }
        Ok(Edge::default())
    }

    /// Sees to it that every branch on the edge has a child beside the one on the path, as a branch with a single
    /// child breaks bbolt's rebalancing: it takes those of its left neighbour, and an idle root goes.
    fn widen(&mut self, branches: &mut Vec<Vec<(Vec<u8>, u64)>>) -> Result<(), Error> {
        while let Some(level) = branches.iter().position(Vec::is_empty) {
            let Some(above) = level.checked_sub(1) else {
                branches.remove(0);
                continue;
            };
            let Some((_, neighbour)) = branches[above].pop() else {
                continue;
            };
            self.descend(neighbour, &mut |_| Ok(()))?;
            if let Some(frame) = self.stack.pop() {
                if frame.header.flags != BRANCH_PAGE {
                    return Err(Error::Page {
                        page: neighbour,
                        what: "is a leaf beside branches",
                    });
                }
                branches[level] = children_below(&frame, &|_| true)?;
            }
        }
        Ok(())
    }

    fn edge_leaf(
        &mut self,
        mut frame: Frame,
        mut branches: Vec<Vec<(Vec<u8>, u64)>>,
        below: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Edge, Error> {
        let page = frame.header.id;
        let mut leaf = Vec::new();
        let mut whole = true;
        while frame.next < frame.header.count {
            let element = check_leaf_element(&frame)?;
            frame.next += 1;
            let key = element.key_in(&frame.page).unwrap_or_default();
            self.last.step(page, key, true)?;
            whole &= below(key);
            if whole {
                leaf.push((key.to_vec(), element));
            }
        }
        self.widen(&mut branches)?;
        // From the root down, but built from the leaves up.
        branches.reverse();
        if whole && frame.header.overflow > 0 {
            // A full page of large records stays where it is.
            let first = leaf.swap_remove(0).0;
            match branches.first_mut() {
                Some(level) => level.push((first, page)),
                None => branches.push(vec![(first, page)]),
            }
            return Ok(Edge {
                leaf: Vec::new(),
                branches,
            });
        }
        let value = |element: LeafElement| element.value_in(&frame.page).unwrap_or_default().to_vec();
        let leaf = leaf
            .into_iter()
            .map(|(key, element)| (key, value(element)))
            .collect();
        Ok(Edge { leaf, branches })
    }
}

/// The children of a branch up to the one that holds the last record below a bound.
fn children_below(frame: &Frame, below: &dyn Fn(&[u8]) -> bool) -> Result<Vec<(Vec<u8>, u64)>, Error> {
    let mut children = Vec::new();
    for index in 0..frame.header.count {
        let element = branch_element(&frame.page, index);
        let (key, child) = element.ok_or(Error::Page {
            page: frame.header.id,
            what: REACHES_OVER,
        })?;
        if index > 0 && !below(key) {
            break;
        }
        children.push((key.to_vec(), child));
    }
    Ok(children)
}

fn check_leaf_element(frame: &Frame) -> Result<LeafElement, Error> {
    let fault = |what| Error::Page {
        page: frame.header.id,
        what,
    };
    let element = leaf_element(&frame.page, frame.next).ok_or_else(|| fault(REACHES_OVER))?;
    if element.value_in(&frame.page).is_none() {
        return Err(fault(REACHES_OVER));
    }
    if element.key < HEADER + ELEMENT * usize::from(frame.header.count) {
        return Err(fault("holds an element whose key lies among the elements"));
    }
    Ok(element)
}

impl fmt::Debug for Cursor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor")
            .field("depth", &self.stack.len())
            .finish_non_exhaustive()
    }
}
