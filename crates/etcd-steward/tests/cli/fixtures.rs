//! Every case of real backups, by its outcome: what is whole is restored exactly, what is damaged is named.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Value, json};

use crate::{
    cases::{self, Case},
    program::{dump, on, restore},
};

fn assert_restored(case: &Case, data_dir: &Path) {
    assert!(
        dump(data_dir) == case.expected(),
        "{}: records differ",
        case.name()
    );
}

/// Nothing may be left that could be taken for a data directory.
fn assert_nothing_in(folder: &Path, case: &str) {
    let left: Vec<_> = fs::read_dir(folder).unwrap().collect();
    assert!(left.is_empty(), "{case}: {left:?}");
}

/// DEL-01 (`overlap`), DEL-03 and DEL-06 (`large-txn`), DEL-11 (`leases`): chains that others made by hand or had trouble with.
#[test]
fn del_01_del_11_good_backups_are_restored_record_for_record() {
    let cases: Vec<_> = cases::all()
        .into_iter()
        .filter(|case| case.fact("outcome") == "ok")
        .collect();
    assert_eq!(cases.len(), 12);
    for case in cases {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("default.etcd");
        let done = restore(&case.store(), &data_dir, &["-o", "json"]).ok().json();
        assert_eq!(done["revision"].to_string(), case.fact("final-revision"));
        assert_eq!((&done["leftOut"], &done["lost"]), (&json!([]), &Value::Null));
        assert_restored(&case, &data_dir);
        let verified = on(&case.store(), "verify", &["--all", "-o", "json"]).ok().json();
        assert_eq!(
            verified["newest"]["revision"],
            done["revision"],
            "{}",
            case.name()
        );
    }
}

/// Name of the case, the bad object, the missing revisions, and what falling back loses.
type Row = (
    &'static str,
    Option<&'static str>,
    Option<(i64, i64)>,
    Option<Option<(i64, i64)>>,
);

/// DEL-10 (`gap`), RES-10 (`zero-byte-newest-full`): the bad or missing object is named, with what is lost without it, and
/// nothing is done without it unless somebody says so.
#[test]
fn del_10_res_10_damage_is_refused_by_name_and_gone_around_when_told_to() {
    let rows: [Row; 4] = [
        (
            "zero-byte-newest-full",
            Some("Full-00000000-00000022-1796004722.gz"),
            None,
            Some(None),
        ),
        (
            "truncated-delta",
            Some("Incr-00000014-00000020-1796004717.gz"),
            Some((14, 20)),
            Some(Some((14, 25))),
        ),
        ("gap", None, Some((15, 20)), Some(Some((15, 32)))),
        ("deltas-only", None, Some((1, 10)), None),
    ];
    for (name, object, missing, fallback) in rows {
        let case = cases::case(name);
        assert_ne!(case.fact("outcome"), "ok");
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("default.etcd");
        let range = |range: Option<(i64, i64)>| range.map(|(from, to)| json!({"from": from, "to": to}));

        if fallback == Some(None) {
            // Nothing is lost: nobody has to be asked.
            let done = restore(&case.store(), &data_dir, &["-o", "json"]).ok().json();
            assert_eq!(done["lost"], Value::Null, "{name}");
            assert_eq!(done["leftOut"][0]["object"], json!(object), "{name}");
            assert_eq!(
                done["revision"].to_string(),
                case.fact("final-revision"),
                "{name}"
            );
            assert_restored(&case, &data_dir);
            let verified = on(&case.store(), "verify", &[]).exits(3);
            verified.says(&["can be restored, revision 28, without Full-00000000-00000022-1796004722.gz"]);
            continue;
        }
        let refused = restore(&case.store(), &data_dir, &["-o", "json"]).exits(3);
        let error = &refused.json()["error"];
        assert_eq!(error["reason"], "Damaged");
        assert_eq!(error["damage"]["object"], json!(object), "{name}");
        assert_eq!(error["damage"]["missing"], json!(range(missing)), "{name}");
        if let Some((from, to)) = missing {
            let said = refused.says(&[&format!("revisions {from} to {to} are missing")]);
            said.says(object.as_slice());
        }
        assert_nothing_in(dir.path(), name);
        on(&case.store(), "verify", &[]).exits(3);

        let around = restore(&case.store(), &data_dir, &["--fallback", "-o", "json"]);
        let Some(lost) = fallback else {
            around.exits(3);
            assert_nothing_in(dir.path(), name);
            continue;
        };
        assert!(error["message"].as_str().unwrap().contains("--fallback"));
        let done = around.ok().json();
        assert_eq!(done["lost"], json!(range(lost)), "{name}");
        assert_eq!(done["leftOut"][0]["object"], json!(object), "{name}");
        assert_eq!(
            done["revision"].to_string(),
            case.fact("final-revision"),
            "{name}"
        );
        assert_restored(&case, &data_dir);
    }
}

/// The newest record of every key that exists, by its key: everything that etcd tells of it, but the value, of which
/// the hash is here.
pub(crate) fn live_keys(dump: &str) -> BTreeMap<String, Value> {
    let mut live = BTreeMap::new();
    for line in dump.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let key = record["key"].as_str().unwrap().to_owned();
        if record["tombstone"] == true {
            live.remove(&key);
        } else {
            live.insert(key, record);
        }
    }
    live
}

/// DEL-01: two owners at once have left deltas from the same revision on: each revision is taken once.
#[test]
fn del_01_deltas_that_overlap_are_applied_once() {
    let case = cases::case("overlap");
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("default.etcd");
    let done = restore(&case.store(), &data_dir, &["-o", "json"]).ok().json();
    assert_eq!(done["revision"], 20);
    assert_restored(&case, &data_dir);
    // Without either of them it's the same, if the other one covers what it has.
    let store = dir.path().join("store");
    crate::made::copy_of(&case.store(), &store);
    fs::remove_file(store.join("v2/Incr-00000009-00000012-1796004712.gz")).unwrap();
    fs::remove_dir_all(&data_dir).unwrap();
    restore(&store, &data_dir, &[]).ok();
    assert_restored(&case, &data_dir);
}
