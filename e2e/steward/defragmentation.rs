//! Defragmentation on request, and members whose data differs.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use etcd_client::{AlarmAction, AlarmType, CompactionOptions, GetOptions};
use serde_json::{Value, json};

use crate::{
    backups::Writer,
    member::Member,
    rig::{Rig, Setup},
};

const DEFRAGMENT: &str = "/maintenance/defrag";

/// Writes go on while databases of so many mebibytes are defragmented, and the leadership moves once at the most.
pub(crate) async fn writes_go_on(mebibytes: usize) -> anyhow::Result<()> {
    let rig = Rig::start(Setup {
        backup: Value::Null,
        options: json!({"quota-backend-bytes": 4_u64 << 30}),
        ..Setup::default()
    })
    .await?;
    rig.fill("/large/", mebibytes).await?;
    // A part of it becomes free.
    let revision = rig.fill("/large/", mebibytes / 4).await?;
    let physical = Some(CompactionOptions::new().with_physical());
    rig.client().await?.compact(revision, physical).await?;
    let leader = rig.leader().await?;
    let term = rig.members[leader].client().await?.status().await?.raft_term();
    let writer = Writer::start(&rig, Duration::from_millis(50)).await?;
    let (status, answer) = rig.members[leader].call("POST", DEFRAGMENT).await?;
    let (_, gap) = writer.end().await?;
    ensure!(
        status == 200 && answer["state"] == "Succeeded",
        "{status}: {answer}"
    );
    for member in answer["result"]["members"].as_array().context("members")? {
        let bytes = |field: &str| member[field].as_i64().unwrap_or(0);
        ensure!(bytes("dbSizeAfterBytes") < bytes("dbSizeBeforeBytes"), "{answer}");
    }
    ensure!(gap < Duration::from_secs(1), "no write for {gap:?}");
    let now = rig.members[leader].client().await?.status().await?.raft_term();
    ensure!(now <= term + 1, "{} elections", now - term);
    Ok(())
}

/// DFR-01
#[tokio::test]
async fn dfr_01_writes_go_on_while_all_are_defragmented() -> anyhow::Result<()> {
    writes_go_on(96).await
}

/// DFR-03: a member that takes longer than expected is waited for, and asked once.
#[tokio::test]
async fn dfr_03_a_slow_member_is_asked_once() -> anyhow::Result<()> {
    const CALLS: &str = "etcd_disk_backend_defrag_duration_seconds_count";
    let rig = Rig::start(Setup {
        backup: Value::Null,
        steward: json!({"defragmentationTimeout": "1ms"}),
        ..Setup::default()
    })
    .await?;
    rig.fill("/large/", 48).await?;
    let leader = rig.leader().await?;
    let (status, answer) = rig.members[leader]
        .call("POST", &format!("{DEFRAGMENT}?async=true"))
        .await?;
    ensure!(status == 202, "{status}: {answer}");
    let id = answer["id"].as_str().context("an id")?;
    let mut running = 0;
    let ended = loop {
        let (_, operation) = rig.members[leader]
            .call("GET", &format!("/operations/{id}"))
            .await?;
        let message = operation["progress"]["message"].as_str().unwrap_or_default();
        running += u32::from(message.contains("still running at the server"));
        if operation["state"] != "Running" {
            break operation;
        }
    };
    ensure!(ended["state"] == "Succeeded", "{ended}");
    ensure!(running > 0, "it was never seen to be running at a server");
    for member in &rig.members {
        let calls = member.etcd_metric(CALLS).await?;
        ensure!(
            (calls - 1.0).abs() < 0.1,
            "{} was asked {calls} times",
            member.name
        );
    }
    Ok(())
}

/// DFR-06: what isn't worth it is left alone, with the reason; what is worth it is done.
#[tokio::test]
async fn dfr_06_the_threshold_decides() -> anyhow::Result<()> {
    let rig = Rig::start(Setup {
        size: 1,
        backup: Value::Null,
        ..Setup::default()
    })
    .await?;
    let path = format!("{DEFRAGMENT}?minReclaimableBytes={}", 8 << 20);
    rig.fill("/large/", 4).await?;
    let asked = async || {
        let (status, answer) = rig.members[0].call("POST", &path).await?;
        ensure!(status == 200, "{status}: {answer}");
        anyhow::Ok(answer["result"]["members"][0].clone())
    };
    let below = asked().await?;
    let reason = below["reason"].as_str().unwrap_or_default();
    ensure!(
        below["skipped"] == true && reason.contains("8388608 bytes"),
        "{below}"
    );
    for _ in 0..5 {
        rig.fill("/large/", 4).await?;
    }
    let revision = rig.put("/last/", 1).await?;
    let physical = Some(CompactionOptions::new().with_physical());
    rig.client().await?.compact(revision, physical).await?;
    rig.until("the compaction is done", async || {
        let above = asked().await?;
        ensure!(above["skipped"] == false, "{above}");
        Ok(())
    })
    .await
}

/// DFR-09: a member whose data was altered on its disk is found by comparing, and replaced; nobody else is named, and its
/// alarm goes with it.
#[tokio::test]
async fn dfr_09_a_member_that_differs_is_replaced() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        backup: Value::Null,
        steward: json!({"comparisonPeriod": "2s"}),
        ..Setup::default()
    })
    .await?;
    rig.put("/kept/", 100).await?;
    let mut client = rig.client().await?;
    client.put("/altered", "the true value", None).await?;
    client.put("/after", "x", None).await?;
    let leader = rig.leader().await?;
    let altered = (leader + 1) % 3;
    let named = |rig: &Rig| {
        let logs: String = rig.members.iter().map(Member::log).collect();
        let lines = logs
            .lines()
            .filter(|line| line.contains("differs from that of the majority"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    // What was written is in the database file, not in the log alone.
    rig.until("the value is on the disk", async || {
        let bytes = fs::read(rig.members[altered].data_dir().join("member/snap/db"))?;
        ensure!(find(&bytes, b"the true value").next().is_some());
        Ok(())
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(named(&rig).is_empty(), "{:?}", named(&rig));
    let old = rig.members[altered].id().await?;
    rig.members[altered].kill();
    falsify(&rig.members[altered].data_dir().join("member/snap/db"))?;
    rig.members[altered].start()?;
    // As etcd's own checks do, when they are switched on: nobody may write until it is cleared. Some blame nobody.
    for blamed in [old, 0] {
        let mut raised = etcd_client::AlarmOptions::new();
        raised.with_member(blamed);
        let mut client = rig.members[leader].client().await?;
        let raising = client.alarm(AlarmAction::Activate, AlarmType::Corrupt, Some(raised));
        raising.await?;
    }
    rig.until("the member is named", async || {
        let named = named(&rig);
        let line = named.last().context("nobody is named")?;
        ensure!(line.contains(&rig.members[altered].name), "{line}");
        let differing = differing(&rig).await?;
        ensure!((differing - 1.0).abs() < 0.1, "{differing}");
        Ok(())
    })
    .await?;
    let own = &rig.members[altered].name;
    ensure!(
        named(&rig).iter().all(|line| line.contains(own)),
        "{:?}",
        named(&rig)
    );
    until_replaced(&rig, altered, old).await?;
    let mut client = rig.client().await?;
    client.put("/still", "x", None).await?;
    let listed = client.member_list().await?;
    let voters = listed.members().iter().filter(|member| !member.is_learner());
    ensure!(listed.members().len() == 3 && voters.count() >= 2, "{listed:?}");
    // Nothing is deleted before anybody has looked at it.
    let volume = fs::read_dir(rig.members[altered].volume())?;
    let names: Vec<_> = volume
        .map(|entry| Ok(entry?.file_name()))
        .collect::<anyhow::Result<_>>()?;
    ensure!(
        names.iter().any(|name| name.to_string_lossy().contains("aside-")),
        "{names:?}"
    );
    Ok(())
}

/// How many members differ, as the leader tells.
async fn differing(rig: &Rig) -> anyhow::Result<f64> {
    let leader = rig.leader().await?;
    rig.members[leader].metric("etcdbr_members_differing").await
}

async fn until_replaced(rig: &Rig, altered: usize, old: u64) -> anyhow::Result<()> {
    rig.until("it is another member with the true value", async || {
        ensure!(rig.members[altered].id().await? != old, "it is the old one");
        let options = Some(GetOptions::new().with_serializable());
        let mut own = rig.members[altered].client().await?;
        let read = own.get("/altered", options).await?;
        let value = read.kvs().first().context("the key")?.value_str()?;
        ensure!(value == "the true value", "{value}");
        let differing = differing(rig).await?;
        ensure!(differing.abs() < 0.1, "{differing}");
        let alarms = own.alarm(AlarmAction::Get, AlarmType::None, None).await?;
        ensure!(alarms.alarms().is_empty(), "{alarms:?}");
        Ok(())
    })
    .await
}

/// Alters the value in a database file.
fn falsify(db: &Path) -> anyhow::Result<()> {
    let mut bytes = fs::read(db)?;
    let places: Vec<_> = find(&bytes, b"the true value").collect();
    for place in places {
        bytes[place..place + 14].copy_from_slice(b"the fake value");
    }
    Ok(fs::write(db, bytes)?)
}

/// Where a text begins, again and again.
fn find<'a>(bytes: &'a [u8], text: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let windows = bytes.windows(text.len()).enumerate();
    windows
        .filter(move |(_, window)| *window == text)
        .map(|(place, _)| place)
}
