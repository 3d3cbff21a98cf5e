//! Which leases are needed at the end of a chain, beside those that the base has.
//!
//! A delta doesn't say when a lease was granted or revoked. What counts is whether a key still hangs on it at the
//! end: then it is needed, and its TTL is the one that an event told.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use crate::delta::{Event, EventKind};

/// Keys on new leases that are followed. Beyond that every new lease is taken for needed, which costs at most a
/// lease without keys that runs out.
const MAX_KEYS: usize = 1 << 20;

/// Ids of leases without a TTL that are reported.
const MAX_REPORTED: usize = 1000;

/// What became of the leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// Leases that the base has; all are kept.
    pub kept: u64,
    /// Leases that were created from what the deltas say.
    pub created: u64,
    /// Leases that keys hang on, but whose TTL is unknown and that were not created: those keys stay until they are
    /// deleted. Records keep the id all the same. At most 1000 ids are listed.
    pub unknown: Vec<i64>,
    /// How many such leases there are.
    pub unknown_count: u64,
}

pub(super) struct LeaseBook {
    in_base: HashSet<i64>,
    new: HashMap<i64, NewLease>,
    /// Keys, by a keyed 128-bit hash, that hang on a new lease.
    keys: HashMap<u128, i64>,
    hashers: [RandomState; 2],
    exact: bool,
}

#[derive(Clone, Copy, Default)]
struct NewLease {
    ttl: Option<i64>,
    keys: u64,
}

impl LeaseBook {
    pub(super) fn new(in_base: HashSet<i64>) -> Self {
        let hashers = [RandomState::new(), RandomState::new()];
        Self {
            in_base,
            new: HashMap::new(),
            keys: HashMap::new(),
            hashers,
            exact: true,
        }
    }

    pub(super) fn record(&mut self, event: &Event) {
        let lease = match event.kind {
            EventKind::Put if event.lease != 0 && !self.in_base.contains(&event.lease) => event.lease,
            _ => 0,
        };
        if lease != 0 {
            let new = self.new.entry(lease).or_default();
            new.ttl = event.lease_ttl.or(new.ttl);
        }
        if !self.exact || (lease == 0 && self.keys.is_empty()) {
            return;
        }
        let key = self.hash(&event.key);
        let before = if lease == 0 {
            self.keys.remove(&key)
        } else {
            self.keys.insert(key, lease)
        };
        if let Some(before) = before.and_then(|before| self.new.get_mut(&before)) {
            before.keys -= 1;
        }
        if let Some(new) = self.new.get_mut(&lease) {
            new.keys += 1;
        }
        if self.keys.len() > MAX_KEYS {
            self.exact = false;
            self.keys = HashMap::new();
        }
    }

    fn hash(&self, key: &[u8]) -> u128 {
        let [high, low] = [0, 1].map(|which: usize| u128::from(self.hashers[which].hash_one(key)));
        high << 64 | low
    }

    /// The leases to be created, with their TTLs in seconds, and the report. `unknown_ttl` is given to those of
    /// which no event told one.
    pub(super) fn finish(self, unknown_ttl: Option<i64>) -> (BTreeMap<i64, i64>, LeaseReport) {
        let mut created = BTreeMap::new();
        let mut unknown = Vec::new();
        for (id, lease) in self.new {
            if self.exact && lease.keys == 0 {
                continue;
            }
            match lease.ttl.or(unknown_ttl).filter(|ttl| *ttl > 0) {
                Some(ttl) => drop(created.insert(id, ttl)),
                None => unknown.push(id),
            }
        }
        unknown.sort_unstable();
        let unknown_count = unknown.len() as u64;
        unknown.truncate(MAX_REPORTED);
        let (kept, made) = (self.in_base.len() as u64, created.len() as u64);
        (
            created,
            LeaseReport {
                kept,
                created: made,
                unknown,
                unknown_count,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, lease: i64, lease_ttl: Option<i64>) -> Event {
        Event {
            key: key.as_bytes().to_vec(),
            lease,
            lease_ttl,
            ..Event::default()
        }
    }

    fn delete(key: &str) -> Event {
        Event {
            kind: EventKind::Delete,
            ..put(key, 0, None)
        }
    }

    #[test]
    fn only_leases_with_keys_are_needed() {
        let mut book = LeaseBook::new(HashSet::from([1]));
        let events = [
            put("a", 1, None),
            put("b", 2, Some(20)),
            put("c", 3, Some(30)),
            put("d", 4, None),
            put("e", 5, Some(50)),
            put("f", 6, Some(60)),
            put("f", 6, None),
            delete("c"),
            put("e", 0, None),
            put("b", 7, Some(70)),
            put("b", 2, None),
        ];
        for event in &events {
            book.record(event);
        }
        let (created, report) = book.finish(None);
        assert_eq!(created, BTreeMap::from([(2, 20), (6, 60)]));
        let unknown = vec![4];
        assert_eq!(
            report,
            LeaseReport {
                kept: 1,
                created: 2,
                unknown,
                unknown_count: 1
            }
        );
    }

    #[test]
    fn a_lease_without_ttl_is_created_only_when_told() {
        let mut book = LeaseBook::new(HashSet::new());
        book.record(&put("a", 9, None));
        let (created, report) = book.finish(Some(300));
        assert_eq!(created, BTreeMap::from([(9, 300)]));
        assert_eq!(
            report,
            LeaseReport {
                created: 1,
                ..LeaseReport::default()
            }
        );
    }

    /// When there are too many keys to follow, no lease may be left out.
    #[test]
    fn beyond_the_limit_every_lease_is_needed() {
        let mut book = LeaseBook::new(HashSet::new());
        for key in 0..=MAX_KEYS {
            book.record(&put(&key.to_string(), 1, Some(10)));
        }
        book.record(&put("x", 2, Some(20)));
        book.record(&delete("x"));
        assert_eq!(book.finish(None).0, BTreeMap::from([(1, 10), (2, 20)]));
    }
}
