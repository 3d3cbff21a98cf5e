//! What must hold after a run, whatever has happened.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use etcd_client::GetOptions;

use super::{
    history::{Answer, LOG, Loss, Records, RegisterOperation},
    run::Run,
};
use crate::{
    member::tool,
    rig::{restored_with, revisions},
};

/// Keys of the log with the revisions at which they were written.
type Log = BTreeMap<String, i64>;

pub(crate) async fn judge(run: &Run) -> anyhow::Result<()> {
    one_cluster_at_a_time(&run.history.records().answers)?;
    let registers = run.history.records().registers.clone();
    linearizable(registers, &run.losses)?;
    let (cluster, log) = final_log(run).await?;
    nothing_lost(&run.history.records(), &run.losses, cluster, &log)?;
    nothing_unseen(&run.history.records(), &log)?;
    restorable(run, &log).await?;
    restorable_earlier(run, &log)?;
    no_panic(run)
}

/// No cluster answers any more when another one has begun to.
fn one_cluster_at_a_time(answers: &[Answer]) -> anyhow::Result<()> {
    let clusters: BTreeSet<_> = answers.iter().map(|answer| answer.cluster).collect();
    let mut spans: Vec<_> = clusters
        .into_iter()
        .map(|cluster| {
            let of = || answers.iter().filter(move |answer| answer.cluster == cluster);
            let first = of().map(|answer| answer.returned).min();
            let last = of().map(|answer| answer.call).max();
            (first, last, cluster)
        })
        .collect();
    spans.sort_unstable();
    for pair in spans.windows(2) {
        let ((_, last, earlier), (first, _, later)) = (pair[0], pair[1]);
        ensure!(
            last < first,
            "cluster {earlier:x} was asked, and answered, after {later:x} had: two clusters served"
        );
    }
    Ok(())
}

/// Each register's history is that of one register; where all volumes were lost, a new history begins.
fn linearizable(mut operations: Vec<RegisterOperation>, losses: &[Loss]) -> anyhow::Result<()> {
    operations.sort_by_key(|operation| operation.call);
    let mut rest = &operations[..];
    for loss in losses {
        let end = rest.partition_point(|operation| operation.call < loss.since);
        check_linearizable(&rest[..end])?;
        rest = &rest[end..];
    }
    check_linearizable(rest)
}

fn check_linearizable(operations: &[RegisterOperation]) -> anyhow::Result<()> {
    let mut checker = Command::new(tool("linearizable")?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = checker.stdin.take().context("its input")?;
    for operation in operations {
        serde_json::to_writer(&mut input, operation)?;
        input.write_all(b"\n")?;
    }
    drop(input);
    let output = checker.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{}: {said}", output.status);
    Ok(())
}

/// What the cluster holds of the log at last.
async fn final_log(run: &Run) -> anyhow::Result<(u64, Log)> {
    let mut client = run.rig.client().await?;
    let options = GetOptions::new().with_prefix();
    let answer = client.get(LOG, Some(options)).await?;
    let cluster = answer.header().context("a header")?.cluster_id();
    let log = answer
        .kvs()
        .iter()
        .map(|pair| Ok((pair.key_str()?.to_owned(), pair.mod_revision())))
        .collect::<anyhow::Result<_>>()?;
    Ok((cluster, log))
}

/// What was acknowledged is there; where all volumes were lost, what the backups then covered is.
fn nothing_lost(records: &Records, losses: &[Loss], cluster: u64, log: &Log) -> anyhow::Result<()> {
    let mut clusters: Vec<u64> = records.appends.iter().map(|append| append.cluster).collect();
    clusters.dedup();
    ensure!(
        clusters.len() <= losses.len() + 1,
        "the clusters {clusters:x?} acknowledged writes, one after the other, and all volumes were lost {} times",
        losses.len()
    );
    let lost: Vec<_> = records
        .appends
        .iter()
        .filter(|append| {
            let order = clusters.iter().position(|one| *one == append.cluster);
            let covered = order.and_then(|order| losses.get(order)).map(|loss| loss.covered);
            let promised =
                append.cluster == cluster || covered.is_none_or(|covered| append.revision <= covered);
            promised && !log.contains_key(&append.key)
        })
        .collect();
    ensure!(
        lost.is_empty(),
        "{} acknowledged writes are lost, among them {:?}",
        lost.len(),
        lost.first()
    );
    Ok(())
}

/// The watch has seen every key of the log, but for those of whose revisions it was said that they are compacted.
fn nothing_unseen(records: &Records, log: &Log) -> anyhow::Result<()> {
    let relisted = records.relisted.iter().copied().max().unwrap_or(0);
    let unseen: Vec<_> = log
        .iter()
        .filter(|(key, revision)| {
            **revision > relisted && **revision <= records.watched_to && !records.watched.contains_key(*key)
        })
        .collect();
    ensure!(
        unseen.is_empty(),
        "the watch is at {} and was silent about {} keys, among them {:?}",
        records.watched_to,
        unseen.len(),
        unseen.first()
    );
    Ok(())
}

/// Backups come to cover everything, and what is restored from them is what the cluster holds.
async fn restorable(run: &Run, log: &Log) -> anyhow::Result<()> {
    let (revision, _) = run.rig.hash().await?;
    run.rig.until_covered(revision).await?;
    // A name may be that of half an object, which is stored again.
    let what = "the backups restore to what the cluster holds";
    run.rig
        .until(what, async || same(&restored_log(run, &[])?, log))
        .await
}

/// How many earlier states are looked at.
const EARLIER: usize = 5;

/// What is restored of an earlier state is what the log then was: at the end of each full snapshot, and of some deltas.
fn restorable_earlier(run: &Run, log: &Log) -> anyhow::Result<()> {
    // A name may be that of half an object.
    if run.store.has_torn() {
        return Ok(());
    }
    let stored = run.rig.stored()?;
    let (fulls, deltas): (Vec<_>, Vec<_>) = stored.iter().partition(|name| name.starts_with("Full-"));
    let step = deltas.len().div_ceil(EARLIER).max(1);
    let fulls = fulls.into_iter().rev().take(EARLIER);
    for name in fulls.chain(deltas.into_iter().step_by(step)) {
        let revision = revisions(name).1;
        let then = log.iter().filter(|(_, written)| **written <= revision);
        let then = then.map(|(key, written)| (key.clone(), *written)).collect();
        restored_log(run, &["--snapshot", name])
            .and_then(|restored| same(&restored, &then))
            .with_context(|| format!("{name} of {stored:?}"))?;
    }
    Ok(())
}

fn restored_log(run: &Run, more: &[&str]) -> anyhow::Result<Log> {
    let mut restored = Log::new();
    for record in restored_with(&run.rig.store(), more)? {
        let key = BASE64_STANDARD.decode(record["key"].as_str().unwrap_or_default())?;
        let key = String::from_utf8_lossy(&key).into_owned();
        if key.starts_with(LOG) {
            restored.insert(key, record["mod_revision"].as_i64().unwrap_or_default());
        }
    }
    Ok(restored)
}

fn same(restored: &Log, log: &Log) -> anyhow::Result<()> {
    let missing: Vec<_> = log.keys().filter(|key| !restored.contains_key(*key)).collect();
    let surplus: Vec<_> = restored.keys().filter(|key| !log.contains_key(*key)).collect();
    ensure!(
        restored == log,
        "backups restore to something else: {} keys missing ({:?}…), {} that aren't in the cluster ({:?}…), or revisions differ",
        missing.len(),
        missing.first(),
        surplus.len(),
        surplus.first()
    );
    Ok(())
}

fn no_panic(run: &Run) -> anyhow::Result<()> {
    for member in &run.rig.members {
        for log in [member.log(), member.launcher_log()] {
            let panicked = log.lines().find(|line| line.contains("panicked at"));
            ensure!(panicked.is_none(), "{}: {panicked:?}", member.name);
        }
    }
    Ok(())
}
