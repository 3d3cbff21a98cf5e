//! What a member does without a quorum.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill};
use serde_json::json;
use steward_proto::v1::ListSnapshotsRequest;
use tokio::time::sleep;

use crate::{
    member::Member,
    rig::{Rig, Setup},
};

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

fn of(size: usize) -> Setup {
    Setup {
        size,
        backup: json!(null),
        ..Setup::default()
    }
}

/// Loses the volumes of running members. Returns the IDs that they had.
async fn lose_volumes(rig: &mut Rig, lost: &[usize]) -> anyhow::Result<Vec<u64>> {
    let mut ids = Vec::new();
    for member in lost {
        ids.push(rig.members[*member].id().await?);
    }
    for member in lost {
        rig.members[*member].kill();
        rig.members[*member].wipe()?;
    }
    Ok(ids)
}

/// QUO-20: two of five volumes are lost. Neither waits for the other: the three that are left are a quorum.
#[tokio::test]
async fn quo_20_two_of_five_lost_volumes_join_anew() -> anyhow::Result<()> {
    let mut rig = Rig::start(of(5)).await?;
    rig.put("/kept/", 10).await?;
    let before = lose_volumes(&mut rig, &[3, 4]).await?;
    rig.start_all()?;
    rig.until_joined_anew(3, before[0], 10).await?;
    rig.until_joined_anew(4, before[1], 10).await?;
    rig.until_all_vote().await
}

/// QUO-20: one of five is gone for good, and another one is damaged: the three that are left take it in again.
#[tokio::test]
async fn quo_20_a_damaged_member_joins_anew_beside_a_dead_one() -> anyhow::Result<()> {
    let mut rig = Rig::start(of(5)).await?;
    rig.put("/kept/", 10).await?;
    let (dead, damaged) = (rig.members[3].id().await?, rig.members[4].id().await?);
    rig.members[3].kill();
    rig.members[4].kill();
    let db = rig.members[4].data_dir().join("member/snap/db");
    fs::File::options().write(true).open(db)?.set_len(4096)?;
    rig.members[4].start()?;
    rig.until("the damaged one votes again", async || {
        let id = rig.members[4].id().await?;
        ensure!(id != damaged, "it took up its old ID");
        let listed = rig.members[0].client().await?.member_list().await?;
        let voter = |id| {
            let mut members = listed.members().iter();
            members.any(|member| member.id() == id && !member.is_learner())
        };
        ensure!(voter(id) && voter(dead), "{listed:?}");
        ensure!(listed.members().len() == 5, "{listed:?}");
        ensure!(rig.members[4].count("/kept/").await? == 10, "keys are missing");
        Ok(())
    })
    .await?;
    // The dead one was left alone, and comes back as it was.
    rig.start_all()?;
    rig.until_ready().await?;
    ensure!(rig.members[3].id().await? == dead, "it is another member");
    Ok(())
}

/// QUO-20: one of three is dead and another one's volume is lost. The one that is left can't remove anybody; the member
/// that has nothing waits and says how many are needed, and joins when they are there.
#[tokio::test]
async fn quo_20_without_a_quorum_nobody_is_removed() -> anyhow::Result<()> {
    let mut rig = Rig::start(of(3)).await?;
    rig.put("/kept/", 10).await?;
    rig.members[1].kill();
    let before = lose_volumes(&mut rig, &[2]).await?;
    rig.members[2].start()?;
    rig.until("a quorum is waited for", async || {
        let (reason, message) = rig.members[2].condition("Initialized").await?;
        ensure!(reason == "PeersUnreachable", "{reason}: {message}");
        ensure!(message.contains("quorum"), "{message}");
        Ok(())
    })
    .await?;
    let listed = rig.members[0].client().await?.member_list().await?;
    ensure!(listed.members().len() == 3, "{listed:?}");
    ensure!(!rig.members[2].data_dir().exists(), "it began all the same");
    rig.members[1].start()?;
    rig.until_joined_anew(2, before[0], 10).await?;
    rig.until_all_vote().await
}

/// An Etcd that wants one member, over data of three: no quorum can come about. It says so, and what to do.
#[tokio::test]
async fn quo_a_quorum_that_can_not_come_about_is_told() -> anyhow::Result<()> {
    let mut rig = Rig::start(of(3)).await?;
    rig.put("/kept/", 10).await?;
    rig.kill_all();
    let others = rig.members.split_off(1);
    rig.reconfigure()?;
    rig.start_all()?;
    rig.until("it says what is missing", async || {
        let (reason, message) = rig.members[0].condition("Ready").await?;
        ensure!(reason == "QuorumMissing", "{reason}: {message}");
        ensure!(
            message.contains("t1-1, t1-2") && message.contains("replicas to 3"),
            "{message}"
        );
        Ok(())
    })
    .await?;
    // As it says.
    rig.kill_all();
    rig.members.extend(others);
    rig.reconfigure()?;
    rig.members[0].start()?;
    rig.until("it says who is missing", async || {
        let (reason, message) = rig.members[0].condition("Ready").await?;
        ensure!(
            reason == "QuorumMissing" && message.contains("nothing listens"),
            "{reason}: {message}"
        );
        Ok(())
    })
    .await?;
    rig.start_all()?;
    rig.until_ready().await?;
    ensure!(rig.members[0].count("/kept/").await? == 10, "keys are missing");
    Ok(())
}

/// QUO-09: a member that answers, and still names a leader that it has lost, says within seconds that it doesn't serve, and
/// as soon as the others are back that it does.
#[tokio::test]
async fn quo_09_a_lost_quorum_is_told_within_seconds() -> anyhow::Result<()> {
    for etcd in ["3.5", "3.6"] {
        let rig = Rig::start(Setup {
            etcd,
            backup: serde_json::json!(null),
            ..Setup::default()
        })
        .await?;
        let leader = rig.leader().await?;
        let survivor = &rig.members[(leader + 1) % 3];
        let others: Vec<_> = (0..3).filter(|index| *index != (leader + 1) % 3).collect();
        let signal = |signal| {
            others.iter().try_for_each(|index| {
                let pid = rig.members[*index].etcd_pid().context("an etcd")?;
                Ok::<_, anyhow::Error>(kill(pid, signal)?)
            })
        };
        let ready = async |wanted: &[&str]| {
            let (reason, message) = survivor.condition("Ready").await?;
            ensure!(wanted.contains(&reason.as_str()), "{reason}: {message}");
            Ok(reason)
        };
        rig.until("it serves", || ready(&["Serving"])).await?;
        // Connections stay, nothing is answered.
        signal(Signal::SIGSTOP)?;
        let begun = Instant::now();
        let reason = rig.until("it says so", || ready(&["NoQuorum", "NoLeader"])).await;
        let took = begun.elapsed();
        signal(Signal::SIGCONT)?;
        let reason = reason?;
        ensure!(took < Duration::from_secs(20), "after {took:?}");
        rig.until("it serves again", || ready(&["Serving"])).await?;
        eprintln!("QUO-09: etcd {etcd}: {reason} after {took:.1?}");
    }
    Ok(())
}
