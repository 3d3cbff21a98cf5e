use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{Consent, Error, FullSummary, HashFault, Previous, Scanner};
use crate::bolt::format::{FREELIST_PAGE, HEADER, META, Meta, PageHeader, u64_at};
use crate::bolt::{self, BulkWriter, Db};
use crate::compression::{Compression, Decoder};
use crate::mvcc::{KeyValue, RecordKey, Revision};
use crate::schema::{bucket, key};
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
                assert_eq!(summary.keys, Some(live_keys(&bytes)), "{name}");
                assert_eq!(summary.page_size, 4096);
            }
            seen += 1;
        }
    }
    assert!(seen >= 14, "only {seen} snapshots found");
}

/// The keys whose newest record is a put, found the long way.
fn live_keys(snapshot: &[u8]) -> i64 {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    std::fs::write(&path, &snapshot[..snapshot.len() - 32]).unwrap();
    let db = Db::open(&path).unwrap();
    let records = db.bucket(bucket::KEY).unwrap().unwrap();
    let (mut cursor, mut live) = (records.cursor(&db), BTreeSet::new());
    while let Some(entry) = cursor.next_entry().unwrap() {
        let key = KeyValue::parse(entry.value).unwrap().key.to_vec();
        if RecordKey::parse(entry.key).unwrap().tombstone {
            live.remove(&key);
        } else {
            live.insert(key);
        }
    }
    i64::try_from(live.len()).unwrap()
}

/// Main and sub-revision, key, revision in which it was made; 0 for a tombstone.
type Record = (i64, i64, &'static str, i64);

fn with_records(records: &[Record], compaction: &[(&[u8], i64)]) -> Vec<u8> {
    let record_key = |main, sub, tombstone| {
        let revision = Revision { main, sub };
        RecordKey { revision, tombstone }.bytes()
    };
    let mut writer = BulkWriter::new(Vec::new(), 1024);
    writer.bucket(bucket::KEY, 0, 100).unwrap();
    for (main, sub, key, created) in records {
        let is_tombstone = *created == 0;
        let record = KeyValue {
            key: key.as_bytes(),
            create_revision: *created,
            mod_revision: if is_tombstone { 0 } else { *main },
            version: i64::from(!is_tombstone),
            value: b"",
            lease: 0,
        };
        let (mut before, mut after) = (Vec::new(), Vec::new());
        record.encode_around_value(&mut before, &mut after);
        let key = record_key(*main, *sub, is_tombstone);
        writer.put(key.as_ref(), &[&before, &after]).unwrap();
    }
    writer.bucket(bucket::META, 0, 100).unwrap();
    for (name, at) in compaction {
        writer.put(name, &[record_key(*at, 0, false).as_ref()]).unwrap();
    }
    let (pages, layout) = writer.finish().unwrap();
    sealed(&[layout.head(), pages].concat())
}

/// Live keys are counted by what the database holds, wherever its history is compacted, but not amid a compaction.
#[test]
fn live_keys_are_counted() {
    let history = [
        (5, 0, "a", 2),
        (6, 0, "b", 6),
        (6, 1, "c", 6),
        (7, 0, "a", 2),
        (8, 0, "a", 0),
        (8, 1, "a", 8),
        (9, 0, "b", 0),
    ];
    let at = |begun, finished| {
        with_records(
            &history,
            &[(key::FINISHED_COMPACT, finished), (key::SCHEDULED_COMPACT, begun)],
        )
    };
    // "a" is the newest record of its key up to revision 5, from where on all is there.
    let compacted = at(5, 5);
    assert_eq!(scan(&compacted, 997).unwrap().keys, Some(2));
    assert_eq!(live_keys(&compacted), 2);
    assert_eq!(
        scan(&at(7, 5), 997).unwrap().keys,
        None,
        "a compaction is under way"
    );
    // What etcd leaves of a transaction that deletes a key and puts it again, compacted at its revision.
    let lost = with_records(
        &[(8, 0, "a", 0), (9, 0, "b", 9)],
        &[(key::FINISHED_COMPACT, 8), (key::SCHEDULED_COMPACT, 8)],
    );
    assert_eq!(scan(&lost, 997).unwrap().keys, Some(1));
    assert_eq!(
        scan(&with_records(&[], &[(b"term", 1)]), 997).unwrap().keys,
        Some(0)
    );
    assert_eq!(
        scan(&at(0, 0), 997).unwrap().keys,
        Some(1),
        "without the put that made \"a\""
    );
}

#[test]
fn damage_is_refused() {
    let bytes = unpacked(&fixture("none/store/v2/Full-00000000-00000030-1796004708"));
    assert!(matches!(scan(&bytes[..4096], 1000), Err(Error::Cut { .. })));
    for keep in [0, 31, 32, 33, 4095, bytes.len() - 4096, bytes.len() - 1] {
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

/// A made database: its records' values have these lengths.
fn database(page_size: usize, buckets: &[&str], values: &[usize]) -> Vec<u8> {
    let mut writer = BulkWriter::new(Vec::new(), page_size);
    for name in buckets {
        writer.bucket(name.as_bytes(), 0, 100).unwrap();
        if *name != "key" {
            writer.put(b"consistent_index", &[&[0; 8]]).unwrap();
            continue;
        }
        for (main, len) in (2..).zip(values) {
            let value = vec![7; *len];
            let record = KeyValue {
                key: b"/a/key",
                create_revision: 2,
                mod_revision: main,
                version: main - 1,
                value: &value,
                lease: 0,
            };
            let (mut before, mut after) = (Vec::new(), Vec::new());
            record.encode_around_value(&mut before, &mut after);
            let key = RecordKey {
                revision: Revision { main, sub: 0 },
                tombstone: false,
            };
            writer
                .put(key.bytes().as_ref(), &[&before, &value, &after])
                .unwrap();
        }
    }
    let (pages, layout) = writer.finish().unwrap();
    [layout.head(), pages].concat()
}

fn sealed(database: &[u8]) -> Vec<u8> {
    [database, &Sha256::digest(database)[..]].concat()
}

fn scan_with(bytes: &[u8], consent: Consent) -> Result<FullSummary, Error> {
    let mut scanner = Scanner::with(None, consent);
    bytes.chunks(5000).for_each(|chunk| scanner.update(chunk));
    scanner.finish()
}

/// Every page of a database is zeroed in turn, and its hash put right again: the answer is that of a walk over the file.
#[test]
fn a_zeroed_page_is_found_wherever_it_is() {
    let values: Vec<usize> = (0..3000)
        .map(|n| if n % 500 == 0 { 20_000 } else { 40 })
        .collect();
    let whole = database(1024, &["key", "meta"], &values);
    assert_eq!(scan(&sealed(&whole), 1024).unwrap().revision, 3001);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let mut refused = 0;
    for page in 2..whole.len() / 1024 {
        let mut damaged = whole.clone();
        damaged[page * 1024..(page + 1) * 1024].fill(0);
        std::fs::write(&path, &damaged).unwrap();
        let walked = bolt::check(&Db::open(&path).unwrap());
        let judged = scan(&sealed(&damaged), 997);
        // The list of free pages isn't data, and what is in a value is its owner's business.
        let is_whole = walked.is_ok() || page == 2;
        assert_eq!(judged.is_ok(), is_whole, "page {page}: {judged:?}, {walked:?}");
        refused += u32::from(judged.is_err());
    }
    assert!(refused > 200, "{refused}");
}

#[test]
fn a_database_of_something_else_is_refused() {
    for buckets in [
        &["other"][..],
        &[],
        &["key"],
        &["meta"],
        &["key", "other"],
        &["meta", "other"],
    ] {
        let found = scan(&sealed(&database(4096, buckets, &[5, 5])), 4096);
        assert!(
            matches!(found, Err(Error::NoBucket { .. })),
            "{buckets:?}: {found:?}"
        );
    }
    // Of the right names, but with other things in it.
    let mut writer = BulkWriter::new(Vec::new(), 4096);
    for name in ["key", "meta"] {
        writer.bucket(name.as_bytes(), 0, 100).unwrap();
        writer.put(b"some", &[b"thing"]).unwrap();
    }
    let (pages, layout) = writer.finish().unwrap();
    let found = scan(&sealed(&[layout.head(), pages].concat()), 4096);
    assert!(matches!(found, Err(Error::Structure { .. })), "{found:?}");
}

/// Pages that are listed as free though they are in use, are left out, or are listed twice.
#[test]
fn a_bad_list_of_free_pages_is_a_warning() {
    let whole = database(1024, &["key", "meta"], &[100; 50]);
    assert_eq!(scan(&sealed(&whole), 512).unwrap().warnings.text(), None);
    let list = |free: &[u64], flags: u16| {
        let mut damaged = whole.clone();
        let count = u16::try_from(free.len()).unwrap();
        PageHeader {
            id: 2,
            flags,
            count,
            overflow: 0,
        }
        .write(&mut damaged[2048..]);
        for (number, page) in free.iter().enumerate() {
            let at = 2048 + HEADER + 8 * number;
            damaged[at..at + 8].copy_from_slice(&page.to_le_bytes());
        }
        scan(&sealed(&damaged), 1000).unwrap().warnings.freelist
    };
    assert_eq!(list(&[], FREELIST_PAGE), None);
    assert_eq!(list(&[3], FREELIST_PAGE), Some("lists pages that are in use"));
    assert_eq!(list(&[3, 3], FREELIST_PAGE), Some("is used twice"));
    assert_eq!(list(&[u64::MAX], FREELIST_PAGE), Some("is outside of the file"));
    assert_eq!(list(&[], 0), Some("is no list of free pages"));
}

/// The newest state is lost; the one before is there, and is taken when somebody says so.
#[test]
fn the_previous_state_is_offered_and_taken_with_consent() {
    let old = database(1024, &["key", "meta"], &[100; 50]);
    let consent = Consent {
        use_previous_meta: true,
        ..Consent::default()
    };
    // A newer meta page whose root is somewhere in the middle of a tree, or that is none.
    let newest = Meta::read(&old).unwrap();
    for root in [Some(5), None] {
        let mut damaged = old.clone();
        match root {
            Some(root) => {
                let mut meta = newest;
                (meta.root.root, meta.txid) = (root, 8);
                meta.write(&mut damaged[..HEADER + META]);
            }
            None => damaged[30] ^= 1,
        }
        let damaged = sealed(&damaged);
        let refused = scan(&damaged, 3000).unwrap_err();
        let Error::Previous { previous, .. } = &refused else {
            panic!("{refused}")
        };
        let expected = Previous {
            lost_meta: 0,
            txid: 1,
            revision: 51,
        };
        assert_eq!(*previous, expected);
        assert!(refused.to_string().contains("--use-previous-meta"), "{refused}");
        let taken = scan_with(&damaged, consent).unwrap();
        assert_eq!((taken.revision, taken.warnings.previous), (51, Some(expected)));
    }
    // Where both lead to the same there is nothing to fall back to.
    let mut damaged = old;
    damaged[1024 * 6..1024 * 7].fill(0);
    assert!(matches!(
        scan_with(&sealed(&damaged), consent),
        Err(Error::Structure { .. })
    ));
}

#[test]
fn a_database_without_its_hash_is_taken_with_consent_after_a_full_check() {
    let whole = database(4096, &["key", "meta"], &[100; 300]);
    assert!(matches!(scan(&whole, 4096), Err(Error::NoHash)));
    let consent = Consent {
        skip_hash_check: true,
        ..Consent::default()
    };
    let taken = scan_with(&whole, consent).unwrap();
    assert_eq!(
        (taken.revision, taken.warnings.hash),
        (301, Some(HashFault::Absent))
    );
    assert_eq!(taken.db_size, whole.len() as u64);
    assert_eq!(taken.sha256.0[..], Sha256::digest(&whole)[..]);
    // As it lies in a data directory: grown ahead.
    let grown = [&whole[..], &vec![0; 4096 * 9]].concat();
    assert_eq!(scan_with(&grown, consent).unwrap().revision, 301);
    let mut altered = sealed(&whole);
    altered[9000] ^= 1;
    assert!(matches!(
        scan(&altered, 4096),
        Err(Error::Damaged(trailer::Error::Mismatch { .. }))
    ));
    assert_eq!(
        scan_with(&altered, consent).unwrap().warnings.hash,
        Some(HashFault::Mismatch)
    );
    let mut damaged = whole;
    let root = u64_at(&damaged, HEADER + 16).unwrap();
    let at = usize::try_from(root).unwrap() * 4096;
    damaged[at..at + 16].fill(0);
    assert!(matches!(
        scan_with(&damaged, consent),
        Err(Error::Structure { .. })
    ));
}
