//! What becomes of backups once they are stored: they are read back, and go when their time has come.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    member::run,
    rig::{Rig, Setup, last_revision, revisions},
};

const WHOLE: &str = "etcdbr_backup_chain_verified";

/// Old chains go by the policy, and what a restore of the newest state needs stays.
#[tokio::test]
async fn old_chains_go_and_the_newest_stays() -> anyhow::Result<()> {
    let rig = Rig::start(Setup {
        size: 1,
        backup: json!({
            "fullSnapshotSchedule": "0 0 1 1 *", "deltaSnapshotPeriod": "1s", "maxBackupsLimitBasedGC": 2,
            "garbageCollectionPeriod": "1s",
        }),
        ..Setup::default()
    })
    .await?;
    for round in 0..5 {
        let revision = rig.put(&format!("/round-{round}/"), 3).await?;
        rig.until_covered(revision).await?;
        rig.full_snapshot().await?;
        // Names have whole seconds.
        sleep(Duration::from_secs(1)).await;
    }
    let last = rig.put("/after/", 3).await?;
    rig.until_covered(last).await?;
    rig.until("two full snapshots are left", async || {
        let stored = rig.stored()?;
        let fulls = stored.iter().filter(|name| name.starts_with("Full-")).count();
        ensure!(fulls == 2, "{stored:?}");
        Ok(())
    })
    .await?;
    let newest = rig.stored()?.pop().context("an object")?;
    ensure!(
        newest.starts_with("Incr-"),
        "the newest chain has lost its deltas: {newest}"
    );
    let deleted = rig.members[0]
        .metric("etcdbr_snapshot_gc_total{kind=\"Full\",succeeded=\"true\"}")
        .await?;
    ensure!(deleted >= 3.0, "{deleted}");
    let keys = rig
        .restored()?
        .iter()
        .filter(|record| record["key"].as_str().is_some())
        .count();
    ensure!(keys >= 18, "{keys} records are restored");
    Ok(())
}

/// Damage in the store is found by reading back, and a new chain takes the place of the damaged one. In the best
/// compression, of which nothing else here is told.
#[tokio::test]
async fn a_damaged_chain_is_replaced() -> anyhow::Result<()> {
    let rig = Rig::start(Setup {
        size: 1,
        backup: json!({"fullSnapshotSchedule": "0 0 1 1 *", "compression": {"policy": "zstd"}}),
        ..Setup::default()
    })
    .await?;
    let first = rig
        .until("a full snapshot is stored", async || {
            rig.stored()?.pop().context("nothing is stored")
        })
        .await?;
    ensure!(
        Path::new(&first)
            .extension()
            .is_some_and(|suffix| suffix == "zst"),
        "{first}"
    );
    let path = rig.store().join("v2").join(&first);
    let mut bytes = fs::read(&path)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&path, bytes)?;
    // Else the new one would have the old one's name.
    rig.put("/more/", 1).await?;
    rig.until("there is a new chain", async || {
        let stored = rig.stored()?;
        let fulls = stored.iter().filter(|name| name.starts_with("Full-")).count();
        ensure!(fulls == 2, "{stored:?}");
        let whole = rig.members[0].metric(WHOLE).await?;
        ensure!(whole > 0.0, "it isn't proven yet");
        Ok(())
    })
    .await
}

/// A steward that can't serve its API must not look as if it had done its work.
#[tokio::test]
async fn a_taken_port_is_a_failure() -> anyhow::Result<()> {
    let mut rig = Rig::new(Setup::single())?;
    let member = &mut rig.members[0];
    let _taken = member.take_api_port()?;
    member.start_steward()?;
    ensure!(member.steward_ended()? == Some(1));
    ensure!(member.log().contains("serve on 127.0.0.1"), "{}", member.log());
    Ok(())
}

/// GC-09: deltas that no restore of the newest state needs stay for their time, with the full snapshot that they need;
/// those of the newest chain stay in any case.
#[tokio::test]
async fn gc_09_deltas_stay_for_their_time() -> anyhow::Result<()> {
    let rig = Rig::start(Setup {
        size: 1,
        backup: json!({
            "fullSnapshotSchedule": "0 0 1 1 *", "deltaSnapshotPeriod": "0s", "maxBackupsLimitBasedGC": 1,
            "garbageCollectionPeriod": "1s", "deltaSnapshotRetentionPeriod": "1h",
        }),
        ..Setup::default()
    })
    .await?;
    rig.until_covered(1).await?;
    for (round, kind) in ["delta", "full", "full", "delta"].into_iter().enumerate() {
        // Names have whole seconds.
        sleep(Duration::from_secs(1)).await;
        rig.put(&format!("/round-{round}/"), 3).await?;
        rig.until("a snapshot is taken", async || {
            let path = format!("/snapshot/{kind}");
            let (status, answer) = rig.members[0].call("POST", &path).await?;
            ensure!(status == 200, "{status}: {answer}");
            Ok(())
        })
        .await?;
    }
    let mut kept = rig.stored()?;
    ensure!(kept.len() == 5, "{kept:?}");
    // The second full snapshot has no deltas.
    kept.remove(1);
    rig.until("what nobody needs is gone", async || {
        let stored = rig.stored()?;
        ensure!(stored == kept, "{stored:?}");
        Ok(())
    })
    .await?;
    sleep(Duration::from_secs(3)).await;
    ensure!(rig.stored()? == kept, "{:?}", rig.stored()?);
    Ok(())
}

/// CMP-07: what stops a compaction would stop a restore: the steward says so as well, not only the command, and mends it.
#[tokio::test]
async fn cmp_07_a_broken_chain_is_told_by_all() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::single()).await?;
    rig.until_covered(1).await?;
    for round in 0..3 {
        let revision = rig.put(&format!("/round-{round}/"), 3).await?;
        rig.until_covered(revision).await?;
    }
    rig.members[0].kill_steward();
    let deltas = rig.stored()?;
    let middle = &deltas[deltas.len() / 2];
    fs::remove_file(rig.store().join("v2").join(middle))?;
    let (first, last) = revisions(middle);
    let missing = format!("revisions {first} to {last} are missing");
    let (store, temp) = (rig.store(), rig.members[0].temp());
    let compaction = run(&[
        "compact",
        "--store-provider=Local",
        "--store-container",
        &store.to_string_lossy(),
        "--temp-dir",
        &temp.to_string_lossy(),
    ]);
    let refused = compaction
        .err()
        .context("a broken chain was compacted")?
        .to_string();
    ensure!(refused.contains(&missing), "{refused}");
    rig.members[0].start_steward()?;
    // etcd still has what is missing.
    rig.until("the hole is closed", async || {
        let whole = rig.members[0].metric(WHOLE).await?;
        ensure!(whole > 0.0, "{:?}", rig.stored()?);
        Ok(())
    })
    .await?;
    let log = rig.members[0].log();
    ensure!(log.contains("revisions before it are missing"), "{log}");
    ensure!(rig.fulls()?.len() == 1, "{:?}", rig.stored()?);
    let last = rig.put("/end/", 1).await?;
    rig.until_covered(last).await?;
    check_restored(&rig, last)?;

    // And now it has dropped it: a full snapshot is taken instead.
    let revision = rig.put("/more/", 3).await?;
    rig.until_covered(revision).await?;
    rig.members[0].kill_steward();
    let lost = rig.stored()?.pop().context("a delta")?;
    fs::remove_file(rig.store().join("v2").join(lost))?;
    rig.client().await?.compact(revision, None).await?;
    rig.members[0].start_steward()?;
    rig.until("there is a whole chain again", async || {
        let whole = rig.members[0].metric(WHOLE).await?;
        ensure!(whole > 0.0 && rig.fulls()?.len() == 2, "{:?}", rig.stored()?);
        Ok(())
    })
    .await?;
    check_restored(&rig, revision)
}

fn check_restored(rig: &Rig, last: i64) -> anyhow::Result<()> {
    let records = rig.restored()?;
    let reached = last_revision(&records);
    ensure!(
        reached == Some(last),
        "restored up to {reached:?}, written up to {last}"
    );
    Ok(())
}
