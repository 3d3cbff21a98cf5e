//! What a restore or a compaction takes from its machine: memory and disk are bounded, however long the chain.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use crate::{
    made::{self, files},
    program::{dump, on, steward},
};

const MEMORY: u64 = 128 << 20;

/// What a run took at the most, in bytes.
#[derive(Debug, Default)]
struct Peak {
    memory: u64,
    disk: u64,
}

fn disk(folders: &[&Path]) -> u64 {
    let files = folders.iter().flat_map(|folder| files(folder));
    files
        .filter_map(|file| Some(fs::metadata(file).ok()?.len()))
        .sum()
}

/// Runs a command to its good end, and looks at it all the time.
fn watched(mut command: Command, folders: &[&Path]) -> Peak {
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = Peak::default();
    let code = loop {
        if let Some(code) = child.try_wait().unwrap() {
            break code;
        }
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        if let Some(kib) = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()) {
            peak.memory = peak.memory.max(kib << 10);
        }
        peak.disk = peak.disk.max(disk(folders));
        thread::sleep(Duration::from_millis(2));
    };
    assert!(code.success(), "{code}");
    assert!(peak.memory > 0, "it was never seen");
    peak
}

fn store_args(store: &Path) -> [&str; 3] {
    [
        "--store-provider=Local",
        "--store-container",
        store.to_str().unwrap(),
    ]
}

/// RES-06: while it runs, a restore needs its result and a few deltas' room at the most; afterwards the result alone.
#[test]
fn res_06_a_restore_needs_little_more_than_its_result() {
    let dir = tempfile::tempdir().unwrap();
    let store = made::chain(dir.path(), 30, 200, 5000);
    let (work, temp) = (dir.path().join("work"), dir.path().join("temp"));
    fs::create_dir(&work).unwrap();
    fs::create_dir(&temp).unwrap();
    let data_dir = work.join("restored");
    let args = [
        &["restore"],
        &store_args(&store)[..],
        &["--data-dir", data_dir.to_str().unwrap()],
    ];
    let mut command = steward(args.concat());
    command.env("TMPDIR", &temp);
    let peak = watched(command, &[&work, &temp]);
    let delta = 200 * 5000 * 2;
    let result = disk(&[&work]);
    assert!(result > 30 * delta / 2, "{result}");
    assert!(
        peak.disk < result + 3 * delta,
        "{peak:?} for a result of {result}"
    );
    assert_eq!(disk(&[&temp]), 0);
    assert_eq!(
        fs::read_dir(&work).unwrap().count(),
        1,
        "the result is all that is left"
    );
    assert_eq!(dump(&data_dir).lines().count(), 30 * 200);
}

/// CMP-06: a chain of 500 deltas is compacted in little memory, and the scratch space is empty afterwards.
#[test]
fn cmp_06_a_long_chain_is_compacted_in_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let store = made::chain(dir.path(), 500, 10, 5000);
    let temp = dir.path().join("temp");
    let args = [
        &["compact"],
        &store_args(&store)[..],
        &["--temp-dir", temp.to_str().unwrap()],
    ];
    let peak = watched(steward(args.concat()), &[&temp]);
    assert!(peak.memory < MEMORY, "{} MiB", peak.memory >> 20);
    assert_eq!(disk(&[&temp]), 0);
    on(&store, "verify", &[]).ok().says(&["5001"]);
}
