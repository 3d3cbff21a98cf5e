//! Members that come and go.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use etcd_client::MemberAddOptions;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::rig::{Rig, Setup};

/// SCL-03: members join as learners, and writes go on while they do.
#[tokio::test]
async fn scl_03_writes_go_on_while_members_join() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::single()).await?;
    rig.put("/kept/", 20).await?;
    let mut client = rig.members[0].client().await?;
    let probe = tokio::spawn(async move {
        let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
        for number in 0..150 {
            if client.put("/probe", number.to_string(), None).await.is_ok() {
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            sleep(Duration::from_millis(100)).await;
        }
        longest
    });
    rig.resize(3)?;
    // Stewards end when their configuration changes, and are started anew.
    rig.members[0].kill_steward();
    rig.start_all()?;
    rig.until_ready().await?;
    rig.until("all three vote", async || {
        let list = rig.client().await?.member_list().await?;
        let voters = list
            .members()
            .iter()
            .filter(|member| !member.is_learner())
            .count();
        ensure!(voters == 3 && list.members().len() == 3, "{list:?}");
        for member in &rig.members {
            ensure!(
                !member.client().await?.status().await?.is_learner(),
                "{} is a learner",
                member.name
            );
        }
        Ok(())
    })
    .await?;
    for member in &rig.members {
        ensure!(member.count("/kept/").await? == 20, "{} lacks keys", member.name);
    }
    let longest = probe.await?;
    ensure!(
        longest < Duration::from_secs(1),
        "nothing was written for {longest:?}"
    );
    Ok(())
}

/// SCL-04: a learner that never starts is removed after a while, is told of, and keeps nobody from joining.
#[tokio::test]
async fn scl_04_a_learner_that_never_starts_is_removed() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        size: 1,
        backup: json!(null),
        steward: json!({"learnerTimeout": "2s"}),
        ..Setup::default()
    })
    .await?;
    let mut client = rig.members[0].client().await?;
    let learner = Some(MemberAddOptions::new().with_is_learner());
    let added = client.member_add(["http://127.0.0.1:1"], learner).await?;
    let id = added.member().context("a member")?.id();
    // It blocks the next one.
    let learner = Some(MemberAddOptions::new().with_is_learner());
    let refused = client.member_add(["http://127.0.0.1:2"], learner).await;
    ensure!(refused.is_err(), "etcd took a second learner");
    let begun = Instant::now();
    rig.until("it is removed", async || {
        let listed = client.clone().member_list().await?;
        ensure!(listed.members().len() == 1, "{listed:?}");
        Ok(())
    })
    .await?;
    ensure!(
        begun.elapsed() >= Duration::from_secs(1),
        "it got no time to start"
    );
    rig.until("it is told of", async || {
        let log = rig.members[0].log();
        let told = log
            .lines()
            .find(|line| line.contains("removed a learner that never started"));
        let told = told.context("no word of it")?;
        ensure!(
            told.contains(&format!("{id:x}")) && told.contains("127.0.0.1:1"),
            "{told}"
        );
        Ok(())
    })
    .await?;
    // The next ones join.
    rig.resize(3)?;
    rig.members[0].kill_steward();
    rig.start_all()?;
    rig.until_ready().await?;
    rig.until_all_vote().await
}

/// SCL-04: a wanted member that was removed while it was away comes back by itself: its old data can't be used any more.
#[tokio::test]
async fn scl_04_a_removed_member_joins_anew() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        backup: json!(null),
        ..Setup::default()
    })
    .await?;
    rig.put("/kept/", 10).await?;
    let removed = rig.members[2].id().await?;
    rig.members[2].kill();
    // etcd refuses while it isn't sure of the others.
    rig.until("it is removed", async || {
        let mut client = rig.members[0].client().await?;
        let listed = client.member_list().await?;
        if listed.members().iter().any(|member| member.id() == removed) {
            timeout(Duration::from_secs(8), client.member_remove(removed)).await??;
        }
        Ok(())
    })
    .await?;
    rig.members[2].start()?;
    rig.until_joined_anew(2, removed, 10).await?;
    rig.until_all_vote().await
}

/// SCL-05: a member that is alone tells itself, or it couldn't be joined.
#[tokio::test]
async fn scl_05_a_moved_member_that_is_alone_lists_its_new_place() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        backup: json!(null),
        ..Setup::single()
    })
    .await?;
    rig.members[0].kill();
    rig.members[0].move_peer_port()?;
    rig.reconfigure()?;
    rig.start_all()?;
    let moved = rig.members[0].peer_url();
    rig.until("it lists the new URL", async || {
        let listed = rig.members[0].client().await?.member_list().await?;
        let urls = listed.members()[0].peer_urls();
        ensure!(*urls == [moved.clone()], "{urls:?}");
        Ok(())
    })
    .await
}

/// SCL-05: the cluster is told a member's new peer URL.
#[tokio::test]
async fn scl_05_a_moved_member_is_found_by_its_peers() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        backup: json!(null),
        ..Setup::default()
    })
    .await?;
    rig.put("/kept/", 10).await?;
    let id = rig.members[2].id().await?;
    rig.members[2].kill();
    rig.members[2].move_peer_port()?;
    rig.reconfigure()?;
    // Stewards end when their configuration changes.
    rig.members[0].kill_steward();
    rig.members[1].kill_steward();
    rig.start_all()?;
    let moved = rig.members[2].peer_url();
    rig.until("all list the new URL", async || {
        for member in &rig.members {
            let listed = member.client().await?.member_list().await?;
            let own = listed.members().iter().find(|listed| listed.id() == id);
            let urls = own.context("it isn't listed")?.peer_urls();
            ensure!(*urls == [moved.clone()], "{} lists {urls:?}", member.name);
        }
        Ok(())
    })
    .await?;
    // It is really reached there.
    rig.members[0].kill();
    let mut client = rig.members[1].client().await?;
    rig.until("the two of them have a quorum", async || {
        let mut client = client.clone();
        let written = client.put("/kept/after", "x", None);
        Ok(timeout(Duration::from_secs(2), written).await??)
    })
    .await?;
    client.get("/kept/after", None).await?;
    Ok(())
}

/// SCL-06: a promotion counts when the member itself and all lists say so.
#[tokio::test]
async fn scl_06_a_promotion_is_proven_from_all_sides() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        size: 1,
        backup: json!(null),
        ..Setup::default()
    })
    .await?;
    rig.resize(2)?;
    rig.members[0].kill_steward();
    rig.start_all()?;
    rig.until("the promotion is declared", async || {
        let log = rig.members[1].log();
        ensure!(log.contains("is a voter: says so itself"), "not yet");
        Ok(())
    })
    .await?;
    // At this moment, not some time later.
    let id = rig.members[1].id().await?;
    for member in &rig.members {
        let mut client = member.client().await?;
        ensure!(
            !client.status().await?.is_learner(),
            "{} is a learner",
            member.name
        );
        let listed = client.member_list().await?;
        let own = listed.members().iter().find(|listed| listed.id() == id);
        ensure!(
            !own.context("it isn't listed")?.is_learner(),
            "{} lists a learner",
            member.name
        );
    }
    Ok(())
}
