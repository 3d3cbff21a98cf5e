//! Memory is bounded whatever the input: the one test of this file has its process for itself.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "in a test that is how an error is shown"
)]

mod common;

use std::fs::{self, File};
use std::io::BufWriter;
use std::ops::ControlFlow;
use std::path::Path;

use common::{Stored, restore_to};
use etcd_storage::compact;
use etcd_storage::compression::{Compression, Encoder};
use etcd_storage::delta::{self, Event};
use etcd_storage::object::Chain;

/// The most that a restore or a compaction may take, in KiB.
const LIMIT: u64 = 128 << 10;

/// Highest resident size of this process so far, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Writes a delta of puts: revision, number of puts in it, bytes of each.
fn write_delta(path: &Path, revisions: impl Iterator<Item = (i64, u32, usize)>) {
    let file = BufWriter::new(File::create(path).unwrap());
    let mut encoder = delta::Encoder::new(Encoder::new(Compression::Gzip, file, 1).unwrap());
    let mut event = Event {
        create_revision: 2,
        version: 1,
        ..Event::default()
    };
    for (revision, puts, len) in revisions {
        event.mod_revision = revision;
        event.value.clear();
        event.value.resize(len, 0x5a);
        event.value.shrink_to_fit();
        for put in 0..puts {
            event.key = format!("/{revision}/{put}").into_bytes();
            encoder.push(&event).unwrap();
        }
    }
    encoder.finish().unwrap().0.finish().unwrap();
}

#[test]
fn large_values_transactions_and_deltas_fit() {
    let dir = tempfile::tempdir().unwrap();
    let delta = |name: &str| Stored::parse(dir.path().join(name));
    let deltas = [
        delta("Incr-00000002-00000002-1.gz"),
        delta("Incr-00000003-00000003-1.gz"),
        delta("Incr-00000004-00001003-1.gz"),
        delta("Incr-00001004-00201003-1.gz"),
    ];
    // One value of 60 MiB, a transaction of 60 MiB, a delta of 100 MiB, and very many small records.
    write_delta(&deltas[0].path, std::iter::once((2, 1, 60 << 20)));
    write_delta(&deltas[1].path, std::iter::once((3, 60, 1 << 20)));
    write_delta(
        &deltas[2].path,
        (4..1004).map(|revision| (revision, 1, 100 << 10)),
    );
    write_delta(&deltas[3].path, (1004..201_004).map(|revision| (revision, 1, 10)));
    let full = common::case("empty").objects().remove(0);
    let deltas = deltas.iter().map(Stored::object).collect();
    let chain = Chain {
        base: full.object(),
        deltas,
    };
    let restored = restore_to(&chain, &dir.path().join("default.etcd")).unwrap();
    assert_eq!(restored.revision, 201_003);
    assert!(peak() < LIMIT, "restore took {} KiB", peak());
    let options = compact::Options {
        work_dir: dir.path().to_owned(),
        revision: None,
        drop_last_tombstone: false,
    };
    compact::compact(&chain, &options, std::io::sink(), &mut |_| {
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(peak() < LIMIT, "compaction took {} KiB", peak());
    println!("peak: {} KiB", peak());
}
