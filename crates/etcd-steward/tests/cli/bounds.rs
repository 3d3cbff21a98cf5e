//! What a restore or a compaction takes from its machine: memory and disk are bounded, however long the chain.

use std::{
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use etcd_storage::compression::{Compression, Encoder};
use sha2::{Digest as _, Sha256};

use crate::{
    image::{Image, REVISION},
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
fn watched(command: Command, folders: &[&Path]) -> Peak {
    watched_to(0, command, folders)
}

/// Runs a command until it ends with this code, and looks at it all the time.
fn watched_to(expected: i32, mut command: Command, folders: &[&Path]) -> Peak {
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
    assert_eq!(code.code(), Some(expected), "{code}");
    assert!(peak.memory > 0, "it was never seen");
    peak
}

/// Writes an object that is small in the store and large when it is read.
fn bomb(path: &Path, compression: Compression, begin: &[u8], filling: u8, count: u64, end: &[u8]) {
    let mut encoder = Encoder::new(compression, BufWriter::new(File::create(path).unwrap()), 2).unwrap();
    let mut hasher = Sha256::new();
    let piece = vec![filling; 1 << 20];
    let pieces = std::iter::repeat_n(&piece[..], usize::try_from(count >> 20).unwrap());
    for bytes in std::iter::once(begin).chain(pieces).chain([end]) {
        hasher.update(bytes);
        encoder.write_all(bytes).unwrap();
    }
    encoder.write_all(&hasher.finalize()).unwrap();
    encoder.finish().unwrap().flush().unwrap();
}

/// Objects that are made to fill memory or disk when they are read are refused, by little memory, with what is wrong.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn objects_made_to_fill_memory_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let database = Image::new();
    let full = format!("Full-00000000-{REVISION:08}-1700000000");
    let delta = format!("Incr-{0:08}-{0:08}-1700000001", REVISION + 1);
    let event = format!("\"}},\"mod_revision\":{}}}}}]", REVISION + 1);
    let value = b"[{\"etcdEvent\":{\"kv\":{\"key\":\"YQ==\",\"value\":\"";
    let name = b"[{\"etcdEvent\":{\"kv\":{\"key\":\"";
    let gib = 1 << 30;
    for (name, compression, begin, filling, end, said) in [
        // One event of 2 GiB base64, in its value and in its key.
        (
            format!("{delta}.gz"),
            Compression::Gzip,
            &value[..],
            b'A',
            event.as_bytes(),
            "an event of more than",
        ),
        (
            format!("{delta}.zst"),
            Compression::Zstd,
            &name[..],
            b'A',
            event.as_bytes(),
            "an event of more than",
        ),
        // A text that never ends, and white space.
        (
            format!("{delta}.zst"),
            Compression::Zstd,
            b"[{\"",
            b'x',
            b"",
            "string too long",
        ),
        // A database that goes on and on behind its end.
        (
            format!("{full}.zst"),
            Compression::Zstd,
            &database.0[..],
            0,
            b"",
            "goes on behind the end",
        ),
    ] {
        let store = dir.path().join("store");
        let folder = store.join("v2");
        fs::create_dir_all(&folder).unwrap();
        let whole = folder.join(&full);
        fs::write(&whole, Image::new().sealed()).unwrap();
        if name.starts_with("Full") {
            fs::remove_file(&whole).unwrap();
        }
        bomb(&folder.join(&name), compression, begin, filling, 2 * gib, end);
        let stored = fs::metadata(folder.join(&name)).unwrap().len();
        assert!(stored < 16 << 20, "{name}: {stored}");
        let data_dir = dir.path().join("restored");
        let to = ["--data-dir", data_dir.to_str().unwrap()];
        let work = dir.path().join("restored.part");
        for args in [&["verify"][..], &[&["restore"][..], &to].concat()] {
            let command = steward([&args[..1], &store_args(&store)[..], &args[1..]].concat());
            let peak = watched_to(3, command, &[&work]);
            println!(
                "{} of {name}: {} MiB of memory, {} MiB of disk",
                args[0],
                peak.memory >> 20,
                peak.disk >> 20
            );
            assert!(
                peak.memory < MEMORY,
                "{}: {name}: {} MiB",
                args[0],
                peak.memory >> 20
            );
            assert!(
                peak.disk < 300 << 20,
                "{}: {name}: {} MiB",
                args[0],
                peak.disk >> 20
            );
        }
        on(&store, "verify", &[]).exits(3).says(&[said]);
        assert!(!data_dir.exists());
        fs::remove_dir_all(&store).unwrap();
    }
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
