//! Members that come and go.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::{Instant, sleep};

use crate::rig::{Rig, Setup};

/// SCL-03, SCL-04: members join as learners, and writes go on while they do.
#[tokio::test]
async fn scl_03_writes_go_on_while_members_join() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        size: 1,
        ..Setup::default()
    })
    .await?;
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
