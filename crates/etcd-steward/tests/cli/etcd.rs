//! Real etcds start from what the program restored, and serve what was backed up.

use std::{collections::BTreeMap, path::Path};

use base64_simd::STANDARD;
use etcd_storage::schema::Minor;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    cases::{self, Case},
    fixtures::live_keys,
    program::{Ran, on},
    server::{Etcd, Place, number},
};

/// Restores for an etcd of a minor version that is the only member of its cluster.
pub(crate) fn restore_for(minor: Minor, place: &Place, store: &Path, data_dir: &Path, args: &[&str]) -> Ran {
    let (minor, url) = (minor.to_string(), place.peer_url());
    let member = format!("{}={url}", place.name);
    let own = [
        ["--data-dir", data_dir.to_str().unwrap()],
        ["--etcd-version", &minor],
        ["--name", &place.name],
        ["--initial-cluster", &member],
        ["--initial-cluster-token", "test-token"],
        ["--initial-advertise-peer-urls", &url],
    ];
    on(store, "restore", &[own.as_flattened(), args].concat())
}

/// What etcd tells of every key that exists, in the fields of a dump.
pub(crate) fn keys(etcd: &mut Etcd) -> BTreeMap<String, Value> {
    let answer = etcd.post("/v3/kv/range", &json!({"key": "AA==", "range_end": "AA=="}));
    let pairs = answer["kvs"].as_array().into_iter().flatten();
    let record = |pair: &Value| {
        let key = pair["key"].as_str().unwrap().to_owned();
        let value = pair["value"].as_str().unwrap_or_default();
        let record = json!({
            "key": key,
            "create_revision": number(&pair["create_revision"]),
            "mod_revision": number(&pair["mod_revision"]),
            "version": number(&pair["version"]),
            "lease": number(&pair["lease"]),
            "value_sha256": hex::encode(Sha256::digest(STANDARD.decode_to_vec(value).unwrap())),
        });
        (key, record)
    };
    pairs.map(record).collect()
}

/// The same from a dump: what only the database knows is left out.
pub(crate) fn keys_of(dump: &str) -> BTreeMap<String, Value> {
    let mut keys = live_keys(dump);
    for record in keys.values_mut() {
        let fields = record.as_object_mut().unwrap();
        fields.retain(|name, _| !matches!(name.as_str(), "rev" | "sub" | "tombstone"));
    }
    keys
}

/// The minor version that a case was backed up from.
fn source_of(case: &Case) -> Minor {
    if case.name() == "etcd36" {
        Minor::V3_6
    } else {
        Minor::V3_5
    }
}

fn serves(case: &Case, minor: Minor) {
    let name = format!("{} on {minor}", case.name());
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("default.etcd");
    let place = Place::new("t1-0");
    restore_for(minor, &place, &case.store(), &data_dir, &["--fallback"]).ok();
    let mut etcd = Etcd::start(minor, &data_dir, &place);
    assert!(
        keys(&mut etcd) == keys_of(&case.expected()),
        "{name}: keys differ"
    );
    let (hash, revision, _) = etcd.hash_kv();
    assert_eq!(revision.to_string(), case.fact("final-revision"), "{name}");
    if minor == source_of(case) {
        assert_eq!(hash.to_string(), case.fact("hash-kv"), "{name}");
    }
    assert_eq!(etcd.put("after", b"restore", 0), revision + 1, "{name}");
}

fn all_serve(minor: Minor) {
    let restorable = cases::all()
        .into_iter()
        .filter(|case| case.name() != "deltas-only");
    let served = restorable.map(|case| serves(&case, minor)).count();
    assert_eq!(served, 15);
}

#[test]
fn etcd_3_5_serves_what_was_backed_up() {
    all_serve(Minor::V3_5);
}

#[test]
fn etcd_3_6_serves_what_was_backed_up() {
    all_serve(Minor::V3_6);
}

#[test]
fn etcd_3_7_serves_what_was_backed_up() {
    all_serve(Minor::V3_7);
}
