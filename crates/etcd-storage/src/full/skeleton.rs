//! What is kept of each page until the whole tree can be walked: in memory as long as that is little, else in a
//! temporary file without a name.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that are held in memory before they go to the file.
const IN_MEMORY: usize = 24 << 20;

/// Longest note, in bytes: its length has 24 bits.
pub(super) const LONGEST: usize = (1 << 24) - 1;

/// Notes by page number.
#[derive(Debug)]
pub(super) struct Skeleton {
    /// Folder of the file.
    scratch: Option<PathBuf>,
    /// Of each page: where its note is, and how long it is; 0 for none.
    places: Vec<u64>,
    spilled: Option<File>,
    spilled_len: u64,
    memory: Vec<u8>,
    in_memory: usize,
    /// Texts of faults, by their numbers.
    faults: Vec<&'static str>,
}

impl Skeleton {
    pub(super) fn new(scratch: Option<&Path>) -> Self {
        Self {
            scratch: scratch.map(Path::to_owned),
            places: Vec::new(),
            spilled: None,
            spilled_len: 0,
            memory: Vec::new(),
            in_memory: IN_MEMORY,
            faults: Vec::new(),
        }
    }

    /// The number of a fault.
    pub(super) fn number_of(&mut self, fault: &'static str) -> u8 {
        let known = self.faults.iter().position(|known| *known == fault);
        let number = known.unwrap_or_else(|| {
            self.faults.push(fault);
            self.faults.len() - 1
        });
        u8::try_from(number).unwrap_or(u8::MAX)
    }

    pub(super) fn fault(&self, number: u8) -> &'static str {
        self.faults
            .get(usize::from(number))
            .copied()
            .unwrap_or("is damaged")
    }

    /// Number of pages.
    pub(super) fn len(&self) -> u64 {
        self.places.len() as u64
    }

    /// Adds a page without a note, and returns its number.
    pub(super) fn add_page(&mut self) -> u64 {
        self.places.push(0);
        self.len() - 1
    }

    /// Notes something of a page. A note that is too long isn't taken.
    pub(super) fn note(&mut self, page: u64, note: &[u8]) -> bool {
        let place = usize::try_from(page)
            .ok()
            .filter(|page| *page < self.places.len());
        let Some(place) = place.filter(|_| note.len() <= LONGEST) else {
            return false;
        };
        if self.memory.len() + note.len() > self.in_memory {
            self.spill();
        }
        let offset = self.spilled_len + self.memory.len() as u64;
        self.memory.extend_from_slice(note);
        self.places[place] = (offset << 24 | note.len() as u64) + 1;
        true
    }

    /// Moves what is in memory to the file. Without a file it stays, and more memory is used.
    fn spill(&mut self) {
        if self.spilled.is_none() {
            self.spilled = match &self.scratch {
                Some(scratch) => tempfile::tempfile_in(scratch),
                None => tempfile::tempfile(),
            }
            .ok();
        }
        let written = match &self.spilled {
            Some(file) => file.write_all_at(&self.memory, self.spilled_len).is_ok(),
            None => false,
        };
        if written {
            self.spilled_len += self.memory.len() as u64;
            self.memory.clear();
        } else {
            // Not tried again with every note.
            self.in_memory = self.in_memory.saturating_mul(2);
        }
    }

    /// What was noted of a page; false when nothing was.
    pub(super) fn read(&self, page: u64, into: &mut Vec<u8>) -> io::Result<bool> {
        into.clear();
        let place = usize::try_from(page).ok().and_then(|page| self.places.get(page));
        let Some(place) = place.copied().unwrap_or(0).checked_sub(1) else {
            return Ok(false);
        };
        #[expect(clippy::cast_possible_truncation, reason = "24 bits")]
        let (offset, len) = (place >> 24, (place & LONGEST as u64) as usize);
        into.resize(len, 0);
        if let Some(offset) = offset.checked_sub(self.spilled_len) {
            let note = usize::try_from(offset)
                .ok()
                .and_then(|offset| self.memory.get(offset..offset + len));
            into.copy_from_slice(note.ok_or(io::ErrorKind::UnexpectedEof)?);
            return Ok(true);
        }
        match &self.spilled {
            Some(file) => file.read_exact_at(into, offset).map(|()| true),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back_from_memory_and_from_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        for scratch in [Some(dir.path()), None, Some(missing.as_path())] {
            let mut skeleton = Skeleton::new(scratch);
            skeleton.in_memory = 1000;
            let note =
                |page: u64| vec![u8::try_from(page % 251).unwrap(); usize::try_from(page % 90).unwrap()];
            for _ in 0..300 {
                let page = skeleton.add_page();
                assert!(page.is_multiple_of(3) || skeleton.note(page, &note(page)));
            }
            assert!(!skeleton.note(300, b"there is no such page"));
            assert_eq!(skeleton.spilled.is_some(), scratch != Some(&missing));
            let mut found = Vec::new();
            for page in 0..301 {
                assert_eq!(
                    skeleton.read(page, &mut found).unwrap(),
                    page % 3 != 0 && page < 300
                );
                assert!(found.is_empty() || found == note(page), "{page}");
            }
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
