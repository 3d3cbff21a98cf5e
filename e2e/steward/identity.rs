//! Whose data it is: members that lost theirs, or have that of another cluster, come to the one cluster of their Etcd, and
//! never serve a second one.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::{
    faults::Proxy,
    member::{Member, free_port},
    rig::{Rig, Setup},
};

/// Long enough for a member that wouldn't wait to begin.
const LATER: Duration = Duration::from_secs(8);

/// The clusters that are served at this moment.
async fn served(rig: &Rig) -> BTreeSet<String> {
    let mut clusters = BTreeSet::new();
    for member in &rig.members {
        if let Ok(Ok(cluster)) = timeout(Duration::from_millis(500), member.cluster_id()).await {
            clusters.insert(format!("{cluster:x}"));
        }
    }
    clusters
}

/// Waits until all serve the cluster, and nobody has served another one on the way.
async fn until_only(rig: &Rig, cluster: u64) -> anyhow::Result<()> {
    let only = BTreeSet::from([format!("{cluster:x}")]);
    rig.until("all serve the one cluster", async || {
        let now = served(rig).await;
        if now.iter().any(|served| !only.contains(served)) {
            return Ok(Err(now));
        }
        for member in &rig.members {
            ensure!(
                member.cluster_id().await? == cluster,
                "{} isn't in it",
                member.name
            );
        }
        Ok(Ok(()))
    })
    .await?
    .map_err(|two| anyhow::anyhow!("clusters {two:?} were served, and not only {cluster:x}"))
}

/// Waits until a member says what it waits for.
async fn until_waits(rig: &Rig, member: usize, wanted: &str, said: &str) -> anyhow::Result<()> {
    rig.until(&format!("it waits for {wanted}"), async || {
        let (_, told) = rig.members[member].call("GET", "/member").await?;
        let initialized = condition(&told, "Initialized")?;
        let message = initialized["message"].as_str().context("a message")?;
        ensure!(
            initialized["reason"] == wanted && message.contains(said),
            "{initialized}"
        );
        // It shows that it waits, whatever it has been before.
        ensure!(condition(&told, "Ready")?["reason"] == wanted, "{told}");
        ensure!(told["state"] != "Started", "{told}");
        Ok(())
    })
    .await
}

/// A condition in what a member tells.
fn condition<'a>(told: &'a Value, type_: &str) -> anyhow::Result<&'a Value> {
    let mut conditions = told["conditions"].as_array().into_iter().flatten();
    let found = conditions.find(|condition| condition["type"] == type_);
    found.with_context(|| format!("no condition {type_} in {told}"))
}

/// What was moved aside on a volume.
fn asides(member: &Member) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(member.volume())? {
        let path = entry?.path();
        if path.to_string_lossy().contains("new.aside-") {
            found.push(path);
        }
    }
    Ok(found)
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status()?;
    ensure!(copied.success(), "copy {} to {}", from.display(), to.display());
    Ok(())
}

/// Three members with ten keys that the backups hold, and five that they lack.
async fn with_more_than_the_backups() -> anyhow::Result<Rig> {
    let rig = Rig::start(Setup::default()).await?;
    let revision = rig.put("/kept/", 10).await?;
    rig.until_covered(revision).await?;
    rig.block_store()?;
    rig.put("/kept/later/", 5).await?;
    Ok(rig)
}

/// BOOT-01: the others answer more slowly than anybody waits for: no answer is no proof that there is nobody.
#[tokio::test]
async fn boot_01_slow_members_are_no_missing_members() -> anyhow::Result<()> {
    let mut rig = with_more_than_the_backups().await?;
    let cluster = rig.members[0].cluster_id().await?;
    rig.unblock_store()?;
    rig.members[0].kill();
    rig.members[0].wipe()?;
    let mut proxies = Vec::new();
    for member in &mut rig.members[1..] {
        let (client, api) = (free_port()?, free_port()?);
        let etcd = member.lead_via(client);
        proxies.push(Proxy::start(client, etcd).await?);
        proxies.push(Proxy::start(api, member.api_port()).await?);
        member.api_reached_by(api);
    }
    for proxy in &proxies {
        proxy.limit_back(2);
    }
    rig.reconfigure()?;
    // Stewards end when their configuration changes.
    rig.start_stewards_anew()?;
    until_waits(
        &rig,
        0,
        "MembersUnknown",
        "t1-1 doesn't say what is on its volume",
    )
    .await?;
    sleep(LATER).await;
    ensure!(!rig.members[0].data_dir().exists(), "it began alone");
    for proxy in &proxies {
        proxy.limit_back(u64::MAX);
    }
    until_only(&rig, cluster).await?;
    ensure!(rig.members[0].count("/kept/").await? == 15, "keys are missing");
    Ok(())
}

/// BOOT-01: the others start later.
#[tokio::test]
async fn boot_01_later_members_are_no_missing_members() -> anyhow::Result<()> {
    let mut rig = with_more_than_the_backups().await?;
    let cluster = rig.members[0].cluster_id().await?;
    rig.kill_all();
    rig.unblock_store()?;
    rig.members[0].wipe()?;
    rig.members[0].start()?;
    until_waits(
        &rig,
        0,
        "MembersUnknown",
        "t1-2 doesn't say what is on its volume",
    )
    .await?;
    // One of them is no quorum, and has data all the same.
    rig.members[1].start()?;
    until_waits(&rig, 0, "PeersUnreachable", &format!("cluster {cluster:x}")).await?;
    ensure!(!rig.members[0].data_dir().exists(), "it began alone");
    rig.members[2].start()?;
    until_only(&rig, cluster).await?;
    ensure!(rig.members[0].count("/kept/").await? == 15, "keys are missing");
    Ok(())
}

/// BOOT-10: the Etcd is made anew and its claims are kept: the members come back with their data.
#[tokio::test]
async fn boot_10_an_etcd_made_anew_finds_its_data() -> anyhow::Result<()> {
    let mut rig = with_more_than_the_backups().await?;
    let cluster = rig.members[0].cluster_id().await?;
    rig.kill_all();
    rig.unblock_store()?;
    rig.make_anew("u-2")?;
    rig.start_all()?;
    until_only(&rig, cluster).await?;
    ensure!(rig.members[0].count("/kept/").await? == 15, "keys are missing");
    Ok(())
}

/// BOOT-10: one of the claims is gone. What the other two hold is better than any backup.
#[tokio::test]
async fn boot_10_an_etcd_made_anew_without_its_first_claim() -> anyhow::Result<()> {
    let mut rig = with_more_than_the_backups().await?;
    let cluster = rig.members[0].cluster_id().await?;
    rig.kill_all();
    rig.unblock_store()?;
    rig.make_anew("u-2")?;
    rig.members[0].wipe()?;
    // It is there first.
    rig.members[0].start()?;
    until_waits(&rig, 0, "MembersUnknown", "doesn't say").await?;
    rig.start_all()?;
    until_only(&rig, cluster).await?;
    ensure!(rig.members[0].count("/kept/").await? == 15, "keys are missing");
    rig.until_all_vote().await
}

/// The Etcd was scaled to one member whose claim was gone, and back: the two old volumes hold the majority of a cluster that
/// the Etcd has no more. They join the new one, and what they held stays until they vote.
#[tokio::test]
async fn old_volumes_join_the_cluster_that_took_their_place() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        backup: json!(null),
        ..Setup::default()
    })
    .await?;
    rig.put("/old/", 10).await?;
    let old = rig.members[0].cluster_id().await?;
    rig.kill_all();
    rig.members[0].wipe()?;
    let rest = rig.members.split_off(1);
    rig.make_anew("u-2")?;
    rig.start_all()?;
    rig.until_ready().await?;
    rig.put("/new/", 7).await?;
    let new = rig.members[0].cluster_id().await?;
    ensure!(old != new, "it is the old cluster");
    rig.members.extend(rest);
    rig.reconfigure()?;
    rig.members[0].kill_steward();
    rig.start_all()?;
    until_only(&rig, new).await?;
    for member in &rig.members {
        ensure!(member.count("/new/").await? == 7, "{} lacks keys", member.name);
        ensure!(member.count("/old/").await? == 0, "{} mixes them", member.name);
    }
    for member in &rig.members[1..] {
        let kept = asides(member)?;
        ensure!(kept.len() == 1, "{}: {kept:?}", member.name);
        ensure!(kept[0].join("member/snap/db").exists(), "{kept:?}");
    }
    rig.until_all_vote().await
}

/// A member gets a volume back that it had when it was alone, in a cluster before the present one: with it it could serve
/// without the others. It waits for them, whoever comes first.
#[tokio::test]
async fn a_volume_of_an_earlier_cluster_is_not_started() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        backup: json!(null),
        ..Setup::single()
    })
    .await?;
    rig.put("/old/", 3).await?;
    let old = rig.members[0].cluster_id().await?;
    rig.kill_all();
    let aside = rig.members[0].volume().with_file_name("older");
    fs::rename(rig.members[0].volume(), &aside)?;
    fs::create_dir(rig.members[0].volume())?;
    rig.make_anew("u-2")?;
    rig.resize(3)?;
    rig.start_all()?;
    rig.until_ready().await?;
    rig.put("/kept/", 10).await?;
    let cluster = rig.members[1].cluster_id().await?;
    ensure!(old != cluster, "it is the old cluster");
    rig.kill_all();
    rig.members[0].wipe()?;
    fs::remove_dir(rig.members[0].volume())?;
    copy(&aside, &rig.members[0].volume())?;
    rig.members[0].start()?;
    until_waits(&rig, 0, "DataUnconfirmed", &format!("cluster {old:x}")).await?;
    ensure!(rig.members[0].etcd_pid().is_none(), "etcd runs");
    rig.start_all()?;
    until_only(&rig, cluster).await?;
    ensure!(rig.members[0].count("/kept/").await? == 10, "keys are missing");
    let kept = asides(&rig.members[0])?;
    ensure!(kept.len() == 1, "{kept:?}");
    Ok(())
}

/// The only member's volume was exchanged for one of another cluster: that isn't started, and the record says what is wanted.
#[tokio::test]
async fn other_data_of_the_only_member_is_refused() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        backup: json!(null),
        ..Setup::single()
    })
    .await?;
    rig.put("/kept/", 3).await?;
    let mut other = Rig::start(Setup {
        backup: json!(null),
        ..Setup::single()
    })
    .await?;
    let (ours, theirs) = (
        rig.members[0].cluster_id().await?,
        other.members[0].cluster_id().await?,
    );
    rig.until("the cluster is recorded", async || {
        let identity = fs::read_to_string(rig.members[0].volume().join("identity.json"))?;
        ensure!(identity.contains(&format!("{ours:x}")), "{identity}");
        Ok(())
    })
    .await?;
    rig.kill_all();
    other.kill_all();
    let data = rig.members[0].data_dir();
    let aside = data.with_file_name("ours");
    fs::rename(&data, &aside)?;
    copy(&other.members[0].data_dir(), &data)?;
    rig.start_all()?;
    until_waits(&rig, 0, "DataOfOtherCluster", &format!("cluster {theirs:x}")).await?;
    ensure!(rig.members[0].etcd_pid().is_none(), "etcd runs");
    fs::remove_dir_all(&data)?;
    fs::rename(&aside, &data)?;
    rig.until_ready().await?;
    ensure!(rig.members[0].count("/kept/").await? == 3, "keys are missing");
    Ok(())
}

/// QUO-07: no member has data any more, and all say so: the cluster is restored without a hand, and what that costs is told.
#[tokio::test]
async fn quo_07_nothing_left_is_restored_by_itself() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::default()).await?;
    let revision = rig.put("/kept/", 10).await?;
    rig.until_covered(revision).await?;
    until_recorded(&rig).await?;
    rig.kill_all();
    rig.members.iter().try_for_each(Member::lose_data)?;
    // While one of them is silent it may have the data.
    rig.members[0].start()?;
    rig.members[1].start()?;
    until_waits(&rig, 0, "PeersUnreachable", "t1-2 doesn't say").await?;
    until_waits(&rig, 0, "PeersUnreachable", "t1-1 has no data").await?;
    sleep(LATER).await;
    ensure!(!rig.members[0].data_dir().exists(), "it began without t1-2");
    // While the store is silent it may have the data.
    rig.block_store()?;
    rig.members[2].start()?;
    until_waits(&rig, 0, "StoreUnreachable", "").await?;
    rig.unblock_store()?;
    rig.until_ready().await?;
    for member in &rig.members {
        ensure!(member.count("/kept/").await? == 10, "{} lacks keys", member.name);
    }
    let (_, told) = rig.members[0].call("GET", "/member").await?;
    let restoration = &told["lastRestoration"];
    ensure!(restoration["reason"] == "AllDataLost", "{restoration}");
    let message = restoration["message"].as_str().context("a message")?;
    ensure!(
        message.contains("no member of this cluster has data left"),
        "{message}"
    );
    rig.until_all_vote().await
}

/// The same without a backup: a person has to say that the cluster is to begin empty.
#[tokio::test]
async fn quo_07_nothing_left_and_no_backup_is_refused() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        backup: json!(null),
        ..Setup::default()
    })
    .await?;
    until_recorded(&rig).await?;
    rig.kill_all();
    rig.members.iter().try_for_each(Member::lose_data)?;
    rig.start_all()?;
    for member in 0..3 {
        until_waits(&rig, member, "DataLost", "identity.json").await?;
    }
    for member in &rig.members {
        fs::remove_file(member.volume().join("identity.json"))?;
    }
    rig.until_ready().await
}

/// Waits until all volumes record the cluster.
async fn until_recorded(rig: &Rig) -> anyhow::Result<()> {
    let cluster = rig.members[0].cluster_id().await?;
    rig.until("the cluster is recorded", async || {
        for member in &rig.members {
            let identity = fs::read_to_string(member.volume().join("identity.json"))?;
            ensure!(identity.contains(&format!("\"{cluster:x}\"")), "{identity}");
        }
        Ok(())
    })
    .await
}
