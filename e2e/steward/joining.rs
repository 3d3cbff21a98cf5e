//! How a member that joins becomes a voter, and what is left of what it was before.

use std::{fs, time::Duration};

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    faults::Proxy,
    launch::program,
    member::free_port,
    rig::{Rig, Setup},
};

fn without_store(size: usize) -> Setup {
    Setup {
        size,
        backup: json!(null),
        ..Setup::default()
    }
}

/// SCL-06: etcd promotes whoever has received the log. Whoever doesn't serve doesn't ask for it: as a voter it would cost
/// the quorum that the cluster has without it.
#[tokio::test]
async fn scl_06_a_learner_that_does_not_serve_stays_one() -> anyhow::Result<()> {
    let mut rig = Rig::start(without_store(1)).await?;
    rig.put("/kept/", 10).await?;
    rig.resize(2)?;
    // Its etcd is well, but its steward finds nobody there.
    let port = free_port()?;
    let etcd = rig.members[1].lead_via(port);
    rig.reconfigure()?;
    rig.members[0].kill_steward();
    rig.start_all()?;
    rig.until("the learner has caught up", async || {
        let own = rig.members[1].client().await?.status().await?;
        let leader = rig.members[0].client().await?.status().await?;
        ensure!(
            own.is_learner() && own.raft_applied_index() >= leader.raft_index(),
            "{own:?} {leader:?}"
        );
        Ok(())
    })
    .await?;
    sleep(Duration::from_secs(6)).await;
    let listed = rig.members[0].client().await?.member_list().await?;
    ensure!(
        listed
            .members()
            .iter()
            .filter(|member| member.is_learner())
            .count()
            == 1,
        "{listed:?}"
    );
    let _proxy = Proxy::start(port, etcd).await?;
    rig.until_all_vote().await
}

/// A learner doesn't say to whom it would listen, nor how far it is: that it is one is answer enough.
#[tokio::test]
async fn a_learner_of_a_cluster_with_authentication_becomes_a_voter() -> anyhow::Result<()> {
    let mut rig = Rig::start_locked(without_store(1)).await?;
    rig.resize(2)?;
    rig.members[1].authenticate("root", "secret")?;
    rig.members[0].kill_steward();
    rig.start_all()?;
    rig.until("it votes", async || {
        let (reason, message) = rig.members[1].condition("Ready").await?;
        ensure!(reason == "Serving", "{reason}: {message}");
        Ok(())
    })
    .await
}

/// A first start that fails leaves nothing worth keeping, and must not take the place of the data that voted.
#[tokio::test]
async fn a_failed_start_of_a_replacement_keeps_the_old_data() -> anyhow::Result<()> {
    let mut rig = Rig::start(without_store(3)).await?;
    rig.put("/kept/", 10).await?;
    rig.members[1].kill();
    let damaged = rig.members[1].data_dir().join("member/snap/db");
    fs::File::options().write(true).open(damaged)?.set_len(4096)?;
    // At its first start it finds nobody, and ends.
    let folder = tempfile::tempdir()?;
    let failed = folder.path().join("failed");
    let mut script = format!(
        "if [ \"$1\" = --config-file ] && [ ! -e {0} ]; then touch {0}",
        failed.display()
    );
    for (port, other) in [(1, 0), (2, 2)] {
        let url = rig.members[other].peer_url();
        script = format!("{script}; sed -i 's#{url}#http://127.0.0.1:{port}#' \"$2\"");
    }
    program(
        folder.path(),
        &format!("{script}; fi\nPATH=${{PATH#*:}} exec etcd \"$@\""),
    )?;
    rig.members[1].programs = Some(folder.path().to_owned());
    rig.members[1].start()?;
    rig.until_ready().await?;
    rig.until_all_vote().await?;
    ensure!(failed.exists(), "no start failed");
    let words = rig.members[1].launcher_log();
    ensure!(words.contains("cannot fetch cluster info"), "{words}");
    let mut sizes = Vec::new();
    for entry in fs::read_dir(rig.members[1].volume())? {
        let path = entry?.path();
        if path.to_string_lossy().contains("aside-") {
            sizes.push(fs::metadata(path.join("member/snap/db"))?.len());
        }
    }
    ensure!(
        sizes.len() == 2 && sizes.contains(&4096),
        "what was moved aside has databases of {sizes:?} bytes"
    );
    ensure!(rig.members[1].count("/kept/").await? == 10, "keys are missing");
    // It has come to its end: the next damage makes the old data old.
    rig.until("the member is known to vote", async || {
        let note = rig.members[1].volume().join("new.kept");
        ensure!(
            !note.exists(),
            "{}",
            fs::read_to_string(note).context("the note")?
        );
        Ok(())
    })
    .await
}
