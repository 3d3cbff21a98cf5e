//! Builds a B+tree from the leaves up: records come in ascending order, full pages go out at once, and of every
//! level no more than the last page or two are held.

use std::io::{self, Write};

use super::Error;
use super::format::{BRANCH_PAGE, ELEMENT, HEADER, LEAF_PAGE, MAX_KEY, MAX_VALUE, PageHeader};
use super::write::Pages;

/// Children that a branch keeps at least: bbolt's rebalancing takes more than one for granted.
const MIN_CHILDREN: usize = 2;

/// What is open at the right edge of a tree, to be built on.
#[derive(Debug, Default)]
pub(crate) struct Edge {
    /// Records of the last leaf.
    pub(crate) leaf: Vec<(Vec<u8>, Vec<u8>)>,
    /// From the leaves up: the children of the last branch of each level, without the one on the edge.
    pub(crate) branches: Vec<Vec<(Vec<u8>, u64)>>,
}

pub(crate) struct TreeBuilder {
    bucket: String,
    leaf: Leaf,
    levels: Vec<Level>,
    last_key: Option<Vec<u8>>,
    /// Bytes of a page that are filled before the next one begins.
    fill: usize,
    page_size: usize,
}

/// The open leaf page: elements and, apart from them, keys and values.
#[derive(Default)]
struct Leaf {
    flags: u32,
    sizes: Vec<(u32, u32)>,
    data: Vec<u8>,
    first_key: Vec<u8>,
}

impl Leaf {
    fn len(&self) -> usize {
        HEADER + ELEMENT * self.sizes.len() + self.data.len()
    }
}

/// The open branch page of one level.
#[derive(Default)]
struct Level {
    children: Vec<(Vec<u8>, u64)>,
    flushed: bool,
}

/// A finished tree.
pub(crate) enum Root {
    Page(u64),
    /// The only leaf, small enough to stand in the bucket's entry.
    Inline(Vec<u8>),
}

impl TreeBuilder {
    pub(crate) fn new(bucket: &[u8], page_size: usize, fill_percent: usize) -> Self {
        let bucket = String::from_utf8_lossy(bucket).into_owned();
        let fill = page_size * fill_percent / 100;
        Self {
            bucket,
            leaf: Leaf::default(),
            levels: Vec::new(),
            last_key: None,
            fill,
            page_size,
        }
    }

    /// Goes on with a tree that is there.
    pub(crate) fn resume<W: Write>(&mut self, edge: Edge, pages: &mut Pages<W>) -> Result<(), Error> {
        let level = |children| Level {
            children,
            flushed: false,
        };
        self.levels = edge.branches.into_iter().map(level).collect();
        edge.leaf
            .into_iter()
            .try_for_each(|(key, value)| self.push(pages, &key, &[&value], 0))
    }

    /// Adds a record; the value comes in parts, so that a large one need not be copied together.
    pub(crate) fn push<W: Write>(
        &mut self,
        pages: &mut Pages<W>,
        key: &[u8],
        value: &[&[u8]],
        flags: u32,
    ) -> Result<(), Error> {
        let value_len = value.iter().map(|part| part.len()).sum();
        self.check(key, value_len)?;
        if !self.leaf.sizes.is_empty() {
            let grown = self.leaf.len() + ELEMENT + key.len() + value_len;
            if grown > self.fill || self.leaf.sizes.len() == usize::from(u16::MAX) - 1 {
                self.flush_leaf(pages)?;
            }
        }
        if self.leaf.sizes.is_empty() {
            self.leaf.first_key.clear();
            self.leaf.first_key.extend_from_slice(key);
            self.leaf.flags = flags;
            if HEADER + ELEMENT + key.len() + value_len > self.page_size {
                return self.write_large(pages, key, value, value_len, flags);
            }
        }
        // Both fit: checked against the limits above.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "keys and values are shorter than 2^31"
        )]
        self.leaf.sizes.push((key.len() as u32, value_len as u32));
        self.leaf.data.extend_from_slice(key);
        for part in value {
            self.leaf.data.extend_from_slice(part);
        }
        Ok(())
    }

    fn check(&mut self, key: &[u8], value_len: usize) -> Result<(), Error> {
        if key.is_empty() || key.len() > MAX_KEY || value_len > MAX_VALUE {
            let bucket = self.bucket.clone();
            return Err(Error::TooLarge {
                bucket,
                key_len: key.len(),
                value_len,
            });
        }
        let last = self.last_key.get_or_insert_default();
        if key <= last.as_slice() {
            return Err(Error::Order {
                bucket: self.bucket.clone(),
                key: key.to_vec(),
            });
        }
        last.clear();
        last.extend_from_slice(key);
        Ok(())
    }

    /// Writes a record that is larger than a page as a page run of its own.
    fn write_large<W: Write>(
        &mut self,
        pages: &mut Pages<W>,
        key: &[u8],
        value: &[&[u8]],
        value_len: usize,
        flags: u32,
    ) -> Result<(), Error> {
        let mut elements = Vec::with_capacity(ELEMENT);
        push_leaf_element(&mut elements, flags, ELEMENT, key.len(), value_len);
        let mut parts = vec![&elements[..], key];
        parts.extend_from_slice(value);
        let page = pages
            .append(LEAF_PAGE, 1, &parts)
            .map_err(Error::io("write of a page"))?;
        self.add_child(pages, 0, key.to_vec(), page)
    }

    fn flush_leaf<W: Write>(&mut self, pages: &mut Pages<W>) -> Result<(), Error> {
        let elements = leaf_elements(&self.leaf);
        let count = self.leaf.sizes.len();
        let page = pages
            .append(LEAF_PAGE, count, &[&elements, &self.leaf.data])
            .map_err(Error::io("write of a page"))?;
        self.leaf.sizes.clear();
        self.leaf.data.clear();
        let first_key = self.leaf.first_key.clone();
        self.add_child(pages, 0, first_key, page)
    }

    fn add_child<W: Write>(
        &mut self,
        pages: &mut Pages<W>,
        level: usize,
        key: Vec<u8>,
        page: u64,
    ) -> Result<(), Error> {
        if self.levels.len() == level {
            self.levels.push(Level::default());
        }
        let children = &mut self.levels[level].children;
        children.push((key, page));
        // Two more than fit: then the page can go, and what stays makes a page as well.
        let fits = fitting(children, self.fill);
        if children.len() >= fits + MIN_CHILDREN {
            self.flush_branch(pages, level, fits)?;
        }
        Ok(())
    }

    /// Writes the first `count` children of a level as a page.
    fn flush_branch<W: Write>(
        &mut self,
        pages: &mut Pages<W>,
        level: usize,
        count: usize,
    ) -> Result<(), Error> {
        let open = &mut self.levels[level];
        open.flushed = true;
        let rest = open.children.split_off(count);
        let children = std::mem::replace(&mut open.children, rest);
        let page = write_branch(pages, &children).map_err(Error::io("write of a page"))?;
        let first = children
            .into_iter()
            .next()
            .map(|(key, _)| key)
            .unwrap_or_default();
        self.add_child(pages, level + 1, first, page)
    }

    /// Writes what is open and returns the root. `inline_up_to` is the length of a leaf that isn't worth a page.
    pub(crate) fn finish<W: Write>(
        mut self,
        pages: &mut Pages<W>,
        inline_up_to: usize,
    ) -> Result<Root, Error> {
        if self.levels.is_empty() && self.leaf.len() <= inline_up_to {
            return Ok(Root::Inline(inline_page(&self.leaf)));
        }
        if !self.leaf.sizes.is_empty() || self.levels.is_empty() {
            self.flush_leaf(pages)?;
        }
        let mut level = 0;
        loop {
            let top = level + 1 == self.levels.len();
            let open = &self.levels[level];
            if top && !open.flushed && open.children.len() == 1 {
                return Ok(Root::Page(open.children[0].1));
            }
            let count = open.children.len();
            let fits = fitting(&open.children, self.page_size);
            // The last page gets at least two; three that don't fit make one longer page.
            if fits < count && count >= 2 * MIN_CHILDREN {
                self.flush_branch(pages, level, fits.min(count - MIN_CHILDREN))?;
            } else if count > 0 {
                self.flush_branch(pages, level, count)?;
                level += 1;
            } else {
                level += 1;
            }
        }
    }
}

/// How many of the children fit into so many bytes; never less than two.
fn fitting(children: &[(Vec<u8>, u64)], len: usize) -> usize {
    let mut used = HEADER;
    let fits = children.iter().take_while(|(key, _)| {
        used += ELEMENT + key.len();
        used <= len
    });
    fits.count().clamp(MIN_CHILDREN, usize::from(u16::MAX) - 1)
}

fn write_branch<W: Write>(pages: &mut Pages<W>, children: &[(Vec<u8>, u64)]) -> io::Result<u64> {
    let mut elements = Vec::with_capacity(ELEMENT * children.len());
    let mut keys = Vec::new();
    for (index, (key, page)) in children.iter().enumerate() {
        let pos = ELEMENT * (children.len() - index) + keys.len();
        push_u32(&mut elements, pos);
        push_u32(&mut elements, key.len());
        elements.extend_from_slice(&page.to_le_bytes());
        keys.extend_from_slice(key);
    }
    pages.append(BRANCH_PAGE, children.len(), &[&elements, &keys])
}

fn leaf_elements(leaf: &Leaf) -> Vec<u8> {
    let count = leaf.sizes.len();
    let mut elements = Vec::with_capacity(ELEMENT * count);
    let mut at = 0;
    for (index, (key_len, value_len)) in leaf.sizes.iter().enumerate() {
        let (key_len, value_len) = (*key_len as usize, *value_len as usize);
        push_leaf_element(
            &mut elements,
            leaf.flags,
            ELEMENT * (count - index) + at,
            key_len,
            value_len,
        );
        at += key_len + value_len;
    }
    elements
}

fn push_leaf_element(elements: &mut Vec<u8>, flags: u32, pos: usize, key_len: usize, value_len: usize) {
    elements.extend_from_slice(&flags.to_le_bytes());
    push_u32(elements, pos);
    push_u32(elements, key_len);
    push_u32(elements, value_len);
}

/// Positions and lengths within a page; a page run is shorter than 2^32 bytes as its records are.
#[expect(
    clippy::cast_possible_truncation,
    reason = "page runs are shorter than 2^32 bytes"
)]
fn push_u32(bytes: &mut Vec<u8>, value: usize) {
    bytes.extend_from_slice(&(value as u32).to_le_bytes());
}

fn inline_page(leaf: &Leaf) -> Vec<u8> {
    let mut page = vec![0; HEADER];
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an inline page is a fraction of a page"
    )]
    let count = leaf.sizes.len() as u16;
    PageHeader {
        id: 0,
        flags: LEAF_PAGE,
        count,
        overflow: 0,
    }
    .write(&mut page);
    page.extend_from_slice(&leaf_elements(leaf));
    page.extend_from_slice(&leaf.data);
    page
}
