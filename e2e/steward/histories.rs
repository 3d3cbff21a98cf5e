//! Backups of another history, and holes that a full snapshot has to close first: no delta follows what it doesn't belong to.

use std::{fs, process::Command};

use anyhow::ensure;
use etcd_client::GetOptions;
use serde_json::json;

use crate::{
    deltas::restores_equal,
    rig::{Rig, Setup, revisions},
};

/// The data went back, and counts past the backups after a while: their revisions are then those of another history.
#[tokio::test]
async fn data_that_went_back_gets_a_chain_of_its_own() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::single()).await?;
    let revision = rig.put("/kept/", 10).await?;
    rig.until_covered(revision).await?;
    rig.kill_all();
    let (data, aside) = (rig.members[0].data_dir(), rig.members[0].temp().join("older"));
    let copy = |from, to| Command::new("cp").arg("-r").arg(from).arg(to).status();
    ensure!(copy(&data, &aside)?.success());
    rig.start_all()?;
    rig.until_ready().await?;
    let lost = rig.put("/lost/", 20).await?;
    rig.until_covered(lost).await?;
    rig.kill_all();
    fs::remove_dir_all(&data)?;
    ensure!(copy(&aside, &data)?.success());
    rig.start_all()?;
    rig.until_ready().await?;
    rig.until("the store is seen to be ahead", async || {
        let error = rig.members[0].backup_status().await?.error;
        ensure!(
            error.as_ref().is_some_and(|error| error.reason == "StoreAhead"),
            "{error:?}"
        );
        Ok(())
    })
    .await?;
    // As many as before and more, and the last of those at the revision of the last of these.
    let new = rig.put("/new/", 40).await?;
    ensure!(new > lost);
    rig.until_covered(new).await?;
    let stored = rig.stored()?;
    let of_new = stored.iter().filter(|name| revisions(name).1 > lost);
    let fulls = of_new.clone().filter(|name| name.starts_with("Full-")).count();
    ensure!(
        fulls == 1
            && of_new
                .clone()
                .next()
                .is_some_and(|first| first.starts_with("Full-")),
        "{stored:?}"
    );
    restores_equal(&mut rig).await?;
    ensure!(rig.members[0].count("/lost/").await? == 0);
    ensure!(rig.members[0].count("/new/").await? == 40);
    Ok(())
}

/// A full snapshot is needed and fails, whoever has ordered it: deltas wait for it.
#[tokio::test]
async fn deltas_wait_for_the_full_snapshot_that_they_need() -> anyhow::Result<()> {
    let mut rig = Rig::new(Setup::single())?;
    let temp = rig.members[0].temp();
    fs::remove_dir_all(&temp)?;
    fs::write(&temp, "not a folder")?;
    rig.start_all()?;
    rig.until_ready().await?;
    for number in 0..3 {
        rig.put(&format!("/key/{number}/"), 5).await?;
        rig.until("the failure is told to who ordered it", async || {
            let (status, answer) = rig.members[0].call("POST", "/snapshot/full").await?;
            ensure!(
                status == 503 && answer["reason"] == "ScratchSpace",
                "{status}: {answer}"
            );
            Ok(())
        })
        .await?;
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        ensure!(rig.stored()?.is_empty(), "{:?}", rig.stored()?);
    }
    fs::remove_file(&temp)?;
    fs::create_dir(&temp)?;
    let revision = rig.put("/last/", 5).await?;
    rig.until_covered(revision).await?;
    let stored = rig.stored()?;
    ensure!(stored.iter().any(|name| name.starts_with("Full-")), "{stored:?}");
    restores_equal(&mut rig).await
}

/// While it isn't known what the backups hold, history that they may lack isn't dropped to make room.
#[tokio::test]
async fn history_that_backups_may_lack_is_kept() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        size: 1,
        options: json!({"quota-backend-bytes": 16 << 20}),
        ..Setup::default()
    })
    .await?;
    rig.kill_all();
    rig.block_store()?;
    rig.start_all()?;
    rig.until_ready().await?;
    let mut client = rig.client().await?;
    let value = "x".repeat(256 << 10);
    while client.put("/key", value.as_str(), None).await.is_ok() {}
    rig.until("room was looked for", async || {
        // Defragmentation may win enough.
        ensure!(
            rig.members[0]
                .log()
                .contains("history isn't dropped while it isn't known")
        );
        Ok(())
    })
    .await?;
    let first = GetOptions::new().with_revision(2);
    let answer = client.get("/key", Some(first)).await?;
    ensure!(answer.kvs().len() == 1, "{answer:?}");
    Ok(())
}
