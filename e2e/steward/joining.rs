//! How a member that joins becomes a voter, and what is left of what it was before.

use std::fs;

use anyhow::{Context as _, ensure};
use serde_json::json;

use crate::{
    launch::program,
    rig::{Rig, Setup},
};

fn without_store(size: usize) -> Setup {
    Setup {
        size,
        backup: json!(null),
        ..Setup::default()
    }
}

/// Waits until so many members vote, and there are no others.
async fn until_voters(rig: &Rig, count: usize) -> anyhow::Result<()> {
    rig.until("all vote", async || {
        let listed = rig.members[0].client().await?.member_list().await?;
        let members = listed.members();
        ensure!(
            members.len() == count && members.iter().all(|member| !member.is_learner()),
            "{listed:?}"
        );
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
    until_voters(&rig, 3).await?;
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
