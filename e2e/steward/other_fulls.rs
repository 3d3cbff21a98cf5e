//! Full snapshots beside those that the owner of the backups stores: a compaction Job's becomes its newest one, another
//! cluster's doesn't.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use etcd_client::CompactionOptions;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    member::{Member, run},
    rig::{Rig, Setup, revisions},
    signing::manifest,
};

const PERIOD: Duration = Duration::from_secs(2);
const DELTAS: &str = "etcdbr_snapstore_latest_deltas_total";
const FULL_REVISION: &str = "etcdbr_snapshot_latest_revision{kind=\"Full\"}";

fn setup() -> Setup {
    Setup {
        backup: json!({"deltaSnapshotPeriod": "2s", "fullSnapshotSchedule": "0 0 1 1 *"}),
        ..Setup::single()
    }
}

/// What a compaction Job does. Returns the full snapshot's name.
fn compact(store: &Path) -> anyhow::Result<String> {
    let scratch = tempfile::tempdir()?;
    let output = run(&[
        "compact",
        "--output=json",
        "--store-provider=Local",
        &format!("--store-container={}", store.display()),
        "--store-prefix=",
        "--etcd-uid=u-1",
        &format!("--temp-dir={}", scratch.path().display()),
    ])?;
    let done: Value = serde_json::from_slice(&output.stdout)?;
    let name = done["snapshot"]["name"].as_str();
    Ok(name.context("a name")?.to_owned())
}

async fn last_full(member: &Member) -> anyhow::Result<String> {
    let told = member.backup_status().await?;
    Ok(told.last_full.context("no full snapshot")?.name)
}

/// Waits until the owner's newest full snapshot is this one. Returns how many deltas it has beyond that.
async fn until_known(rig: &Rig, full: &str) -> anyhow::Result<f64> {
    let deltas = rig
        .until("the owner knows the full snapshot", async || {
            let last = last_full(&rig.members[0]).await?;
            ensure!(last == full, "{last} instead of {full}");
            let shown = rig.members[0].metric(FULL_REVISION).await?;
            ensure!(shown.to_string() == revisions(full).1.to_string(), "{shown}");
            rig.members[0].metric(DELTAS).await
        })
        .await?;
    Ok(deltas)
}

/// The owner looks at what lies below the prefix, and learns nothing from it.
async fn stays_unknown(rig: &Rig, foreign: &str, known: &str) -> anyhow::Result<()> {
    // Two deltas at least are stored meanwhile.
    for number in 0..2 {
        let revision = rig.put(&format!("/beside-{foreign}-{number}/"), 3).await?;
        rig.until_covered(revision).await?;
        sleep(PERIOD).await;
    }
    let last = last_full(&rig.members[0]).await?;
    ensure!(last == known, "{last} instead of {known}, beside {foreign}");
    Ok(())
}

/// A full snapshot of another cluster of the same Etcd, at this revision, with its manifest.
async fn full_of_another(revision: usize) -> anyhow::Result<(Rig, String)> {
    let mut other = Rig::start(setup()).await?;
    other.until_covered(1).await?;
    other.put("/other/", revision - 1).await?;
    other.full_snapshot().await?;
    other.kill_all();
    let full = other.fulls()?.pop().context("a full snapshot")?;
    ensure!(revisions(&full).1 == i64::try_from(revision)?, "{full}");
    Ok((other, full))
}

fn put_beside(from: &Path, store: &Path, full: &str) -> anyhow::Result<()> {
    for name in [format!("Manifest-{full}"), full.to_owned()] {
        fs::copy(from.join("v2").join(&name), store.join("v2").join(&name))?;
    }
    Ok(())
}

/// Lets the manifest of a snapshot say something else in a field.
pub(crate) fn change_manifest(store: &Path, full: &str, field: &str, value: &str) -> anyhow::Result<()> {
    let path = store.join("v2").join(format!("Manifest-{full}"));
    let mut envelope: Value = serde_json::from_slice(&fs::read(&path)?)?;
    let payload = BASE64.decode(envelope["payload"].as_str().context("a payload")?)?;
    let mut said: Value = serde_json::from_slice(&payload)?;
    said[field] = value.into();
    envelope["payload"] = BASE64.encode(said.to_string()).into();
    Ok(fs::write(path, envelope.to_string())?)
}

/// The full snapshot of a compaction Job is the owner's newest one as soon as it has looked at the store: no other one is
/// taken, neither then nor by the next owner.
#[tokio::test]
async fn the_full_snapshot_of_a_compaction_is_taken_up() -> anyhow::Result<()> {
    let mut rig = Rig::start(setup()).await?;
    rig.until_covered(1).await?;
    for number in 0..3 {
        let revision = rig.put(&format!("/kept-{number}/"), 10).await?;
        rig.until_covered(revision).await?;
    }
    let own = rig.fulls()?;
    rig.until("deltas are counted", async || {
        ensure!(rig.members[0].metric(DELTAS).await? >= 1.0);
        Ok(())
    })
    .await?;
    // As if its owner had lost the leadership before it could write that.
    let newest = rig.stored()?.pop().context("a delta")?;
    let manifest = rig.store().join("v2").join(format!("Manifest-{newest}"));
    rig.until("the newest delta has its manifest", async || {
        Ok(fs::remove_file(&manifest)?)
    })
    .await?;
    let compacted = compact(&rig.store())?;
    let begun = Instant::now();
    let deltas = until_known(&rig, &compacted).await?;
    println!(
        "{compacted} is known after {:.1?}, {deltas} deltas beyond it",
        begun.elapsed()
    );
    ensure!(deltas < 0.5, "{deltas} deltas that it covers");
    let told = rig.members[0].backup_status().await?;
    ensure!(
        told.last_delta.is_none() && told.uncovered_revisions == 0,
        "{told:?}"
    );

    // The next owner begins with it, though no delta shows whose it is.
    rig.start_stewards_anew()?;
    until_known(&rig, &compacted).await?;
    let last = rig.put("/after/", 5).await?;
    rig.until_covered(last).await?;
    until_known(&rig, &compacted).await?;
    let fulls = rig.fulls()?;
    ensure!(
        fulls.len() == own.len() + 1 && fulls.contains(&compacted),
        "{fulls:?} after {own:?} and {compacted}"
    );
    let log = rig.members[0].log();
    ensure!(!log.contains("HistoryUnproven"), "{log}");
    crate::backups::check_chain(&rig, last).await
}

/// etcd has compacted the revision with which a compacted full snapshot ends: the delta that ends there shows whose it is.
#[tokio::test]
async fn a_compaction_that_etcd_overtakes_is_taken_up() -> anyhow::Result<()> {
    let rig = Rig::start(setup()).await?;
    rig.until_covered(1).await?;
    let end = rig.put("/kept/", 20).await?;
    rig.until_covered(end).await?;
    // The store isn't looked at while it can't be listed.
    let aside = rig.store().with_file_name("compacted");
    fs::create_dir(&aside)?;
    ensure!(
        Command::new("cp")
            .arg("-r")
            .arg(rig.store().join("v2"))
            .arg(&aside)
            .status()?
            .success()
    );
    let compacted = compact(&aside)?;
    let last = rig.put("/later/", 20).await?;
    rig.until_covered(last).await?;
    let options = Some(CompactionOptions::new().with_physical());
    rig.client().await?.compact(last, options).await?;
    let own = rig.fulls()?;
    put_beside(&aside, &rig.store(), &compacted)?;
    let deltas = until_known(&rig, &compacted).await?;
    println!("{compacted} is known though etcd has compacted {last}, {deltas} deltas beyond it");
    ensure!(deltas >= 1.0, "{deltas}");
    let last = rig.put("/after/", 5).await?;
    rig.until_covered(last).await?;
    let fulls = rig.fulls()?;
    ensure!(fulls.len() == own.len() + 1, "{fulls:?}");
    crate::backups::check_chain(&rig, last).await
}

/// A full snapshot of another cluster, or one that only says that it is of this one, stays what it is.
#[tokio::test]
async fn the_full_snapshot_of_another_cluster_is_not_taken_up() -> anyhow::Result<()> {
    // It was there before this one.
    let (one, foreign) = full_of_another(31).await?;
    let (two, forged) = full_of_another(32).await?;
    let rig = Rig::start(setup()).await?;
    rig.until_covered(1).await?;
    let last = rig.put("/own/", 50).await?;
    rig.until_covered(last).await?;
    let own = rig.fulls()?.pop().context("a full snapshot")?;
    put_beside(&one.store(), &rig.store(), &foreign)?;
    stays_unknown(&rig, &foreign, &own).await?;
    let said = manifest(&rig, &own)?;
    let cluster = said["clusterID"].as_str().context("a cluster")?;
    change_manifest(&two.store(), &forged, "clusterID", cluster)?;
    put_beside(&two.store(), &rig.store(), &forged)?;
    rig.until("it is looked at", async || {
        let log = rig.members[0].log();
        ensure!(log.contains("a full snapshot of another history is left alone"));
        Ok(())
    })
    .await?;
    stays_unknown(&rig, &forged, &own).await?;
    println!("{foreign} and {forged} are left alone, {own} stays the newest");
    Ok(())
}
