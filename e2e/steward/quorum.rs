//! What a member does without a quorum.

use std::time::Duration;

use anyhow::{Context as _, ensure};
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
