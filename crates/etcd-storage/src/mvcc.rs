//! etcd's multi-version records: revisions, the keys of the `key` bucket, and the records in it.
//!
//! A record's key is 8 bytes of main revision, `_`, 8 bytes of sub-revision, both big-endian, and a `t` for a
//! tombstone. Its value is a protobuf `mvccpb.KeyValue`; of a tombstone it holds the key alone.

use std::fmt;

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

    proptest! {
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
