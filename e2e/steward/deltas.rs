//! Deltas: whole revisions, whatever their size and however many come at once.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use etcd_client::{Txn, TxnOp};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    backups::check_chain,
    rig::{Rig, Setup},
};

/// What a sidecar may take, whatever comes.
pub(crate) const MEMORY: u64 = 128 << 20;

fn single(backup: serde_json::Value, options: serde_json::Value) -> Setup {
    Setup {
        size: 1,
        backup,
        options,
        ..Setup::default()
    }
}

/// What is restored from the backups is what was there, record for record.
pub(crate) async fn restores_equal(rig: &mut Rig) -> anyhow::Result<()> {
    let before = rig.hash().await?;
    rig.until_covered(before.0).await?;
    rig.lose_all_and_keep_revision().await?;
    let after = rig.hash().await?;
    ensure!(
        before == after,
        "revision and hash were {before:?}, and are {after:?}"
    );
    Ok(())
}

async fn delta_on_demand(rig: &Rig) -> anyhow::Result<()> {
    rig.until("a delta is stored", async || {
        let (status, answer) = rig.members[0].call("POST", "/snapshot/delta").await?;
        ensure!(status == 200, "{status}: {answer}");
        Ok(())
    })
    .await
}

/// DEL-03: however small the limit, a revision is never split; and however often a key is written, nothing is merged.
#[tokio::test]
async fn del_03_revisions_are_neither_split_nor_merged() -> anyhow::Result<()> {
    let mut rig = Rig::start(single(
        json!({
            "deltaSnapshotPeriod": "1s", "fullSnapshotSchedule": "0 0 1 1 *", "deltaSnapshotMemoryLimit": "1",
        }),
        json!({}),
    ))
    .await?;
    rig.until_covered(1).await?;
    let mut client = rig.client().await?;
    for round in 0..5 {
        let puts = (0..3).map(|key| TxnOp::put(format!("/txn/{round}/{key}"), "value", None));
        client.txn(Txn::new().and_then(puts.collect::<Vec<_>>())).await?;
    }
    let mut revision = 0;
    for number in 0..5 {
        let put = client.put("/same", number.to_string(), None).await?;
        revision = put.header().context("a header")?.revision();
    }
    check_chain(&rig, revision).await?;
    let deltas = rig.stored()?.len() - 1;
    ensure!(deltas >= 3, "the limit made only {deltas} deltas");
    restores_equal(&mut rig).await
}

/// DEL-06: a transaction that is larger than any limit of gRPC goes into a delta, and comes back.
#[tokio::test]
async fn del_06_a_large_transaction_is_one_revision() -> anyhow::Result<()> {
    let mut rig = Rig::start(single(
        json!({"deltaSnapshotPeriod": "0s", "fullSnapshotSchedule": "0 0 1 1 *"}),
        json!({"max-request-bytes": 64 << 20}),
    ))
    .await?;
    rig.until_covered(1).await?;
    let value = "x".repeat(1 << 20);
    let puts = (0..40).map(|key| TxnOp::put(format!("/large/{key}"), value.as_str(), None));
    let mut client = rig.client().await?;
    client.txn(Txn::new().and_then(puts.collect::<Vec<_>>())).await?;
    delta_on_demand(&rig).await?;
    restores_equal(&mut rig).await
}

/// DEL-07: events that come faster than they are stored wait in etcd, not in memory.
#[tokio::test]
async fn del_07_events_wait_in_etcd_while_the_store_is_down() -> anyhow::Result<()> {
    let rig = Rig::start(single(
        json!({
            "deltaSnapshotPeriod": "1s", "fullSnapshotSchedule": "0 0 1 1 *", "deltaSnapshotMemoryLimit": "16Mi",
        }),
        json!({}),
    ))
    .await?;
    rig.until_covered(1).await?;
    rig.block_store()?;
    let mut client = rig.client().await?;
    let mut revision = 0;
    for number in 0..300 {
        let value: Vec<u8> = (0..1 << 17)
            .flat_map(|_| rand::random::<u64>().to_le_bytes())
            .collect();
        let put = client.put(format!("/large/{}", number % 8), value, None).await?;
        revision = put.header().context("a header")?.revision();
    }
    sleep(Duration::from_secs(2)).await;
    rig.unblock_store()?;
    check_chain(&rig, revision).await?;
    let peak = rig.members[0].peak_memory()?;
    ensure!(peak < MEMORY, "the steward took {} MiB", peak >> 20);
    Ok(())
}

/// DEL-08: every stored snapshot is told, the first one as well, and after a restart those that are there already.
#[tokio::test]
async fn del_08_stored_snapshots_are_told() -> anyhow::Result<()> {
    const FULL: &str = "etcdbr_snapshot_latest_revision{kind=\"Full\"}";
    let mut rig = Rig::start(single(
        json!({"deltaSnapshotPeriod": "1s", "fullSnapshotSchedule": "0 0 1 1 *"}),
        json!({}),
    ))
    .await?;
    let told = async |rig: &Rig, name: &str| {
        rig.until("the snapshot is told", async || {
            let status = rig.members[0].backup_status().await?;
            let full = status.last_full.context("no full snapshot is told")?;
            ensure!(full.name == name, "{} is told", full.name);
            let revision = rig.members[0].metric(FULL).await?;
            ensure!(revision >= 1.0, "{revision}");
            Ok(())
        })
        .await
    };
    rig.until_covered(1).await?;
    let first = rig.fulls()?.pop().context("a full snapshot")?;
    let begun = std::time::Instant::now();
    told(&rig, &first).await?;
    ensure!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    rig.members[0].kill_steward();
    rig.members[0].start_steward()?;
    told(&rig, &first).await
}
