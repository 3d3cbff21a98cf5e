//! How members come to their data.

use std::{fs, os::unix::fs::MetadataExt as _, time::SystemTime};

use anyhow::ensure;
use serde_json::{Value, json};

use crate::rig::{Rig, Setup};

/// Every minor version starts, and a cluster that loses its power comes back as the same members with all data.
async fn life(etcd: &'static str) -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        etcd,
        ..Setup::default()
    })
    .await?;
    rig.put("/life/", 20).await?;
    let mut before = Vec::new();
    for member in &rig.members {
        before.push(member.id().await?);
    }
    rig.kill_all();
    rig.start_all()?;
    rig.until_ready().await?;
    for (member, id) in rig.members.iter().zip(before) {
        ensure!(member.id().await? == id, "{} has another ID", member.name);
        ensure!(member.count("/life/").await? == 20, "{} lacks keys", member.name);
    }
    Ok(())
}

#[tokio::test]
async fn three_members_with_etcd_3_5_survive_a_power_loss() -> anyhow::Result<()> {
    life("3.5").await
}

#[tokio::test]
async fn three_members_with_etcd_3_6_survive_a_power_loss() -> anyhow::Result<()> {
    life("3.6").await
}

#[tokio::test]
async fn three_members_with_etcd_3_7_survive_a_power_loss() -> anyhow::Result<()> {
    life("3.7").await
}

/// A member that lost its volume joins the others anew, and never founds a cluster of its own.
async fn rejoins(backup: Value) -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        backup,
        ..Setup::default()
    })
    .await?;
    rig.put("/kept/", 10).await?;
    let id = rig.members[2].id().await?;
    rig.members[2].kill();
    rig.members[2].wipe()?;
    rig.members[2].start()?;
    rig.until_joined_anew(2, id, 10).await?;
    rig.until_all_vote().await?;
    rig.client().await?.put("/kept/after", "x", None).await?;
    Ok(())
}

/// BOOT-01
#[tokio::test]
async fn boot_01_a_lost_volume_means_joining_anew() -> anyhow::Result<()> {
    rejoins(Setup::default().backup).await
}

/// BOOT-02: that mustn't depend on backups.
#[tokio::test]
async fn boot_02_a_lost_volume_without_a_store_means_joining_anew() -> anyhow::Result<()> {
    rejoins(Value::Null).await
}

/// BOOT-05: the founding member is replaced like any other.
#[tokio::test]
async fn boot_05_a_damaged_founder_is_replaced() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::default()).await?;
    rig.put("/kept/", 10).await?;
    rig.members[0].kill();
    let db = rig.members[0].data_dir().join("member/snap/db");
    fs::File::options().write(true).open(db)?.set_len(4096)?;
    rig.members[0].start()?;
    rig.until_ready().await?;
    ensure!(rig.members[0].count("/kept/").await? == 10, "keys are missing");
    Ok(())
}

/// BOOT-05: a start that waits neither reads its data nor records its decision again and again.
#[tokio::test]
async fn boot_05_a_damaged_member_that_waits_reads_its_data_once() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        backup: json!(null),
        ..Setup::default()
    })
    .await?;
    rig.put("/kept/", 10).await?;
    let id = rig.members[2].id().await?;
    rig.members[1].kill();
    rig.members[2].kill();
    let db = rig.members[2].data_dir().join("member/snap/db");
    fs::File::options().write(true).open(db)?.set_len(4096)?;
    let before = rig.members[2].log().len();
    rig.members[2].start()?;
    let said = |what: &str| rig.members[2].log()[before..].matches(what).count();
    rig.until("it has looked some times", async || {
        let (reason, message) = rig.members[2].condition("Initialized").await?;
        ensure!(reason == "PeersUnreachable", "{reason}: {message}");
        ensure!(said("etcd can't be started yet") >= 5, "not yet");
        Ok(())
    })
    .await?;
    ensure!(
        said("checked the data directory") == 1,
        "it was checked {} times",
        said("checked the data directory")
    );
    ensure!(
        said("transition") <= 2,
        "too many transitions: {}",
        rig.members[2].log()
    );
    rig.members[1].start()?;
    rig.until_joined_anew(2, id, 10).await
}

/// BOOT-10: a member that finds another member's volume refuses it, and writes nothing on it.
#[tokio::test]
async fn boot_10_a_foreign_volume_is_refused() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::default()).await?;
    rig.put("/kept/", 10).await?;
    rig.kill_all();
    let (one, two) = (rig.members[1].volume(), rig.members[2].volume());
    let aside = one.with_file_name("aside");
    fs::rename(&one, &aside)?;
    fs::rename(&two, &one)?;
    fs::rename(&aside, &two)?;
    let changed = |volume: &std::path::Path| -> anyhow::Result<SystemTime> {
        Ok(fs::metadata(volume.join("new.etcd/member/snap/db"))?.modified()?)
    };
    let before = (changed(&one)?, changed(&two)?);
    rig.start_all()?;
    rig.until("both refuse the volume", async || {
        for member in &rig.members[1..] {
            ensure!(
                member.log().contains("WrongVolume"),
                "{} doesn't refuse it",
                member.name
            );
        }
        Ok(())
    })
    .await?;
    ensure!(
        before == (changed(&one)?, changed(&two)?),
        "the refused volumes were written to"
    );
    rig.kill_all();
    fs::rename(&one, &aside)?;
    fs::rename(&two, &one)?;
    fs::rename(&aside, &two)?;
    rig.start_all()?;
    rig.until_ready().await?;
    ensure!(rig.members[1].count("/kept/").await? == 10, "keys are missing");
    Ok(())
}

/// QUO-07: all volumes are gone, but there are backups: the first member restores them, the others join it.
#[tokio::test]
async fn quo_07_lost_volumes_are_restored_from_backups() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::default()).await?;
    let revision = rig.put("/kept/", 50).await?;
    rig.until_covered(revision).await?;
    rig.kill_all();
    for member in &rig.members {
        member.wipe()?;
    }
    rig.start_all()?;
    rig.until_ready().await?;
    for member in &rig.members {
        ensure!(member.count("/kept/").await? == 50, "{} lacks keys", member.name);
    }
    // The chain goes on.
    let revision = rig.put("/more/", 5).await?;
    rig.until_covered(revision).await?;
    Ok(())
}

/// BOOT-12: a store that can't be read is no reason to give up data, nor to start without what it may hold.
#[tokio::test]
async fn boot_12_an_unreadable_store_is_waited_for() -> anyhow::Result<()> {
    let setup = Setup::single();
    let mut rig = Rig::start(setup).await?;
    let revision = rig.put("/kept/", 10).await?;
    rig.until_covered(revision).await?;
    rig.kill_all();
    rig.members[0].wipe()?;
    let (store, aside) = (rig.store(), rig.store().with_file_name("store-aside"));
    fs::rename(&store, &aside)?;
    fs::write(&store, "not a folder")?;
    rig.start_all()?;
    rig.until("the store is waited for", async || {
        let log = rig.members[0].log();
        ensure!(log.contains("store"), "{log}");
        Ok(())
    })
    .await?;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    ensure!(
        !rig.members[0].data_dir().join("member").exists(),
        "it began without its backups"
    );
    fs::remove_file(&store)?;
    fs::rename(&aside, &store)?;
    rig.until_ready().await?;
    ensure!(rig.members[0].count("/kept/").await? == 10, "keys are missing");
    Ok(())
}

/// BOOT-12: with good data nobody asks the store: etcd starts on the very directory that is there.
#[tokio::test]
async fn boot_12_good_data_needs_no_store() -> anyhow::Result<()> {
    let setup = Setup::single();
    let mut rig = Rig::start(setup).await?;
    let revision = rig.put("/kept/", 10).await?;
    rig.until_covered(revision).await?;
    rig.kill_all();
    let inode = |path: &str| anyhow::Ok(fs::metadata(rig.members[0].data_dir().join(path))?.ino());
    let before = (inode("")?, inode("member")?, inode("member/snap/db")?);
    fs::rename(rig.store(), rig.store().with_file_name("store-aside"))?;
    fs::write(rig.store(), "not a folder")?;
    rig.start_all()?;
    rig.until_ready().await?;
    let inode = |path: &str| anyhow::Ok(fs::metadata(rig.members[0].data_dir().join(path))?.ino());
    let after = (inode("")?, inode("member")?, inode("member/snap/db")?);
    ensure!(
        before == after,
        "the data directory is another one: {before:?}, {after:?}"
    );
    ensure!(rig.members[0].count("/kept/").await? == 10, "keys are missing");
    Ok(())
}

/// BOOT-03: whoever doesn't know the cluster's size starts nothing, and one that knows it joins the others.
#[tokio::test]
async fn boot_03_a_lost_member_never_starts_alone() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        backup: json!(null),
        ..Setup::default()
    })
    .await?;
    rig.put("/kept/", 10).await?;
    let cluster = rig.members[0].cluster_id().await?;
    rig.members[2].kill();
    rig.members[2].wipe()?;
    // No members, or this one not among them: the steward ends, and without it the launcher starts nothing.
    for members in [
        json!([]),
        json!([{"name": "t1-0", "pod": "t1-0", "peerUrls": [], "clientUrls": [], "stewardUrl": ""}]),
    ] {
        let steward = json!({"cluster": {"name": "t1", "namespace": "lab", "uid": "u-1", "token": "u-1", "members": members}});
        rig.members[2].configure(&steward.to_string(), "{}")?;
        rig.members[2].start()?;
        let code = rig.members[2].steward_ended()?;
        ensure!(
            code.is_some_and(|code| code != 0),
            "the steward ended with {code:?}"
        );
        ensure!(
            rig.members[2].log().contains("none of the Etcd's members"),
            "{}",
            rig.members[2].log()
        );
        ensure!(rig.members[2].etcd_pid().is_none(), "etcd runs");
        ensure!(!rig.members[2].data_dir().exists(), "there is a data directory");
    }
    // The size is known, and there is no quorum to join: it waits, whatever the store says.
    rig.reconfigure()?;
    rig.members[1].kill();
    rig.members[2].start()?;
    rig.until("it says what it waits for", async || {
        let (reason, message) = rig.members[2].condition("Initialized").await?;
        ensure!(
            reason == "PeersUnreachable" && message.contains("t1-0 runs in cluster"),
            "{reason}: {message}"
        );
        Ok(())
    })
    .await?;
    ensure!(rig.members[2].etcd_pid().is_none(), "etcd runs");
    rig.members[1].start()?;
    rig.until_ready().await?;
    ensure!(
        rig.members[2].cluster_id().await? == cluster,
        "it is another cluster"
    );
    ensure!(rig.members[2].count("/kept/").await? == 10, "keys are missing");
    Ok(())
}

/// Waits until all volumes say in which cluster their members are.
async fn until_recorded(rig: &Rig, cluster: u64) -> anyhow::Result<()> {
    rig.until("the cluster is recorded", async || {
        for member in &rig.members {
            let identity = fs::read_to_string(member.volume().join("identity.json"))?;
            ensure!(
                identity.contains(&format!("\"{cluster:x}\"")),
                "{}: {identity}",
                member.name
            );
        }
        Ok(())
    })
    .await
}

/// BOOT-09: a start that waits says for what, with what a person needs to act on, and without secrets.
#[tokio::test]
async fn boot_09_a_wait_for_the_store_names_its_endpoint() -> anyhow::Result<()> {
    let store = json!({
        "provider": "S3", "container": "bucket", "prefix": "t1", "endpointOverride": "http://127.0.0.1:1",
    });
    let mut rig = Rig::new(Setup {
        size: 1,
        backup: json!(null),
        steward: json!({"backup": {"store": store}}),
        ..Setup::default()
    })?;
    let keys = tempfile::tempdir()?;
    for (name, value) in [
        ("accessKeyID", "hush-id"),
        ("secretAccessKey", "hush-key"),
        ("region", "here"),
    ] {
        fs::write(keys.path().join(name), value)?;
    }
    let folder = keys.path().to_string_lossy().into_owned();
    rig.members[0].set_env("AWS_APPLICATION_CREDENTIALS", folder);
    rig.start_all()?;
    rig.until("the store is waited for", async || {
        let (reason, message) = rig.members[0].condition("Initialized").await?;
        ensure!(reason == "StoreUnreachable", "{reason}: {message}");
        ensure!(message.contains("127.0.0.1:1"), "no endpoint: {message}");
        let told = rig.members[0].told().await?;
        ensure!(
            told.progress.is_some_and(|progress| progress.message == message),
            "no progress"
        );
        let (status, body) = rig.members[0].call("GET", "/member").await?;
        ensure!(
            status == 200 && body["conditions"][0]["reason"] == "StoreUnreachable",
            "{body}"
        );
        ensure!(
            rig.members[0].log().contains("StoreUnreachable"),
            "the log doesn't say so"
        );
        Ok(())
    })
    .await?;
    ensure!(!rig.members[0].log().contains("hush"), "a secret is in the log");
    ensure!(
        !rig.members[0].data_dir().exists(),
        "it began without its backups"
    );
    Ok(())
}

/// BOOT-09: the same for the other members, of a member that has lost its data but not its volume.
#[tokio::test]
async fn boot_09_a_wait_for_the_others_is_told() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        backup: json!(null),
        ..Setup::default()
    })
    .await?;
    rig.put("/kept/", 10).await?;
    let cluster = rig.members[0].cluster_id().await?;
    until_recorded(&rig, cluster).await?;
    rig.kill_all();
    rig.members[2].lose_data()?;
    rig.members[2].start()?;
    rig.until("the others are waited for", async || {
        let (reason, message) = rig.members[2].condition("Initialized").await?;
        ensure!(
            reason == "PeersUnreachable" && message.contains("quorum"),
            "{reason}: {message}"
        );
        Ok(())
    })
    .await?;
    ensure!(
        !rig.members[2].data_dir().exists(),
        "it founded a cluster of its own"
    );
    rig.start_all()?;
    rig.until_ready().await?;
    ensure!(
        rig.members[2].cluster_id().await? == cluster,
        "it is another cluster"
    );
    Ok(())
}

/// BOOT-14: at the others' addresses answers an etcd that has nothing to do with this one: it is left alone.
#[tokio::test]
async fn boot_14_strangers_are_left_alone() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        backup: json!(null),
        ..Setup::default()
    })
    .await?;
    rig.put("/kept/", 10).await?;
    let other = Rig::start(Setup {
        size: 1,
        backup: json!(null),
        ..Setup::default()
    })
    .await?;
    let (ours, theirs) = (
        rig.members[0].cluster_id().await?,
        other.members[0].cluster_id().await?,
    );
    ensure!(ours != theirs, "both are the same cluster");
    until_recorded(&rig, ours).await?;
    rig.members[2].kill();
    rig.members[2].lose_data()?;
    rig.members[2].mislead(Some(other.members[0].client_url()));
    rig.reconfigure()?;
    rig.members[2].start()?;
    rig.until("it is refused", async || {
        let (reason, message) = rig.members[2].condition("Initialized").await?;
        ensure!(reason == "WrongCluster", "{reason}: {message}");
        for id in [ours, theirs] {
            ensure!(message.contains(&format!("{id:x}")), "{id:x} isn't in {message}");
        }
        Ok(())
    })
    .await?;
    let listed = other.members[0].client().await?.member_list().await?;
    ensure!(listed.members().len() == 1, "something was added: {listed:?}");
    ensure!(!rig.members[2].data_dir().exists(), "it began all the same");
    // With the right addresses it joins.
    rig.members[2].mislead(None);
    rig.members[2].kill();
    rig.reconfigure()?;
    rig.members[2].start()?;
    rig.until_ready().await?;
    ensure!(
        rig.members[2].cluster_id().await? == ours,
        "it is another cluster"
    );
    Ok(())
}

/// BOOT-13: a data directory that another etcd holds open is left alone.
#[tokio::test]
async fn boot_13_a_directory_in_use_is_left_alone() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        size: 1,
        backup: json!(null),
        ..Setup::default()
    })
    .await?;
    rig.put("/kept/", 10).await?;
    // A second steward and launcher on the same volume: the first ones' etcd goes on.
    rig.members[0].kill_steward();
    let begun = std::time::Instant::now();
    let data_dir = rig.members[0].data_dir();
    let verdict = crate::member::run(&["dump", "--data-dir", &data_dir.to_string_lossy()]);
    ensure!(
        begun.elapsed().as_secs() < 10,
        "the verdict took {:?}",
        begun.elapsed()
    );
    if let Err(error) = verdict {
        let text = format!("{error:#}");
        ensure!(text.contains("lock") || text.contains("in use"), "{text}");
    }
    ensure!(rig.members[0].count("/kept/").await? == 10, "etcd was disturbed");
    Ok(())
}
