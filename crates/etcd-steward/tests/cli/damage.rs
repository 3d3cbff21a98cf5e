//! Bytes of a chain's objects are flipped, cut and dropped at random: the program says so, or it makes no difference.

use std::fs;

use crate::{
    cases,
    dice::{Dice, damage},
    made::{copy_of, files},
    program::{dump, restore},
};

/// Tries for each form of objects: 500 in all.
const TRIES: u64 = 125;

fn chain_of(name: &str, seed: u64) {
    let case = cases::case(name);
    let dir = tempfile::tempdir().unwrap();
    let (store, data_dir) = (dir.path().join("store"), dir.path().join("default.etcd"));
    copy_of(&case.store(), &store);
    let (objects, expected) = (files(&store), case.expected());
    let mut dice = Dice(seed);
    let mut refused = 0;
    for attempt in 0..TRIES {
        let object = &objects[dice.below(objects.len())];
        let whole = fs::read(object).unwrap();
        let mut bytes = whole.clone();
        let how = damage(&mut bytes, &mut dice);
        fs::write(object, bytes).unwrap();
        let what = format!("{name}, seed {seed}, try {attempt}: {}: {how}", object.display());
        let ran = restore(&store, &data_dir, &[]);
        if ran.code == 0 {
            assert!(dump(&data_dir) == expected, "{what}");
            fs::remove_dir_all(&data_dir).unwrap();
        } else {
            let name = object.file_name().unwrap().to_str().unwrap();
            assert!(ran.code == 3 && ran.err.contains(name), "{what}: {ran:?}");
            assert!(!data_dir.exists(), "{what}");
            refused += 1;
        }
        fs::write(object, whole).unwrap();
    }
    assert!(refused > TRIES / 2, "{name}: damage was hardly ever seen");
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        1,
        "nothing is left behind"
    );
}

#[test]
fn damage_of_gzip_is_never_restored() {
    chain_of("gzip-basic", 0x9e37_79b9_7f4a_7c15);
}

#[test]
fn damage_of_zlib_is_never_restored() {
    chain_of("zlib", 0xbf58_476d_1ce4_e5b9);
}

#[test]
fn damage_of_lzw_is_never_restored() {
    chain_of("lzw", 0x94d0_49bb_1331_11eb);
}

#[test]
fn damage_without_compression_is_never_restored() {
    chain_of("none", 0xd6e8_feb8_6659_fd93);
}
