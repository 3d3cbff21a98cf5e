//! What etcd-backup-restore and etcd's own tools rely on in a chain, checked by readers that share nothing with the
//! engine's.

use std::{
    fs::{self, File},
    io::Read as _,
    path::Path,
    process::Command,
};

use base64_simd::STANDARD;
use etcd_storage::schema::Minor;
use flate2::read::MultiGzDecoder;
use jiff::Timestamp;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::{
    live::history,
    made::files,
    program::on,
    server::{Etcd, Place, binaries},
    source::snapshot,
};

/// Start and last revision by the name, which has four parts and a suffix, numbers of eight digits and more.
fn revisions(name: &str, kind: &str) -> (i64, i64) {
    let parts: Vec<&str> = name.strip_suffix(".gz").unwrap().split('-').collect();
    let [found, start, last, time] = parts[..] else {
        panic!("{name}")
    };
    assert_eq!(found, kind, "{name}");
    assert!(time.len() == 10 && time.parse::<u64>().is_ok(), "{name}");
    let number = |text: &str| {
        let number: i64 = text.parse().unwrap();
        assert_eq!(format!("{number:08}"), text, "{name}");
        number
    };
    (number(start), number(last))
}

/// The content of an object without the SHA-256 at its end, which fits.
fn content(object: &Path) -> Vec<u8> {
    let mut content = Vec::new();
    MultiGzDecoder::new(File::open(object).unwrap())
        .read_to_end(&mut content)
        .unwrap();
    let hash = content.split_off(content.len() - 32);
    assert_eq!(Sha256::digest(&content)[..], hash, "{}", object.display());
    content
}

/// A bbolt database of whole sectors which etcd's tools take for a snapshot, at the revision that its name tells.
fn is_full(object: &Path, last: i64) {
    let db = content(object);
    assert_eq!(db.len() % 512, 0);
    assert_eq!(db[16..20], 0xED0C_DAED_u32.to_le_bytes());
    let file = object.with_extension("db");
    let hash = Sha256::digest(&db);
    fs::write(&file, [&db, &hash[..]].concat()).unwrap();
    for minor in Minor::ALL {
        let etcdutl = |args: &[&str]| {
            let done = Command::new(binaries(minor).join("etcdutl"))
                .args(args)
                .arg(&file)
                .output()
                .unwrap();
            assert!(done.status.success(), "{minor}: {done:?}");
            String::from_utf8(done.stdout).unwrap()
        };
        let status: Value =
            serde_json::from_str(&etcdutl(&["snapshot", "status", "--write-out", "json"])).unwrap();
        // The tool tells the last record's revision, and an etcd without records is at revision 1.
        assert_eq!(status["revision"], if last == 1 { 0 } else { last }, "{minor}");
        let restored = tempfile::tempdir().unwrap();
        let data_dir = restored.path().join("default.etcd");
        etcdutl(&["snapshot", "restore", "--data-dir", data_dir.to_str().unwrap()]);
    }
    fs::remove_file(file).unwrap();
}

/// JSON as Go's encoder writes it and Go's decoder wants it, of all revisions from `start` to `last`, none of them split.
fn is_delta(object: &Path, start: i64, last: i64) {
    let events: Vec<Value> = serde_json::from_slice(&content(object)).unwrap();
    let revisions: Vec<i64> = events.iter().map(|event| is_event(fields(event))).collect();
    assert_eq!(revisions.first(), Some(&start));
    assert_eq!(revisions.last(), Some(&last));
    assert!(
        revisions
            .windows(2)
            .all(|pair| (0..2).contains(&(pair[1] - pair[0]))),
        "{revisions:?}"
    );
}

fn fields(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap()
}

/// Checks one event and tells its revision.
fn is_event(event: &Map<String, Value>) -> i64 {
    event["time"].as_str().unwrap().parse::<Timestamp>().unwrap();
    let inner = fields(&event["etcdEvent"]);
    let pair = fields(&inner["kv"]);
    let only = |fields: &Map<String, Value>, known: &[&str]| {
        let unknown: Vec<&String> = fields
            .keys()
            .filter(|name| !known.contains(&name.as_str()))
            .collect();
        assert!(unknown.is_empty(), "{event:?}");
    };
    // What is ours stands beside what the other reads, which ignores it.
    only(event, &["etcdEvent", "time", "leaseTTL"]);
    only(inner, &["type", "kv"]);
    assert!(inner.get("type").is_none_or(|kind| *kind == 1), "{event:?}");
    if inner.contains_key("type") {
        only(pair, &["key", "mod_revision"]);
    } else {
        only(
            pair,
            &[
                "key",
                "create_revision",
                "mod_revision",
                "version",
                "value",
                "lease",
            ],
        );
        assert!(pair.contains_key("create_revision") && pair.contains_key("version"));
    }
    for (name, value) in pair {
        let fits = match name.as_str() {
            "key" | "value" => value
                .as_str()
                .is_some_and(|text| !text.is_empty() && STANDARD.check(text.as_bytes()).is_ok()),
            // 64-bit numbers, and none that Go leaves out.
            _ => value.as_i64().is_some_and(|number| number > 0),
        };
        assert!(fits, "{name} of {event:?}");
    }
    let has_ttl = event.get("leaseTTL").is_some();
    assert!(!has_ttl || pair.contains_key("lease"), "{event:?}");
    pair["mod_revision"].as_i64().unwrap()
}

#[test]
fn etcd_chain_is_as_others_want_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let mut etcd = Etcd::start(Minor::V3_5, &dir.path().join("source"), &Place::new("source"));
    let names = history(&mut etcd, &store);
    let temp = dir.path().join("temp");
    on(&store, "compact", &["--temp-dir", temp.to_str().unwrap()]).ok();
    etcd.put("/after", b"compaction", 0);
    snapshot(&etcd, &store, &["--compression", "gzip"]).ok();
    etcd.stop();

    let object = |name: &str| store.join("v2").join(name);
    let (start, mut end) = revisions(&names[0], "Full");
    assert_eq!(start, 0);
    is_full(&object(&names[0]), end);
    for name in &names[1..] {
        let (start, last) = revisions(name, "Incr");
        // The first one may begin beneath the full snapshot: what that has is passed over.
        assert!(start <= end + 1 && last > end, "{name}");
        is_delta(&object(name), start, last);
        end = last;
    }
    // The other full snapshots: the first of all, the compacted one and the one by command.
    let stored: Vec<String> = files(&store)
        .iter()
        .map(|file| file.strip_prefix(&store).unwrap().to_str().unwrap().to_owned())
        .collect();
    let others: Vec<&str> = stored
        .iter()
        .map(|path| path.strip_prefix("v2/").unwrap())
        .filter(|name| !names.iter().any(|known| known == name))
        .collect();
    // Who reads a name of four fields as a snapshot's passes over manifests.
    let (manifests, others): (Vec<_>, Vec<_>) = others
        .into_iter()
        .partition(|name| name.starts_with("Manifest-") && name.split('-').count() == 5);
    assert_eq!((manifests.len(), others.len()), (2, 3), "{stored:?}");
    for name in others {
        is_full(&object(name), revisions(name, "Full").1);
    }
}
