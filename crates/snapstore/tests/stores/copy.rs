//! Copies between folders: order, limits, damage, interruption, the wait for a final snapshot.

use std::{
    collections::BTreeMap,
    io::Write as _,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use etcd_storage::{
    bolt::BulkWriter,
    compression::Encoder,
    delta::{self, Event},
    mvcc::{KeyValue, RecordKey, Revision},
};
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};
use snapstore::{
    Class, Kind, Provider, Result, SnapStore, SnapshotName, StoreConfig,
    copy::{Copied, CopyEvent, CopyOptions, Observer, OnExpiry, WaitForFinal, copy},
};
use tempfile::TempDir;

use crate::contract::{content, put, read};

fn store(folder: &TempDir) -> Arc<dyn SnapStore> {
    StoreConfig::new(Provider::Local, folder.path().to_str().unwrap(), "")
        .open()
        .unwrap()
}

fn quiet() -> Observer {
    Arc::new(|_| {})
}

fn name(text: &str) -> SnapshotName {
    text.parse().unwrap()
}

/// A whole snapshot of that name, with a value of about `size` bytes.
pub(crate) fn whole(name: &SnapshotName, size: usize) -> Bytes {
    let mut encoder = Encoder::new(name.compression, Vec::new(), 1).unwrap();
    match name.kind {
        Kind::Full => encoder
            .write_all(&database(name.last_revision, &content(size)))
            .unwrap(),
        Kind::Delta => {
            let mut events = delta::Encoder::new(encoder);
            for revision in name.start_revision..=name.last_revision {
                let value = if revision == name.last_revision {
                    content(size).to_vec()
                } else {
                    Vec::new()
                };
                let (key, mod_revision) = (name.to_string().into_bytes(), revision);
                events
                    .push(&Event {
                        key,
                        value,
                        mod_revision,
                        ..Event::default()
                    })
                    .unwrap();
            }
            encoder = events.finish().unwrap().0;
        }
    }
    encoder.finish().unwrap().into()
}

/// A database with one record, and its hash.
fn database(revision: i64, value: &[u8]) -> Vec<u8> {
    let mut writer = BulkWriter::new(Vec::new(), 4096);
    let key = RecordKey {
        revision: Revision {
            main: revision,
            sub: 0,
        },
        tombstone: false,
    };
    let record = KeyValue {
        key: b"key",
        value,
        ..KeyValue::default()
    };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    record.encode_around_value(&mut before, &mut after);
    writer.bucket(b"key", 0, 100).unwrap();
    writer
        .put(key.bytes().as_ref(), &[&before, value, &after])
        .unwrap();
    writer.bucket(b"meta", 0, 100).unwrap();
    let (pages, layout) = writer.finish().unwrap();
    let mut database = [layout.head(), pages].concat();
    let hash = Sha256::digest(&database);
    database.extend(hash);
    database
}

/// Three chains of all compressions and both kinds of final; the second has a large delta.
const CHAINS: [(&str, usize); 8] = [
    ("Full-00000000-00000100-1700000000", 1000),
    ("Incr-00000101-00000110-1700000100.gz", 10),
    ("Full-00000000-00000110-1700000200.zlib", 5000),
    ("Incr-00000111-00000120-1700000300", 9 << 20),
    ("Incr-00000121-00000130-1700000400.Z", 2000),
    ("Full-00000000-00000130-1700000500.zst", 3000),
    ("Incr-00000131-00000140-1700000600.gz", 0),
    ("Incr-00000141-00000150-1700000700.gz.final", 10),
];

async fn filled() -> (TempDir, Arc<dyn SnapStore>) {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    for (text, size) in CHAINS {
        put(&*store, &name(text), whole(&name(text), size)).await;
    }
    (folder, store)
}

/// Names and contents, `.final` aside.
async fn contents(store: &dyn SnapStore) -> BTreeMap<SnapshotName, Bytes> {
    let mut contents = BTreeMap::new();
    for snapshot in store.list().await.unwrap().snapshots {
        contents.insert(
            snapshot.name.with_final(false),
            read(store, &snapshot.object).await,
        );
    }
    contents
}

async fn copied(
    source: &dyn SnapStore,
    target: &dyn SnapStore,
    options: CopyOptions,
) -> (Result<Copied>, Vec<i64>) {
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&order);
    let observer: Observer = Arc::new(move |event| {
        if let CopyEvent::Copied(name) = event {
            seen.lock().unwrap().push(name.last_revision);
        }
    });
    let result = copy(source, target, &options, observer).await;
    let order = order.lock().unwrap().clone();
    (result, order)
}

/// At every moment what is at the target is a restorable state: newest chain first, each from its base on.
#[tokio::test]
async fn copies_in_order_and_once() {
    let ((_from, source), to) = (filled().await, tempfile::tempdir().unwrap());
    let target = store(&to);
    let (result, order) = copied(&*source, &*target, CopyOptions::default()).await;
    let result = result.unwrap();
    assert_eq!(order, [130, 140, 150, 110, 120, 130, 100, 110]);
    assert_eq!((result.snapshots, result.present, result.failed.len()), (8, 0, 0));
    assert!(
        contents(&*source).await == contents(&*target).await,
        "contents differ"
    );
    let finals = target
        .list()
        .await
        .unwrap()
        .snapshots
        .iter()
        .filter(|s| s.name.is_final)
        .count();
    assert_eq!(finals, 0);
    let (again, order) = copied(&*source, &*target, CopyOptions::default()).await;
    assert_eq!((again.unwrap().present, order), (8, vec![]));
}

#[tokio::test]
async fn limits_are_by_whole_chains() {
    let (_from, source) = filled().await;
    let since_second = Timestamp::now().duration_since(Timestamp::from_second(1_700_000_150).unwrap());
    for (options, expected) in [
        (
            CopyOptions {
                max_backups: Some(1),
                ..CopyOptions::default()
            },
            vec![130, 140, 150],
        ),
        (
            CopyOptions {
                max_backups: Some(0),
                ..CopyOptions::default()
            },
            vec![],
        ),
        (
            CopyOptions {
                max_age: Some(since_second),
                ..CopyOptions::default()
            },
            vec![130, 140, 150, 110, 120, 130],
        ),
        (
            CopyOptions {
                max_age: Some(SignedDuration::ZERO),
                ..CopyOptions::default()
            },
            vec![],
        ),
    ] {
        let to = tempfile::tempdir().unwrap();
        let (result, order) = copied(&*source, &*store(&to), options).await;
        assert_eq!((result.unwrap().failed.len(), order), (0, expected));
    }
}

#[tokio::test]
async fn final_is_kept_on_request() {
    let ((_from, source), to) = (filled().await, tempfile::tempdir().unwrap());
    let target = store(&to);
    let options = CopyOptions {
        keep_final: true,
        ..CopyOptions::default()
    };
    copied(&*source, &*target, options).await.0.unwrap();
    assert!(
        target
            .list()
            .await
            .unwrap()
            .snapshots
            .last()
            .unwrap()
            .name
            .is_final
    );
}

/// A damaged snapshot, small or large, never arrives, nor does what needs it; other chains do.
#[tokio::test]
async fn damage_stops_its_chain_only() {
    for (damaged, arrives) in [
        (120, vec![130, 140, 150, 110, 100, 110]),
        (140, vec![130, 110, 120, 130, 100, 110]),
    ] {
        let ((_from, source), to) = (filled().await, tempfile::tempdir().unwrap());
        let target = store(&to);
        let listing = source.list().await.unwrap();
        let object = &listing
            .snapshots
            .iter()
            .find(|s| s.name.last_revision == damaged)
            .unwrap()
            .object;
        flip(Path::new(&object.key));
        let (result, order) = copied(&*source, &*target, CopyOptions::default()).await;
        let failed = result.unwrap().failed;
        assert_eq!(failed.len(), 1);
        assert_eq!(
            (failed[0].0.last_revision, failed[0].1.class()),
            (damaged, Class::Corrupt)
        );
        assert_eq!(order, arrives);
        assert_eq!(target.list().await.unwrap().snapshots.len(), arrives.len());
    }
}

fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// Another object under the same name is not overwritten and not taken for a copy.
#[tokio::test]
async fn foreign_objects_are_reported() {
    let ((_from, source), to) = (filled().await, tempfile::tempdir().unwrap());
    let target = store(&to);
    put(&*target, &name(CHAINS[5].0), content(77)).await;
    let (result, order) = copied(&*source, &*target, CopyOptions::default()).await;
    let failed = result.unwrap().failed;
    assert_eq!(
        (failed[0].0.last_revision, failed[0].1.class()),
        (130, Class::AlreadyExists)
    );
    assert_eq!(order, [110, 120, 130, 100, 110]);
}

/// Nor are other bytes of the same size, and nothing is written beside them.
#[tokio::test]
async fn foreign_objects_of_equal_size_are_reported() {
    let ((_from, source), to) = (filled().await, tempfile::tempdir().unwrap());
    let target = store(&to);
    let name = name(CHAINS[3].0);
    let mut other = whole(&name, CHAINS[3].1).to_vec();
    other[100] ^= 1;
    put(&*target, &name, other.into()).await;
    let (result, order) = copied(&*source, &*target, CopyOptions::default()).await;
    let failed = result.unwrap().failed;
    assert_eq!(
        (failed[0].0.last_revision, failed[0].1.class()),
        (120, Class::AlreadyExists)
    );
    assert!(failed[0].1.to_string().contains("other bytes"), "{}", failed[0].1);
    assert_eq!(order, [130, 140, 150, 100, 110]);
    let options = CopyOptions {
        sizes_suffice: true,
        ..CopyOptions::default()
    };
    assert_eq!(
        copied(&*source, &*target, options).await.0.unwrap().failed.len(),
        0
    );
}

/// What is newest is told by revisions: a clock may have been wrong.
#[tokio::test]
async fn the_newest_chain_is_that_of_the_highest_revision() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (source, target) = (store(&from), store(&to));
    for text in [
        "Full-00000000-00000100-1900000000",
        "Full-00000000-00000200-1700000000",
    ] {
        put(&*source, &name(text), whole(&name(text), 10)).await;
    }
    let options = CopyOptions {
        max_backups: Some(1),
        ..CopyOptions::default()
    };
    assert_eq!(copied(&*source, &*target, options).await.1, [200]);
}

/// Broken off at any moment, a copy leaves only whole objects, and the next one finishes.
#[tokio::test(flavor = "multi_thread")]
async fn goes_on_after_interruption() {
    let ((_from, source), to) = (filled().await, tempfile::tempdir().unwrap());
    let target = store(&to);
    let expected = contents(&*source).await;
    let started = std::time::Instant::now();
    let scratch = tempfile::tempdir().unwrap();
    copied(&*source, &*store(&scratch), CopyOptions::default())
        .await
        .0
        .unwrap();
    let whole = started.elapsed();
    for round in 0..20 {
        let patience = whole.mul_f64(f64::from(round) / 20.0);
        let options = CopyOptions::default();
        let attempt = copy(&*source, &*target, &options, quiet());
        tokio::time::timeout(patience, attempt).await.ok();
        for (name, bytes) in contents(&*target).await {
            assert!(expected[&name] == bytes, "{name} differs");
        }
    }
    copied(&*source, &*target, CopyOptions::default())
        .await
        .0
        .unwrap();
    assert!(contents(&*target).await == expected, "contents differ");
}

#[tokio::test]
async fn waits_for_the_final_snapshot() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (source, target) = (store(&from), store(&to));
    let first = name("Full-00000000-00000100-1700000000");
    put(&*source, &first, whole(&first, 10)).await;
    let wait = |on_expiry| CopyOptions {
        wait_for_final: Some(WaitForFinal {
            timeout: Some(Duration::from_millis(300)),
            on_expiry,
            interval: Duration::from_millis(20),
        }),
        ..CopyOptions::default()
    };
    let (result, order) = copied(&*source, &*target, wait(OnExpiry::Fail)).await;
    assert_eq!(
        (result.unwrap_err().class(), order),
        (Class::NoFinalSnapshot, vec![])
    );
    let (result, order) = copied(&*source, &*target, wait(OnExpiry::CopyAnyway)).await;
    assert_eq!((result.is_ok(), order), (true, vec![100]));

    let last = name("Full-00000000-00000200-1700000100.gz.final");
    let (waiting, ()) = tokio::join!(copied(&*source, &*target, wait(OnExpiry::Fail)), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        put(&*source, &last, whole(&last, 10)).await;
    });
    assert_eq!((waiting.0.unwrap().present, waiting.1), (1, vec![200]));
}

/// A source that isn't there is no empty source.
#[tokio::test]
async fn a_missing_source_is_an_error() {
    let to = tempfile::tempdir().unwrap();
    let missing = StoreConfig::new(Provider::Local, "/nonexistent/store", "")
        .open()
        .unwrap();
    let (result, _) = copied(&*missing, &*store(&to), CopyOptions::default()).await;
    assert_eq!(result.unwrap_err().class(), Class::BucketNotFound);
}
