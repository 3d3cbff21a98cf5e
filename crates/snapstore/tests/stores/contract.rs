//! What every store must do. Each function takes a store with an empty prefix of its own.

use std::{fs, path::Path};

use bytes::Bytes;
use futures::TryStreamExt as _;
use jiff::Timestamp;
use snapstore::{Body, Class, Compression, Object, SnapStore, SnapshotName, StoreConfig, StoredSnapshot};

/// A full snapshot's name, `age` seconds before a fixed moment.
pub(crate) fn full(last: i64, age: i64) -> SnapshotName {
    SnapshotName::full(last, moment(age), Compression::Gzip)
}

pub(crate) fn delta(start: i64, last: i64, age: i64) -> SnapshotName {
    SnapshotName::delta(start, last, moment(age), Compression::Gzip)
}

fn moment(age: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 - age).unwrap()
}

/// Bytes that differ at every offset, so that a shifted or repeated part shows.
pub(crate) fn content(length: usize) -> Bytes {
    (0..length.div_ceil(8))
        .flat_map(|n| (n as u64).to_be_bytes())
        .take(length)
        .collect()
}

pub(crate) async fn put(store: &dyn SnapStore, name: &SnapshotName, content: Bytes) -> StoredSnapshot {
    store.put(name, Body::from_bytes(content)).await.unwrap()
}

pub(crate) async fn read(store: &dyn SnapStore, object: &Object) -> Bytes {
    let parts: Vec<Bytes> = store
        .get(object, None)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    parts.concat().into()
}

/// Names, order, sizes and content survive a round trip; revisions wider than the padding sort by number.
pub(crate) async fn keeps_what_is_put(store: &dyn SnapStore) {
    assert_eq!(store.list().await.unwrap().snapshots, []);
    let names = [
        full(99_999_999, 30),
        delta(100_000_000, 100_000_005, 20),
        full(123_456_789, 10),
    ];
    for (size, name) in names.iter().enumerate() {
        let stored = put(store, name, content(size * 1000)).await;
        assert_eq!((&stored.name, stored.object.size), (name, size as u64 * 1000));
    }
    let listing = store.list().await.unwrap();
    assert_eq!(
        listing
            .snapshots
            .iter()
            .map(|s| s.name.clone())
            .collect::<Vec<_>>(),
        names
    );
    for (size, snapshot) in listing.snapshots.iter().enumerate() {
        assert_eq!(snapshot.object.size, size as u64 * 1000);
        assert_eq!(read(store, &snapshot.object).await, content(size * 1000));
    }
}

/// A name is written once: the second try fails and changes nothing.
pub(crate) async fn never_overwrites(store: &dyn SnapStore) {
    let name = full(7, 0);
    put(store, &name, content(100)).await;
    let error = store.put(&name, Body::from_bytes(content(50))).await.unwrap_err();
    assert_eq!(error.class(), Class::AlreadyExists, "{error}");
    let listing = store.list().await.unwrap();
    assert_eq!(listing.snapshots.len(), 1);
    assert_eq!(read(store, &listing.snapshots[0].object).await, content(100));
}

/// Deleting is final and may be repeated; reading what is gone says so.
pub(crate) async fn deletes(store: &dyn SnapStore) {
    let stored = put(store, &full(7, 0), content(10)).await;
    store.delete(&stored.object).await.unwrap();
    store.delete(&stored.object).await.unwrap();
    assert_eq!(store.list().await.unwrap().snapshots, []);
    let error = store.get(&stored.object, None).await.map(|_| ()).unwrap_err();
    assert_eq!(error.class(), Class::NotFound, "{error}");
}

pub(crate) async fn reads_ranges(store: &dyn SnapStore) {
    let stored = put(store, &full(7, 0), content(5000)).await;
    for range in [0..1, 10..4000, 4999..5000, 7..7] {
        let parts = store.get(&stored.object, Some(range.clone())).await.unwrap();
        let parts: Vec<Bytes> = parts.try_collect().await.unwrap();
        let expected =
            content(5000).slice(usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap());
        assert_eq!(Bytes::from(parts.concat()), expected, "{range:?}");
    }
}

/// An upload whose source breaks, announces another length or is withdrawn leaves nothing behind.
pub(crate) async fn failed_uploads_leave_nothing(store: &dyn SnapStore) {
    use std::io::{Error, Result};
    let broken = |size| {
        let parts = [Ok(content(size)), Err(Error::other("cut"))];
        Body::from_stream(futures::stream::iter(parts), None)
    };
    let short = || Body::from_stream(futures::stream::iter([Ok(content(10))]), Some(11));
    let fenced = |size| {
        Body::from_bytes(content(size)).with_guard(async { Result::Err(Error::other("lost the lease")) })
    };
    for body in [broken(10), broken(9 << 20), short(), fenced(10), fenced(9 << 20)] {
        let error = store.put(&full(7, 0), body).await.unwrap_err();
        assert_eq!(error.class(), Class::SourceFailed, "{error}");
        let listing = store.list().await.unwrap();
        assert_eq!(
            (
                listing.snapshots.len(),
                listing.chunks.len(),
                listing.unparsable.len()
            ),
            (0, 0, 0)
        );
    }
}

/// More than one part, and an end that is no multiple of a part.
pub(crate) async fn keeps_large_content(store: &dyn SnapStore) {
    let content = content((20 << 20) + 7);
    let pieces: Vec<_> = content
        .chunks(700_001)
        .map(|piece| Ok(content.slice_ref(piece)))
        .collect();
    for (revision, length) in [(1, None), (2, Some(content.len() as u64))] {
        let body = Body::from_stream(futures::stream::iter(clone_all(&pieces)), length);
        let stored = store.put(&full(revision, 0), body).await.unwrap();
        assert_eq!(stored.object.size, content.len() as u64);
        assert!(read(store, &stored.object).await == content, "content differs");
    }
    let error = store
        .put(&full(1, 0), Body::from_bytes(content))
        .await
        .unwrap_err();
    assert_eq!(error.class(), Class::AlreadyExists, "{error}");
}

fn clone_all(pieces: &[std::io::Result<Bytes>]) -> Vec<std::io::Result<Bytes>> {
    pieces
        .iter()
        .map(|piece| Ok(piece.as_ref().unwrap().clone()))
        .collect()
}

/// `a/b` sees nothing of `a/b-2`, of `a/b/c` or of `a`.
pub(crate) async fn lists_its_own_prefix_only(config: &StoreConfig) {
    let below = |suffix: &str| {
        StoreConfig {
            prefix: format!("{}{suffix}", config.prefix),
            ..config.clone()
        }
        .open()
        .unwrap()
    };
    for (revision, suffix) in [(1, ""), (2, "-2"), (3, "/c")] {
        put(&*below(suffix), &full(revision, 0), content(10)).await;
    }
    for (revision, suffix) in [(1, ""), (2, "-2"), (3, "/c")] {
        let listing = below(suffix).list().await.unwrap();
        assert_eq!(
            (listing.snapshots.len(), listing.unparsable.len()),
            (1, 0),
            "{suffix:?}"
        );
        assert_eq!(listing.snapshots[0].name.last_revision, revision);
    }
}

/// What isn't there is not empty.
pub(crate) async fn tells_a_missing_container(config: &StoreConfig) {
    let container = format!("{}-missing", config.container);
    let store = StoreConfig {
        container,
        ..config.clone()
    }
    .open()
    .unwrap();
    let error = store.list().await.unwrap_err();
    assert_eq!(error.class(), Class::BucketNotFound, "{error}");
    for size in [1, 9 << 20] {
        let error = store
            .put(&full(1, 0), Body::from_bytes(content(size)))
            .await
            .unwrap_err();
        assert_eq!(error.class(), Class::BucketNotFound, "{error}");
    }
}

/// Two uploads of one name at once: one wins, whole, and the other one is told so.
pub(crate) async fn one_of_two_uploads_wins(store: &dyn SnapStore) {
    for (revision, size) in [(1, 1000), (2, (9 << 20) + 1)] {
        let name = full(revision, 0);
        let put = |content| store.put(&name, Body::from_bytes(content));
        let other: Bytes = content(size).iter().map(|byte| !byte).collect();
        let (first, second) = tokio::join!(put(content(size)), put(other.clone()));
        let (expected, error) = match (first, second) {
            (Ok(_), Err(error)) => (content(size), error),
            (Err(error), Ok(_)) => (other, error),
            (first, second) => panic!("{first:?} and {second:?}"),
        };
        assert_eq!(error.class(), Class::AlreadyExists, "{error}");
        let listing = store.list().await.unwrap();
        assert!(
            read(store, &listing.snapshots.last().unwrap().object).await == expected,
            "content differs"
        );
        assert_eq!(listing.chunks, []);
    }
}

/// Credentials that change on disk are used at once, by the store that is open. `file` is the secret one of them.
pub(crate) async fn follows_rotated_secrets(config: &StoreConfig, file: &Path, wrong: &str) {
    let right = fs::read_to_string(file).unwrap();
    fs::write(file, wrong).unwrap();
    let store = config.open().unwrap();
    for revision in 1..3 {
        assert_eq!(store.list().await.unwrap_err().class(), Class::AccessDenied);
        fs::write(file, &right).unwrap();
        put(&*store, &full(revision, 0), content(10)).await;
        fs::write(file, wrong).unwrap();
    }
    fs::write(file, &right).unwrap();
    assert_eq!(store.list().await.unwrap().snapshots.len(), 2);
}
