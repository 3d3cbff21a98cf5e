use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use proptest::prelude::*;

use super::format::{LEAF_PAGE, branch_element};
use super::{BulkWriter, Db, Edge, Error, MetaFault, Pages, TreeBuilder, check, create};

type Records = Vec<(Vec<u8>, Vec<u8>)>;

fn write(path: &Path, page_size: usize, buckets: &[(&str, &Records)]) -> Result<(), Error> {
    create(path, page_size, |writer| {
        buckets.iter().try_for_each(|(name, records)| {
            writer.bucket(name.as_bytes(), 0, 100)?;
            records.iter().try_for_each(|(key, value)| {
                let (a, b) = value.split_at(value.len() / 2);
                writer.put(key, &[a, b])
            })
        })
    })
}

fn read(db: &Db, bucket: &str) -> Records {
    let bucket = db.bucket(bucket.as_bytes()).unwrap().unwrap();
    let mut cursor = bucket.cursor(db);
    let mut records = Vec::new();
    while let Some(entry) = cursor.next_entry().unwrap() {
        assert!(!entry.is_bucket);
        records.push((entry.key.to_vec(), entry.value.to_vec()));
    }
    records
}

fn numbered(count: u32, value: impl Fn(u32) -> usize) -> Records {
    (0..count)
        .map(|n| (n.to_be_bytes().to_vec(), vec![b'v'; value(n)]))
        .collect()
}

/// Shapes that force inline buckets, one page, deep trees, page runs, and a root bucket of several pages.
#[test]
fn what_is_written_is_read_and_passes_the_check() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let shapes: [(usize, Records); 8] = [
        (4096, vec![]),
        (4096, numbered(1, |_| 3)),
        (4096, numbered(37, |_| 20)),
        (4096, numbered(20_000, |n| n as usize % 300)),
        (512, numbered(30_000, |_| 5)),
        (16 << 10, numbered(5_000, |n| n as usize % 2_000)),
        (4096, numbered(300, |n| if n % 7 == 0 { 100_000 } else { 1_500 })),
        (
            1024,
            (0..400_u32)
                .map(|n| (format!("{n:0900}").into_bytes(), vec![1; 2]))
                .collect(),
        ),
    ];
    for (page_size, records) in &shapes {
        let small = numbered(9, |_| 50);
        let names: Vec<String> = (0..20).map(|n| format!("bucket{n}")).collect();
        let mut buckets: Vec<_> = names.iter().map(|name| (name.as_str(), &small)).collect();
        buckets.push(("key", records));
        write(&path, *page_size, &buckets).unwrap();
        let db = Db::open(&path).unwrap();
        let count = check(&db).unwrap();
        assert_eq!(
            count.used + 1,
            count.total,
            "all but the list of free pages is in use"
        );
        assert_eq!(
            count.total * *page_size as u64,
            fs::metadata(&path).unwrap().len()
        );
        assert!(read(&db, "key") == *records);
        let root = db.bucket(b"key").unwrap().unwrap().root();
        assert!(root == 0 || fewest_children(&db, root, 0) >= 2);
        assert_eq!(read(&db, "bucket7"), small);
        assert_eq!(db.buckets().unwrap().len(), 21);
        assert!(db.bucket(b"none").unwrap().is_none());
    }
}

/// Layout is a function of the records alone: a dry run tells the head of the file that a second run streams.
#[test]
fn a_dry_run_has_the_same_layout() {
    let records = numbered(5_000, |n| n as usize % 500);
    let run = || {
        let mut writer = BulkWriter::new(Vec::new(), 4096);
        writer.bucket(b"key", 0, 100).unwrap();
        for (key, value) in &records {
            writer.put(key, &[value]).unwrap();
        }
        writer.finish().unwrap()
    };
    let ((bytes, layout), (_, again)) = (run(), run());
    assert_eq!(layout, again);
    let streamed = [layout.head(), bytes].concat();
    assert_eq!(streamed.len() as u64, layout.len());
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("streamed"), &streamed).unwrap();
    write(&dir.path().join("db"), 4096, &[("key", &records)]).unwrap();
    assert!(fs::read(dir.path().join("db")).unwrap() == streamed);
}

#[test]
fn bad_input_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let record = |key: &str| (key.as_bytes().to_vec(), vec![]);
    let unsorted = vec![record("b"), record("a")];
    assert!(matches!(
        write(&path, 4096, &[("key", &unsorted)]),
        Err(Error::Order { .. })
    ));
    let twice = vec![record("a"), record("a")];
    assert!(matches!(
        write(&path, 4096, &[("key", &twice)]),
        Err(Error::Order { .. })
    ));
    let empty = vec![record("")];
    assert!(matches!(
        write(&path, 4096, &[("key", &empty)]),
        Err(Error::TooLarge { .. })
    ));
    let long = vec![(vec![7; 32_769], vec![])];
    assert!(matches!(
        write(&path, 4096, &[("key", &long)]),
        Err(Error::TooLarge { .. })
    ));
    assert!(matches!(
        write(&path, 4096, &[("a", &vec![]), ("a", &vec![])]),
        Err(Error::Order { .. })
    ));
    assert!(!path.exists(), "a database that failed must not get its name");
}

#[test]
fn a_torn_first_meta_page_does_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    for page_size in [512, 4096, 65_536] {
        let path = dir.path().join("db");
        let records = numbered(100, |_| 10);
        write(&path, page_size, &[("key", &records)]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"x", 20).unwrap();
        assert_eq!(read(&Db::open(&path).unwrap(), "key"), records);
        file.write_all_at(b"x", page_size as u64 + 70).unwrap();
        let error = Db::open(&path).unwrap_err();
        assert!(
            matches!(
                error,
                Error::NoMeta {
                    first: MetaFault::Magic | MetaFault::Version,
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn a_cut_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    write(&path, 4096, &[("key", &numbered(1000, |_| 10))]).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    for keep in [len - 1, len / 2, 8192] {
        file.set_len(keep).unwrap();
        assert!(matches!(Db::open(&path), Err(Error::Cut { .. })));
    }
    file.set_len(3).unwrap();
    assert!(matches!(Db::open(&path), Err(Error::NoMeta { .. })));
}

/// Takes the tree apart at its right edge, at every record, and goes on from there.
#[test]
fn a_tree_can_be_continued_from_any_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let records = numbered(900, |n| if n % 90 == 0 { 5_000 } else { 40 });
    write(&path, 512, &[("key", &records)]).unwrap();
    let more: Records = (900..2_000_u32)
        .map(|n| (n.to_be_bytes().to_vec(), vec![b'w'; 30]))
        .collect();
    for keep in (0..=900).step_by(7) {
        let db = Db::open(&path).unwrap();
        let bucket = db.bucket(b"key").unwrap().unwrap();
        let bound = u32::try_from(keep).unwrap().to_be_bytes();
        let edge = bucket
            .cursor(&db)
            .right_edge((keep < 900).then_some(&bound))
            .unwrap();
        let continued = dir.path().join("continued");
        let more = if keep % 2 == 0 { &more[..] } else { &[] };
        append(&path, &continued, &db, edge, more);
        let expected: Records = records[..keep].iter().chain(more).cloned().collect();
        let db = Db::open(&continued).unwrap();
        let bucket = db.bucket(b"key").unwrap().unwrap();
        assert!(read(&db, "key") == expected, "kept {keep}");
        check(&db).unwrap();
        let root = bucket.root();
        assert!(root == 0 || fewest_children(&db, root, 0) >= 2, "kept {keep}");
    }
}

/// bbolt's rebalancing asserts that a branch has more than one child.
fn fewest_children(db: &Db, page: u64, depth: usize) -> u16 {
    let mut bytes = Vec::new();
    let header = db.read_page(page, &mut bytes).unwrap();
    if header.flags == LEAF_PAGE || depth > 20 {
        return u16::MAX;
    }
    let child = |index| branch_element(&bytes, index).unwrap().1;
    let below = (0..header.count).map(|index| fewest_children(db, child(index), depth + 1));
    below.min().unwrap().min(header.count)
}

fn append(path: &Path, continued: &Path, db: &Db, edge: Edge, more: &[(Vec<u8>, Vec<u8>)]) {
    let mut pages = Pages::new(Vec::new(), 512, db.page_count());
    let mut tree = TreeBuilder::new(b"key", 512, 100);
    tree.resume(edge, &mut pages).unwrap();
    for (key, value) in more {
        tree.push(&mut pages, key, &[value], 0).unwrap();
    }
    let value = super::write::bucket_value(tree, 0, &mut pages).unwrap();
    let root = super::write::root_bucket(vec![(b"key".to_vec(), value)], &mut pages).unwrap();
    let mut meta = *db.meta();
    (meta.root.root, meta.high_water, meta.freelist) = (root, pages.next(), super::format::NO_FREELIST);
    meta.txid += 1;
    let mut bytes = [fs::read(path).unwrap(), pages.into_sink()].concat();
    let at = 512 * usize::try_from(meta.txid % 2).unwrap();
    meta.write(&mut bytes[at..at + 80]);
    fs::write(continued, bytes).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Sizes around the borders of pages.
    #[test]
    fn any_records_come_back(
        sizes in proptest::collection::vec(prop_oneof![0_usize..60, 400_usize..600, 900_usize..1100], 0..200),
        page_size in prop_oneof![Just(512_usize), Just(1024)],
        fill in 50_usize..=100,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let records: Records =
            sizes.iter().zip(0_u32..).map(|(len, n)| (n.to_be_bytes().to_vec(), vec![9; *len])).collect();
        create(&path, page_size, |writer| {
            writer.bucket(b"key", 0, fill)?;
            records.iter().try_for_each(|(key, value)| writer.put(key, &[value]))
        }).unwrap();
        let db = Db::open(&path).unwrap();
        check(&db).unwrap();
        prop_assert!(read(&db, "key") == records);
    }

    /// Whatever is changed in a file: records or an error, never a panic or an endless walk.
    #[test]
    fn altered_files_get_an_answer(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        write(&path, 512, &[("key", &numbered(200, |n| n as usize % 90)), ("meta", &numbered(3, |_| 9))]).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        // The meta pages have a checksum of their own; behind them nothing is protected.
        for (place, byte) in changes {
            let at = 1024 + place.index(bytes.len() - 1024);
            bytes[at] = byte;
        }
        fs::write(&path, bytes).unwrap();
        let db = Db::open(&path).unwrap();
        if let (Ok(_), Ok(Some(bucket))) = (check(&db), db.bucket(b"key")) {
            let mut cursor = bucket.cursor(&db);
            while let Ok(Some(_)) = cursor.next_entry() {}
            let _ = bucket.cursor(&db).right_edge(None);
        }
    }
}
