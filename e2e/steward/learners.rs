//! Learners: to which data is on its way, and what is told of them.

use std::sync::Mutex;

use anyhow::{Context as _, anyhow, ensure};
use serde_json::json;
use steward_proto::v1::MemberRole;

use crate::{
    faults::Proxy,
    rig::{Rig, Setup},
};

/// A member with so many mebibytes of data, and a learner to which they are on their way, so many bytes a second.
async fn slow_learner(setup: Setup, mebibytes: u64, rate: u64) -> anyhow::Result<(Rig, Proxy)> {
    let mut rig = Rig::start(Setup {
        backup: json!(null),
        // So that the database is sent as a whole.
        options: json!({"snapshot-count": 10, "snapshot-catchup-entries": 1, "max-request-bytes": 4 << 20}),
        ..setup
    })
    .await?;
    let mut client = rig.members[0].client().await?;
    for number in 0..mebibytes {
        client
            .put(format!("/big/{number}"), noise(1 << 20, number), None)
            .await?;
    }
    rig.resize(2)?;
    let proxy = Proxy::start(0, rig.members[1].peer_port()).await?;
    proxy.limit(rate);
    rig.members[1].reached_by(proxy.port);
    rig.reconfigure()?;
    rig.members[0].kill_steward();
    rig.start_all()?;
    Ok((rig, proxy))
}

/// The learner that the first member lists.
async fn learner(rig: &Rig) -> anyhow::Result<etcd_client::Member> {
    let listed = rig.members[0].client().await?.member_list().await?;
    let learner = listed.members().iter().find(|member| member.is_learner());
    Ok(learner.context("no learner")?.clone())
}

/// SCL-05: this version makes a learner a voter in name when its peer URLs are updated. The steward knows, and leaves the
/// cluster with the old ones.
#[tokio::test]
async fn scl_05_a_learner_is_not_updated_by_a_version_that_forgets_it() -> anyhow::Result<()> {
    let old = Setup {
        etcd: "3.5.16",
        ..Setup::single()
    };
    // It won't have caught up before it moves.
    let (mut rig, _proxy) = slow_learner(old, 24, 256 << 10).await?;
    let listed = rig.until("it is a learner", async || learner(&rig).await).await?;
    rig.until("it has begun", async || {
        let told = rig.members[1].told().await?;
        ensure!(told.role() == MemberRole::Learner, "{told:?}");
        // Before there is data it would only be a stranger at its new place.
        let member = rig.members[1].data_dir().join("member");
        ensure!(member.join("snap/db").exists() && member.join("wal").read_dir()?.count() > 0);
        Ok(())
    })
    .await?;
    rig.members[1].kill();
    let moved = Proxy::start(0, rig.members[1].peer_port()).await?;
    rig.members[1].reached_by(moved.port);
    rig.reconfigure()?;
    rig.members[0].kill_steward();
    rig.start_all()?;
    rig.until("the change is refused", async || {
        let log = rig.members[1].log();
        let line = log
            .lines()
            .rfind(|line| line.contains("isn't told this member's new peer URLs"));
        let line = line.context("it isn't told")?;
        ensure!(
            line.contains("3.5.16") && line.contains("forgets that a learner is one"),
            "{line}"
        );
        Ok(())
    })
    .await?;
    let now = learner(&rig).await?;
    ensure!(now.peer_urls() == listed.peer_urls(), "{now:?}");
    // What would have happened.
    let wanted = vec![rig.members[1].peer_url()];
    let mut client = rig.members[0].client().await?;
    client.member_update(now.id(), wanted).await?;
    let forgotten = learner(&rig).await;
    ensure!(
        forgotten.is_err(),
        "this version remembers learners: {forgotten:?}"
    );
    Ok(())
}

/// SCL-15, SCL-16: a learner is shown as one that catches up, with how far it is, while its data is still on its way.
#[tokio::test]
async fn scl_15_scl_16_a_learner_shows_how_far_it_is() -> anyhow::Result<()> {
    let (rig, proxy) = slow_learner(Setup::single(), 32, 3 << 20).await?;
    let shares = Mutex::new(Vec::new());
    rig.until("it grows", async || {
        let told = rig.members[1].told().await?;
        ensure!(told.role() == MemberRole::Learner, "{told:?}");
        let progress = told.progress.context("progress")?;
        ensure!(
            progress.message.starts_with("learner, catching up") && told.behind > 0,
            "{progress:?}"
        );
        let (reason, message) = rig.members[1].condition("Ready").await?;
        ensure!(
            reason == "LearnerCatchingUp" && message.contains("entries behind"),
            "{reason}: {message}"
        );
        let mut shares = shares.lock().map_err(|_| anyhow!("a panic"))?;
        shares.push(progress.done);
        shares.dedup();
        ensure!(
            shares.iter().filter(|share| (1..100).contains(*share)).count() >= 3,
            "{shares:?}"
        );
        Ok(())
    })
    .await?;
    let shares = shares.into_inner().map_err(|_| anyhow!("a panic"))?;
    ensure!(shares.is_sorted(), "it shrinks: {shares:?}");
    shown_by_all_ways(&rig).await?;
    proxy.limit(1 << 30);
    rig.until_ready().await?;
    rig.until("it votes", async || {
        let told = rig.members[1].told().await?;
        ensure!(
            told.role() == MemberRole::Follower && told.progress.is_none(),
            "{told:?}"
        );
        ensure!(
            rig.members[1].metric("etcdbr_member_caught_up_ratio").await? >= 1.0,
            "the metric doesn't say so"
        );
        Ok(())
    })
    .await?;
    ensure!(rig.members[1].count("/big/").await? == 32, "keys are missing");
    Ok(())
}

/// What the learner's own steward tells over gRPC is told over HTTP and as metrics too, and by the other stewards.
async fn shown_by_all_ways(rig: &Rig) -> anyhow::Result<()> {
    let (_, status) = rig.members[1].call("GET", "/member").await?;
    ensure!(
        status["role"] == "Learner" && status["initialization"]["progressPercent"].as_i64() > Some(0),
        "{status}"
    );
    let ratio = rig.members[1].metric("etcdbr_member_caught_up_ratio").await?;
    ensure!(ratio > 0.0 && ratio < 1.0, "{ratio}");
    ensure!(
        rig.members[1].metric("etcdbr_member_behind").await? > 0.0,
        "not behind"
    );
    let all = rig.members[0].told_of_all().await?;
    let learner = all
        .iter()
        .find(|member| member.name == "t1-1")
        .context("the learner")?;
    ensure!(
        learner.role() == MemberRole::Learner && learner.behind > 0,
        "{learner:?}"
    );
    Ok(())
}

/// Bytes that don't compress.
fn noise(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..size / 8).flat_map(|_| next()).collect()
}
