//! What scripts rely on: exit codes, the fields of JSON documents, and where things are printed.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

use crate::{
    cases, made,
    program::{dump, on, restore, run},
};

fn fields(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn assert_fields(value: &Value, expected: &[&str]) {
    assert_eq!(fields(value), expected.iter().copied().collect(), "{value}");
}

const SNAPSHOT: [&str; 12] = [
    "name",
    "kind",
    "startRevision",
    "lastRevision",
    "created",
    "compression",
    "final",
    "size",
    "layout",
    "excluded",
    "manifest",
    "immutableUntil",
];

/// A store of its own, so that it can be changed.
fn store_of(case: &str, dir: &Path) -> std::path::PathBuf {
    let store = dir.join("store");
    made::copy_of(&cases::case(case).store(), &store);
    store
}

#[test]
fn documents_have_their_fields() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_of("leases", dir.path());
    let leftover = store.join("v2/Full-00000000-00000099-1700000000.gz");
    fs::create_dir(&leftover).unwrap();
    fs::write(leftover.join("0000000001"), "a part of an upload").unwrap();
    fs::write(store.join("v2/notes.txt"), "a note").unwrap();

    let orphan = store.join("v2/Manifest-Full-00000000-00000098-1700000000.gz");
    fs::write(&orphan, "{}").unwrap();

    let list = on(&store, "list", &["-o", "json"]).ok().json();
    assert_fields(&list, &["store", "snapshots", "chunks", "orphans", "unknown"]);
    assert_fields(&list["orphans"][0], &["key", "size"]);
    assert_fields(&list["snapshots"][0], &SNAPSHOT);
    assert_fields(&list["chunks"][0], &["key", "size"]);
    assert_fields(&list["unknown"][0], &["key", "size", "reason"]);

    fs::remove_file(&orphan).unwrap();

    let verify = on(&store, "verify", &["-o", "json"]).ok().json();
    assert_fields(&verify, &["store", "chains", "newest"]);
    assert_fields(&verify["chains"][0], &["snapshots", "missing"]);
    let checked = [&SNAPSHOT[..], &["verdict", "reason", "revision", "warning"]].concat();
    assert_fields(&verify["chains"][0]["snapshots"][0], &checked);
    assert_fields(
        &verify["newest"],
        &["restorable", "revision", "leftOut", "damage"],
    );

    let explain = on(&store, "explain", &["-o", "json"]).ok().json();
    assert_fields(&explain, &["store", "objects"]);
    let decision = ["key", "name", "action", "rule", "reason", "until"];
    assert_fields(&explain["objects"][0], &decision);
    assert_eq!(explain["objects"][0]["rule"], "newestChain");

    let restored = restore(&store, &dir.path().join("restored"), &["-o", "json"])
        .ok()
        .json();
    let fields = [
        "dataDir",
        "revision",
        "dataRevision",
        "baseRevision",
        "snapshots",
        "leftOut",
        "lost",
        "warning",
        "clusterId",
        "memberId",
        "initialClusterToken",
        "dbSize",
        "leases",
        "alarmsDropped",
    ];
    assert_fields(&restored, &fields);
    assert_fields(
        &restored["leases"],
        &["kept", "created", "unknown", "unknownCount"],
    );
    assert_eq!(restored["leases"]["unknownCount"], 2);

    let temp = dir.path().join("temp");
    let temp = ["--temp-dir", temp.to_str().unwrap(), "-o", "json"];
    let compacted = on(&store, "compact", &temp).ok().json();
    let fields = [
        "snapshot",
        "compactRevision",
        "recordsKept",
        "recordsDropped",
        "dbSize",
        "sha256",
        "compacted",
        "leftOut",
        "warning",
    ];
    assert_fields(&compacted, &fields);
    assert_fields(&compacted["snapshot"], &SNAPSHOT);

    let target = dir.path().join("target");
    fs::create_dir(&target).unwrap();
    let source = ["--source-store-provider=Local", "--source-store-container"];
    let source = [&source[..], &[store.to_str().unwrap(), "-o", "json"]].concat();
    let copied = on(&target, "copy", &source).ok().json();
    assert_fields(&copied, &["source", "target", "copied", "bytes", "present"]);
    assert_eq!((&copied["copied"], &copied["present"]), (&5.into(), &0.into()));
}

/// Errors are documents as well, and nothing else is on standard output; people read standard error.
#[test]
fn errors_are_documents_too() {
    let dir = tempfile::tempdir().unwrap();
    let gap = cases::case("gap").store();
    let refused = restore(&gap, &dir.path().join("restored"), &["-o", "json"]).exits(3);
    let error = &refused.json()["error"];
    assert_fields(error, &["reason", "message", "damage"]);
    assert_fields(&error["damage"], &["object", "message", "missing", "fallback"]);
    assert_fields(&error["damage"]["fallback"], &["revision", "lost"]);
    assert!(
        refused
            .err
            .starts_with("etcd-steward: revisions 15 to 20 are missing")
    );
    let plain = restore(&gap, &dir.path().join("restored"), &[]).exits(3);
    assert_eq!((plain.out.as_str(), &plain.err), ("", &refused.err));
}

/// 1: it failed. 2: it was called wrongly. Neither is damage.
#[test]
fn failures_and_wrong_calls_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let (empty, missing) = (dir.path().join("empty"), dir.path().join("missing"));
    fs::create_dir(&empty).unwrap();
    let data_dir = dir.path().join("restored");
    restore(&missing, &data_dir, &[])
        .exits(1)
        .says(&["doesn't exist; mount or create it"]);
    on(&missing, "list", &["-o", "json"])
        .exits(1)
        .says(&["BucketNotFound"]);
    restore(&empty, &data_dir, &[]).exits(1).says(&["no snapshots"]);
    on(&empty, "verify", &[]).exits(1).says(&["no snapshots"]);
    on(&empty, "list", &[]).ok();
    let none = cases::case("none").store();
    for (args, said) in [
        (
            &["--revision", "56"][..],
            "revision 56 is in no snapshot: they end at 55",
        ),
        (
            &["--time", "2020-01-01T00:00:00Z"],
            "no full snapshot was taken before 2020",
        ),
        (
            &["--snapshot", "Full-00000000-00000007-1.gz"],
            "the store has no snapshot",
        ),
    ] {
        restore(&none, &data_dir, args).exits(1).says(&[said]);
    }
    for args in [
        &["--revision", "1", "--time", "2020-01-01T00:00:00Z"][..],
        &["--revision", "0"],
        &["--time", "yesterday"],
        &["--etcd-version", "3.4"],
        &["--initial-cluster", "a=http://a:2380"],
        &["--initial-cluster", "http://a:2380"],
        &["--bump-revision", "0"],
        &["--bump-revision", "9223372036854775807"],
        &["--bump-revision", "4611686018427387904"],
        &["--no-such-flag"],
    ] {
        restore(&none, &data_dir, args).exits(2);
    }
    assert!(!data_dir.exists());
    run(["restore", "--data-dir", "x"]).exits(2);
    run(["list", "--store-provider=Tape"])
        .exits(2)
        .says(&["unsupported storage provider"]);
    run(["dump"]).exits(2);
    run(["snapshot", "--store-provider=Local"])
        .exits(2)
        .says(&["--once"]);
    run(["--help"]).ok();
}

/// A store that can be read along the way must have been chosen on purpose.
#[test]
fn plain_http_must_be_allowed() {
    let s3 = [
        "list",
        "--store-provider=S3",
        "--store-container=b",
        "--store-endpoint=http://127.0.0.1:1",
    ];
    let mut command = crate::program::steward(s3);
    command.envs([
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "r"),
    ]);
    let refused = crate::program::finish(command)
        .exits(2)
        .says(&["plain http", "--allow-http"]);
    assert!(!refused.err.contains("secret"));
}

/// Names in a store are anybody's: a terminal is not to obey them, and no program is to stumble over them.
#[test]
fn odd_names_are_shown_and_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_of("none", dir.path());
    let folder = store.join("v2");
    for name in [
        "Full-\u{1b}[2J\u{9b}31m-\u{202e}x",
        "Full-00000000-00000056-1796004709.\u{1b}]0;owned\u{7}",
        "Incr-43-9223372036854775807-1796004709.gz",
        "Incr-00000043-9223370937343148031-1796004709.gz",
        "Full-00000000-9223370937343148031-1796004709.gz",
        "Manifest-Full-\u{8}-9-9-9",
    ] {
        fs::write(folder.join(name), [7; 100]).unwrap();
    }
    let temp = dir.path().join("temp");
    let target = dir.path().join("target");
    fs::create_dir(&target).unwrap();
    let from = [
        "--source-store-provider=Local",
        "--source-store-container",
        store.to_str().unwrap(),
    ];
    for format in ["table", "json"] {
        let ran = [
            on(&store, "list", &["-o", format]),
            on(&store, "verify", &["--all", "-o", format]),
            on(&store, "explain", &["-o", format]),
            on(
                &store,
                "compact",
                &["--temp-dir", temp.to_str().unwrap(), "-o", format],
            ),
            on(&target, "copy", &[&from[..], &["-o", format]].concat()),
            restore(&store, &dir.path().join("restored"), &["-o", format]),
            restore(&store, &dir.path().join("around"), &["--fallback", "-o", format]),
        ];
        for ran in ran {
            assert!(
                (0..=3).contains(&ran.code) && !ran.err.contains("panicked"),
                "{ran:?}"
            );
            let said = [ran.out.as_str(), &ran.err].concat();
            assert!(
                said.chars()
                    .all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'),
                "{said:?}"
            );
        }
    }
    on(&store, "list", &[]).ok().says(&["\\u001b[2J"]);
}

/// A directory in use is not written to, and one with content is left as it is.
#[test]
fn what_is_there_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("default.etcd");
    let none = cases::case("none");
    restore(&none.store(), &data_dir, &[]).ok();
    restore(&none.store(), &data_dir, &[])
        .exits(1)
        .says(&["not empty"]);
    assert!(dump(&data_dir) == none.expected());
    let file = fs::File::open(data_dir.join("member/snap/db")).unwrap();
    file.lock().unwrap();
    let in_use = ["dump", "--data-dir", data_dir.to_str().unwrap()];
    run(in_use).exits(1).says(&["is in use"]);
}

/// The database of a data directory has no hash: it is restored when somebody says so, after a full check.
#[test]
fn a_bare_database_is_restored_with_consent() {
    let dir = tempfile::tempdir().unwrap();
    let none = cases::case("none");
    let (first, again) = (dir.path().join("first"), dir.path().join("again"));
    restore(&none.store(), &first, &[]).ok();
    let db = first.join("member/snap/db");
    let from = [
        "restore",
        "--db",
        db.to_str().unwrap(),
        "--data-dir",
        again.to_str().unwrap(),
    ];
    run(from).exits(3).says(&["--skip-hash-check"]);
    let with = [&from[..], &["--skip-hash-check"]].concat();
    let file = fs::File::open(&db).unwrap();
    file.lock().unwrap();
    run(&with).exits(1).says(&["is in use"]);
    drop(file);
    let done = run(&with).ok();
    done.says(&["at revision 55", "there is no SHA-256 to compare the data with"]);
    assert!(dump(&again) == none.expected());
    let mut bytes = fs::read(&db).unwrap();
    let leaf = bytes.len() - 4096;
    bytes[leaf..].fill(0);
    fs::write(&db, bytes).unwrap();
    fs::remove_dir_all(&again).unwrap();
    run(&with).exits(3).says(&["database is damaged"]);
    assert!(!again.exists());
    run(["restore", "--data-dir", "x", "--db", "x", "--revision", "3"]).exits(2);
}

#[test]
fn a_damaged_database_is_not_dumped_as_if_it_were_whole() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    fs::write(&db, vec![7; 64 << 10]).unwrap();
    run(["dump", "--db", db.to_str().unwrap()]).exits(3);
    run(["dump", "--db", "/nonexistent"]).exits(1);
}

/// The state at a revision, at a time and at the end of a snapshot, as the chain tells it.
#[test]
fn any_state_of_a_chain_can_be_had() {
    let dir = tempfile::tempdir().unwrap();
    let store = made::chain(dir.path(), 3, 10, 100);
    let rfc3339 = |second: i64| {
        jiff::Timestamp::from_second(made::BEGIN + second)
            .unwrap()
            .to_string()
    };
    let delta = format!("Incr-00000012-00000021-{}.gz", made::BEGIN + 22);
    for (args, revision, snapshots) in [
        (vec![], 31, 4),
        (vec!["--revision".to_owned(), "17".to_owned()], 17, 3),
        (vec!["--time".to_owned(), rfc3339(17)], 17, 3),
        // The second in which the first delta was stored: the next one tells what it didn't see.
        (vec!["--time".to_owned(), rfc3339(12)], 12, 3),
        (vec!["--time".to_owned(), rfc3339(10_000)], 31, 4),
        (vec!["--snapshot".to_owned(), delta], 21, 3),
    ] {
        let data_dir = dir.path().join("restored");
        let args: Vec<&str> = args.iter().map(String::as_str).chain(["-o", "json"]).collect();
        let done = restore(&store, &data_dir, &args).ok().json();
        assert_eq!(done["revision"], revision, "{args:?}");
        assert_eq!(done["snapshots"].as_array().unwrap().len(), snapshots, "{args:?}");
        assert_eq!(
            dump(&data_dir).lines().count(),
            usize::try_from(revision).unwrap() - 1
        );
        fs::remove_dir_all(data_dir).unwrap();
    }
}

/// A compacted chain has the newest record of every key, and nothing is lost by it.
#[test]
fn compaction_keeps_what_is_alive() {
    let dir = tempfile::tempdir().unwrap();
    let case = cases::case("gzip-basic");
    let store = store_of("gzip-basic", dir.path());
    let temp = dir.path().join("temp");
    let compact = [
        "--temp-dir",
        temp.to_str().unwrap(),
        "--compression",
        "zlib",
        "-o",
        "json",
    ];
    let done = on(&store, "compact", &compact).ok().json();
    let name = done["snapshot"]["name"].as_str().unwrap();
    assert!(
        name.starts_with("Full-00000000-00000057-")
            && name.rsplit_once('.').is_some_and(|(_, end)| end == "zlib"),
        "{name}"
    );
    let data_dir = dir.path().join("restored");
    let restored = restore(&store, &data_dir, &["-o", "json"]).ok().json();
    assert_eq!(restored["snapshots"], serde_json::json!([name]));
    let live = |dump: &str| crate::fixtures::live_keys(dump);
    assert_eq!(live(&dump(&data_dir)), live(&case.expected()));
    assert!(
        fs::read_dir(&temp).unwrap().next().is_none(),
        "the temporary file is gone"
    );
}

/// What is damaged at the source doesn't arrive, and the exit code tells that it was the source.
#[test]
fn a_copy_of_damaged_backups_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let source = cases::case("truncated-delta").store();
    let from = ["--source-store-provider=Local", "--source-store-container"];
    let from = [&from[..], &[source.to_str().unwrap()]].concat();
    let copied = on(dir.path(), "copy", &from).exits(3);
    copied.says(&[
        "1 of 3 snapshots could not be copied",
        "Incr-00000014-00000020-1796004717.gz",
    ]);
    let listed = on(dir.path(), "list", &["-o", "json"]).ok().json();
    assert_eq!(listed["snapshots"].as_array().unwrap().len(), 2);

    let wait = [
        "--wait-for-final-snapshot",
        "--wait-for-final-snapshot-timeout",
        "1ms",
    ];
    let refused = on(dir.path(), "copy", &[&from[..], &wait].concat()).exits(1);
    refused.says(&["no final snapshot"]);
}

#[test]
fn people_get_tables() {
    let dir = tempfile::tempdir().unwrap();
    let store = cases::case("final").store();
    let list = on(&store, "list", &[]).ok();
    assert!(list.out.starts_with("NAME  "), "{}", list.out);
    list.says(&["Full-00000000-00000020-1796004627.gz.final", "final"]);
    on(&store, "verify", &[])
        .ok()
        .says(&["the newest state can be restored, revision 20"]);
    let data_dir = dir.path().join("restored");
    restore(&store, &data_dir, &[]).ok().says(&["at revision 20"]);
    let table = ["dump", "-o", "table", "--data-dir", data_dir.to_str().unwrap()];
    let table = run(table).ok();
    assert_eq!(table.out.lines().count(), 28);
    table.says(&["REVISION", "deleted"]);
    let limited = ["--garbage-collection-policy", "LimitBased", "--max-backups", "1"];
    let explain = on(&store, "explain", &limited).ok();
    explain.says(&[
        "Full-00000000-00000010-1796004626.gz",
        "delete",
        "beyond the number of full snapshots to keep",
    ]);
}
