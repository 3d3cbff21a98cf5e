//! Members that come and go.

use std::{sync::Mutex, time::Duration};

use anyhow::{Context as _, anyhow, ensure};
use etcd_client::MemberAddOptions;
use serde_json::json;
use steward_proto::v1::{ListSnapshotsRequest, MemberRole};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    faults::Proxy,
    member::Member,
    rig::{Rig, Setup},
};

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

/// QUO-03: a member without a quorum is alive, and comes back to work when the others do.
#[tokio::test]
async fn quo_03_a_lost_quorum_is_waited_out() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::default()).await?;
    rig.put("/kept/", 10).await?;
    let leader = rig.leader().await?;
    let survivor = (leader + 1) % 3;
    let others: Vec<_> = (0..3).filter(|index| *index != survivor).collect();
    for index in &others {
        rig.members[*index].kill();
    }
    sleep(Duration::from_secs(5)).await;
    let status = rig.members[survivor].client().await?.status().await?;
    ensure!(status.leader() == 0, "it still knows a leader");
    for index in others {
        rig.members[index].start()?;
    }
    rig.until_ready().await?;
    for member in &rig.members {
        ensure!(member.count("/kept/").await? == 10, "{} lacks keys", member.name);
    }
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
    all_vote(&rig).await
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
    rig.until_ready().await?;
    all_vote(&rig).await?;
    ensure!(rig.members[2].id().await? != removed, "it took up its old ID");
    ensure!(rig.members[2].count("/kept/").await? == 10, "keys are missing");
    Ok(())
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
            .find(|line| line.contains("isn't told this member's new peer URLs"));
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

/// QUO-08: without a quorum a survivor tells its revision, and the store that of the newest backup; what to do about it is
/// for people to say.
#[tokio::test]
async fn quo_08_both_choices_are_told_and_none_is_taken() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::default()).await?;
    let covered = rig.put("/kept/", 20).await?;
    rig.until_covered(covered).await?;
    // From here on the survivor has more than the backups.
    let store = rig.store();
    rig.members.iter_mut().for_each(Member::kill_steward);
    let ahead = rig.put("/more/", 7).await?;
    rig.until("all have it", async || {
        for member in &rig.members {
            ensure!(member.count("/more/").await? == 7, "{} lacks keys", member.name);
        }
        Ok(())
    })
    .await?;
    let (survivor, lost) = rig.members.split_at_mut(1);
    let id = survivor[0].id().await?;
    lost.iter_mut().for_each(Member::kill);
    survivor[0].start_steward()?;
    rig.until("the survivor tells its revision", async || {
        let all = rig.members[0].told_of_all().await?;
        let own = all
            .iter()
            .find(|member| member.name == "t1-0")
            .context("the survivor")?;
        ensure!(own.revision == ahead, "at {}, not {ahead}", own.revision);
        let (reason, message) = rig.members[0].condition("Ready").await?;
        ensure!(reason == "NoLeader", "{reason}: {message}");
        let silent = all.iter().filter(|member| !member.error.is_empty()).count();
        ensure!(silent == 2, "{all:?}");
        Ok(())
    })
    .await?;
    let mut snapshots = rig.members[0].snapshots().await?;
    let listed = snapshots
        .list_snapshots(ListSnapshotsRequest {})
        .await?
        .into_inner();
    let newest = listed
        .snapshots
        .iter()
        .map(|snapshot| snapshot.end_revision)
        .max();
    ensure!(
        newest >= Some(covered) && newest < Some(ahead),
        "the newest backup is at {newest:?}"
    );
    // Nothing happens by itself.
    let before = rig.stored()?;
    sleep(Duration::from_secs(5)).await;
    let mut client = rig.members[0].client().await?;
    ensure!(client.status().await?.leader() == 0, "it leads");
    ensure!(rig.members[0].id().await? == id, "it is another member");
    ensure!(
        client.member_list().await?.members().len() == 3,
        "members were removed"
    );
    ensure!(rig.stored()? == before && store.exists(), "the store has changed");
    Ok(())
}

async fn all_vote(rig: &Rig) -> anyhow::Result<()> {
    rig.until("all three vote", async || {
        let listed = rig.members[0].client().await?.member_list().await?;
        let voters = listed
            .members()
            .iter()
            .filter(|member| !member.is_learner())
            .count();
        ensure!(voters == 3 && listed.members().len() == 3, "{listed:?}");
        Ok(())
    })
    .await
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
