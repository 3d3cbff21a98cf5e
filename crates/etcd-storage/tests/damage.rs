//! Bytes of backups are flipped, cut and dropped at random: the answer is the right result or an error, never a
//! wrong result.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "in a test that is how an error is shown"
)]

mod common;

use std::fs;
use std::io::{Cursor, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use common::dice::{Dice, damage};
use common::{Case, Stored, cases, plan, restore_to};
use etcd_storage::bolt::Db;
use etcd_storage::object::{Chain, Object};
use etcd_storage::{compact, dump};

/// Tries for each chain.
const TRIES: u64 = 500;

fn with_bytes(stored: &Stored, bytes: &Arc<Vec<u8>>) -> Object {
    let bytes = Arc::clone(bytes);
    let open = Box::new(move || Ok(Box::new(Cursor::new(bytes.to_vec())) as Box<dyn Read + Send>));
    Object {
        open,
        ..stored.object()
    }
}

fn dumped(db: &Path) -> String {
    let mut lines = Vec::new();
    dump::dump(&Db::open(db).unwrap(), &mut lines).unwrap();
    String::from_utf8(lines).unwrap()
}

fn damaged_chains(case: &Case, seed: u64) {
    let objects = case.objects();
    let expected = case.expected();
    let dir = tempfile::tempdir().unwrap();
    let contents: Vec<_> = objects
        .iter()
        .map(|object| Arc::new(fs::read(&object.path).unwrap()))
        .collect();
    let mut dice = Dice(seed);
    let mut refused = 0;
    for attempt in 0..TRIES {
        let Chain { mut base, mut deltas } = plan(&objects, None).unwrap();
        let chosen = dice.below(deltas.len() + 1);
        let victim = if chosen == 0 {
            &mut base
        } else {
            &mut deltas[chosen - 1]
        };
        let index = objects
            .iter()
            .position(|object| object.name == victim.name)
            .unwrap();
        let mut bytes = contents[index].to_vec();
        let what = damage(&mut bytes, &mut dice);
        *victim = with_bytes(&objects[index], &Arc::new(bytes));
        let victim = &objects[index].name;
        let chain = Chain { base, deltas };
        let data_dir = dir.path().join(format!("{attempt}"));
        match restore_to(&chain, &data_dir) {
            Ok(_) => {
                let same = dumped(&data_dir.join("member/snap/db")) == expected;
                assert!(
                    same,
                    "{}, seed {seed}, try {attempt}: {victim}: {what}",
                    case.name()
                );
                fs::remove_dir_all(&data_dir).unwrap();
            }
            Err(error) => {
                assert!(!data_dir.exists());
                assert_eq!(
                    error.object(),
                    Some(victim.as_str()),
                    "{}: {what}: {error}",
                    case.name()
                );
                refused += 1;
            }
        }
    }
    assert!(
        fs::read_dir(dir.path()).unwrap().next().is_none(),
        "nothing is left behind"
    );
    assert!(
        refused > TRIES / 2,
        "{}: damage was hardly ever seen",
        case.name()
    );
}

#[test]
fn damage_never_makes_a_wrong_result() {
    for (seed, case) in (1..).zip(cases()) {
        if case.fact("outcome") == "ok" {
            damaged_chains(&case, seed * 0x9e37_79b9);
        }
    }
}

/// What a compaction writes before it fails must not pass for a snapshot.
#[test]
fn a_failed_compaction_is_no_snapshot() {
    let case = common::case("truncated-delta");
    let dir = tempfile::tempdir().unwrap();
    let options = compact::Options {
        work_dir: dir.path().to_owned(),
        revision: None,
        drop_last_tombstone: false,
    };
    let mut out = Vec::new();
    let chain = plan(&case.objects(), None).unwrap();
    compact::compact(&chain, &options, &mut out, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(out.is_empty());
    assert!(
        fs::read_dir(dir.path()).unwrap().next().is_none(),
        "nothing is left behind"
    );
}
