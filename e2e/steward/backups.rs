//! What the owner of the backups stores.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use steward_proto::v1::{CreateSnapshotRequest, SnapshotType};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    member::run,
    rig::{Rig, Setup, last_revision, revisions},
};

/// Writes all the time, and tells how long the longest write took. As clients of etcd do, it turns to another member when
/// one doesn't answer.
pub(crate) struct Writer {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicI64>,
    task: JoinHandle<Duration>,
}

impl Writer {
    pub(crate) async fn start(rig: &Rig, pause: Duration) -> anyhow::Result<Self> {
        const ANSWER: Duration = Duration::from_millis(300);
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
        let mut clients = Vec::new();
        for member in &rig.members {
            clients.push(member.client().await?);
        }
        let task = tokio::spawn({
            let (stop, written) = (Arc::clone(&stop), Arc::clone(&written));
            async move {
                let (mut number, mut last, mut longest) = (0_u32, Instant::now(), Duration::ZERO);
                while !stop.load(Ordering::Relaxed) {
                    let put = clients[0].put(format!("/writer/{}", number % 100), number.to_string(), None);
                    if let Ok(Ok(response)) = timeout(ANSWER, put).await {
                        longest = longest.max(last.elapsed());
                        last = Instant::now();
                        number += 1;
                        let revision = response.header().map_or(0, etcd_client::ResponseHeader::revision);
                        written.store(revision, Ordering::Relaxed);
                    } else {
                        clients.rotate_left(1);
                    }
                    sleep(pause).await;
                }
                longest
            }
        });
        Ok(Self { stop, written, task })
    }

    /// The last revision that was written.
    pub(crate) fn revision(&self) -> i64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Ends, and returns the last revision and the longest time between two writes.
    pub(crate) async fn end(self) -> anyhow::Result<(i64, Duration)> {
        self.stop.store(true, Ordering::Relaxed);
        let longest = self.task.await?;
        Ok((self.written.load(Ordering::Relaxed), longest))
    }
}

/// The keys of a restored cluster with their values' hashes, by key.
pub(crate) fn live(records: &[Value]) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    for record in records {
        let key = record["key"].as_str().unwrap_or_default().to_owned();
        if record["tombstone"] == true {
            keys.remove(&key);
        } else {
            keys.insert(
                key,
                record["value_sha256"].as_str().unwrap_or_default().to_owned(),
            );
        }
    }
    keys
}

/// The chain has no hole and no two deltas for one revision, and what is restored from it is all that was written.
pub(crate) async fn check_chain(rig: &Rig, last: i64) -> anyhow::Result<()> {
    rig.until_covered(last).await?;
    let stored = rig.stored()?;
    let mut next = None;
    for (first, end) in stored
        .iter()
        .filter(|name| name.starts_with("Incr-"))
        .map(|name| revisions(name))
    {
        if let Some(next) = next {
            ensure!(
                first == next,
                "revision {next} should come next, not {first}: {stored:?}"
            );
        }
        next = Some(end + 1);
    }
    let records = rig.restored()?;
    let reached = last_revision(&records);
    ensure!(
        reached >= Some(last),
        "restored up to {reached:?}, written up to {last}"
    );
    let count = rig.members[0].count("").await?;
    let restored = live(&records).len();
    ensure!(
        i64::try_from(restored)? == count,
        "{restored} keys are restored, {count} are there"
    );
    Ok(())
}

/// SNAP-01: a full snapshot holds exactly what its name says, though all the time something is written.
#[tokio::test]
async fn snap_01_full_snapshots_hold_what_their_names_say() -> anyhow::Result<()> {
    let rig = Rig::start(Setup::single()).await?;
    // From the first full snapshot on there is an owner to ask.
    rig.until_covered(1).await?;
    let writer = Writer::start(&rig, Duration::from_millis(1)).await?;
    let mut snapshots = rig.members[0].snapshots().await?;
    for _ in 0..10 {
        let request = CreateSnapshotRequest {
            r#type: SnapshotType::Full.into(),
            ..CreateSnapshotRequest::default()
        };
        snapshots.create_snapshot(request).await?;
    }
    let (last, _) = writer.end().await?;
    rig.until_covered(last).await?;
    let fulls: Vec<_> = rig
        .stored()?
        .into_iter()
        .filter(|name| name.starts_with("Full-"))
        .collect();
    ensure!(fulls.len() >= 5, "only {fulls:?}");
    for full in fulls {
        let to = tempfile::tempdir()?;
        let data_dir = to.path().join("restored").to_string_lossy().into_owned();
        let store = rig.store().to_string_lossy().into_owned();
        let from = ["--store-provider=Local", "--store-container", &store];
        run(&[
            &["restore"],
            &from[..],
            &["--snapshot", &full, "--data-dir", &data_dir],
        ]
        .concat())?;
        let output = run(&["dump", "--data-dir", &data_dir])?;
        let text = String::from_utf8(output.stdout)?;
        let newest: Option<Value> = text.lines().last().map(serde_json::from_str).transpose()?;
        let inside = newest.map_or(1, |record| record["rev"].as_i64().unwrap_or(-1));
        ensure!(inside == revisions(&full).1, "{full} holds revision {inside}");
    }
    Ok(())
}

/// SNAP-08: leadership that moves every second while something is written: one owner at any time, no two objects for one range.
#[tokio::test]
async fn snap_08_one_owner_of_the_backups_however_often_leadership_moves() -> anyhow::Result<()> {
    let rig = Rig::start(Setup::default()).await?;
    let writer = Writer::start(&rig, Duration::from_millis(5)).await?;
    let mut ids = Vec::new();
    for member in &rig.members {
        ids.push(member.id().await?);
    }
    for _ in 0..30 {
        let leader = rig.leader().await?;
        let next = (leader + 1) % ids.len();
        rig.members[leader].client().await?.move_leader(ids[next]).await?;
        sleep(Duration::from_secs(1)).await;
    }
    let (last, _) = writer.end().await?;
    check_chain(&rig, last).await
}

/// A store that is down for a while: writes go on, and the chain has no hole afterwards.
#[tokio::test]
async fn a_store_that_is_down_disturbs_no_write_and_leaves_no_hole() -> anyhow::Result<()> {
    let rig = Rig::start(Setup::default()).await?;
    let first = rig.put("/before/", 5).await?;
    rig.until_covered(first).await?;
    let writer = Writer::start(&rig, Duration::from_millis(5)).await?;
    rig.block_store()?;
    sleep(Duration::from_secs(15)).await;
    rig.unblock_store()?;
    let (last, longest) = writer.end().await?;
    ensure!(longest < Duration::from_secs(2), "a write took {longest:?}");
    check_chain(&rig, last).await
}

/// SNAP-07: a steward that restarts takes no full snapshot unless it is needed.
#[tokio::test]
async fn snap_07_restarts_take_no_new_full_snapshot() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::single()).await?;
    let revision = rig.put("/kept/", 5).await?;
    rig.until_covered(revision).await?;
    rig.until_full_counts().await?;
    let before = rig.fulls()?;
    for round in 0..5 {
        rig.members[0].kill_steward();
        rig.members[0].start_steward()?;
        let revision = rig.put(&format!("/round-{round}/"), 3).await?;
        rig.until_covered(revision).await?;
    }
    ensure!(rig.fulls()? == before, "{:?}", rig.stored()?);
    let last = rig.put("/end/", 1).await?;
    check_chain(&rig, last).await
}

/// DEL-05: deltas on demand though there are none by the clock, with nothing new and with something; they are asked of any
/// member.
#[tokio::test]
async fn del_05_snapshots_on_demand_are_taken_by_the_owner() -> anyhow::Result<()> {
    let backup = json!({"deltaSnapshotPeriod": "0s", "fullSnapshotSchedule": "0 0 1 1 *"});
    let rig = Rig::start(Setup {
        backup,
        ..Setup::default()
    })
    .await?;
    let leader = rig.leader().await?;
    let revision = rig.put("/new/", 7).await?;
    let mut owner = rig.members[leader].snapshots().await?;
    let request = CreateSnapshotRequest {
        r#type: SnapshotType::Delta.into(),
        ..CreateSnapshotRequest::default()
    };
    let told = rig
        .until("the owner takes a delta", async || {
            Ok(owner.clone().create_snapshot(request.clone()).await?.into_inner())
        })
        .await?;
    told.operation.context("an operation")?;
    rig.until_covered(revision).await?;
    let other = (leader + 1) % 3;
    let refused = rig.members[other]
        .snapshots()
        .await?
        .create_snapshot(request.clone())
        .await;
    let status = refused
        .err()
        .context("a member that doesn't own the backups took a snapshot")?;
    ensure!(status.code() == tonic::Code::FailedPrecondition, "{status:?}");
    owner.create_snapshot(request).await?;
    Ok(())
}

/// What a steward reported of the backups while it owned them ends with that, and its successor reports the same.
#[tokio::test]
async fn a_member_that_owns_no_backups_reports_none() -> anyhow::Result<()> {
    const NUMBERS: [&str; 4] = [
        "etcdbr_backup_owner",
        "etcdbr_snapshot_required{kind=\"Full\"}",
        "etcdbr_snapshot_required{kind=\"Incr\"}",
        "etcdbr_uncovered_revisions",
    ];
    let rig = Rig::start(Setup::default()).await?;
    let revision = rig.put("/stored/", 5).await?;
    rig.until_covered(revision).await?;
    let leader = rig.leader().await?;
    let reports = async |member: usize, expected: [f64; 4]| {
        rig.until("the metrics follow", async || {
            for (series, expected) in NUMBERS.iter().zip(expected) {
                let value = rig.members[member].metric(series).await?;
                ensure!(
                    (value - expected).abs() < 0.5,
                    "{series} of member {member} is {value}"
                );
            }
            Ok(())
        })
        .await
    };
    reports(leader, [1.0, 0.0, 0.0, 0.0]).await?;
    rig.block_store()?;
    rig.put("/held/", 10).await?;
    reports(leader, [1.0, 1.0, 1.0, 10.0]).await?;
    let next = (leader + 1) % 3;
    let id = rig.members[next].id().await?;
    rig.members[leader].client().await?.move_leader(id).await?;
    reports(leader, [0.0; 4]).await?;
    let covered = rig.members[leader].metric("etcdbr_backup_covered_timestamp_seconds");
    ensure!(covered.await.is_err(), "a time is reported");
    let conditions = rig.members[leader].told().await?.conditions;
    ensure!(
        !conditions.iter().any(|one| one.r#type == "BackupReady"),
        "{conditions:?}"
    );
    rig.unblock_store()?;
    reports(next, [1.0, 0.0, 0.0, 0.0]).await
}
