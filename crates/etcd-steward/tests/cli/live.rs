//! Chains of a live etcd, taken as the sidecar takes them: whole ones are restored exactly, and what may go wrong with
//! one is told, or makes no difference.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use etcd_storage::schema::Minor;
use flate2::{read::MultiGzDecoder, write::GzEncoder};
use serde_json::{Value, json};
use snapstore::Kind;

use crate::{
    cases,
    etcd::{keys, keys_of, restore_for},
    made::copy_of,
    program::{dump, on, restore},
    server::{Etcd, Place, binaries, put_request},
    source::{Source, snapshot},
};

/// Leases of [`history`]: one that is there before all deltas, one that isn't, one that is taken back, one that expires.
const OLD: i64 = i64::MAX - 1;
const NEW: i64 = 22;
const REVOKED: i64 = 23;
const EXPIRED: i64 = 24;

/// A full snapshot and deltas of everything that may happen to a key.
pub(crate) fn history(etcd: &mut Etcd, store: &Path) -> Vec<String> {
    etcd.grant(OLD, 1000);
    let source = Source::of(etcd, store);
    etcd.put("/lease/old", b"1", OLD);
    let mut names = vec![source.take(Kind::Full)];
    for n in 0..40 {
        etcd.put(&format!("/k/{}", n % 7), vec![b'v'; n * 70].as_slice(), 0);
    }
    etcd.grant(NEW, 2000);
    etcd.grant(REVOKED, 3000);
    etcd.grant(EXPIRED, 1);
    etcd.put("/lease/new", b"1", NEW);
    etcd.put("/lease/revoked", b"1", REVOKED);
    etcd.put("/lease/expired", b"1", EXPIRED);
    etcd.put("/lease/moved", b"1", EXPIRED);
    etcd.put("/lease/moved", b"2", NEW);
    names.push(source.take(Kind::Delta));
    let put = |n: usize| json!({"request_put": put_request(&format!("/k/{n}"), &[b'w'; 3000], 0)});
    etcd.txn(&(5..90).map(put).collect::<Vec<_>>());
    etcd.delete("/k/2", "/k/4");
    etcd.revoke(REVOKED);
    let waited = Instant::now();
    while etcd.value("/lease/expired").is_some() {
        assert!(
            waited.elapsed() < Duration::from_mins(1),
            "a lease doesn't expire"
        );
        thread::sleep(Duration::from_millis(100));
    }
    names.push(source.take(Kind::Delta));
    etcd.put("/k/2", b"", OLD);
    names.push(source.take(Kind::Delta));
    names
}

/// DEL-11: leases stay with their keys, and what a lease took along stays gone.
#[test]
fn etcd_chain_of_each_minor_is_restored_exactly() {
    for minor in Minor::ALL {
        let dir = tempfile::tempdir().unwrap();
        let (source, store) = (dir.path().join("source"), dir.path().join("store"));
        let place = Place::new("source");
        let mut etcd = Etcd::start(minor, &source, &place);
        history(&mut etcd, &store);
        let (hash, revision, _) = etcd.hash_kv();
        etcd.stop();

        on(&store, "verify", &["--all"]).ok();
        let data_dir = dir.path().join("restored");
        let done = restore_for(minor, &place, &store, &data_dir, &["-o", "json"])
            .ok()
            .json();
        assert_eq!(done["revision"], revision, "{minor}");
        assert_eq!(
            done["leases"],
            json!({"kept": 1, "created": 1, "unknown": [], "unknownCount": 0}),
            "{minor}"
        );
        assert!(dump(&data_dir) == dump(&source), "{minor}: records differ");
        let mut etcd = Etcd::start(minor, &data_dir, &place);
        assert_eq!(etcd.hash_kv().0, hash, "{minor}");
        // What has no keys any more isn't brought back.
        assert_eq!(etcd.leases(), [(NEW, 2000), (OLD, 1000)], "{minor}");
        etcd.revoke(NEW);
        assert_eq!(etcd.value("/lease/moved"), None, "{minor}");
        assert_eq!(etcd.value("/lease/old"), Some(b"1".to_vec()), "{minor}");
    }
}

/// At 100 million the names grow wider, and their order as text is no more that of what they hold.
#[test]
fn etcd_beyond_eight_digits_is_restored_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let (source, store) = (dir.path().join("source"), dir.path().join("store"));
    let place = Place::new("source");
    raised_by_etcdutl(99_999_959, &source, &place);
    let mut etcd = Etcd::start(Minor::V3_6, &source, &place);
    let revision = etcd.put("/k", b"v", 0);
    compact(&mut etcd, revision);
    let backups = Source::of(&etcd, &store);
    let mut names = Vec::new();
    for kind in [Kind::Delta, Kind::Delta, Kind::Full, Kind::Delta] {
        for _ in 0..6 {
            etcd.put("/k", b"v", 0);
        }
        names.push(backups.take(kind));
    }
    drop(backups);
    etcd.stop();
    let starts = [
        "Incr-99999991-99999996-",
        "Incr-99999997-100000002-",
        "Full-00000000-100000008-",
        // Deltas go on beneath a full snapshot, so that the chain before it stays whole.
        "Incr-100000003-100000014-",
    ];
    for (name, start) in names.iter().zip(starts) {
        assert!(name.starts_with(start), "{name}");
    }
    let data_dir = dir.path().join("restored");
    for last in [None, names.get(1)] {
        let args: Vec<&str> = last.iter().flat_map(|name| ["--snapshot", name]).collect();
        restore(&store, &data_dir, &args).ok();
        let whole = dump(&source);
        let expected: Vec<&str> = match last {
            None => whole.lines().collect(),
            Some(_) => whole
                .lines()
                .filter(|line| revision_of(line) <= 100_000_002)
                .collect(),
        };
        assert_eq!(dump(&data_dir).lines().collect::<Vec<_>>(), expected);
        fs::remove_dir_all(&data_dir).unwrap();
    }
}

fn revision_of(line: &str) -> i64 {
    serde_json::from_str::<Value>(line).unwrap()["rev"]
        .as_i64()
        .unwrap()
}

/// Makes a data directory at a high revision by etcd's own tool.
fn raised_by_etcdutl(by: u64, data_dir: &Path, place: &Place) {
    let folder = cases::case("none").store().join("v2");
    let mut full = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let full = full.find(|path| path.to_str().unwrap().contains("Full-"));
    let restored = Command::new(binaries(Minor::V3_6).join("etcdutl"))
        .args(["snapshot", "restore"])
        .arg(full.unwrap())
        .arg("--data-dir")
        .arg(data_dir)
        .args(["--bump-revision", &by.to_string(), "--mark-compacted"])
        .args(["--name", &place.name, "--initial-cluster-token", "test-token"])
        .args([
            "--initial-cluster",
            &format!("{}={}", place.name, place.peer_url()),
        ])
        .args(["--initial-advertise-peer-urls", &place.peer_url()])
        .output()
        .unwrap();
    assert!(restored.status.success(), "{restored:?}");
}

fn compact(etcd: &mut Etcd, revision: i64) {
    let request = json!({"revision": revision.to_string(), "physical": true});
    etcd.post("/v3/kv/compaction", &request);
}

/// RES-11: the revision doesn't go back for those who watch: a watch from before the restore is cancelled as compacted.
#[test]
fn res_11_a_raised_revision_cancels_watches_from_before() {
    let dir = tempfile::tempdir().unwrap();
    let (source, store) = (dir.path().join("source"), dir.path().join("store"));
    let place = Place::new("source");
    let mut etcd = Etcd::start(Minor::V3_6, &source, &place);
    let backups = Source::of(&etcd, &store);
    let mut seen = 0;
    while seen < 110 {
        seen = etcd.put("/k", b"v", 0);
    }
    backups.take(Kind::Delta);
    drop(backups);
    etcd.stop();
    let data_dir = dir.path().join("restored");
    let back = ["--revision", "80", "--bump-revision", "1000"];
    restore_for(Minor::V3_6, &place, &store, &data_dir, &back).ok();
    let mut etcd = Etcd::start(Minor::V3_6, &data_dir, &place);
    assert!(etcd.put("/k", b"after", 0) > seen + 900);
    let watched = Command::new("timeout")
        .arg("20")
        .arg(binaries(Minor::V3_6).join("etcdctl"))
        .args(["--endpoints", &etcd.endpoint(), "watch", "/k", "--rev"])
        .arg((seen + 1).to_string())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&watched.stderr);
    assert!(told.contains("compacted"), "{}: {told}", watched.status);
}

/// Users, roles and the switch itself: who had no access has none afterwards.
#[test]
fn etcd_with_auth_keeps_its_users() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    fs::create_dir(&store).unwrap();
    let place = Place::new("source");
    for minor in Minor::ALL {
        let mut etcd = Etcd::start(minor, &dir.path().join(format!("source-{minor}")), &place);
        for args in [
            &["user", "add", "root:secret"][..],
            &["user", "grant-role", "root", "root"],
            &["user", "add", "reader:words"],
            &["role", "add", "reading"],
            &["role", "grant-permission", "reading", "read", "/open/", "/open0"],
            &["user", "grant-role", "reader", "reading"],
            &["put", "/open/k", "v"],
            &["put", "/closed/k", "v"],
            &["auth", "enable"],
        ] {
            etcd.etcdctl(args);
        }
        snapshot(&etcd, &store, &[]).exits(1);
        etcd.user = Some("root:secret");
        snapshot(&etcd, &store, &[]).ok();
        etcd.stop();

        let data_dir = dir.path().join(format!("restored-{minor}"));
        restore_for(minor, &place, &store, &data_dir, &[]).ok();
        let mut etcd = Etcd::spawn(minor, &data_dir, &place, std::slice::from_ref(&place));
        etcd.wait_as("root:secret");
        assert_eq!(etcd.etcdctl(&["user", "list"]), "reader\nroot\n", "{minor}");
        etcd.user = Some("reader:words");
        assert_eq!(etcd.etcdctl(&["get", "/open/k", "--print-value-only"]), "v\n");
        let (permitted, told) = etcd.try_etcdctl(&["get", "/closed/k"]);
        assert!(
            !permitted && told.contains("permission denied"),
            "{minor}: {told}"
        );
        etcd.user = Some("reader:wrong");
        assert!(!etcd.try_etcdctl(&["get", "/open/k"]).0, "{minor}");
        etcd.stop();
        fs::remove_dir_all(&store).unwrap();
        fs::create_dir(&store).unwrap();
    }
}

/// The chain that the following cases damage: two fulls, deltas from the first on over the second.
struct Chain {
    dir: tempfile::TempDir,
    /// First full, three deltas, second full, delta.
    names: [String; 6],
    expected: String,
}

impl Chain {
    fn of_etcd_3_7() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (source, store) = (dir.path().join("source"), dir.path().join("store"));
        let mut etcd = Etcd::start(Minor::V3_7, &source, &Place::new("source"));
        let backups = Source::of(&etcd, &store);
        let mut delta = || {
            for n in 0..5 {
                etcd.put(&format!("/k/{n}"), vec![b'v'; n * 1000].as_slice(), 0);
            }
            backups.take(Kind::Delta)
        };
        let names = [
            backups.full(),
            delta(),
            delta(),
            delta(),
            backups.take(Kind::Full),
            delta(),
        ];
        drop(backups);
        etcd.stop();
        let expected = dump(&source);
        Self { dir, names, expected }
    }

    /// A copy to be damaged.
    fn copy(&self, name: &str) -> PathBuf {
        let copy = self.dir.path().join(name);
        copy_of(&self.dir.path().join("store"), &copy);
        copy
    }

    fn expected_to(&self, end: i64) -> String {
        let lines = self.expected.lines().filter(|line| revision_of(line) <= end);
        lines.flat_map(|line| [line, "\n"]).collect()
    }
}

/// Changes a byte of what is compressed in an object, which stays a good stream.
fn falsify(object: &Path) {
    let mut content = Vec::new();
    MultiGzDecoder::new(File::open(object).unwrap())
        .read_to_end(&mut content)
        .unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    let mut encoder = GzEncoder::new(File::create(object).unwrap(), flate2::Compression::default());
    encoder.write_all(&content).unwrap();
    encoder.finish().unwrap();
}

fn cut(object: &Path) {
    let file = File::options().write(true).open(object).unwrap();
    file.set_len(file.metadata().unwrap().len() * 2 / 3).unwrap();
}

fn remove(object: &Path) {
    fs::remove_file(object).unwrap();
}

fn rename(object: &Path) {
    fs::rename(object, object.with_extension("xz")).unwrap();
}

/// What is done to which objects of the chain; the object that is named; what is missing, and lost by falling back.
type Row = (
    &'static str,
    &'static [(fn(&Path), usize)],
    Option<usize>,
    Option<(i64, i64)>,
    Option<(i64, i64)>,
);

/// Damage that must be told, by the object at fault and the revisions that are missing without it. Where none are, it is
/// restored from the others. The chain ends at revision 21, with the full snapshots at 1 and 16.
const DAMAGED: [Row; 9] = [
    ("false-full", &[(falsify, 4)], Some(4), None, None),
    ("cut-full", &[(cut, 4)], Some(4), None, None),
    ("unknown-full", &[(rename, 4)], Some(4), None, None),
    (
        "false-delta",
        &[(falsify, 5)],
        Some(5),
        Some((17, 21)),
        Some((17, 21)),
    ),
    ("cut-delta", &[(cut, 5)], Some(5), Some((17, 21)), Some((17, 21))),
    (
        "unknown-delta",
        &[(rename, 5)],
        Some(5),
        Some((17, 21)),
        Some((17, 21)),
    ),
    (
        "hole-behind-false-full",
        &[(falsify, 4), (remove, 2)],
        Some(4),
        Some((7, 11)),
        Some((7, 21)),
    ),
    (
        "hole-behind-cut-full",
        &[(cut, 4), (remove, 3)],
        Some(4),
        Some((12, 16)),
        Some((12, 21)),
    ),
    (
        "both-fulls",
        &[(falsify, 4), (cut, 0)],
        Some(4),
        Some((1, 1)),
        None,
    ),
];

/// DEL-10, RES-10: see [`DAMAGED`].
#[test]
fn etcd_chain_with_damage_is_refused_by_name() {
    let chain = Chain::of_etcd_3_7();
    let untouched = chain.dir.path().join("untouched");
    restore(&chain.dir.path().join("store"), &untouched, &[]).ok();
    assert!(dump(&untouched) == chain.expected);
    for (case, faults, object, missing, lost) in DAMAGED {
        let store = chain.copy(case);
        for (fault, index) in faults {
            fault(&store.join("v2").join(&chain.names[*index]));
        }
        let renamed = |name: &String| {
            if case.starts_with("unknown") {
                name.replace(".gz", ".xz")
            } else {
                name.clone()
            }
        };
        let range = |range: Option<(i64, i64)>| range.map(|(from, to)| json!({"from": from, "to": to}));
        let data_dir = chain.dir.path().join(case).join("restored");
        let named = object.map(|index| renamed(&chain.names[index]));
        let restored = restore(&store, &data_dir, &["-o", "json"]);
        if missing.is_none() {
            // The others have all revisions: nothing is lost without it.
            let done = restored.ok().json();
            assert_eq!(done["leftOut"][0]["object"], json!(named), "{case}");
            assert_eq!(done["lost"], json!(null), "{case}");
            assert!(dump(&data_dir) == chain.expected, "{case}: records differ");
            continue;
        }
        let damage = &restored.exits(3).json()["error"]["damage"];
        assert_eq!(damage["object"], json!(named), "{case}");
        assert_eq!(damage["missing"], json!(range(missing)), "{case}");
        assert!(!data_dir.exists(), "{case}");

        let around = restore(&store, &data_dir, &["--fallback", "-o", "json"]);
        if case == "both-fulls" {
            // That the other one is bad as well is only found when it is read.
            let damage = &around.exits(3).json()["error"]["damage"];
            assert_eq!(damage["missing"], json!({"from": 1, "to": 1}));
            assert!(!data_dir.exists(), "{case}");
            continue;
        }
        let done = around.ok().json();
        assert_eq!(done["lost"], json!(range(lost)), "{case}");
        let end = lost.map_or(i64::MAX, |(from, _)| from - 1);
        assert!(
            dump(&data_dir) == chain.expected_to(end),
            "{case}: records differ"
        );
    }
}

/// What is beside a chain makes no difference, whatever its name.
#[test]
fn etcd_chain_among_leftovers_is_restored_exactly() {
    let chain = Chain::of_etcd_3_7();
    let store = chain.copy("leftovers");
    let full = store.join("v2/Full-00000000-00000040-1900000000.gz");
    fs::create_dir(&full).unwrap();
    for number in 1..4 {
        fs::write(full.join(format!("{number:010}")), "a part").unwrap();
    }
    for name in ["Chunk-00000000-00000041-1900000001", "notes"] {
        fs::write(store.join("v2").join(name), "something else").unwrap();
    }
    let data_dir = chain.dir.path().join("restored");
    let listed = on(&store, "list", &["-o", "json"]).ok().json();
    let count = |what: &str| listed[what].as_array().unwrap().len();
    assert_eq!((count("snapshots"), count("chunks"), count("unknown")), (6, 3, 2));
    restore(&store, &data_dir, &[]).ok();
    assert!(dump(&data_dir) == chain.expected);
}

/// The last snapshot of a cluster, without compression, after others.
#[test]
fn etcd_final_snapshot_without_compression_is_restored_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let (source, store) = (dir.path().join("source"), dir.path().join("store"));
    let place = Place::new("source");
    let mut etcd = Etcd::start(Minor::V3_7, &source, &place);
    drop(Source::of(&etcd, &store));
    for n in 0..10 {
        etcd.put(&format!("/k/{n}"), b"v", 0);
    }
    let last = ["--final", "--compression", "none", "-o", "json"];
    let taken = snapshot(&etcd, &store, &last).ok().json();
    let name = taken["snapshot"]["name"].as_str().unwrap();
    assert!(
        name.starts_with("Full-00000000-00000011-") && name.rsplit_once('.').unwrap().1 == "final",
        "{name}"
    );
    etcd.stop();
    let data_dir = dir.path().join("restored");
    let done = restore_for(Minor::V3_7, &place, &store, &data_dir, &["-o", "json"])
        .ok()
        .json();
    assert_eq!(done["snapshots"], json!([name]));
    let records = dump(&data_dir);
    assert!(records == dump(&source));
    let mut etcd = Etcd::start(Minor::V3_7, &data_dir, &place);
    assert!(keys(&mut etcd) == keys_of(&records));
}
