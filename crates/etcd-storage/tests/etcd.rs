//! Real etcd servers judge what was restored and compacted. They are taken from `bin/etcd-3.x` in the folder named by
//! `DRUID_DEV_CACHE`, by default `~/.cache/druid-dev`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "in a test that is how an error is shown"
)]

mod common;

use std::collections::HashMap;
use std::fs::File;
use std::io::{Cursor, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::server::{Etcd, Place, binaries, cluster, put_request};
use etcd_storage::bolt::Db;
use etcd_storage::compression::{Compression, Encoder};
use etcd_storage::delta::{self, Event, EventKind};
use etcd_storage::mvcc::{KeyValue, MAX_START};
use etcd_storage::object::{Chain, Object, Target};
use etcd_storage::restore::{Consent, Options, Restored, restore};
use etcd_storage::schema::{Minor, Overview};
use etcd_storage::validate::{Verdict, full, sanity};
use etcd_storage::{assemble, compact, dump};
use serde_json::json;

fn restore_for(chain: &Chain, data_dir: &Path, places: &[Place], name: &str, minor: Minor) -> Restored {
    let options = Options {
        data_dir: data_dir.to_owned(),
        cluster: cluster(places),
        member: name.to_owned(),
        target: Target::Latest,
        minor: Some(minor),
        bump_revision: None,
        unknown_lease_ttl: None,
        consent: Consent::default(),
    };
    restore(chain, &options, &mut |_| ControlFlow::Continue(())).unwrap()
}

fn lines(db: &Path) -> String {
    let mut out = Vec::new();
    dump::dump(&Db::open(db).unwrap(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn in_memory(name: &str, start: i64, last: i64, compression: Compression, bytes: Vec<u8>) -> Object {
    let open = Box::new(move || Ok(Box::new(Cursor::new(bytes.clone())) as Box<dyn Read + Send>));
    Object {
        name: name.to_owned(),
        compression,
        start,
        last,
        open,
    }
}

fn full_object(path: &Path) -> Object {
    let bytes = std::fs::read(path).unwrap();
    let last = Overview::read(&Db::open(path).unwrap()).unwrap().revision;
    in_memory("Full", 0, last, Compression::None, bytes)
}

/// Makes deltas of what a stopped etcd has after `base`, as a sidecar would have made them by watching.
fn deltas(data_dir: &Path, base: i64, ttls: &HashMap<i64, i64>, revisions_each: i64) -> Vec<Object> {
    let db = Db::open(&data_dir.join("member/snap/db")).unwrap();
    let mut events = Vec::new();
    dump::each_record(&db, |key, value| {
        let record = KeyValue::parse(value).unwrap();
        events.extend((key.revision.main > base).then(|| Event {
            kind: if key.tombstone {
                EventKind::Delete
            } else {
                EventKind::Put
            },
            key: record.key.to_vec(),
            value: record.value.to_vec(),
            create_revision: record.create_revision,
            mod_revision: key.revision.main,
            version: record.version,
            lease: record.lease,
            lease_ttl: ttls.get(&record.lease).copied(),
            time: Some(jiff::Timestamp::UNIX_EPOCH),
        }));
        Ok(())
    })
    .unwrap();
    events
        .chunk_by(|one, next| {
            (one.mod_revision - base - 1) / revisions_each == (next.mod_revision - base - 1) / revisions_each
        })
        .map(|events| {
            let sink = Encoder::new(Compression::Gzip, Vec::new(), 1).unwrap();
            let mut encoder = delta::Encoder::new(sink);
            for event in events {
                encoder.push(event).unwrap();
            }
            let (sink, summary) = encoder.finish().unwrap();
            let bytes = sink.finish().unwrap();
            in_memory(
                "Incr",
                summary.first_revision,
                summary.last_revision,
                Compression::Gzip,
                bytes,
            )
        })
        .collect()
}

fn fixture_on(name: &str, minor: Minor) {
    let case = common::case(name);
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("default.etcd");
    let place = Place::new("t1-0");
    let places = [place.clone()];
    let chain = common::plan(&case.objects(), None).unwrap();
    let restored = restore_for(&chain, &data_dir, &places, "t1-0", minor);
    assert_eq!(
        restored.leases.unknown_count,
        if name == "leases" { 2 } else { 0 }
    );
    let mut etcd = Etcd::start(minor, &data_dir, &place);
    let (hash, revision, _) = etcd.hash_kv();
    assert_eq!(hash.to_string(), case.fact("hash-kv"), "{name} on {minor}");
    assert_eq!(
        revision.to_string(),
        case.fact("final-revision"),
        "{name} on {minor}"
    );
    assert_eq!(
        etcd.live_keys().to_string(),
        case.fact("live-keys"),
        "{name} on {minor}"
    );
    let members = etcd.etcdctl(&["member", "list"]);
    assert!(
        members.contains(&format!(
            "{}, started, t1-0, {}",
            restored.member_id,
            place.peer_url()
        )),
        "{members}"
    );
    assert_eq!(etcd.put("after", b"restore", 0), revision + 1);
    assert_eq!(sanity(&data_dir, Duration::from_millis(100)), Verdict::Locked);
    etcd.stop();
    let Verdict::Valid(found) = full(&data_dir, Duration::ZERO) else {
        panic!("{name} on {minor}")
    };
    assert_eq!(
        (found.cluster_id, found.revision),
        (Some(restored.cluster_id), revision + 1)
    );
}

fn fixtures_on(minor: Minor) {
    for name in [
        "gzip-basic",
        "etcd36",
        "leases",
        "large-txn",
        "final",
        "empty",
        "many-deltas",
    ] {
        fixture_on(name, minor);
    }
}

#[test]
fn etcd_3_5_starts_from_restored_backups() {
    fixtures_on(Minor::V3_5);
}

#[test]
fn etcd_3_6_starts_from_restored_backups() {
    fixtures_on(Minor::V3_6);
}

#[test]
fn etcd_3_7_starts_from_restored_backups() {
    fixtures_on(Minor::V3_7);
}

/// A backup of three members, restored for each of them, forms one cluster.
#[test]
fn etcd_members_restored_alike_form_one_cluster() {
    for minor in Minor::ALL {
        let case = common::case("gzip-basic");
        let dir = tempfile::tempdir().unwrap();
        let places: Vec<Place> = (0..3)
            .map(|ordinal| Place::new(&format!("t1-{ordinal}")))
            .collect();
        let chain = common::plan(&case.objects(), None).unwrap();
        let mut members: Vec<Etcd> = places
            .iter()
            .map(|place| {
                let data_dir = dir.path().join(&place.name);
                restore_for(&chain, &data_dir, &places, &place.name, minor);
                Etcd::spawn(minor, &data_dir, place, &places)
            })
            .collect();
        for etcd in &mut members {
            etcd.wait();
        }
        let revision = members[0].put("after", b"restore", 0);
        for etcd in &mut members {
            assert_eq!(etcd.value("after"), Some(b"restore".to_vec()));
            assert_eq!(etcd.hash_kv().1, revision, "{minor}");
        }
        let hashes: Vec<u32> = members.iter_mut().map(|etcd| etcd.hash_kv().0).collect();
        assert!(
            hashes.iter().all(|hash| *hash == hashes[0]),
            "{minor}: {hashes:?}"
        );
    }
}

/// The first of several members starts alone from a restored dir of one; the others join it afterwards.
#[test]
fn etcd_restored_as_one_member_takes_others_in() {
    let minor = Minor::V3_6;
    let case = common::case("gzip-basic");
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (Place::new("t1-0"), Place::new("t1-1"));
    let chain = common::plan(&case.objects(), None).unwrap();
    restore_for(
        &chain,
        &dir.path().join("t1-0"),
        std::slice::from_ref(&first),
        "t1-0",
        minor,
    );
    let mut one = Etcd::start(minor, &dir.path().join("t1-0"), &first);
    one.etcdctl(&[
        "member",
        "add",
        "t1-1",
        "--learner",
        "--peer-urls",
        &second.peer_url(),
    ]);
    let places = [first, second.clone()];
    let mut two = Etcd::spawn_joining(minor, &dir.path().join("t1-1"), &second, &places);
    two.wait_for_learner();
    let list = one.etcdctl(&["member", "list"]);
    let learner = list
        .lines()
        .find(|line| line.contains(&second.peer_url()))
        .unwrap();
    let id = learner.split(',').next().unwrap();
    // It is promoted when it has the data.
    let promoted = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        one.try_etcdctl(&["member", "promote", id]).0
    });
    assert!(promoted, "the second member never got the data");
    two.wait();
    let revision = one.put("after", b"restore", 0);
    assert_eq!(two.value("after"), Some(b"restore".to_vec()));
    assert_eq!(two.hash_kv(), one.hash_kv());
    assert_eq!(two.hash_kv().1, revision);
}

/// Everything that a live etcd has: versions, transactions, leases old and new, a compaction, users.
#[test]
fn etcd_chain_of_each_minor_restores_exactly() {
    for minor in Minor::ALL {
        chain_of(minor);
    }
}

fn chain_of(minor: Minor) {
    let dir = tempfile::tempdir().unwrap();
    let source_dir = dir.path().join("source");
    let place = Place::new("source");
    let mut etcd = Etcd::start(minor, &source_dir, &place);
    for n in 0..300 {
        etcd.put(&format!("/k/{}", n % 40), vec![b'v'; n * 40].as_slice(), 0);
    }
    etcd.grant(11, 1000);
    etcd.grant(12, 2000);
    etcd.put("/l/base", b"1", 11);
    etcd.put("/l/moves", b"1", 12);
    let compacted = etcd.delete("/k/1", "/k/2");
    etcd.post(
        "/v3/kv/compaction",
        &json!({"revision": compacted.to_string(), "physical": true}),
    );
    etcd.etcdctl(&["user", "add", "root:secret"]);
    etcd.etcdctl(&["user", "grant-role", "root", "root"]);
    let base = dir.path().join("base.db");
    // An alarm names a member of the source; restored, it would keep the new cluster from being written to.
    let alarm = |action| json!({"action": action, "memberID": "0", "alarm": "NOSPACE"});
    etcd.post("/v3/maintenance/alarm", &alarm("ACTIVATE"));
    etcd.snapshot(&base);
    etcd.post("/v3/maintenance/alarm", &alarm("DEACTIVATE"));
    etcd.grant(13, 3000);
    etcd.grant(14, 4000);
    etcd.put("/l/new", b"1", 13);
    etcd.put("/l/moves", b"2", 14);
    etcd.put("/l/revoked", b"2", 14);
    for n in 0..30 {
        let operations: Vec<_> = (0..20)
            .map(|op| json!({"request_put": put_request(&format!("/k/{n}/{op}"), &[b'w'; 3000], 0)}))
            .collect();
        etcd.txn(&operations);
    }
    etcd.delete("/k/1", "/k/2");
    etcd.put("/l/moves", b"3", 13);
    etcd.revoke(14);
    let (expected_hash, revision, _) = etcd.hash_kv();
    etcd.stop();

    let ttls = HashMap::from([(13, 3000), (14, 4000)]);
    let base = full_object(&base);
    let deltas = deltas(&source_dir, base.last, &ttls, 7);
    let chain = Chain { base, deltas };
    let data_dir = dir.path().join("restored");
    let restored = restore_for(&chain, &data_dir, std::slice::from_ref(&place), "source", minor);
    assert_eq!(restored.revision, revision);
    assert!(
        lines(&data_dir.join("member/snap/db")) == lines(&source_dir.join("member/snap/db")),
        "{minor}"
    );
    let mut etcd = Etcd::start(minor, &data_dir, &place);
    let (hash, _, compact_revision) = etcd.hash_kv();
    assert_eq!((hash, compact_revision), (expected_hash, compacted), "{minor}");
    // 12 and 14 were left without keys: the one stays as the base has it, the other isn't invented.
    assert_eq!(etcd.leases(), [(11, 1000), (12, 2000), (13, 3000)], "{minor}");
    etcd.revoke(13);
    assert_eq!(etcd.value("/l/new"), None, "the key hangs on its lease");
    assert_eq!(etcd.value("/l/base"), Some(b"1".to_vec()));
    etcd.put("/after", b"restore", 0);
    etcd.user = Some("root:secret");
    etcd.etcdctl(&["auth", "enable"]);
    assert!(etcd.etcdctl(&["user", "list"]).contains("root"));
}

/// The compacted snapshot has the records and the hash that etcd's own compaction leaves, also when a tombstone is
/// exactly at the compact revision, and etcd's own tools take it for a snapshot.
#[test]
fn etcd_compaction_of_each_minor_is_matched() {
    for minor in Minor::ALL {
        compaction_of(minor);
    }
}

fn compaction_of(minor: Minor) {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new("source");
    let mut etcd = Etcd::start(minor, &dir.path().join("source"), &place);
    for n in 0..200 {
        etcd.put(&format!("/k/{}", n % 30), vec![b'v'; n * 20].as_slice(), 0);
    }
    let first = etcd.delete("/k/1", "/k/2");
    for n in 0..60 {
        etcd.put(&format!("/k/{}", n % 13), b"again", 0);
    }
    etcd.delete("/k/3", "/k/4");
    let base = dir.path().join("base.db");
    etcd.snapshot(&base);
    etcd.put("/k/3", b"back", 0);
    let last = etcd.delete("/k/2", "/k/3");
    etcd.stop();
    let base = full_object(&base);
    let deltas = deltas(&dir.path().join("source"), base.last, &HashMap::new(), 10);
    let chain = Chain { base, deltas };
    for at in [first, first - 1, first + 20, last - 1, last] {
        // What etcd itself makes of it.
        let theirs = dir.path().join(format!("theirs-{at}"));
        restore_for(&chain, &theirs, std::slice::from_ref(&place), "source", minor);
        let mut etcd = Etcd::start(minor, &theirs, &place);
        etcd.post(
            "/v3/kv/compaction",
            &json!({"revision": at.to_string(), "physical": true}),
        );
        let expected = etcd.hash_kv();
        let keys = etcd.post(
            "/v3/kv/range",
            &json!({"key": "AA==", "range_end": "AA==", "count_only": true}),
        );
        etcd.stop();

        let snapshot = dir.path().join(format!("ours-{at}.db"));
        let options = compact::Options {
            work_dir: dir.path().to_owned(),
            revision: Some(at),
            drop_last_tombstone: false,
        };
        let out = File::create(&snapshot).unwrap();
        let made = compact::compact(&chain, &options, out, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((made.revision, made.compact_revision), (last, at));
        let mut scanner = etcd_storage::full::Scanner::new();
        scanner.write_all(&std::fs::read(&snapshot).unwrap()).unwrap();
        let summary = scanner.finish().unwrap();
        assert_eq!(
            (summary.revision, summary.compact_revision, summary.sha256),
            (last, at, made.sha256)
        );
        assert_eq!(
            keys["count"],
            json!(summary.keys.unwrap().to_string()),
            "{minor} at {at}"
        );
        assert!(
            lines(&snapshot) == lines(&theirs.join("member/snap/db")),
            "{minor} at {at}"
        );

        let ours = dir.path().join(format!("ours-{at}"));
        let chain = Chain {
            base: full_object(&snapshot),
            deltas: vec![],
        };
        restore_for(&chain, &ours, std::slice::from_ref(&place), "source", minor);
        let mut etcd = Etcd::start(minor, &ours, &place);
        assert_eq!(etcd.hash_kv(), expected, "{minor} at {at}");
        etcd.stop();
        let status = Command::new(binaries(minor).join("etcdutl"))
            .args(["snapshot", "restore"])
            .arg(&snapshot)
            .arg("--data-dir")
            .arg(dir.path().join(format!("etcdutl-{at}")))
            .output()
            .unwrap();
        assert!(
            status.status.success(),
            "{minor}: {}",
            String::from_utf8_lossy(&status.stderr)
        );
    }
}

/// A raised revision is what clients see, and everything before is compacted, as after etcdutl's own bump.
#[test]
fn etcd_with_a_raised_revision_cancels_old_watches() {
    for minor in Minor::ALL {
        let case = common::case("gzip-basic");
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("default.etcd");
        let place = Place::new("t1-0");
        let options = Options {
            data_dir: data_dir.clone(),
            cluster: cluster(std::slice::from_ref(&place)),
            member: "t1-0".to_owned(),
            target: Target::Latest,
            minor: Some(minor),
            bump_revision: Some(1_000_000),
            unknown_lease_ttl: None,
            consent: Consent::default(),
        };
        let chain = common::plan(&case.objects(), None).unwrap();
        let restored = restore(&chain, &options, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((restored.revision, restored.data_revision), (1_000_057, 57));
        let mut etcd = Etcd::start(minor, &data_dir, &place);
        assert_eq!(etcd.hash_kv().1, 1_000_057, "{minor}");
        let (success, told) = etcd.try_etcdctl(&["get", "--rev", "100", "a"]);
        assert!(!success && told.contains("compacted"), "{minor}: {told}");
        assert_eq!(etcd.put("after", b"", 0), 1_000_058);
    }
}

/// Behind 2^63 - 1 etcd panics: so far a revision is never raised, not even in many steps.
#[test]
fn etcd_at_the_highest_revision_takes_writes_and_is_raised_no_further() {
    let case = common::case("gzip-basic");
    let chain = common::plan(&case.objects(), None).unwrap();
    for minor in Minor::ALL {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new("t1-0");
        let raised = |chain: &Chain, name: &str, amount| {
            let options = Options {
                data_dir: dir.path().join(name),
                cluster: cluster(std::slice::from_ref(&place)),
                member: "t1-0".to_owned(),
                target: Target::Latest,
                minor: Some(minor),
                bump_revision: Some(amount),
                unknown_lease_ttl: None,
                consent: Consent::default(),
            };
            restore(chain, &options, &mut |_| ControlFlow::Continue(()))
        };
        for amount in [i64::MAX, i64::MAX - 57, MAX_START, MAX_START - 56] {
            let error = raised(&chain, "refused", amount).unwrap_err();
            assert!(
                matches!(error, assemble::Error::RevisionTooHigh { revision: 57, .. }),
                "{error}"
            );
            assert!(!dir.path().join("refused").exists());
        }
        assert_eq!(
            raised(&chain, "highest", MAX_START - 57).unwrap().revision,
            MAX_START
        );
        let mut etcd = Etcd::start(minor, &dir.path().join("highest"), &place);
        assert_eq!(etcd.put("after", b"", 0), MAX_START + 1, "{minor}");
        let snapshot = dir.path().join("snapshot.db");
        etcd.snapshot(&snapshot);
        let chain = Chain {
            base: full_object(&snapshot),
            deltas: Vec::new(),
        };
        let error = raised(&chain, "refused", 1).unwrap_err().to_string();
        assert!(error.contains("can't be raised by 1"), "{minor}: {error}");
    }
}

/// Snapshots that are taken while others write: the revision that is found is the one that is inside.
#[test]
fn etcd_snapshots_under_load_tell_their_revision() {
    for minor in Minor::ALL {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new("source");
        let mut etcd = Etcd::start(minor, &dir.path().join("source"), &place);
        // Large values make page runs, deletes and compactions make free pages with old content.
        for n in 0..400_usize {
            etcd.put(&format!("/k/{n}"), vec![b'v'; n * n].as_slice(), 0);
        }
        let revision = etcd.delete("/k/1", "/k/3");
        etcd.post(
            "/v3/kv/compaction",
            &json!({"revision": revision.to_string(), "physical": true}),
        );
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = &mut etcd;
            let done = &done;
            let path = dir.path().join("snapshot.db");
            let endpoint = writer.endpoint();
            scope.spawn(move || {
                let mut n = 0_usize;
                while !done.load(Ordering::Relaxed) {
                    n += 1;
                    writer.put(&format!("/w/{}", n % 50), vec![b'w'; n % 9000].as_slice(), 0);
                }
            });
            let mut ahead = 0;
            for _ in 0..5 {
                let save = Command::new(binaries(minor).join("etcdctl"))
                    .args(["--endpoints", &endpoint, "snapshot", "save"])
                    .arg(&path)
                    .output()
                    .unwrap();
                assert!(save.status.success());
                let bytes = std::fs::read(&path).unwrap();
                let mut scanner = etcd_storage::full::Scanner::new();
                bytes.chunks(100_000).for_each(|chunk| scanner.update(chunk));
                let summary = scanner.finish().unwrap();
                let inside = Overview::read(&Db::open(&path).unwrap()).unwrap();
                assert_eq!(summary.revision, inside.last_record.main, "{minor}");
                assert!(summary.revision > revision);
                ahead += i32::from(summary.revision > revision + 10);
            }
            done.store(true, Ordering::Relaxed);
            assert!(ahead > 0, "nothing was written meanwhile");
        });
    }
}
