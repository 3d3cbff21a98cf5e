//! Chains made here, as large as a test wants them: a full snapshot of an empty etcd and deltas after it.

use std::{
    fs::{self, File},
    io::BufWriter,
    path::{Path, PathBuf},
};

use etcd_storage::{
    compression::{Compression, Encoder},
    delta::{self, Event},
};
use jiff::Timestamp;

use crate::{cases, dice::Dice};

/// The time at which revision 1 of a made chain was there. Every revision takes a second.
pub(crate) const BEGIN: i64 = 1_700_000_000;

/// Deltas of so many revisions each, one put of about `value` bytes in each revision. Returns the store's folder.
pub(crate) fn chain(dir: &Path, deltas: i64, revisions: i64, value: usize) -> PathBuf {
    let store = dir.join("store");
    let folder = store.join("v2");
    fs::create_dir_all(&folder).unwrap();
    let empty = cases::case("empty").store().join("v2");
    let full = fs::read_dir(empty).unwrap().next().unwrap().unwrap().path();
    let name = format!("Full-00000000-00000001-{}.gz", BEGIN + 1);
    fs::copy(full, folder.join(name)).unwrap();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for number in 0..deltas {
        let first = 2 + number * revisions;
        delta(&folder, first..first + revisions, value, &mut dice);
    }
    store
}

fn delta(folder: &Path, revisions: std::ops::Range<i64>, value: usize, dice: &mut Dice) {
    let (first, last) = (revisions.start, revisions.end - 1);
    let path = folder.join(format!("Incr-{first:08}-{last:08}-{}.gz", BEGIN + last + 1));
    let file = BufWriter::new(File::create(path).unwrap());
    let mut encoder = delta::Encoder::new(Encoder::new(Compression::Gzip, file, 1).unwrap());
    for revision in revisions {
        let words = (0..=value / 16).map(|_| dice.roll().to_be_bytes());
        let text = hex::encode(words.collect::<Vec<_>>().concat());
        let event = Event {
            key: format!("/made/{revision}").into_bytes(),
            value: text.into_bytes(),
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            time: Some(Timestamp::from_second(BEGIN + revision).unwrap()),
            ..Event::default()
        };
        encoder.push(&event).unwrap();
    }
    encoder.finish().unwrap().0.finish().unwrap();
}

/// The files of a folder and those below it, by path.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.append(&mut self::files(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

pub(crate) fn copy_of(folder: &Path, to: &Path) {
    for file in files(folder) {
        let target = to.join(file.strip_prefix(folder).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, target).unwrap();
    }
}
