//! Drills: what takes minutes at its full size, on a quiet machine. `just drill` runs them; sizes can be made smaller by
//! the variables named below.

use std::{
    env,
    str::FromStr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use etcd_client::{Txn, TxnOp};
use serde_json::json;
use tokio::{task::JoinSet, time::sleep};

use crate::{
    backups::{Writer, check_chain},
    defragmentation::writes_go_on,
    deltas::MEMORY,
    rig::{Rig, Setup},
};

/// The size of a drill, unless a variable has another one.
fn size<T: FromStr>(variable: &str, full: T) -> anyhow::Result<T> {
    match env::var(variable) {
        Ok(text) => text.parse().ok().with_context(|| format!("{variable}={text}")),
        Err(_) => Ok(full),
    }
}

/// DFR-01 at its full size: `DRILL_MIB`, 500 mebibytes.
#[tokio::test]
#[ignore = "a drill"]
async fn drill_defragmentation() -> anyhow::Result<()> {
    writes_go_on(size("DRILL_MIB", 500)?).await
}

/// The store is down for `DRILL_DOWN` seconds, 300, while something is written all the time: no write notices, memory
/// stays bounded, failure and recovery are told once, and the chain has no hole.
#[tokio::test]
#[ignore = "a drill"]
async fn drill_store_down() -> anyhow::Result<()> {
    let rig = Rig::start(Setup {
        backup: json!({
            "deltaSnapshotPeriod": "10s", "fullSnapshotSchedule": "0 0 1 1 *", "deltaSnapshotMemoryLimit": "32Mi",
        }),
        ..Setup::default()
    })
    .await?;
    let leader = rig.leader().await?;
    rig.until_covered(1).await?;
    let writer = Writer::start(&rig, Duration::from_millis(5)).await?;
    rig.block_store()?;
    sleep(Duration::from_secs(size("DRILL_DOWN", 300)?)).await;
    let told = rig.members[leader].backup_status().await?.error;
    let (_, status) = rig.members[leader].call("GET", "/member").await?;
    rig.unblock_store()?;
    told.context("the failure isn't told")?;
    let condition = status["conditions"].as_array().into_iter().flatten();
    let condition = condition.clone().find(|one| one["type"] == "BackupReady");
    ensure!(condition.is_some_and(|one| one["status"] == "False"), "{status}");
    let lasted = Instant::now();
    // The next try comes within a minute and a bit, and has all to catch up with.
    while rig.members[leader].backup_status().await?.error.is_some() {
        ensure!(lasted.elapsed() < Duration::from_mins(2), "it doesn't recover");
        sleep(Duration::from_millis(200)).await;
    }
    let (last, longest) = writer.end().await?;
    ensure!(longest < Duration::from_secs(2), "a write took {longest:?}");
    check_chain(&rig, last).await?;
    for (what, times) in [("backups don't work", 1), ("backups work again", 1)] {
        let told = rig.members[leader].log().matches(what).count();
        ensure!(told == times, "{what:?} is told {told} times");
    }
    let peak = rig.members[leader].peak_memory()?;
    ensure!(peak < MEMORY, "the steward took {} MiB", peak >> 20);
    Ok(())
}

/// A database of `DRILL_MIB` mebibytes, 1200, and `DRILL_RATE` events a second, 10000, for `DRILL_SECONDS`, 120: the
/// steward takes little memory, and its watch never falls behind by more than a second or two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a drill"]
async fn drill_load() -> anyhow::Result<()> {
    let (mebibytes, rate) = (size("DRILL_MIB", 1200)?, size("DRILL_RATE", 10_000_u32)?);
    let lasts = Duration::from_secs(size("DRILL_SECONDS", 120)?);
    let mut rig = Rig::start(Setup {
        size: 1,
        backup: json!({"deltaSnapshotPeriod": "5s", "fullSnapshotSchedule": "0 0 1 1 *"}),
        options: json!({"quota-backend-bytes": 8_u64 << 30}),
        ..Setup::default()
    })
    .await?;
    let filled = rig.fill("/large/", mebibytes).await?;
    rig.until_covered(filled).await?;
    // What counts begins here: nobody fills a database at the speed of its disk all day.
    rig.members[0].kill_steward();
    rig.members[0].start_steward()?;
    rig.full_snapshot().await?;
    let load = load(&rig, rate, lasts).await?;
    let (begun, mut behind) = (Instant::now(), 0.0_f64);
    while begun.elapsed() < lasts {
        sleep(Duration::from_secs(1)).await;
        behind = behind.max(rig.members[0].metric("etcdbr_watch_behind_revisions").await?);
    }
    let written: u32 = load.join_all().await.into_iter().sum();
    let last = rig.put("/last/", 1).await?;
    rig.until_covered(last).await?;
    let peak = rig.members[0].peak_memory()?;
    let each_second = f64::from(written * EVENTS) / lasts.as_secs_f64();
    let behind = behind * f64::from(EVENTS);
    println!(
        "{each_second:.0} events/s, {} MiB, {behind} events behind at the most",
        peak >> 20
    );
    ensure!(
        each_second > 0.9 * f64::from(rate),
        "only {each_second:.0} events/s could be made"
    );
    ensure!(peak < MEMORY, "the steward took {} MiB", peak >> 20);
    ensure!(behind < 2.0 * f64::from(rate), "{behind} events behind");
    check_chain(&rig, last).await
}

/// Events of each of the load's transactions.
const EVENTS: u32 = 10;

/// Clients that together write at a rate, and tell how many transactions they have made.
async fn load(rig: &Rig, rate: u32, lasts: Duration) -> anyhow::Result<JoinSet<u32>> {
    const CLIENTS: u32 = 20;
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let mut client = rig.client().await?;
        clients.spawn(async move {
            let mut pace = tokio::time::interval(Duration::from_secs(1) * CLIENTS * EVENTS / rate);
            let (begun, mut written) = (Instant::now(), 0);
            while begun.elapsed() < lasts {
                pace.tick().await;
                let key = |event| format!("/load/{number}/{}/{event}", written % 100);
                let puts = (0..EVENTS).map(|event| TxnOp::put(key(event), vec![b'v'; 100], None));
                let txn = Txn::new().and_then(puts.collect::<Vec<_>>());
                written += u32::from(client.txn(txn).await.is_ok());
            }
            written
        });
    }
    Ok(clients)
}
