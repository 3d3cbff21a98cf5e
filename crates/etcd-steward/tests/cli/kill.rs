//! The program is killed at random moments: what is there afterwards is whole or is not taken for anything, and running
//! it again finishes the work.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{
    dice::Dice,
    made::{self, files},
    program::{Ran, dump, finish, on, restore, steward},
};

/// Moments at which each command is killed.
const KILLS: u64 = 20;

/// How long a command takes when it is left alone.
fn timed(command: impl FnOnce() -> Ran) -> Duration {
    let begun = Instant::now();
    command().ok();
    begun.elapsed()
}

/// Starts the command and kills it (SIGKILL) after a random part of the time that it takes.
fn killed(mut command: Command, takes: Duration, dice: &mut Dice) {
    let permille = u32::try_from(dice.below(1050)).unwrap();
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    thread::sleep(takes * permille / 1000);
    child.kill().unwrap();
    child.wait().unwrap();
}

fn on_store(command: &str, store: &Path, args: &[&str]) -> Command {
    let store = [
        "--store-provider=Local",
        "--store-container",
        store.to_str().unwrap(),
    ];
    steward([&[command], &store[..], args].concat())
}

#[test]
fn a_killed_restore_leaves_nothing_half_done() {
    let dir = tempfile::tempdir().unwrap();
    let store = made::chain(dir.path(), 4, 2500, 1000);
    let whole = dir.path().join("whole");
    let takes = timed(|| restore(&store, &whole, &[]));
    let expected = dump(&whole);
    let mut dice = Dice(0x5851_f42d_4c95_7f2d);
    let mut unfinished = 0;
    for round in 0..KILLS {
        let data_dir = dir.path().join(format!("{round}"));
        let args = ["--data-dir", data_dir.to_str().unwrap()];
        killed(on_store("restore", &store, &args), takes, &mut dice);
        if !data_dir.exists() {
            unfinished += 1;
            restore(&store, &data_dir, &[]).ok();
        }
        assert!(dump(&data_dir) == expected, "round {round}");
        let part = data_dir.with_extension("part");
        assert!(!part.exists(), "round {round}");
        fs::remove_dir_all(data_dir).unwrap();
    }
    assert!(
        unfinished > KILLS / 3,
        "only {unfinished} were killed early enough"
    );
}

#[test]
fn a_killed_copy_leaves_whole_snapshots_only() {
    let dir = tempfile::tempdir().unwrap();
    let source = made::chain(dir.path(), 6, 2000, 1000);
    let from = [
        "--source-store-provider=Local",
        "--source-store-container",
        source.to_str().unwrap(),
    ];
    let undisturbed = dir.path().join("undisturbed");
    fs::create_dir(&undisturbed).unwrap();
    let takes = timed(|| on(&undisturbed, "copy", &from));
    let mut dice = Dice(0x1405_7b7e_f767_814f);
    let mut unfinished = 0;
    for round in 0..KILLS {
        let target = dir.path().join(format!("{round}"));
        fs::create_dir(&target).unwrap();
        killed(on_store("copy", &target, &from), takes, &mut dice);
        unfinished += u64::from(listed(&target).len() < files(&source).len());
        // What has arrived is what was sent, and can be restored: the full came first.
        let arrived = listed(&target);
        for name in &arrived {
            assert_same(&source, &target, name);
        }
        if !arrived.is_empty() {
            on(&target, "verify", &[]).ok();
        }
        let again = finish(on_store("copy", &target, &[&from[..], &["-o", "json"]].concat())).ok();
        assert_eq!(again.json()["present"], arrived.len());
        let all = listed(&target);
        assert_eq!(all.len(), files(&source).len(), "round {round}");
        for name in &all {
            assert_same(&source, &target, name);
        }
        fs::remove_dir_all(target).unwrap();
    }
    assert!(
        unfinished > KILLS / 3,
        "only {unfinished} were killed early enough"
    );
}

/// Names that the program itself takes for snapshots.
fn listed(store: &Path) -> Vec<String> {
    let listing = on(store, "list", &["-o", "json"]).ok().json();
    let snapshots = listing["snapshots"].as_array().unwrap();
    let name = |snapshot: &serde_json::Value| snapshot["name"].as_str().unwrap().to_owned();
    snapshots.iter().map(name).collect()
}

fn assert_same(source: &Path, target: &Path, name: &str) {
    let read = |store: &Path| fs::read(store.join("v2").join(name)).unwrap();
    assert!(read(source) == read(target), "{name} differs");
}

/// A compaction that was killed has made its snapshot or none.
#[test]
fn a_killed_compaction_leaves_a_whole_snapshot_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = made::chain(dir.path(), 3, 2000, 1000);
    let temp = dir.path().join("temp");
    let args = ["--temp-dir", temp.to_str().unwrap()];
    let takes = {
        let copy = dir.path().join("copy");
        made::copy_of(&store, &copy);
        timed(|| on(&copy, "compact", &args))
    };
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let before = listed(&store);
    for round in 0..KILLS / 2 {
        killed(on_store("compact", &store, &args), takes, &mut dice);
        let made = listed(&store);
        assert!(made.len() <= before.len() + 1, "round {round}: {made:?}");
        on(&store, "verify", &["--all"]).ok();
        for name in made.iter().filter(|name| !before.contains(name)) {
            fs::remove_file(store.join("v2").join(name)).unwrap();
        }
    }
    on(&store, "compact", &args).ok();
    on(&store, "verify", &["--all"]).ok();
}
