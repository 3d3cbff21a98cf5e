//! How members come to their data.

use std::{fs, time::SystemTime};

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
    rig.until_ready().await?;
    ensure!(
        rig.members[2].id().await? != id,
        "an empty member took up its old ID"
    );
    ensure!(rig.members[2].count("/kept/").await? == 10, "keys are missing");
    let mut client = rig.client().await?;
    rig.until("all are voters", async || {
        let list = client.clone().member_list().await?;
        ensure!(
            list.members().len() == 3 && list.members().iter().all(|member| !member.is_learner()),
            "{list:?}"
        );
        Ok(())
    })
    .await?;
    client.put("/kept/after", "x", None).await?;
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
    let setup = Setup {
        size: 1,
        ..Setup::default()
    };
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
