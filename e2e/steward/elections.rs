//! Defragmentation when the cluster isn't at rest: leaders that change, data in doubt.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};

use crate::rig::{Rig, Setup};

const DEFRAGMENT: &str = "/maintenance/defrag";
const CALLS: &str = "etcd_disk_backend_defrag_duration_seconds_count";

/// Moves the leadership on, again and again. Returns the number of moves so far.
async fn unrest(rig: &Rig) -> anyhow::Result<(Arc<AtomicUsize>, JoinSet<()>)> {
    let mut clients = Vec::new();
    for member in &rig.members {
        clients.push((member.id().await?, member.client().await?));
    }
    let moves = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&moves);
    // Ends when it is dropped.
    let mut task = JoinSet::new();
    task.spawn(async move {
        for turn in 0.. {
            tokio::time::sleep(Duration::from_millis(150)).await;
            // A member that is being defragmented doesn't answer.
            let moved = timeout(Duration::from_millis(500), move_on(&mut clients, turn)).await;
            if matches!(moved, Ok(Ok(()))) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    Ok((moves, task))
}

async fn move_on(clients: &mut [(u64, Client)], turn: usize) -> anyhow::Result<()> {
    let leader = clients[turn % clients.len()].1.status().await?.leader();
    let others: Vec<_> = clients
        .iter()
        .map(|(id, _)| *id)
        .filter(|id| *id != leader)
        .collect();
    let next = others[turn % others.len()];
    let leading = clients.iter_mut().find(|(id, _)| *id == leader);
    leading.context("a leader")?.1.move_leader(next).await?;
    Ok(())
}

async fn defragmentations(rig: &Rig) -> anyhow::Result<Vec<f64>> {
    let mut all = Vec::new();
    for member in &rig.members {
        all.push(member.etcd_metric(CALLS).await?);
    }
    Ok(all)
}

/// Elections come in between: all members are done, each of them once.
#[tokio::test]
async fn defragmentation_goes_on_after_elections() -> anyhow::Result<()> {
    let rig = Rig::start(Setup {
        backup: Value::Null,
        ..Setup::default()
    })
    .await?;
    rig.fill("/large/", 48).await?;
    let (moves, _unrest) = unrest(&rig).await?;
    for round in 1..=3 {
        let before = moves.load(Ordering::Relaxed);
        let (status, answer) = rig.members[round % 3].call("POST", DEFRAGMENT).await?;
        ensure!(
            status == 200 && answer["state"] == "Succeeded",
            "round {round}: {status}: {answer}"
        );
        let members = answer["result"]["members"].as_array().context("members")?;
        ensure!(members.len() == 3, "{answer}");
        let calls = defragmentations(&rig).await?;
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let expected = round as f64;
        ensure!(
            calls.iter().all(|calls| (calls - expected).abs() < 0.1),
            "{calls:?}"
        );
        let moved = moves.load(Ordering::Relaxed) - before;
        println!(
            "round {round}: 3 of 3 members are defragmented once, the leadership moved {moved} times meanwhile"
        );
    }
    ensure!(moves.load(Ordering::Relaxed) > 0, "nothing has moved");
    Ok(())
}

/// While a member's data is in doubt nothing is rewritten; the reason is told.
#[tokio::test]
async fn defragmentation_is_refused_while_data_is_in_doubt() -> anyhow::Result<()> {
    let rig = Rig::start(Setup {
        backup: Value::Null,
        steward: json!({"comparisonPeriod": "0s"}),
        ..Setup::default()
    })
    .await?;
    let mut alarmed = AlarmOptions::new();
    alarmed.with_member(rig.members[1].id().await?);
    let mut client = rig.client().await?;
    client
        .alarm(AlarmAction::Activate, AlarmType::Corrupt, Some(alarmed.clone()))
        .await?;
    let (status, answer) = rig.members[0].call("POST", DEFRAGMENT).await?;
    ensure!(
        status == 503 && answer["reason"] == "AlarmCorrupt",
        "{status}: {answer}"
    );
    let detail = answer["detail"].as_str().unwrap_or_default();
    ensure!(detail.contains(&rig.members[1].name), "{answer}");
    ensure!(defragmentations(&rig).await?.iter().all(|calls| *calls < 0.1));
    client
        .alarm(AlarmAction::Deactivate, AlarmType::Corrupt, Some(alarmed))
        .await?;
    let (status, again) = rig.members[0].call("POST", DEFRAGMENT).await?;
    ensure!(
        status == 200 && again["state"] == "Succeeded",
        "{status}: {again}"
    );
    println!("refused: {detail}");
    Ok(())
}
