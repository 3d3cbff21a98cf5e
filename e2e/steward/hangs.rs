//! A store that doesn't answer any more: a folder on a file system that hangs, as those of the network do.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use steward_proto::v1::{CreateSnapshotRequest, SnapshotType};
use tonic::Request;

use crate::{
    backups::check_chain,
    rig::{Rig, Setup},
};

/// A file system of its own over a folder, which can be made to hang. Needs root.
struct Hanging(PathBuf);

impl Hanging {
    fn mount(over: &Path) -> anyhow::Result<Self> {
        let image = over.with_extension("image");
        std::fs::File::create(&image)?.set_len(64 << 20)?;
        command("mkfs.ext4", &["-q"], &image)?;
        let over = over.to_owned();
        command("mount", &["-o", "loop", &image.to_string_lossy()], &over)?;
        Ok(Self(over))
    }

    /// Whoever writes to it waits until it goes on.
    fn hang(&self) -> anyhow::Result<()> {
        command("fsfreeze", &["--freeze"], &self.0)
    }

    fn go_on(&self) -> anyhow::Result<()> {
        command("fsfreeze", &["--unfreeze"], &self.0)
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        // It may not hang, and processes may still have files of it open.
        let _ = self.go_on();
        let _ = command("umount", &["--lazy"], &self.0);
    }
}

fn command(program: &str, args: &[&str], last: &Path) -> anyhow::Result<()> {
    let output = Command::new(program).args(args).arg(last).output();
    let output = output.with_context(|| program.to_owned())?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{program} {args:?} {}: {said}",
        last.display()
    );
    Ok(())
}

/// While the folder hangs, who waits for a snapshot is told so, a deadline holds, and the steward answers everything else.
/// When it goes on, what was collected is stored.
#[tokio::test]
#[ignore = "a drill"]
async fn drill_store_hangs() -> anyhow::Result<()> {
    const DEADLINE: Duration = Duration::from_secs(5);
    let mut rig = Rig::new(Setup::single())?;
    let store = Hanging::mount(&rig.store())?;
    rig.start_all()?;
    rig.until_ready().await?;
    let before = rig.put("/before/", 5).await?;
    rig.until_covered(before).await?;
    store.hang()?;
    let held = rig.put("/held/", 5).await?;

    let mut request = Request::new(CreateSnapshotRequest {
        r#type: SnapshotType::Delta.into(),
        ..CreateSnapshotRequest::default()
    });
    request.set_timeout(DEADLINE);
    let begun = Instant::now();
    let refused = rig.members[0].snapshots().await?.create_snapshot(request).await;
    let status = refused.err().context("a delta was stored")?;
    let took = begun.elapsed();
    ensure!(
        took < DEADLINE + Duration::from_secs(2),
        "{status:?} after {took:?}"
    );

    let begun = Instant::now();
    let member = &rig.members[0];
    let (_, started) = member.call("POST", "/snapshot/full?async=true").await?;
    let operation = format!("/operations/{}", started["id"].as_str().context("an id")?);
    let ended = loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let look = Instant::now();
        let (_, now) = member.call("GET", &operation).await?;
        member.told().await?;
        member.metric("etcdbr_uncovered_revisions").await?;
        let took = look.elapsed();
        ensure!(
            took < Duration::from_secs(2),
            "the steward took {took:?} to answer"
        );
        ensure!(begun.elapsed() < Duration::from_mins(1), "nobody tells: {now}");
        if now["state"] != "Running" {
            break now;
        }
    };
    println!("who waits hears after {:?}: {ended}", begun.elapsed());
    ensure!(ended["error"]["reason"] == "StoreUnreachable", "{ended}");
    let (reason, message) = rig.members[0].condition("BackupReady").await?;
    ensure!(reason == "StoreUnreachable", "{reason}: {message}");

    store.go_on()?;
    rig.until_covered(held).await?;
    let last = rig.put("/after/", 5).await?;
    check_chain(&rig, last).await
}
