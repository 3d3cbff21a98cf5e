//! Volumes that are put back to an earlier state: from a snapshot of the storage, or by a mistake.

use std::{fs, net::TcpListener, path::Path, process::Command};

use anyhow::{Context as _, ensure};
use etcd_client::Client;
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::{
    kube_api::KubeApi,
    member::Member,
    rig::{Rig, Setup},
};

/// What is written after the state that is put back.
const PUTS: usize = 1000;

fn of(size: usize, etcd: &'static str) -> Setup {
    Setup {
        size,
        etcd,
        backup: json!(null),
        ..Setup::default()
    }
}

/// A member's volume as it is now.
fn copy_of(member: &Member) -> anyhow::Result<TempDir> {
    let copy = tempfile::tempdir()?;
    copy_all(&member.volume(), copy.path())?;
    Ok(copy)
}

fn copy_all(from: &Path, to: &Path) -> anyhow::Result<()> {
    let status = Command::new("cp")
        .arg("-a")
        .arg(from.join("."))
        .arg(to)
        .status()?;
    ensure!(status.success(), "cp {}: {status}", from.display());
    Ok(())
}

fn put_back(member: &Member, copy: &TempDir) -> anyhow::Result<()> {
    member.wipe()?;
    copy_all(copy.path(), &member.volume())
}

/// Writes keys `/more/0`, `/more/1`…, many at a time.
async fn put_more(client: Client) -> anyhow::Result<()> {
    const AT_A_TIME: usize = 20;
    let mut tasks = JoinSet::new();
    for first in 0..AT_A_TIME {
        let mut client = client.clone();
        tasks.spawn(async move {
            for number in (first..PUTS).step_by(AT_A_TIME) {
                client.put(format!("/more/{number}"), "value", None).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// A member that follows.
async fn follower(rig: &Rig) -> anyhow::Result<usize> {
    Ok((rig.leader().await? + 1) % rig.members.len())
}

/// What lies on a volume beside the data directory, moved aside.
fn asides(member: &Member) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(member.volume())? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| name.starts_with("new.aside-"));
    Ok(names)
}

async fn is_joined_anew(rig: &Rig, member: usize, before: u64) -> anyhow::Result<()> {
    rig.until_joined_anew(member, before, 10).await?;
    let member = &rig.members[member];
    ensure!(
        member.count("/more/").await? == i64::try_from(PUTS)?,
        "keys are missing"
    );
    rig.until_all_vote().await
}

/// ROL-01: a follower's volume of 1,000 puts ago, taken while etcd was stopped. etcd panics on it; its member joins anew, and
/// what was put back is kept aside.
async fn a_stopped_volume_put_back(etcd: &'static str) -> anyhow::Result<()> {
    let mut rig = Rig::start(of(3, etcd)).await?;
    rig.put("/kept/", 10).await?;
    let member = follower(&rig).await?;
    let before = rig.members[member].id().await?;
    rig.members[member].stop_launcher()?;
    rig.members[member].kill();
    let copy = copy_of(&rig.members[member])?;
    rig.members[member].start()?;
    rig.until_ready().await?;
    put_more(rig.client().await?).await?;
    rig.members[member].kill();
    put_back(&rig.members[member], &copy)?;
    rig.members[member].start()?;
    is_joined_anew(&rig, member, before).await?;
    let member = &rig.members[member];
    let log = member.log();
    let told = log
        .lines()
        .find(|line| line.contains("DataBehind") && line.contains("given up"));
    let told = told.context("no word of why")?;
    ensure!(told.contains("raft index"), "{told}");
    ensure!(
        member.launcher_log().contains("out of range"),
        "it hasn't panicked"
    );
    ensure!(asides(member)?.len() == 1, "{:?}", asides(member)?);
    Ok(())
}

#[tokio::test]
async fn rol_01_a_stopped_volume_put_back_joins_anew_3_5() -> anyhow::Result<()> {
    a_stopped_volume_put_back("3.5").await
}

#[tokio::test]
async fn rol_01_a_stopped_volume_put_back_joins_anew_3_6() -> anyhow::Result<()> {
    a_stopped_volume_put_back("3.6").await
}

#[tokio::test]
async fn rol_01_a_stopped_volume_put_back_joins_anew_3_7() -> anyhow::Result<()> {
    a_stopped_volume_put_back("3.7").await
}

/// ROL-01: the same, copied while etcd was running: the copy may be whole or not.
#[tokio::test]
async fn rol_01_a_running_volume_put_back_joins_anew() -> anyhow::Result<()> {
    let mut rig = Rig::start(of(3, "3.6")).await?;
    rig.put("/kept/", 10).await?;
    let member = follower(&rig).await?;
    let before = rig.members[member].id().await?;
    let copy = copy_of(&rig.members[member])?;
    put_more(rig.client().await?).await?;
    rig.members[member].kill();
    put_back(&rig.members[member], &copy)?;
    rig.members[member].start()?;
    is_joined_anew(&rig, member, before).await
}

/// ROL-01: a volume from before its member joined anew. What the newer self has voted is lost with its volume, so that it
/// must not go on under its ID.
#[tokio::test]
async fn rol_01_a_volume_of_an_earlier_self_joins_anew() -> anyhow::Result<()> {
    let mut rig = Rig::start(of(3, "3.6")).await?;
    rig.put("/kept/", 10).await?;
    let first = rig.members[2].id().await?;
    rig.members[2].stop_launcher()?;
    rig.members[2].kill();
    let copy = copy_of(&rig.members[2])?;
    rig.members[2].wipe()?;
    rig.members[2].start()?;
    rig.until_joined_anew(2, first, 10).await?;
    rig.until_all_vote().await?;
    let second = rig.members[2].id().await?;
    rig.members[2].kill();
    put_back(&rig.members[2], &copy)?;
    rig.members[2].start()?;
    rig.until_joined_anew(2, second, 10).await?;
    ensure!(rig.members[2].id().await? != first, "it took up its first ID");
    rig.until_all_vote().await
}

/// ROL-01: an etcd that ends again and again for another cause isn't helped by other data: a port in use. It is behind, the
/// others serve, and its data stays.
#[tokio::test]
async fn rol_01_a_port_in_use_costs_no_data() -> anyhow::Result<()> {
    let mut rig = Rig::start(of(3, "3.6")).await?;
    rig.put("/kept/", 10).await?;
    let member = follower(&rig).await?;
    let before = rig.members[member].id().await?;
    rig.members[member].kill();
    put_more(rig.members[(member + 1) % 3].client().await?).await?;
    let address = rig.members[member].client_url().replace("http://", "");
    let taken = TcpListener::bind(&address)?;
    rig.members[member].start()?;
    rig.until("it has ended several times", async || {
        let (reason, message) = rig.members[member].condition("Ready").await?;
        ensure!(
            reason == "NotServing" && message.contains("4 times") && message.contains("exit code 1"),
            "{reason}: {message}"
        );
        Ok(())
    })
    .await?;
    ensure!(asides(&rig.members[member])?.is_empty(), "its data is given up");
    drop(taken);
    rig.until_ready().await?;
    ensure!(rig.members[member].id().await? == before, "it is another member");
    Ok(())
}

/// ROL-01: the only volume is put back. Nobody else has the data, and the backups have more: it is told.
#[tokio::test]
async fn rol_01_a_single_volume_put_back_is_told() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::single()).await?;
    rig.put("/kept/", 10).await?;
    rig.members[0].stop_launcher()?;
    rig.members[0].kill();
    let copy = copy_of(&rig.members[0])?;
    rig.start_all()?;
    rig.until_ready().await?;
    let newest = rig.put("/more/", 20).await?;
    rig.until_covered(newest).await?;
    rig.kill_all();
    put_back(&rig.members[0], &copy)?;
    rig.start_all()?;
    rig.until("it is told", async || {
        let (reason, message) = rig.members[0].condition("BackupReady").await?;
        ensure!(reason == "StoreAhead", "{reason}: {message}");
        Ok(())
    })
    .await
}

/// With EtcdMembers and Leases. Heartbeats come every second.
async fn with_leases(size: usize) -> anyhow::Result<(Rig, KubeApi)> {
    let api = KubeApi::start().await?;
    let mut rig = Rig::new(Setup {
        steward: json!({"heartbeat": "1s"}),
        ..of(size, "3.6")
    })?;
    api.lead(&mut rig)?;
    // One after the other has nobody to found a cluster with before all have said that they have no data.
    rig.start_all()?;
    rig.until_ready().await?;
    Ok((rig, api))
}

/// Waits until a member's Lease says that it has stored an index of after the writes.
async fn until_recorded(rig: &Rig, api: &KubeApi, member: usize, index: u64) -> anyhow::Result<()> {
    let mut client = rig.members[member].client().await?;
    rig.until("the Lease tells the index", async || {
        // Without writes the newest index isn't known to be stored.
        client.clone().put("/tick", "", None).await?;
        let recorded = api.raft_index(&rig.members[member].name)?;
        ensure!(recorded >= index, "{recorded} of {index}");
        Ok(())
    })
    .await?;
    client.get("/tick", None).await?;
    Ok(())
}

async fn raft_index(member: &Member) -> anyhow::Result<u64> {
    Ok(member.client().await?.status().await?.raft_index())
}

/// ROL-01: the leader has changed since, and Raft doesn't notice: the member would go on without what it has acknowledged. Its
/// Lease tells, before etcd is started.
#[tokio::test]
async fn rol_01_a_volume_put_back_behind_another_leader_joins_anew() -> anyhow::Result<()> {
    let (mut rig, api) = with_leases(3).await?;
    rig.put("/kept/", 10).await?;
    let leader = rig.leader().await?;
    let member = (leader + 1) % 3;
    let before = rig.members[member].id().await?;
    rig.members[member].stop_launcher()?;
    rig.members[member].kill();
    let copy = copy_of(&rig.members[member])?;
    rig.members[member].start()?;
    rig.until_ready().await?;
    put_more(rig.client().await?).await?;
    let index = raft_index(&rig.members[leader]).await?;
    until_recorded(&rig, &api, member, index).await?;
    rig.members[member].kill();
    put_back(&rig.members[member], &copy)?;
    let other = rig.members[(leader + 2) % 3].id().await?;
    rig.members[leader].client().await?.move_leader(other).await?;
    let panics = rig.members[member].launcher_log().matches("out of range").count();
    rig.members[member].start()?;
    is_joined_anew(&rig, member, before).await?;
    let log = rig.members[member].launcher_log();
    ensure!(
        log.matches("out of range").count() == panics,
        "etcd was started on it"
    );
    let events = api.events(&rig.members[member].name);
    ensure!(events.iter().any(|reason| reason == "DataBehind"), "{events:?}");
    Ok(())
}

/// ROL-01: a majority is put back. Those members wait and say why; the one with the newest data has no quorum. By the Leases a
/// person lets one of them go on, and nothing is lost.
#[tokio::test]
async fn rol_01_a_majority_put_back_waits_for_a_person() -> anyhow::Result<()> {
    let (mut rig, api) = with_leases(3).await?;
    rig.put("/kept/", 10).await?;
    for member in &mut rig.members[1..] {
        member.stop_launcher()?;
        member.kill();
    }
    let copies = [copy_of(&rig.members[1])?, copy_of(&rig.members[2])?];
    rig.start_all()?;
    rig.until_ready().await?;
    put_more(rig.client().await?).await?;
    let index = raft_index(&rig.members[0]).await?;
    for member in [1, 2] {
        until_recorded(&rig, &api, member, index).await?;
    }
    rig.kill_all();
    for (member, copy) in rig.members[1..].iter_mut().zip(&copies) {
        put_back(member, copy)?;
    }
    rig.start_all()?;
    for member in [1, 2] {
        rig.until("it refuses", async || {
            let (reason, message) = rig.members[member].condition("Initialized").await?;
            ensure!(reason == "DataStale", "{reason}: {message}");
            ensure!(
                message.contains("raft index") && message.contains("Lease"),
                "{message}"
            );
            Ok(())
        })
        .await?;
        ensure!(asides(&rig.members[member])?.is_empty(), "its data is given up");
    }
    // As the message says. The one with the newest data leads, and the last one joins anew.
    api.delete_lease("t1-1");
    rig.until_ready().await?;
    for member in &rig.members {
        ensure!(
            member.count("/more/").await? == i64::try_from(PUTS)?,
            "{} lacks keys",
            member.name
        );
    }
    rig.until_all_vote().await
}

/// ROL-01: the only volume is put back: the member waits, and says why and what to do.
#[tokio::test]
async fn rol_01_a_single_volume_put_back_waits_for_a_person() -> anyhow::Result<()> {
    let (mut rig, api) = with_leases(1).await?;
    rig.put("/kept/", 10).await?;
    rig.members[0].stop_launcher()?;
    rig.members[0].kill();
    let copy = copy_of(&rig.members[0])?;
    rig.start_all()?;
    rig.until_ready().await?;
    rig.put("/more/", 20).await?;
    let index = raft_index(&rig.members[0]).await?;
    until_recorded(&rig, &api, 0, index).await?;
    rig.kill_all();
    put_back(&rig.members[0], &copy)?;
    rig.start_all()?;
    rig.until("it refuses", async || {
        let (reason, message) = rig.members[0].condition("Initialized").await?;
        ensure!(reason == "DataStale", "{reason}: {message}");
        Ok(())
    })
    .await?;
    ensure!(rig.members[0].etcd_pid().is_none(), "etcd runs on it");
    api.delete_lease("t1-0");
    rig.until_ready().await?;
    ensure!(rig.members[0].count("/kept/").await? == 10, "keys are missing");
    Ok(())
}
