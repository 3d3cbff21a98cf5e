//! A database and a delta made here byte by byte, so that each part of them can be damaged on purpose, with hashes that
//! fit all the same.

use etcd_storage::{
    bolt::BulkWriter,
    delta::{self, Event},
    mvcc::{KeyValue, RecordKey, Revision},
};
use sha2::{Digest as _, Sha256};

/// Bytes of a page, of its header and of an element.
pub(crate) const PAGE: usize = 1024;
const HEADER: usize = 16;
const ELEMENT: usize = 16;

/// Revision of the database.
pub(crate) const REVISION: i64 = 400;

const BRANCH: u16 = 1;
const LEAF: u16 = 2;

/// The pages of a database.
#[derive(Clone)]
pub(crate) struct Image(pub(crate) Vec<u8>);

impl Image {
    /// One record in each revision up to [`REVISION`].
    pub(crate) fn new() -> Self {
        Self::of(&["key", "meta"], REVISION, |main| {
            record(main, b"some value of a key")
        })
    }

    /// With these buckets, and these bytes as records up to a revision.
    pub(crate) fn of(buckets: &[&str], last: i64, value: impl Fn(i64) -> Vec<u8>) -> Self {
        let mut writer = BulkWriter::new(Vec::new(), PAGE);
        for name in buckets {
            writer.bucket(name.as_bytes(), 0, 100).unwrap();
            match *name {
                "key" => {
                    for main in 2..=last {
                        let revision = Revision { main, sub: 0 };
                        let key = RecordKey {
                            revision,
                            tombstone: false,
                        };
                        writer.put(key.bytes().as_ref(), &[&value(main)]).unwrap();
                    }
                }
                _ => writer.put(b"consistent_index", &[&[0; 8]]).unwrap(),
            }
        }
        let (pages, layout) = writer.finish().unwrap();
        Self([layout.head(), pages].concat())
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn flags(&self, page: usize) -> u16 {
        u16::from_le_bytes(self.0[page * PAGE + 8..][..2].try_into().unwrap())
    }

    /// Where the first page of this kind begins that has several elements.
    fn first(&self, flags: u16, skip: usize) -> usize {
        let pages = 3..self.0.len() / PAGE;
        let found = pages.filter(|page| self.flags(*page) == flags && self.0[page * PAGE + 10] > 2);
        found.map(|page| page * PAGE).nth(skip).unwrap()
    }

    /// A leaf in the middle of the records.
    pub(crate) fn leaf(&self) -> usize {
        self.first(LEAF, 5)
    }

    pub(crate) fn branch(&self) -> usize {
        self.first(BRANCH, 0)
    }

    /// The page of the root bucket.
    pub(crate) fn root(&self) -> usize {
        usize::try_from(self.u64(PAGE + HEADER + 16)).unwrap() * PAGE
    }

    /// Where an element of the page at `page` begins.
    pub(crate) fn element(page: usize, index: usize) -> usize {
        page + HEADER + ELEMENT * index
    }

    /// Gives a meta page another root and transaction, and its checksum.
    pub(crate) fn set_meta(&mut self, number: usize, root: u64, txid: u64) {
        let meta = number * PAGE + HEADER;
        self.put(meta + 16, &root.to_le_bytes());
        self.put(meta + 48, &txid.to_le_bytes());
        let fnv = self.0[meta..meta + 56]
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        self.put(meta + 56, &fnv.to_le_bytes());
    }

    /// The database and its hash.
    pub(crate) fn sealed(self) -> Vec<u8> {
        sealed(self.0)
    }
}

/// A stored record.
pub(crate) fn record(main: i64, value: &[u8]) -> Vec<u8> {
    let record = KeyValue {
        key: b"/some/key",
        create_revision: 2,
        mod_revision: main,
        version: main - 1,
        value,
        lease: 0,
    };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    record.encode_around_value(&mut before, &mut after);
    [&before, value, &after].concat()
}

/// A delta with one event in each of these revisions.
pub(crate) fn delta(revisions: impl IntoIterator<Item = i64>) -> Vec<u8> {
    let mut encoder = delta::Encoder::new(Vec::new());
    for revision in revisions {
        let event = Event {
            key: b"/some/key".to_vec(),
            value: b"a newer value".to_vec(),
            create_revision: 2,
            mod_revision: revision,
            version: revision - 1,
            ..Event::default()
        };
        encoder.push(&event).unwrap();
    }
    encoder.finish().unwrap().0
}

/// What was there, and its hash.
pub(crate) fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let hash = Sha256::digest(&bytes);
    bytes.extend(hash);
    bytes
}
