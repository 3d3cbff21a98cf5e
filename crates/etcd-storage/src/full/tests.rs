use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Error, FullSummary, Scanner};
use crate::compression::{Compression, Decoder};
use crate::trailer;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(path)
}

fn unpacked(path: &Path) -> Vec<u8> {
    let suffix = path
        .extension()
        .map_or(String::new(), |suffix| format!(".{}", suffix.display()));
    let compression = Compression::from_suffix(&suffix).unwrap();
    let mut bytes = Vec::new();
    Decoder::new(compression, std::fs::File::open(path).unwrap())
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}

fn scan(bytes: &[u8], step: usize) -> Result<FullSummary, Error> {
    let mut scanner = Scanner::new();
    bytes.chunks(step).for_each(|chunk| scanner.update(chunk));
    scanner.finish()
}

/// Of every whole full snapshot among the fixtures the revision is that of its name, whatever the chunks.
#[test]
fn the_last_revision_is_found() {
    let mut seen = 0;
    for case in std::fs::read_dir(fixture("")).unwrap() {
        let Ok(store) = std::fs::read_dir(case.unwrap().path().join("store/v2")) else {
            continue;
        };
        for object in store.map(|object| object.unwrap()) {
            let name = object.file_name().into_string().unwrap();
            if !name.starts_with("Full") || name.ends_with("final") || object.metadata().unwrap().len() == 0 {
                continue;
            }
            let revision: i64 = name.split('-').nth(2).unwrap().parse().unwrap();
            let bytes = unpacked(&object.path());
            for step in [1 << 20, 4096, 997] {
                let summary = scan(&bytes, step).unwrap();
                assert_eq!(
                    (summary.revision, summary.compact_revision),
                    (revision, 0),
                    "{name}"
                );
                assert_eq!(summary.db_size, bytes.len() as u64 - 32);
                assert_eq!(summary.page_size, 4096);
            }
            seen += 1;
        }
    }
    assert!(seen >= 14, "only {seen} snapshots found");
}

#[test]
fn damage_is_refused() {
    let bytes = unpacked(&fixture("none/store/v2/Full-00000000-00000030-1796004708"));
    for keep in [0, 31, 32, 33, 4096, bytes.len() - 4096, bytes.len() - 1] {
        assert!(
            matches!(scan(&bytes[..keep], 1000), Err(Error::Damaged(_))),
            "{keep}"
        );
    }
    let mut altered = bytes.clone();
    altered[9000] ^= 1;
    assert!(matches!(
        scan(&altered, 1000),
        Err(Error::Damaged(trailer::Error::Mismatch { .. }))
    ));
}
