//! etcd's multi-version records: revisions, the keys of the `key` bucket, and the records in it.
//!
//! A record's key is 8 bytes of main revision, `_`, 8 bytes of sub-revision, both big-endian, and a `t` for a
//! tombstone. Its value is a protobuf `mvccpb.KeyValue`; of a tombstone it holds the key alone.

use std::fmt;

/// The highest revision that a restored etcd may begin with. Revisions are signed 64-bit numbers, and etcd panics at a write
/// beyond the last one; so half of them are left.
pub const MAX_START: i64 = i64::MAX / 2;

/// Place of a change in the history: the revision of its transaction and its place in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    /// Revision of the transaction.
    pub main: i64,
    /// Place within the transaction, from 0.
    pub sub: i64,
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.main, self.sub)
    }
}

/// A key of the `key` bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordKey {
    /// When.
    pub revision: Revision,
    /// Whether the record ends its key.
    pub tombstone: bool,
}

/// Length of a record's key without and with the mark of a tombstone.
const PLAIN: usize = 17;
const MARKED: usize = 18;

impl RecordKey {
    /// Reads a key of the `key` bucket; `None` when it has another form.
    pub fn parse(key: &[u8]) -> Option<Self> {
        let tombstone = match key.len() {
            PLAIN => false,
            MARKED if key[PLAIN] == b't' => true,
            _ => return None,
        };
        let main = i64::from_be_bytes(*key.first_chunk()?);
        let sub = i64::from_be_bytes(*key[9..].first_chunk()?);
        (key[8] == b'_' && main >= 0 && sub >= 0).then_some(Self {
            revision: Revision { main, sub },
            tombstone,
        })
    }

    /// The bytes of the key.
    pub fn bytes(self) -> RecordKeyBytes {
        let mut bytes = [0; MARKED];
        bytes[..8].copy_from_slice(&self.revision.main.to_be_bytes());
        bytes[8] = b'_';
        bytes[9..PLAIN].copy_from_slice(&self.revision.sub.to_be_bytes());
        bytes[PLAIN] = b't';
        RecordKeyBytes {
            bytes,
            len: if self.tombstone { MARKED } else { PLAIN },
        }
    }
}

/// The bytes of a [`RecordKey`].
#[derive(Clone, Copy, Debug)]
pub struct RecordKeyBytes {
    bytes: [u8; MARKED],
    len: usize,
}

impl AsRef<[u8]> for RecordKeyBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The content of a record, `mvccpb.KeyValue`; borrowed from where it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyValue<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Revision in which the key came to be.
    pub create_revision: i64,
    /// Revision of the record.
    pub mod_revision: i64,
    /// Number of puts since the key came to be.
    pub version: i64,
    /// The value.
    pub value: &'a [u8],
    /// Id of the lease that the key hangs on; 0 for none.
    pub lease: i64,
}

/// Wire types of protobuf.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

impl<'a> KeyValue<'a> {
    /// Reads a stored record; `None` when it is no `KeyValue`.
    pub fn parse(mut bytes: &'a [u8]) -> Option<Self> {
        let mut record = Self::default();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes)?;
            let (mut number, mut data) = (0, &[][..]);
            match tag & 7 {
                VARINT => number = varint(&mut bytes)?.cast_signed(),
                FIXED64 => drop(bytes.split_off(..8)?),
                FIXED32 => drop(bytes.split_off(..4)?),
                BYTES => {
                    let len = usize::try_from(varint(&mut bytes)?).ok()?;
                    data = bytes.split_off(..len)?;
                }
                _ => return None,
            }
            match (tag >> 3, tag & 7) {
                (1, BYTES) => record.key = data,
                (2, VARINT) => record.create_revision = number,
                (3, VARINT) => record.mod_revision = number,
                (4, VARINT) => record.version = number,
                (5, BYTES) => record.value = data,
                (6, VARINT) => record.lease = number,
                (0..=6, _) => return None,
                _ => {}
            }
        }
        Some(record)
    }

    /// Encodes all but the bytes of the value: what stands before them and what stands after. So a large value need
    /// not be copied. The bytes are those that etcd writes.
    pub fn encode_around_value(&self, before: &mut Vec<u8>, after: &mut Vec<u8>) {
        before.clear();
        after.clear();
        if !self.key.is_empty() {
            put_varint(before, 1 << 3 | BYTES);
            put_varint(before, self.key.len() as u64);
            before.extend_from_slice(self.key);
        }
        put_number(before, 2, self.create_revision);
        put_number(before, 3, self.mod_revision);
        put_number(before, 4, self.version);
        if !self.value.is_empty() {
            put_varint(before, 5 << 3 | BYTES);
            put_varint(before, self.value.len() as u64);
        }
        put_number(after, 6, self.lease);
    }
}

fn put_number(out: &mut Vec<u8>, field: u64, number: i64) {
    if number != 0 {
        put_varint(out, field << 3 | VARINT);
        put_varint(out, number.cast_unsigned());
    }
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn other_keys_are_no_record_keys() {
        let good = RecordKey {
            revision: Revision { main: 5, sub: 1 },
            tombstone: true,
        }
        .bytes();
        let good = good.as_ref();
        assert!(RecordKey::parse(good).is_some());
        assert!(RecordKey::parse(&good[..16]).is_none());
        assert!(RecordKey::parse(&[good, b"t"].concat()).is_none());
        for (at, byte) in [(0, 0x80), (8, b'-'), (9, 0xff), (17, b'x')] {
            let mut bad = good.to_vec();
            bad[at] = byte;
            assert!(RecordKey::parse(&bad).is_none(), "byte {at}");
        }
    }

    fn encode(record: &KeyValue<'_>) -> Vec<u8> {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        record.encode_around_value(&mut before, &mut after);
        [&before, record.value, &after].concat()
    }

    /// The same bytes as a generated encoder makes, since etcd's hash goes over them.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Reference {
        #[prost(bytes = "vec", tag = "1")]
        key: Vec<u8>,
        #[prost(int64, tag = "2")]
        create_revision: i64,
        #[prost(int64, tag = "3")]
        mod_revision: i64,
        #[prost(int64, tag = "4")]
        version: i64,
        #[prost(bytes = "vec", tag = "5")]
        value: Vec<u8>,
        #[prost(int64, tag = "6")]
        lease: i64,
    }

    #[test]
    fn other_bytes_are_no_record() {
        for bad in [
            &b"\x0a\x05ab"[..],
            b"\x10",
            b"\x12\x01a",
            b"\x0b",
            b"\x00\x00",
            b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ] {
            assert_eq!(KeyValue::parse(bad), None, "{bad:?}");
        }
        let unknown = b"\x38\x05\x42\x01x\x4d1234\x5112345678\x0a\x01k";
        assert_eq!(KeyValue::parse(unknown).map(|record| record.key), Some(&b"k"[..]));
    }

    proptest! {
        #[test]
        fn records_are_encoded_as_by_etcd(
            key in proptest::collection::vec(any::<u8>(), 0..20),
            value in proptest::collection::vec(any::<u8>(), 0..300),
            (create_revision, mod_revision, version, lease) in any::<(i64, i64, i64, i64)>(),
        ) {
            let record = KeyValue { key: &key, create_revision, mod_revision, version, value: &value, lease };
            let bytes = encode(&record);
            prop_assert_eq!(KeyValue::parse(&bytes), Some(record));
            let reference = Reference { key: key.clone(), create_revision, mod_revision, version, value: value.clone(), lease };
            prop_assert_eq!(bytes, prost::Message::encode_to_vec(&reference));
        }

        /// Keys read as written, and their bytes sort as the revisions do: the bucket's order is that of history.
        #[test]
        fn keys_keep_content_and_order(
            (main, sub, tombstone) in (0..=i64::MAX, 0..=i64::MAX, any::<bool>()),
            (other_main, other_sub) in (0..=i64::MAX, 0..=i64::MAX),
        ) {
            let key = RecordKey { revision: Revision { main, sub }, tombstone };
            prop_assert_eq!(RecordKey::parse(key.bytes().as_ref()), Some(key));
            let other = RecordKey { revision: Revision { main: other_main, sub: other_sub }, tombstone: false };
            if key.revision != other.revision {
                prop_assert_eq!(key.bytes().as_ref() < other.bytes().as_ref(), key.revision < other.revision);
            }
        }
    }
}
