//! Restore, compaction and full snapshots of a large chain, beside etcd's own tools on the same data: time, CPU and the
//! most memory. `just bench-storage [SIZE]` runs it; the last line of its output is one JSON object.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for people, which ends when something goes wrong"
)]

mod data;
mod measure;
mod report;
#[path = "../../../etcd-storage/tests/common/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the engine")]
mod server;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use etcd_storage::{bolt::Db, dump, schema::Minor};
use server::{Etcd, Place, binaries};

use self::{
    data::Data,
    measure::{Usage, best_of_each, measure},
    report::Report,
};

/// Runs of each program; the fastest one counts, for the others were disturbed.
const ROUNDS: usize = 3;

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [word, program @ ..] = args.as_slice()
        && word == measure::WORD
    {
        return measure::run(program);
    }
    let size = args.first().map_or(Ok(1.0), |size| size.parse())?;
    let work = tempfile::Builder::new().prefix("bench-storage-").tempdir()?;
    println!("{}", bench(work.path(), size)?);
    Ok(())
}

fn bench(work: &Path, size: f64) -> Result<Report> {
    let place = Place::new("bench");
    let mut etcd = Etcd::start(Minor::V3_6, &work.join("source"), &place);
    let data = Data::new(work, size);
    data.load_base(&etcd)?;
    steward(
        ["snapshot", "--once", "--temp-dir", text(work)],
        &etcd,
        &data.store,
    )?;
    data.load_more(&etcd)?;
    let snapshot = full_snapshots(work, &etcd)?;
    etcd.snapshot(&data.whole);
    let hash = etcd.hash_kv().0;
    etcd.stop();
    fs::remove_dir_all(work.join("source"))?;
    data.make_deltas()?;

    let restore = restores(work, &data, hash)?;
    let compact = compactions(work, &data.store)?;
    let large = data.make_large()?;
    let large = [
        steward_restore(work, &large, None)?,
        steward_compact(work, &large)?,
    ];
    Ok(Report {
        size,
        db_bytes: fs::metadata(&data.whole)?.len(),
        yardstick: restore[0],
        restore: restore[1],
        compact,
        save: snapshot[0],
        snapshot: snapshot[1],
        large,
    })
}

/// `etcdctl snapshot save` and pigz, and ours.
fn full_snapshots(work: &Path, etcd: &Etcd) -> Result<[Usage; 2]> {
    let (saved, store) = (work.join("saved.db"), work.join("full"));
    let etcdctl = binaries(Minor::V3_6).join("etcdctl");
    let save = format!(
        "{} --endpoints {} snapshot save {saved} && pigz {saved}",
        etcdctl.display(),
        etcd.endpoint(),
        saved = saved.display()
    );
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let theirs = measure("sh", ["-c", &save])?;
        fs::remove_file(saved.with_extension("db.gz"))?;
        let ours = steward(["snapshot", "--once", "--temp-dir", text(work)], etcd, &store)?;
        fs::remove_dir_all(&store)?;
        rounds.push([theirs, ours]);
    }
    Ok(best_of_each(&rounds))
}

/// `etcdutl snapshot restore` of the whole as a full snapshot, and ours of the chain.
fn restores(work: &Path, data: &Data, hash: u32) -> Result<[Usage; 2]> {
    let etcdutl = binaries(Minor::V3_6).join("etcdutl");
    let theirs_dir = work.join("theirs");
    let args = [
        "snapshot",
        "restore",
        text(&data.whole),
        "--data-dir",
        text(&theirs_dir),
    ];
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let theirs = measure(text(&etcdutl), args)?;
        fs::remove_dir_all(&theirs_dir)?;
        rounds.push([theirs, steward_restore(work, &data.store, Some(hash))?]);
    }
    Ok(best_of_each(&rounds))
}

fn compactions(work: &Path, store: &Path) -> Result<Usage> {
    let rounds = (0..ROUNDS).map(|_| Ok([steward_compact(work, store)?]));
    let [fastest] = best_of_each(&rounds.collect::<Result<Vec<_>>>()?);
    Ok(fastest)
}

/// Restores, and proves the result by etcd's own hash of the source.
fn steward_restore(work: &Path, store: &Path, hash: Option<u32>) -> Result<Usage> {
    let data_dir = work.join("ours");
    let usage = on_store(["restore", "--data-dir", text(&data_dir)], store)?;
    if let Some(expected) = hash {
        let found = dump::hash_kv(&Db::open(&data_dir.join("member/snap/db"))?)?.hash;
        ensure!(found == expected, "the restored database is another one");
    }
    fs::remove_dir_all(data_dir)?;
    Ok(usage)
}

/// Compacts, and puts the store back into the state before.
fn steward_compact(work: &Path, store: &Path) -> Result<Usage> {
    let before = objects(store)?;
    let usage = on_store(["compact", "--temp-dir", text(work)], store)?;
    for object in objects(store)?.iter().filter(|path| !before.contains(path)) {
        fs::remove_file(object)?;
    }
    Ok(usage)
}

fn objects(store: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(store.join("v2"))?;
    Ok(entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?)
}

fn steward<const N: usize>(args: [&str; N], etcd: &Etcd, store: &Path) -> Result<Usage> {
    fs::create_dir_all(store)?;
    let endpoint = format!("http://{}", etcd.endpoint());
    on_store([&args[..], &["--endpoints", &endpoint]].concat(), store)
}

fn on_store<'a>(args: impl IntoIterator<Item = &'a str>, store: &'a Path) -> Result<Usage> {
    let store = ["--store-provider", "Local", "--store-container", text(store)];
    let program = env!("CARGO_BIN_EXE_etcd-steward");
    measure(program, args.into_iter().chain(store)).context("etcd-steward failed")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
