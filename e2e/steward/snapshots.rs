//! Full snapshots: whole or not there at all, at their time, and what is told when they fail.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    deltas::MEMORY,
    faults::{Proxy, refusing_store},
    member::{free_port, program},
    other_fulls::change_manifest,
    rig::{Rig, Setup, revisions},
};

/// Seconds since 1970 in an object's name.
fn created(name: &str) -> anyhow::Result<i64> {
    let time = name.split('-').nth(3).context("a time")?;
    Ok(time.split('.').next().unwrap_or(time).parse()?)
}

/// SNAP-02: a stream that breaks off half way leaves no object, and is told; the next one works.
#[tokio::test]
async fn snap_02_a_cut_stream_leaves_no_object() -> anyhow::Result<()> {
    const FAILED: &str = "etcdbr_snapshot_duration_seconds_count{kind=\"Full\",succeeded=\"false\"}";
    let mut rig = Rig::new(Setup::single())?;
    let port = free_port()?;
    let target = rig.members[0].lead_via(port);
    rig.resize(1)?;
    rig.start_all()?;
    rig.until_ready().await?;
    let proxy = Proxy::start(port, target).await?;
    rig.until_covered(1).await?;
    let revision = rig.fill("/large/", 8).await?;
    rig.until_covered(revision).await?;
    let before = rig.stored()?;
    proxy.cut_after(4 << 20);
    let (status, answer) = rig.members[0].call("POST", "/snapshot/full").await?;
    ensure!(
        status == 503 && answer["reason"] == "EtcdUnreachable",
        "{status}: {answer}"
    );
    ensure!(rig.stored()? == before, "{:?}", rig.stored()?);
    let told = rig.members[0].backup_status().await?.error.context("an error")?;
    ensure!(told.reason == "EtcdUnreachable", "{told:?}");
    ensure!(rig.members[0].metric(FAILED).await? >= 1.0);
    proxy.cut_after(u64::MAX);
    rig.full_snapshot().await?;
    ensure!(rig.fulls()?.len() == 2, "{:?}", rig.stored()?);
    let error = rig.members[0].backup_status().await?.error;
    ensure!(error.is_none(), "{error:?}");
    let left: Vec<_> = fs::read_dir(rig.members[0].temp())?.collect();
    ensure!(left.is_empty(), "left in the scratch space: {left:?}");
    Ok(())
}

/// SNAP-05: a full snapshot that was due while everything was down is taken soon after, once.
#[tokio::test]
async fn snap_05_a_missed_snapshot_is_made_up_for() -> anyhow::Result<()> {
    // Due half an hour ago, and in half an hour.
    let now = Timestamp::now();
    let minute = (now.to_zoned(TimeZone::UTC).minute() + 30) % 60;
    let mut setup = Setup::single();
    setup.backup["fullSnapshotSchedule"] = json!(format!("{minute} * * * *"));
    let mut rig = Rig::start(setup).await?;
    let revision = rig.put("/kept/", 5).await?;
    rig.until_covered(revision).await?;
    let full = rig.until_full_counts().await?;
    rig.kill_all();
    let old = now.checked_sub(SignedDuration::from_hours(2))?.as_second();
    let aged = full.replace(&created(&full)?.to_string(), &old.to_string());
    let folder = rig.store().join("v2");
    for prefix in ["", "Manifest-"] {
        fs::rename(
            folder.join(format!("{prefix}{full}")),
            folder.join(format!("{prefix}{aged}")),
        )?;
    }
    change_manifest(&rig.store(), &aged, "snapshot", &aged)?;
    rig.start_all()?;
    rig.until("there is a new full snapshot", async || {
        let fulls = rig.fulls()?;
        ensure!(fulls.len() == 2, "{fulls:?}");
        Ok(())
    })
    .await?;
    sleep(Duration::from_secs(2)).await;
    let fulls = rig.fulls()?;
    let log = rig.members[0].log();
    ensure!(
        fulls.len() == 2 && !log.contains("HistoryUnproven"),
        "{fulls:?}\n{log}"
    );
    Ok(())
}

/// SNAP-06: nothing is written, so nothing is stored, and backups are told to be current all the same.
#[tokio::test]
async fn snap_06_backups_stay_current_without_writes() -> anyhow::Result<()> {
    const COVERED: &str = "etcdbr_backup_covered_timestamp_seconds";
    let rig = Rig::start(Setup::single()).await?;
    let revision = rig.put("/kept/", 5).await?;
    rig.until_covered(revision).await?;
    let uncovered = async || {
        let revisions = rig.members[0].metric("etcdbr_uncovered_revisions").await?;
        ensure!(revisions < 0.5, "{revisions} revisions aren't covered");
        Ok(())
    };
    rig.until("all is covered", &uncovered).await?;
    let (stored, mut before) = (rig.stored()?, rig.members[0].metric(COVERED).await?);
    for _ in 0..3 {
        before = rig
            .until("the time moves on", async || {
                let now = rig.members[0].metric(COVERED).await?;
                ensure!(now > before, "{now}");
                Ok(now)
            })
            .await?;
        uncovered().await?;
    }
    ensure!(rig.stored()? == stored, "{:?}", rig.stored()?);
    Ok(())
}

/// SNAP-11: the size of the database doesn't matter to the memory that its snapshot takes.
#[tokio::test]
async fn snap_11_a_large_database_takes_little_memory() -> anyhow::Result<()> {
    let mut setup = Setup::single();
    // What is collected meanwhile has a limit of its own.
    setup.backup["deltaSnapshotMemoryLimit"] = json!("16Mi");
    let rig = Rig::start(setup).await?;
    rig.until_covered(1).await?;
    rig.fill("/large/", 256).await?;
    let filled = rig.members[0].peak_memory()?;
    let (status, answer) = rig.members[0].call("POST", "/snapshot/full").await?;
    ensure!(status == 200, "{status}: {answer}");
    let size = rig.members[0].db_size().await?;
    ensure!(size > 256 << 20, "{size}");
    let peak = rig.members[0].peak_memory()?;
    ensure!(
        peak < MEMORY,
        "the steward took {} MiB, and {} while the database was filled",
        peak >> 20,
        filled >> 20
    );
    Ok(())
}

/// SNAP-12: what was collected is stored when the store is there again, the very same; the failure is told once, and so is
/// its end. Who asks for a snapshot meanwhile gets an answer.
#[tokio::test]
async fn snap_12_a_store_that_comes_back_gets_what_was_held() -> anyhow::Result<()> {
    let rig = Rig::start(Setup::single()).await?;
    let before = rig.put("/before/", 5).await?;
    rig.until_covered(before).await?;
    rig.block_store()?;
    let held = rig.put("/held/", 5).await?;
    let told = |what: &str| rig.members[0].log().matches(what).count();
    rig.until("the failure is told", async || {
        ensure!(told("backups don't work") == 1);
        Ok(())
    })
    .await?;
    rig.put("/later/", 5).await?;
    let (status, answer) = rig.members[0].call("POST", "/snapshot/delta").await?;
    ensure!(status == 503, "{status}: {answer}");
    let reason = answer["reason"].as_str().context("a reason")?.to_owned();
    let error = rig.members[0].backup_status().await?.error.context("an error")?;
    ensure!(error.reason == reason, "{error:?} and {answer}");
    let mended = Timestamp::now();
    rig.unblock_store()?;
    let last = rig.put("/after/", 1).await?;
    rig.until_covered(last).await?;
    let stored = rig.stored()?;
    let first = stored.iter().find(|name| revisions(name).0 == before + 1);
    let first = first.with_context(|| format!("no delta from {before} on: {stored:?}"))?;
    ensure!(revisions(first).1 <= held, "{first} holds more than was held");
    ensure!(created(first)? < mended.as_second(), "{first} was made anew");
    rig.until("the recovery is told", async || {
        ensure!(told("backups work again") == 1);
        Ok(())
    })
    .await?;
    ensure!(told("backups don't work") == 1, "{}", rig.members[0].log());
    Ok(())
}

/// SNAP-14: a wrong key is told by its own reason, to whoever asks for a snapshot as well.
#[tokio::test]
async fn snap_14_a_wrong_key_is_told_as_such() -> anyhow::Result<()> {
    let credentials = tempfile::tempdir()?;
    for (name, value) in [
        ("accessKeyID", "unknown"),
        ("secretAccessKey", "wrong-key"),
        ("region", "us-east-1"),
        ("s3ForcePathStyle", "true"),
    ] {
        fs::write(credentials.path().join(name), value)?;
    }
    let mut rig = Rig::start(Setup::single()).await?;
    let revision = rig.put("/kept/", 5).await?;
    rig.until_covered(revision).await?;
    let mut backup = Setup::default().backup;
    backup["store"] = json!({
        "provider": "S3", "container": "backups", "prefix": "lab/t1", "endpointOverride": refusing_store().await?,
    });
    rig.change_backup(backup)?;
    let folder = credentials.path().to_string_lossy().into_owned();
    rig.members[0].set_env("AWS_APPLICATION_CREDENTIALS", folder);
    rig.members[0].kill_steward();
    rig.members[0].start_steward()?;
    rig.until("the refusal is told", async || {
        let error = rig.members[0].backup_status().await?.error;
        let error = error.context("no error")?;
        ensure!(error.reason == "AccessDenied", "{error:?}");
        Ok(())
    })
    .await?;
    let failures = rig.members[0]
        .metric("etcdbr_snapshotter_failure{error=\"AccessDenied\"}")
        .await?;
    ensure!(failures >= 1.0);
    let (status, answer) = rig.members[0].call("POST", "/snapshot/full").await?;
    ensure!(
        status == 503 && answer["reason"] == "AccessDenied",
        "{status}: {answer}"
    );
    rig.put("/still/", 1).await?;
    let log = rig.members[0].log();
    ensure!(!log.contains("wrong-key"), "the key is in the log");
    Ok(())
}

/// SNAP-15: one snapshot for a CronJob: 0 and one object, or what failed in one line.
#[tokio::test]
async fn snap_15_one_snapshot_and_an_honest_exit() -> anyhow::Result<()> {
    let mut setup = Setup::single();
    setup.backup = Value::Null;
    let rig = Rig::start(setup).await?;
    rig.put("/kept/", 5).await?;
    let once = async |endpoint: String| {
        let (store, temp) = (rig.store(), rig.members[0].temp());
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut command = Command::new(program()?);
        command
            .args([
                "snapshot",
                "--once",
                "--store-provider=Local",
                "--store-container",
            ])
            .args([text(&store), "--temp-dir".to_owned(), text(&temp)])
            .args(["--endpoints".to_owned(), endpoint]);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        anyhow::Ok((output.status.code(), said))
    };
    let (code, said) = once(rig.members[0].client_url()).await?;
    ensure!(code == Some(0) && rig.stored()?.len() == 1, "{code:?}: {said}");
    let aside = rig.store().with_file_name("store-aside");
    fs::rename(rig.store(), &aside)?;
    let begun = Instant::now();
    for endpoint in [
        rig.members[0].client_url(),
        format!("http://127.0.0.1:{}", free_port()?),
    ] {
        let (code, said) = once(endpoint.clone()).await?;
        ensure!(
            code == Some(1) && said.lines().count() == 1,
            "{endpoint}: {code:?}: {said}"
        );
    }
    ensure!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    fs::rename(&aside, rig.store())?;
    ensure!(rig.stored()?.len() == 1);
    Ok(())
}
