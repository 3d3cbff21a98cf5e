//! The launcher and its etcd: how it ends, and what becomes of it then.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    kube_api,
    member::free_port,
    rig::{Rig, Setup},
};

/// How long a check waits for another process that has the database open.
const LOCK_DEADLINE: Duration = Duration::from_secs(5);

fn single() -> Setup {
    Setup {
        size: 1,
        backup: json!(null),
        ..Setup::default()
    }
}

/// A program of the name etcd that comes before the real one.
pub(crate) fn program(folder: &Path, script: &str) -> anyhow::Result<()> {
    let file = folder.join("etcd");
    fs::write(&file, format!("#!/bin/sh\n{script}\n"))?;
    Ok(fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?)
}

/// A killed etcd is noted as such, started anew after a complete check, and has all data.
#[tokio::test]
async fn launch_a_killed_etcd_is_recorded_and_started_anew() -> anyhow::Result<()> {
    let mut rig = Rig::start(single()).await?;
    rig.put("/kept/", 10).await?;
    let running = rig.members[0].exit_record()?;
    ensure!(running["state"] == "Running", "{running}");
    // Without a steward it isn't started anew, so that the record can be read.
    rig.members[0].kill_steward();
    let first = rig.members[0].etcd_pid().context("an etcd")?;
    rig.members[0].kill_etcd()?;
    rig.until("the end is recorded", async || {
        let record = rig.members[0].exit_record()?;
        ensure!(record["state"] == "Unclean" && record["signal"] == 9, "{record}");
        Ok(())
    })
    .await?;
    rig.members[0].start_steward()?;
    rig.until_ready().await?;
    ensure!(rig.members[0].etcd_pid() != Some(first), "it is the same process");
    let log = rig.members[0].log();
    ensure!(
        log.contains("DetectedPreviousUncleanExit"),
        "no complete check: {log}"
    );
    ensure!(rig.members[0].count("/kept/").await? == 10, "keys are missing");
    // With a steward it comes back by itself.
    rig.members[0].kill_etcd()?;
    rig.until("the steward is told", async || {
        ensure!(rig.members[0].log().contains("signal=9"), "it isn't");
        Ok(())
    })
    .await?;
    rig.until_ready().await
}

/// A launcher that is asked to end takes its etcd along in order, and says that all went well.
#[tokio::test]
async fn launch_an_orderly_end_is_clean() -> anyhow::Result<()> {
    let mut rig = Rig::start(single()).await?;
    rig.put("/kept/", 10).await?;
    let code = rig.members[0].stop_launcher()?;
    ensure!(code == Some(0), "the launcher ended with {code:?}");
    let record = rig.members[0].exit_record()?;
    ensure!(record["state"] == "Clean", "{record}");
    rig.start_all()?;
    rig.until_ready().await?;
    let log = rig.members[0].log();
    ensure!(log.contains("DetectedPreviousCleanExit"), "no quick check: {log}");
    ensure!(rig.members[0].count("/kept/").await? == 10, "keys are missing");
    Ok(())
}

/// An etcd that can't start is tried less and less often, the log says how it ended, and its own words are there too. A
/// configuration that is put right ends it.
#[tokio::test]
async fn launch_a_crash_loop_slows_down_and_says_why() -> anyhow::Result<()> {
    let mut rig = Rig::new(Setup {
        options: json!({"auto-compaction-mode": "nonsense"}),
        ..single()
    })?;
    rig.start_all()?;
    rig.until("the pauses grow", async || {
        let log = rig.members[0].log();
        for pause in ["backoff=0ns", "backoff=1s", "backoff=2s"] {
            ensure!(log.contains(pause), "no {pause}");
        }
        ensure!(log.contains("exit_code=1"), "the exit code isn't told: {log}");
        let (reason, message) = rig.members[0].condition("Ready").await?;
        ensure!(
            reason == "NotServing" && message.contains("exit code 1"),
            "{reason}: {message}"
        );
        Ok(())
    })
    .await?;
    let words = rig.members[0].launcher_log();
    ensure!(words.contains("nonsense"), "etcd's own words are lost: {words}");
    let record = rig.members[0].exit_record()?;
    ensure!(
        record["state"] == "Unclean" && record["exitCode"] == 1,
        "{record}"
    );
    rig.change_options(json!({}))?;
    rig.until_ready().await
}

/// The launcher is the first process of its container, and reaps what nobody else does.
#[tokio::test]
async fn launch_orphans_are_reaped() -> anyhow::Result<()> {
    let mut rig = Rig::new(single())?;
    let folder = tempfile::tempdir()?;
    let find = "PATH=${PATH#*:} exec etcd \"$@\"";
    // Two orphans: they lose their parent at once, and end soon after.
    let list = folder.path().join("orphans");
    let orphans = format!(
        "for i in 1 2; do (sleep 0.$i & echo $! >>{}); done",
        list.display()
    );
    program(
        folder.path(),
        &format!("[ \"$1\" = --version ] || {{ {orphans}; }}\n{find}"),
    )?;
    rig.members[0].programs = Some(folder.path().to_owned());
    rig.start_all()?;
    rig.until_ready().await?;
    let orphans = fs::read_to_string(list)?;
    let orphans: Vec<&str> = orphans.lines().collect();
    ensure!(orphans.len() >= 2, "{orphans:?}");
    rig.until("no orphan is left", async || {
        let children = rig.members[0].children()?;
        ensure!(children.len() == 1, "{children:?}");
        let left: Vec<_> = orphans
            .iter()
            .filter(|pid| Path::new(&format!("/proc/{pid}")).exists())
            .collect();
        ensure!(left.is_empty(), "{left:?} are still there");
        Ok(())
    })
    .await?;
    // It goes on to look after etcd.
    rig.members[0].kill_etcd()?;
    rig.until("the end of etcd is seen", async || {
        ensure!(rig.members[0].log().contains("signal=9"), "it isn't");
        Ok(())
    })
    .await?;
    rig.until_ready().await
}

/// The API server is down, and may even wait for this very etcd: on good data it starts all the same.
#[tokio::test]
async fn good_data_starts_without_an_api_server() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::single()).await?;
    rig.put("/kept/", 5).await?;
    rig.kill_all();
    let kubeconfig = rig.members[0].temp().join("kubeconfig");
    let nobody = format!("https://127.0.0.1:{}", free_port()?);
    kube_api::kubeconfig(&nobody, &kubeconfig)?;
    rig.members[0].kubeconfig = Some(kubeconfig);
    rig.start_all()?;
    rig.until_ready().await?;
    ensure!(rig.members[0].count("/kept/").await? == 5);
    // Without any the records decide whether it may start, and they can't be read.
    rig.kill_all();
    rig.members[0].lose_data()?;
    rig.start_all()?;
    rig.until("the records are waited for", async || {
        ensure!(rig.members[0].log().contains("Wait(RecordUnreadable)"));
        Ok(())
    })
    .await
}

/// BOOT-07: members whose etcds run, and never come to serve, need nobody's agreement for the configuration that mends it:
/// nobody could give it.
#[tokio::test]
async fn launch_a_configuration_reaches_members_that_never_served() -> anyhow::Result<()> {
    let mut rig = Rig::new(Setup {
        backup: json!(null),
        // Each listens for its peers where none of them looks.
        options: json!({"listen-peer-urls": "http://127.0.0.1:0"}),
        ..Setup::default()
    })?;
    rig.start_all()?;
    rig.until("all run", async || {
        for member in &rig.members {
            ensure!(member.etcd_pid().is_some(), "{} doesn't run", member.name);
        }
        Ok(())
    })
    .await?;
    rig.change_options(json!({}))?;
    rig.until("the members wait", async || {
        let (reason, message) = rig.members[0].condition("Restarting").await?;
        ensure!(reason == "WaitingForTurn", "{reason}: {message}");
        Ok(())
    })
    .await?;
    // For so long they might be about to serve.
    sleep(Duration::from_secs(70)).await;
    rig.until_ready().await
}

/// A steward that is told to end does so, even while the data directory is being checked, which can't be broken off.
#[tokio::test]
async fn launch_a_check_does_not_hold_up_the_end() -> anyhow::Result<()> {
    let mut rig = Rig::start(single()).await?;
    rig.members[0].kill();
    // The check waits until whoever has the database open lets go of it, for some seconds.
    let db = fs::File::open(rig.members[0].data_dir().join("member/snap/db"))?;
    db.lock()?;
    rig.members[0].start()?;
    rig.until("the check has begun", async || {
        let (reason, message) = rig.members[0].condition("Initialized").await?;
        ensure!(reason == "Validating", "{reason}: {message}");
        Ok(())
    })
    .await?;
    let pid = i32::try_from(rig.members[0].steward_pid().context("a steward")?)?;
    let asked = Instant::now();
    kill(Pid::from_raw(pid), Signal::SIGTERM)?;
    rig.until("the steward ends", async || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        ensure!(stat.contains(") Z "), "{stat}");
        Ok(())
    })
    .await?;
    let took = asked.elapsed();
    ensure!(took < LOCK_DEADLINE / 2, "it ended after {took:?} only");
    let code = rig.members[0].steward_ended()?;
    ensure!(code == Some(0), "it ended with {code:?}");
    Ok(())
}

/// An etcd that ended before it had stored anything has damaged nothing: its next start is its first one.
#[tokio::test]
async fn a_first_start_that_failed_is_no_damage() -> anyhow::Result<()> {
    let mut rig = Rig::new(Setup {
        backup: json!(null),
        ..Setup::single()
    })?;
    // At its first start it looks for others, finds nobody, and ends.
    let folder = tempfile::tempdir()?;
    let failed = folder.path().join("failed");
    let script = format!(
        "if [ \"$1\" = --config-file ] && [ ! -e {0} ]; then touch {0}; \
         sed -i 's#^initial-cluster-state:.*#initial-cluster-state: existing#; s#t1-0=http#t1-9=http://127.0.0.1:1,&#' \
         \"$2\"; fi\nPATH=${{PATH#*:}} exec etcd \"$@\"",
        failed.display()
    );
    program(folder.path(), &script)?;
    rig.members[0].programs = Some(folder.path().to_owned());
    rig.start_all()?;
    rig.until_ready().await?;
    ensure!(failed.exists(), "no start failed");
    let words = rig.members[0].launcher_log();
    ensure!(words.contains("cannot fetch cluster info"), "{words}");
    Ok(())
}
