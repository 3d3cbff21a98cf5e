//! Finds the newest record of every key among any number of records, in bounded memory: keys are taken as 128-bit
//! hashes (keyed at random, so that nobody can make two collide), sorted in runs of a fixed size, and the runs,
//! if there are several, are merged from unlinked temporary files.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::PathBuf;

/// Entries that are sorted in memory: 16 MiB.
const RUN: usize = 1 << 19;

/// Length of an entry in a file: hash, then ordinal and mark.
const ENTRY: usize = 24;

/// Bytes that are read ahead of each run, and so about 4 MiB for 30 million records.
const READ_AHEAD: usize = 64 << 10;

/// A record: hash of its key, place among all records, and whether it leaves nothing of its key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    hash: u128,
    ordinal: u64,
    dead: bool,
}

/// Collects records in the order of their revisions.
pub(crate) struct Survivors {
    dir: PathBuf,
    hashers: [RandomState; 2],
    run_len: usize,
    open: Vec<Entry>,
    runs: Vec<File>,
    count: u64,
}

/// The records that stay, by their ordinals.
#[derive(Debug)]
pub(crate) struct Kept {
    bits: Vec<u64>,
    pub(crate) count: u64,
}

impl Kept {
    pub(crate) fn contains(&self, ordinal: u64) -> bool {
        let word = usize::try_from(ordinal / 64)
            .ok()
            .and_then(|word| self.bits.get(word));
        word.is_some_and(|word| word >> (ordinal % 64) & 1 == 1)
    }

    fn insert(&mut self, ordinal: u64) {
        if let Some(word) = usize::try_from(ordinal / 64)
            .ok()
            .and_then(|word| self.bits.get_mut(word))
        {
            *word |= 1 << (ordinal % 64);
            self.count += 1;
        }
    }
}

impl Survivors {
    /// Temporary files are made in `dir`, when they are needed.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self::with_run_len(dir, RUN)
    }

    fn with_run_len(dir: PathBuf, run_len: usize) -> Self {
        let hashers = [RandomState::new(), RandomState::new()];
        Self {
            dir,
            hashers,
            run_len,
            open: Vec::new(),
            runs: Vec::new(),
            count: 0,
        }
    }

    /// Adds the next record. `dead` says that, if it is the newest of its key, nothing of the key stays.
    pub(crate) fn add(&mut self, key: &[u8], dead: bool) -> io::Result<()> {
        let [high, low] = [0, 1].map(|which: usize| u128::from(self.hashers[which].hash_one(key)));
        self.open.push(Entry {
            hash: high << 64 | low,
            ordinal: self.count,
            dead,
        });
        self.count += 1;
        if self.open.len() < self.run_len {
            return Ok(());
        }
        self.sort();
        // Many versions of few keys leave room: a run is written only when it pays.
        if self.open.len() > self.run_len / 2 {
            self.spill()
        } else {
            Ok(())
        }
    }

    /// Sorts the open run and keeps of each key the newest.
    fn sort(&mut self) {
        self.open
            .sort_unstable_by_key(|entry| (entry.hash, Reverse(entry.ordinal)));
        self.open.dedup_by_key(|entry| entry.hash);
    }

    fn spill(&mut self) -> io::Result<()> {
        let mut out = BufWriter::new(tempfile::tempfile_in(&self.dir)?);
        for entry in self.open.drain(..) {
            let mut bytes = [0; ENTRY];
            bytes[..16].copy_from_slice(&entry.hash.to_le_bytes());
            bytes[16..].copy_from_slice(&(entry.ordinal << 1 | u64::from(entry.dead)).to_le_bytes());
            out.write_all(&bytes)?;
        }
        let mut file = out.into_inner()?;
        file.rewind()?;
        self.runs.push(file);
        Ok(())
    }

    /// The newest record of every key, without the dead ones.
    pub(crate) fn finish(mut self) -> io::Result<Kept> {
        let words = usize::try_from(self.count.div_ceil(64)).map_err(io::Error::other)?;
        let mut kept = Kept {
            bits: vec![0; words],
            count: 0,
        };
        self.sort();
        if self.runs.is_empty() {
            for entry in self.open.iter().filter(|entry| !entry.dead) {
                kept.insert(entry.ordinal);
            }
            return Ok(kept);
        }
        self.spill()?;
        self.open = Vec::new();
        merge(self.runs, &mut kept)?;
        Ok(kept)
    }
}

fn merge(runs: Vec<File>, kept: &mut Kept) -> io::Result<()> {
    let mut runs: Vec<_> = runs
        .into_iter()
        .map(|run| BufReader::with_capacity(READ_AHEAD, run))
        .collect();
    let mut heads = BinaryHeap::new();
    for (index, run) in runs.iter_mut().enumerate() {
        heads.extend(next(run)?.map(|entry| Reverse((entry, index))));
    }
    // Of one key the entries come in the order of their ordinals: the last before another key is the newest.
    let mut newest: Option<Entry> = None;
    while let Some(Reverse((entry, index))) = heads.pop() {
        if let Some(before) = newest.filter(|before| before.hash != entry.hash && !before.dead) {
            kept.insert(before.ordinal);
        }
        newest = Some(entry);
        heads.extend(next(&mut runs[index])?.map(|entry| Reverse((entry, index))));
    }
    if let Some(last) = newest.filter(|last| !last.dead) {
        kept.insert(last.ordinal);
    }
    Ok(())
}

fn next(run: &mut impl Read) -> io::Result<Option<Entry>> {
    let mut bytes = [0; ENTRY];
    match run.read_exact(&mut bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let (hash, rest) = bytes.split_at(16);
    let hash = hash.first_chunk().copied().map_or(0, u128::from_le_bytes);
    let rest = rest.first_chunk().copied().map_or(0, u64::from_le_bytes);
    Ok(Some(Entry {
        hash,
        ordinal: rest >> 1,
        dead: rest & 1 == 1,
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// In memory or merged from many runs: the newest record of each key, unless it is dead.
        #[test]
        fn the_newest_of_each_key_survive(
            records in proptest::collection::vec((0_u8..40, any::<bool>()), 0..300),
            run_len in prop_oneof![Just(4_usize), Just(17), Just(1000)],
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut survivors = Survivors::with_run_len(dir.path().to_owned(), run_len);
            let mut newest = HashMap::new();
            for (ordinal, (key, dead)) in (0_u64..).zip(&records) {
                survivors.add(&[*key], *dead).unwrap();
                newest.insert(*key, (ordinal, *dead));
            }
            let kept = survivors.finish().unwrap();
            for (ordinal, (key, _)) in (0_u64..).zip(&records) {
                prop_assert_eq!(kept.contains(ordinal), newest[key] == (ordinal, false));
            }
            prop_assert_eq!(kept.count, newest.values().filter(|(_, dead)| !dead).count() as u64);
        }
    }
}
