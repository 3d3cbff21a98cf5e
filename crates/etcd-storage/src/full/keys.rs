//! Counts the live keys of a database by its records alone. etcd's own number is that of its index in memory, which may
//! hold keys that the database has lost, until etcd is started again.

use super::note::{number, put_number};
use crate::mvcc::RecordKey;

/// What the records of a leaf mean for the number of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Puts that made a key.
    made: i64,
    /// The other changes, in their order: main revision, and whether it is a tombstone instead of a put.
    others: Vec<(i64, bool)>,
}

impl Changes {
    /// Adds a record. An empty one, which only raises the revision, is of no key.
    pub(super) fn add(&mut self, key: RecordKey, create_revision: i64) {
        let main = key.revision.main;
        match (key.tombstone, create_revision) {
            (false, 0) => {}
            (false, created) if created == main => self.made += 1,
            (tombstone, _) => self.others.push((main, tombstone)),
        }
    }

    /// By how many keys there are more after these records, when the history is compacted up to a revision: up to there
    /// the newest put of each live key is left, whether it made the key or not, and tombstones mean nothing.
    pub(super) fn net(&self, compacted: i64) -> i64 {
        let others = self
            .others
            .iter()
            .map(|(main, tombstone)| match (*main <= compacted, tombstone) {
                (true, false) => 1,
                (false, true) => -1,
                _ => 0,
            });
        self.made + others.sum::<i64>()
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        put_number(out, self.made.cast_unsigned());
        put_number(out, self.others.len() as u64);
        let mut before = 0;
        for (main, tombstone) in &self.others {
            // Neighbours have revisions that are close to each other.
            let step = (main - before).cast_unsigned();
            put_number(out, step << 1 | u64::from(*tombstone));
            before = *main;
        }
    }

    pub(super) fn read(from: &mut &[u8]) -> Option<Self> {
        let made = number(from)?.cast_signed();
        let (mut others, mut before) = (Vec::new(), 0_i64);
        for _ in 0..number(from)? {
            let step = number(from)?;
            before = before.checked_add((step >> 1).cast_signed())?;
            others.push((before, step & 1 == 1));
        }
        Some(Self { made, others })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::Revision;

    /// Main revision, whether it is a tombstone, revision in which its key was made.
    fn changes(records: &[(i64, bool, i64)]) -> Changes {
        let mut changes = Changes::default();
        for (main, tombstone, created) in records {
            let revision = Revision { main: *main, sub: 0 };
            let key = RecordKey {
                revision,
                tombstone: *tombstone,
            };
            changes.add(key, *created);
        }
        changes
    }

    #[test]
    fn what_was_compacted_is_counted_by_what_is_left_of_it() {
        let history = changes(&[
            (4, false, 2),
            (5, false, 5),
            (6, true, 0),
            (7, false, 3),
            (8, false, 8),
            (9, false, 8),
            (10, true, 0),
        ]);
        for (compacted, keys) in [(0, 0), (4, 1), (5, 1), (6, 2), (7, 3), (8, 3), (9, 4), (10, 5)] {
            assert_eq!(history.net(compacted), keys, "compacted up to {compacted}");
        }
        assert_eq!(changes(&[(9, false, 0)]).net(9), 0, "an empty record");
    }

    #[test]
    fn changes_are_read_as_written() {
        let last = i64::MAX / 2;
        for changes in [
            Changes::default(),
            changes(&[
                (2, false, 2),
                (3, false, 2),
                (3, true, 0),
                (300, true, 0),
                (last, false, 2),
            ]),
        ] {
            let mut bytes = Vec::new();
            changes.write(&mut bytes);
            bytes.push(7);
            let mut from = bytes.as_slice();
            assert_eq!(Changes::read(&mut from), Some(changes));
            assert_eq!(from, [7]);
        }
    }
}
