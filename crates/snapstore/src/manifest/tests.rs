//! What a manifest proves, and that it stays with its snapshot.

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use etcd_storage::{
    bolt::BulkWriter,
    mvcc::{KeyValue, RecordKey, Revision},
};
use futures::TryStreamExt as _;
use jiff::Timestamp;
use tempfile::TempDir;

use super::*;
use crate::{
    Body, Compression, Layout, Provider, SnapStore, StoreConfig, StoredSnapshot,
    copy::{Copied, CopyOptions, copy},
    retention::{KeepFulls, Policy, collect},
};

const KEY: &str = "a key of at least thirty-two bytes";

fn name(text: &str) -> SnapshotName {
    text.parse().unwrap()
}

fn full() -> SnapshotName {
    name("Full-00000000-00000007-1700000000.gz")
}

/// Makes a stored snapshot as old as its name says: who looks for its manifest doesn't wait for that any more.
fn age(container: &TempDir, name: &SnapshotName) {
    let file = container.path().join("v2").join(name.to_string());
    let file = fs::File::options().write(true).open(file).unwrap();
    let created = Duration::from_secs(name.created_on.as_second().unsigned_abs());
    file.set_modified(UNIX_EPOCH + created).unwrap();
}

fn keys(of: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (id, secret) in of {
        fs::write(folder.path().join(id), secret).unwrap();
    }
    folder
}

fn keyring(folder: &Path) -> Keyring {
    let signing = Signing {
        keys: Some(folder.to_owned()),
        signatures: None,
    };
    Keyring::open(&signing).unwrap()
}

fn store(container: &Path, keys: Option<&Path>) -> Arc<dyn SnapStore> {
    let signing = Signing {
        keys: keys.map(Path::to_owned),
        signatures: None,
    };
    StoreConfig::new(Provider::Local, container.to_str().unwrap(), "")
        .open_attesting(&signing)
        .unwrap()
}

/// A full snapshot at revision 9 with so much text in it, as a store has it.
fn snapshot(text: &str) -> Vec<u8> {
    let mut writer = BulkWriter::new(Vec::new(), 4096);
    let revision = Revision { main: 9, sub: 0 };
    let tombstone = false;
    let record = KeyValue {
        key: text.as_bytes(),
        ..KeyValue::default()
    };
    let (mut bytes, mut after) = (Vec::new(), Vec::new());
    record.encode_around_value(&mut bytes, &mut after);
    writer.bucket(b"key", 0, 100).unwrap();
    let key = RecordKey { revision, tombstone };
    writer.put(key.bytes().as_ref(), &[&bytes]).unwrap();
    writer.bucket(b"meta", 0, 100).unwrap();
    let (pages, layout) = writer.finish().unwrap();
    let database = [layout.head(), pages].concat();
    let hash = Sha256::digest(&database);
    [&database[..], &hash].concat()
}

fn facts() -> Facts {
    Facts {
        etcd_version: Some("3.6.12".to_owned()),
        keys: Some(3),
        ..Facts::default()
    }
}

async fn copied(source: &dyn SnapStore, target: &dyn SnapStore) -> Copied {
    let options = CopyOptions::default();
    copy(source, target, &options, Arc::new(|_| {})).await.unwrap()
}

async fn listed(store: &dyn SnapStore) -> Vec<StoredSnapshot> {
    store.list().await.unwrap().snapshots
}

/// Nothing that somebody without the key makes of an envelope is taken for signed.
#[test]
fn a_signature_covers_all_that_is_said() {
    let folder = keys(&[("2026", KEY)]);
    let keys = keyring(folder.path()).keys().unwrap();
    let manifest = Manifest {
        snapshot: full().to_string(),
        size: 7,
        sha256: "00".to_owned(),
        facts: facts(),
    };
    let sealed = Envelope::seal(&manifest, keys.last()).unwrap();
    assert_eq!(
        Envelope::open(&sealed, &full(), &keys),
        Attestation::Signed(manifest.clone())
    );
    assert!(
        matches!(Envelope::open(&sealed, &full(), &[]), Attestation::UnknownKey { key, .. } if key == "2026")
    );
    // A copy may drop `.final`, and nothing else.
    assert!(matches!(
        Envelope::open(&sealed, &full().with_final(true), &keys),
        Attestation::Signed(_)
    ));
    let other = name("Full-00000000-00000008-1700000000.gz");
    assert!(matches!(
        Envelope::open(&sealed, &other, &keys),
        Attestation::Bad(_)
    ));
    for at in 0..sealed.len() {
        for bit in 0..8 {
            let mut altered = sealed.clone();
            altered[at] ^= 1 << bit;
            if let Attestation::Signed(said) = Envelope::open(&altered, &full(), &keys) {
                assert_eq!(said, manifest, "bit {bit} at {at}");
            }
        }
    }
    let unsigned = Envelope::seal(&manifest, None).unwrap();
    assert_eq!(
        Envelope::open(&unsigned, &full(), &keys),
        Attestation::Unsigned(manifest)
    );
}

#[test]
fn each_policy_judges_each_manifest() {
    use Signatures as S;
    let manifest = || Manifest {
        snapshot: full().to_string(),
        size: 7,
        sha256: "00".to_owned(),
        facts: Facts::default(),
    };
    let unknown = || Attestation::UnknownKey {
        manifest: manifest(),
        key: "2025".to_owned(),
    };
    for (attestation, used) in [
        (Attestation::Signed(manifest()), [true, true, true]),
        (Attestation::Unsigned(manifest()), [false, true, true]),
        (Attestation::Absent, [false, true, true]),
        (unknown(), [false, false, true]),
        (Attestation::Bad("it is altered".to_owned()), [false, false, true]),
    ] {
        let judged = [S::Required, S::IfPresent, S::Ignore].map(|policy| policy.judge(attestation.clone()));
        assert_eq!(judged.map(|judged| judged.is_ok()), used, "{attestation:?}");
    }
    let refused = S::IfPresent.judge(unknown()).unwrap_err();
    assert!(refused.contains("\"2025\""), "{refused}");
}

/// Weak keys, and none where signatures are asked for, are noticed before anything is stored.
#[test]
fn keys_that_prove_nothing_are_refused() {
    for of in [&[("a", "short")][..], &[]] {
        let folder = keys(of);
        let signing = Signing {
            keys: Some(folder.path().to_owned()),
            signatures: None,
        };
        assert_eq!(
            Keyring::open(&signing).unwrap_err().class(),
            Class::InvalidConfig,
            "{of:?}"
        );
    }
    let required = Signing {
        keys: None,
        signatures: Some(Signatures::Required),
    };
    Keyring::open(&required).unwrap_err();
    let folder = keys(&[("a", KEY), ("b", &format!("{KEY}\n")), ("..data", "x")]);
    let read = keyring(folder.path()).keys().unwrap();
    let ids: Vec<_> = read.iter().map(|key| key.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    let ring = keyring(folder.path());
    for id in ["a", "b"] {
        fs::remove_file(folder.path().join(id)).unwrap();
    }
    // Keys that vanish while the process runs: nothing is stored that wouldn't count.
    assert_eq!(ring.keys().unwrap_err().class(), Class::InvalidConfig);
    // The line end that an editor adds is no part of a key.
    assert_eq!(read[0].sign(b"x"), read[1].sign(b"x"));
    assert!(!format!("{read:?}").contains(KEY));
}

/// A manifest goes where its snapshot goes: into the store, into a copy, and away.
#[tokio::test]
async fn a_manifest_stays_with_its_snapshot() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = keys(&[("2026", KEY)]);
    let store_here = store(here.path(), Some(folder.path()));
    let last = name("Full-00000000-00000009-1700000100.final");
    for name in [name("Full-00000000-00000007-1700000000"), last.clone()] {
        let body = Body::from_bytes(snapshot("data")).with_facts(facts);
        let stored = store_here.put(&name, body).await.unwrap();
        assert!(stored.manifest.is_some());
    }
    let stored = listed(store_here.as_ref()).await;
    let Attestation::Signed(manifest) = store_here.attest(&stored[0]).await.unwrap() else {
        panic!("not signed");
    };
    let size = snapshot("data").len() as u64;
    assert_eq!((manifest.size, manifest.facts), (size, facts()));

    // The one who copies has no keys; whoever restores the copy does.
    let store_there = store(there.path(), None);
    let source = store(here.path(), None);
    let copied = copied(source.as_ref(), store_there.as_ref()).await;
    assert_eq!((copied.snapshots, copied.failed.len()), (2, 0));
    let checked = store(there.path(), Some(folder.path()));
    for stored in listed(checked.as_ref()).await {
        assert!(!stored.name.is_final);
        let attestation = checked.attest(&stored).await.unwrap();
        assert!(matches!(attestation, Attestation::Signed(_)), "{attestation:?}");
    }

    let policy = Policy {
        fulls: KeepFulls::LimitBased { max_backups: 1 },
        ..Policy::default()
    };
    let collected = collect(store_here.as_ref(), &policy, |_| true, Timestamp::now()).await;
    assert_eq!(collected.unwrap().fulls, 1);
    let listing = store_here.list().await.unwrap();
    assert_eq!((listing.snapshots.len(), listing.orphans.len()), (1, 0));
    assert_eq!(fs::read_dir(here.path().join("v2")).unwrap().count(), 2);
}

/// A copy vouches for nothing: what nobody has signed isn't signed at the target either.
#[tokio::test]
async fn a_copy_signs_nothing() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = keys(&[("2026", KEY)]);
    let raw = StoreConfig::new(Provider::Local, here.path().to_str().unwrap(), "");
    let name = name("Full-00000000-00000007-1700000000");
    let unsigned = raw.open().unwrap();
    unsigned
        .put(&name, Body::from_bytes(snapshot("data")))
        .await
        .unwrap();
    let target = store(there.path(), Some(folder.path()));
    assert_eq!(copied(unsigned.as_ref(), target.as_ref()).await.snapshots, 1);
    age(&there, &name);
    let stored = listed(target.as_ref()).await;
    assert_eq!(target.attest(&stored[0]).await.unwrap(), Attestation::Absent);
}

/// A copy that ended between a snapshot and its manifest goes on where it was.
#[tokio::test]
async fn a_copy_brings_a_missing_manifest() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = keys(&[("2026", KEY)]);
    let source = store(here.path(), Some(folder.path()));
    let name = name("Full-00000000-00000007-1700000000");
    source
        .put(&name, Body::from_bytes(snapshot("data")))
        .await
        .unwrap();
    let target = store(there.path(), Some(folder.path()));
    copied(source.as_ref(), target.as_ref()).await;
    fs::remove_file(there.path().join("v2").join(name_of(&name))).unwrap();
    age(&there, &name);
    let again = copied(source.as_ref(), target.as_ref()).await;
    assert_eq!((again.snapshots, again.present), (0, 1));
    let stored = listed(target.as_ref()).await;
    let attestation = target.attest(&stored[0]).await.unwrap();
    assert!(matches!(attestation, Attestation::Signed(_)), "{attestation:?}");
}

/// Where signatures are required, one that was stored a moment ago isn't seen before its manifest; and the store isn't
/// empty for that.
#[tokio::test]
async fn what_is_on_its_way_is_not_judged() {
    let container = tempfile::tempdir().unwrap();
    let folder = keys(&[("2026", KEY)]);
    let raw = StoreConfig::new(Provider::Local, container.path().to_str().unwrap(), "");
    let raw = raw.open().unwrap();
    let old = name("Full-00000000-00000007-1700000000");
    let young = SnapshotName::full(9, Timestamp::now(), Compression::None);
    // Its name has the time at which it was begun.
    let slow = name("Full-00000000-00000008-1700000600");
    for name in [&old, &young, &slow] {
        raw.put(name, Body::from_bytes(snapshot("data"))).await.unwrap();
    }
    age(&container, &old);
    let listing = store(container.path(), Some(folder.path())).list().await.unwrap();
    assert_eq!((listing.snapshots.len(), listing.unsettled.len()), (1, 2));
    assert_eq!(listing.snapshots[0].name, old);
    fs::remove_file(container.path().join("v2").join(old.to_string())).unwrap();
    let listing = store(container.path(), Some(folder.path())).list().await.unwrap();
    assert!(listing.snapshots.is_empty() && !listing.is_empty());
}

/// What is copied is what was uploaded, even if somebody has mended the hash at its end.
#[tokio::test]
async fn what_was_altered_is_not_copied() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (source, target) = (store(here.path(), None), store(there.path(), None));
    let name = name("Full-00000000-00000007-1700000000");
    let stored = source
        .put(&name, Body::from_bytes(snapshot("data")))
        .await
        .unwrap();
    fs::write(&stored.object.key, snapshot("fake")).unwrap();
    let failed = copied(source.as_ref(), target.as_ref()).await.failed;
    assert_eq!(failed[0].1.class(), Class::Corrupt);
    assert!(listed(target.as_ref()).await.is_empty());
}

/// A snapshot whose manifest couldn't be stored isn't stored twice, and isn't left without one.
#[tokio::test]
async fn a_manifest_that_is_missing_follows() {
    let container = tempfile::tempdir().unwrap();
    let folder = keys(&[("2026", KEY)]);
    let store = store(container.path(), Some(folder.path()));
    let aside = container.path().with_extension("aside");
    let (from, to) = (container.path().to_owned(), aside.clone());
    // What a manifest is to say is asked for when the snapshot is there, and the manifest isn't.
    let failing = Body::from_bytes(snapshot("data")).with_facts(move || {
        fs::rename(from, to).unwrap();
        facts()
    });
    store.put(&full(), failing).await.unwrap_err();
    fs::rename(&aside, container.path()).unwrap();
    let put = async || {
        let body = Body::from_bytes(snapshot("data"));
        store.put(&full(), body).await
    };
    let stored = put().await.unwrap();
    assert_eq!(
        (stored.layout.clone(), stored.name.compression),
        (Layout::V2, Compression::Gzip)
    );
    let attestation = store.attest(&stored).await.unwrap();
    assert!(matches!(attestation, Attestation::Signed(_)), "{attestation:?}");
    // From now on it is as any other.
    assert_eq!(put().await.unwrap_err().class(), Class::AlreadyExists);
}

/// Half a snapshot under the name doesn't count as the one whose manifest is missing.
#[tokio::test]
async fn half_a_snapshot_gets_no_manifest() {
    let container = tempfile::tempdir().unwrap();
    let folder = keys(&[("2026", KEY)]);
    let store = store(container.path(), Some(folder.path()));
    let aside = container.path().with_extension("aside");
    let (from, to) = (container.path().to_owned(), aside.clone());
    let failing = Body::from_bytes(snapshot("data")).with_facts(move || {
        fs::rename(from, to).unwrap();
        facts()
    });
    store.put(&full(), failing).await.unwrap_err();
    fs::rename(&aside, container.path()).unwrap();
    let path = container.path().join("v2").join(full().to_string());
    let whole = fs::read(&path).unwrap();
    let put = async || store.put(&full(), Body::from_bytes(snapshot("data"))).await;
    let other: Vec<u8> = whole.iter().map(|byte| !byte).collect();
    for kept in [&whole[..whole.len() / 2], &other] {
        fs::write(&path, kept).unwrap();
        assert_eq!(put().await.unwrap_err().class(), Class::AlreadyExists);
    }
    let files = fs::read_dir(container.path().join("v2")).unwrap();
    assert_eq!(files.count(), 1, "there is a manifest");
}

/// The stream ends with an error, not with its end, unless all of it is what the manifest says.
#[tokio::test]
async fn bytes_are_followed_to_the_end() {
    let mut digest = Digest::default();
    digest.update(b"abc");
    let (size, sha256) = digest.finish();
    let manifest = Manifest {
        snapshot: full().to_string(),
        size,
        sha256,
        facts: Facts::default(),
    };
    for (bytes, whole) in [("abc", true), ("abd", false), ("ab", false), ("abcd", false)] {
        let pieces: Vec<_> = bytes.bytes().map(|byte| Ok(vec![byte].into())).collect();
        let checked = Digest::check(stream::iter(pieces).boxed(), manifest.clone());
        assert_eq!(checked.try_collect::<Vec<_>>().await.is_ok(), whole, "{bytes}");
    }
}
