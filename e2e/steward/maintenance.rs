//! Databases that are to stay small, changed options, authentication.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use etcd_client::{AlarmAction, AlarmType, Client, CompactionOptions};
use serde_json::json;

use crate::{
    backups::Writer,
    rig::{Rig, Setup},
};

/// What an election and a busy machine take; a leader that is defragmented in place takes all writers along.
const LONGEST_GAP: Duration = Duration::from_secs(2);
const VALUE: usize = 256 << 10;
const SMALL: i64 = 10 << 20;

/// Overwrites a few keys until so many mebibytes are history, and drops that.
async fn churn(client: &mut Client, mebibytes: usize) -> anyhow::Result<()> {
    let value = "x".repeat(VALUE);
    let mut revision = 0;
    for number in 0..mebibytes * 4 {
        let put = client
            .put(format!("/churn/{}", number % 8), value.as_str(), None)
            .await?;
        revision = put.header().context("a header")?.revision();
    }
    let physical = Some(CompactionOptions::new().with_physical());
    client.compact(revision, physical).await?;
    Ok(())
}

/// Followers first, the leader last and after it has handed over; writes go on, but for an election.
#[tokio::test]
async fn all_members_are_defragmented_by_schedule() -> anyhow::Result<()> {
    let rig = Rig::start(Setup {
        steward: json!({"defragmentationSchedule": "* * * * *"}),
        ..Setup::default()
    })
    .await?;
    let leader = rig.leader().await?;
    churn(&mut rig.client().await?, 40).await?;
    let writer = Writer::start(&rig, Duration::from_millis(20)).await?;
    // The schedule is one of minutes, and so is the patience.
    for _ in 0..2 {
        let _ = rig
            .until("all databases are small", async || all_small(&rig).await)
            .await;
    }
    all_small(&rig).await?;
    let (_, gap) = writer.end().await?;
    ensure!(gap < LONGEST_GAP, "no write for {gap:?}");
    ensure!(rig.leader().await? != leader, "the leader has kept its place");
    Ok(())
}

async fn all_small(rig: &Rig) -> anyhow::Result<()> {
    for member in &rig.members {
        let size = member.db_size().await?;
        ensure!(size < SMALL, "{} has {size} bytes", member.name);
    }
    Ok(())
}

/// DFR-05: a database that has reached its quota takes writes again without anybody's help.
#[tokio::test]
async fn dfr_05_room_is_made_in_a_full_database() -> anyhow::Result<()> {
    let rig = Rig::start(Setup {
        size: 1,
        options: json!({"quota-backend-bytes": 32 << 20}),
        ..Setup::default()
    })
    .await?;
    let mut client = rig.client().await?;
    let value = "x".repeat(VALUE);
    let full = loop {
        if let Err(error) = client.put("/key", value.as_str(), None).await {
            break error;
        }
    };
    ensure!(full.to_string().contains("space exceeded"), "{full}");
    rig.until("there is room for a write", async || {
        rig.client().await?.put("/key", "small", None).await?;
        Ok(())
    })
    .await?;
    let alarms = client.alarm(AlarmAction::Get, AlarmType::None, None).await?;
    ensure!(alarms.alarms().is_empty(), "{alarms:?}");
    Ok(())
}

/// A changed option is in force soon, by a restart of the process. The list of founding members is none.
#[tokio::test]
async fn changed_options_come_into_force() -> anyhow::Result<()> {
    const QUOTA: &str = "etcd_server_quota_backend_bytes";
    const STARTED: &str = "process_start_time_seconds";
    let gibibytes = |count: u32| f64::from(count) * f64::from(1 << 30);
    let mut rig = Rig::start(Setup {
        size: 1,
        options: json!({"quota-backend-bytes": 1_u64 << 30}),
        ..Setup::default()
    })
    .await?;
    rig.put("/key/", 1).await?;
    ensure!(rig.members[0].etcd_metric(QUOTA).await? <= gibibytes(1));
    rig.change_options(json!({"quota-backend-bytes": 2_u64 << 30}))?;
    rig.until("the new quota is in force", async || {
        let quota = rig.members[0].etcd_metric(QUOTA).await?;
        ensure!(quota >= gibibytes(2), "{quota}");
        Ok(())
    })
    .await?;
    rig.until_ready().await?;
    ensure!(rig.members[0].count("/key/").await? == 1);
    let started = rig.members[0].etcd_metric(STARTED).await?;
    rig.change_options(json!({
        "quota-backend-bytes": 2_u64 << 30, "initial-cluster": "t1-0=http://127.0.0.1:1,t1-1=http://127.0.0.1:2",
    }))?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let still = rig.members[0].etcd_metric(STARTED).await?;
    ensure!((still - started).abs() < 0.5, "etcd was restarted for nothing");
    Ok(())
}

/// With authentication on in etcd everything goes on, by the user's name and password.
#[tokio::test]
async fn authentication_is_honoured() -> anyhow::Result<()> {
    let rig = Rig::start_locked(Setup::single()).await?;
    rig.full_snapshot().await?;
    let (status, answer) = rig.members[0].call("POST", "/maintenance/defrag").await?;
    ensure!(
        status == 200 && answer["state"] == "Succeeded",
        "{status}: {answer}"
    );
    Ok(())
}
