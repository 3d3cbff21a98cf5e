//! The layout of bbolt's pages: headers, elements and meta pages as bytes. All numbers are little-endian, as on
//! every machine that etcd supports. Nothing here trusts a number that it reads.

/// Length of a page header, of a leaf element, of a branch element and of a bucket header.
pub(crate) const HEADER: usize = 16;
pub(crate) const ELEMENT: usize = 16;
pub(crate) const BUCKET: usize = 16;

/// Length of a meta page's content, its checksum included.
pub(crate) const META: usize = 64;

pub(crate) const BRANCH_PAGE: u16 = 0x01;
pub(crate) const LEAF_PAGE: u16 = 0x02;
pub(crate) const META_PAGE: u16 = 0x04;
pub(crate) const FREELIST_PAGE: u16 = 0x10;

/// Flag of a leaf element whose value is a bucket.
pub(crate) const BUCKET_ELEMENT: u32 = 0x01;

/// In place of a freelist page: the list isn't stored.
pub(crate) const NO_FREELIST: u64 = u64::MAX;

/// bbolt's limits, in bytes.
pub(crate) const MAX_KEY: usize = 32_768;
pub(crate) const MAX_VALUE: usize = (1 << 31) - 2;

/// Page sizes that bbolt can be told to use.
pub(crate) fn page_sizes() -> impl Iterator<Item = usize> {
    (9..=24).map(|bits| 1 << bits)
}

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}

/// The first bytes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageHeader {
    pub(crate) id: u64,
    pub(crate) flags: u16,
    pub(crate) count: u16,
    /// Pages that follow this one and belong to it.
    pub(crate) overflow: u32,
}

impl PageHeader {
    pub(crate) fn read(page: &[u8]) -> Option<Self> {
        Some(Self {
            id: u64_at(page, 0)?,
            flags: u16_at(page, 8)?,
            count: u16_at(page, 10)?,
            overflow: u32_at(page, 12)?,
        })
    }

    pub(crate) fn write(self, page: &mut [u8]) {
        page[0..8].copy_from_slice(&self.id.to_le_bytes());
        page[8..10].copy_from_slice(&self.flags.to_le_bytes());
        page[10..12].copy_from_slice(&self.count.to_le_bytes());
        page[12..16].copy_from_slice(&self.overflow.to_le_bytes());
    }
}

/// An element of a leaf page: where key and value lie, from the start of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafElement {
    pub(crate) flags: u32,
    pub(crate) key: usize,
    pub(crate) key_len: usize,
    pub(crate) value_len: usize,
}

impl LeafElement {
    /// Reads the element from its 16 bytes, which begin `at` bytes behind the start of the page.
    pub(crate) fn read(element: &[u8], at: usize) -> Option<Self> {
        let field = |offset| usize::try_from(u32_at(element, offset)?).ok();
        Some(Self {
            flags: u32_at(element, 0)?,
            key: at.checked_add(field(4)?)?,
            key_len: field(8)?,
            value_len: field(12)?,
        })
    }

    pub(crate) fn is_bucket(&self) -> bool {
        self.flags & BUCKET_ELEMENT != 0
    }

    pub(crate) fn key_in<'a>(&self, page: &'a [u8]) -> Option<&'a [u8]> {
        page.get(self.key..self.key.checked_add(self.key_len)?)
    }

    pub(crate) fn value_in<'a>(&self, page: &'a [u8]) -> Option<&'a [u8]> {
        let start = self.key.checked_add(self.key_len)?;
        page.get(start..start.checked_add(self.value_len)?)
    }
}

/// The element of a leaf page in place `index`.
pub(crate) fn leaf_element(page: &[u8], index: u16) -> Option<LeafElement> {
    let at = HEADER + ELEMENT * usize::from(index);
    LeafElement::read(page.get(at..at + ELEMENT)?, at)
}

/// Key and child of the element of a branch page in place `index`.
pub(crate) fn branch_element(page: &[u8], index: u16) -> Option<(&[u8], u64)> {
    let at = HEADER + ELEMENT * usize::from(index);
    let key = at.checked_add(usize::try_from(u32_at(page, at)?).ok()?)?;
    let len = usize::try_from(u32_at(page, at + 4)?).ok()?;
    Some((page.get(key..key.checked_add(len)?)?, u64_at(page, at + 8)?))
}

/// A bucket as it stands in the value of its leaf element: a tree of its own or a leaf page within the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketHeader {
    /// Root page; 0 when the bucket is inline.
    pub(crate) root: u64,
    pub(crate) sequence: u64,
}

impl BucketHeader {
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        Some(Self {
            root: u64_at(value, 0)?,
            sequence: u64_at(value, 8)?,
        })
    }

    pub(crate) fn bytes(self) -> [u8; BUCKET] {
        let mut bytes = [0; BUCKET];
        bytes[..8].copy_from_slice(&self.root.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }
}

/// Why a meta page is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetaFault {
    /// Too few bytes.
    #[error("too short")]
    Short,
    /// Another kind of file, or one of a machine with another byte order.
    #[error("not a bbolt file")]
    Magic,
    /// A version of bbolt's format that isn't known.
    #[error("unknown version of the format")]
    Version,
    /// It was torn or altered.
    #[error("checksum does not match")]
    Checksum,
    /// A page size that no machine has.
    #[error("impossible page size")]
    PageSize,
}

/// The content of a meta page: where the tree begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) page_size: usize,
    pub(crate) root: BucketHeader,
    pub(crate) freelist: u64,
    /// Number of pages that the file has.
    pub(crate) high_water: u64,
    pub(crate) txid: u64,
}

impl Meta {
    /// Reads the meta page that begins with `page`.
    pub(crate) fn read(page: &[u8]) -> Result<Self, MetaFault> {
        let meta = page.get(HEADER..HEADER + META).ok_or(MetaFault::Short)?;
        let number = |at| u64_at(meta, at).ok_or(MetaFault::Short);
        if u32_at(meta, 0) != Some(MAGIC) {
            return Err(MetaFault::Magic);
        }
        if u32_at(meta, 4) != Some(VERSION) {
            return Err(MetaFault::Version);
        }
        if number(56)? != fnv64a(&meta[..56]) {
            return Err(MetaFault::Checksum);
        }
        let page_size = u32_at(meta, 8).and_then(|size| usize::try_from(size).ok());
        let page_size = page_size.filter(|size| page_sizes().any(|known| known == *size));
        Ok(Self {
            page_size: page_size.ok_or(MetaFault::PageSize)?,
            root: BucketHeader {
                root: number(16)?,
                sequence: number(24)?,
            },
            freelist: number(32)?,
            high_water: number(40)?,
            txid: number(48)?,
        })
    }

    /// Writes the meta page with the number that its transaction asks for.
    pub(crate) fn write(&self, page: &mut [u8]) {
        let header = PageHeader {
            id: self.txid % 2,
            flags: META_PAGE,
            count: 0,
            overflow: 0,
        };
        header.write(page);
        let meta = &mut page[HEADER..HEADER + META];
        meta[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        meta[4..8].copy_from_slice(&VERSION.to_le_bytes());
        // A power of two up to 16 MiB by construction.
        #[expect(clippy::cast_possible_truncation, reason = "page sizes are at most 16 MiB")]
        meta[8..12].copy_from_slice(&(self.page_size as u32).to_le_bytes());
        meta[12..16].fill(0);
        meta[16..32].copy_from_slice(&self.root.bytes());
        meta[32..40].copy_from_slice(&self.freelist.to_le_bytes());
        meta[40..48].copy_from_slice(&self.high_water.to_le_bytes());
        meta[48..56].copy_from_slice(&self.txid.to_le_bytes());
        let checksum = fnv64a(&meta[..56]);
        meta[56..64].copy_from_slice(&checksum.to_le_bytes());
    }
}

fn fnv64a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meta_page_reads_as_written_and_no_other_way() {
        for txid in [0, 1, 7] {
            let meta = Meta {
                page_size: 4096,
                root: BucketHeader { root: 3, sequence: 0 },
                freelist: NO_FREELIST,
                high_water: 99,
                txid,
            };
            let mut page = [0; HEADER + META];
            meta.write(&mut page);
            assert_eq!(Meta::read(&page), Ok(meta));
            assert_eq!(PageHeader::read(&page).map(|header| header.id), Some(txid % 2));
            for at in HEADER..page.len() {
                let mut altered = page;
                altered[at] ^= 1;
                assert!(Meta::read(&altered).is_err(), "byte {at}");
            }
        }
        assert_eq!(Meta::read(&[0; 20]), Err(MetaFault::Short));
        assert_eq!(Meta::read(&[0; 80]), Err(MetaFault::Magic));
    }
}
