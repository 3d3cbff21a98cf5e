//! Restores that clients notice: the revision goes on beyond all that was seen, and what lies before it is compacted.

use std::fs;

use anyhow::{Context as _, bail, ensure};
use etcd_client::{Client, GetOptions, WatchOptions};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    member::run,
    rig::{PATIENCE, Rig, Setup, last_revision, revisions},
};

/// How far a restore raises the revision at least.
const RAISE: i64 = 1_000_000_000;

/// Key, value, create and mod revision, version: all that a client sees of each key.
type Content = Vec<(String, String, i64, i64, i64)>;

async fn content(client: &mut Client) -> anyhow::Result<(i64, Content)> {
    let all = client.get("", Some(GetOptions::new().with_all_keys())).await?;
    let keys = all.kvs().iter().map(|kv| {
        let (key, value) = (kv.key_str()?.to_owned(), kv.value_str()?.to_owned());
        Ok((key, value, kv.create_revision(), kv.mod_revision(), kv.version()))
    });
    let revision = all.header().context("a header")?.revision();
    Ok((revision, keys.collect::<anyhow::Result<_>>()?))
}

/// What becomes of a watch from a revision on: the revision up to which it is told that all is compacted, or how many events
/// it gets.
async fn watched(client: &mut Client, from: i64, count: usize) -> anyhow::Result<Result<usize, i64>> {
    let options = WatchOptions::new().with_all_keys().with_start_revision(from);
    let mut events = client.watch("", Some(options)).await?;
    let mut seen = 0;
    while seen < count {
        let answer = timeout(PATIENCE, events.message()).await?;
        let answer = answer?.context("the watch ended")?;
        if answer.compact_revision() > 0 {
            return Ok(Err(answer.compact_revision()));
        }
        ensure!(!answer.canceled(), "canceled: {}", answer.cancel_reason());
        seen += answer.events().len();
    }
    Ok(Ok(seen))
}

/// What `verify` says of the store.
fn verified(rig: &Rig) -> anyhow::Result<Value> {
    let store = rig.store();
    let store = store.to_string_lossy();
    let said = run(&[
        "verify",
        "--all",
        "-o",
        "json",
        "--store-provider=Local",
        "--store-container",
        &store,
    ])?;
    Ok(serde_json::from_slice(&said.stdout)?)
}

/// RES-21: whoever has seen more than was restored gets an error, lists anew, and misses nothing.
async fn noticed(etcd: &'static str) -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        etcd,
        ..Setup::single()
    })
    .await?;
    let stored = rig.put("/kept/", 10).await?;
    rig.until_covered(stored).await?;
    let (_, before) = content(&mut rig.client().await?).await?;
    rig.block_store()?;
    let seen = rig.put("/lost/", 20).await?;
    let cluster = rig.members[0].cluster_id().await?;
    rig.kill_all();
    rig.unblock_store()?;
    rig.lose_all().await?;

    ensure!(
        rig.members[0].cluster_id().await? != cluster,
        "it is the same cluster"
    );
    let mut client = rig.client().await?;
    let (raised, after) = content(&mut client).await?;
    ensure!(raised >= stored + RAISE, "revision {raised}");
    ensure!(before == after, "{before:?}\n{after:?}");
    let compacted = watched(&mut client, seen + 1, 1).await?;
    ensure!(
        compacted == Err(raised),
        "a watch from {}: {compacted:?}",
        seen + 1
    );
    let last = rig.put("/new/", 20).await?;
    ensure!(last == raised + 20);
    ensure!(watched(&mut client, raised + 1, 20).await? == Ok(20));

    let told = rig.members[0].call("GET", "/member").await?.1["lastRestoration"].clone();
    ensure!(told["revision"] == stored && told["raisedTo"] == raised, "{told}");
    goes_on(&mut rig, stored, last).await?;

    // Once more, from the chain that begins beyond the raised revision.
    let (_, before) = content(&mut client).await?;
    rig.lose_all().await?;
    let mut client = rig.client().await?;
    let (again, after) = content(&mut client).await?;
    ensure!(again >= last + RAISE && before == after, "revision {again}");
    ensure!(watched(&mut client, last + 1, 1).await? == Err(again));
    let last = rig.put("/newer/", 5).await?;
    rig.until_covered(last).await?;
    ensure!(rig.fulls()?.len() == 3, "{:?}", rig.stored()?);
    Ok(())
}

/// The backups go on with a full snapshot at the raised revision; nothing is said to be missing, and what was there before
/// can still be had.
async fn goes_on(rig: &mut Rig, stored: i64, last: i64) -> anyhow::Result<()> {
    rig.until_covered(last).await?;
    let fulls = rig.fulls()?;
    ensure!(
        fulls.len() == 2 && revisions(&fulls[1]).1 >= stored + RAISE,
        "{:?}",
        rig.stored()?
    );
    let (status, _) = rig.members[0].call("POST", "/snapshot/delta").await?;
    ensure!(status == 200, "{status}");
    rig.until("backups are current", async || {
        let known = rig.members[0].backup_status().await?;
        ensure!(
            known.uncovered_revisions == 0 && known.error.is_none(),
            "{known:?}"
        );
        Ok(())
    })
    .await?;
    let log = rig.members[0].log();
    for wrong in [
        "HistoryDiffers",
        "StoreAhead",
        "another history",
        "dropped history",
    ] {
        ensure!(!log.contains(wrong), "{wrong}: {log}");
    }
    let said = verified(rig)?;
    let chains = said["chains"].as_array().context("chains")?;
    ensure!(
        chains.len() == 2 && said["newest"]["restorable"] == true,
        "{said}"
    );
    ensure!(chains.iter().all(|chain| chain["missing"] == json!([])), "{said}");
    let folder = tempfile::tempdir()?;
    let (store, to) = (rig.store(), folder.path().join("restored"));
    let (store, to) = (store.to_string_lossy(), to.to_string_lossy());
    let of_store = ["--store-provider=Local", "--store-container", &store];
    let earlier = (stored - 3).to_string();
    run(&[&["restore", "-d", &to, "--revision", &earlier], &of_store[..]].concat())?;
    let copy = folder.path().join("copy");
    fs::create_dir(&copy)?;
    let source = [
        "copy",
        "--store-provider=Local",
        "--store-container",
        &copy.to_string_lossy(),
        "--source-store-provider=Local",
        "--source-store-container",
        &store,
    ];
    run(&source)?;
    let temp = folder.path().to_string_lossy();
    let copied = copy.to_string_lossy();
    let compacted = [
        "compact",
        "--temp-dir",
        &temp,
        "--store-provider=Local",
        "--store-container",
        &copied,
    ];
    run(&compacted)?;
    let records = crate::rig::restored_from(&copy)?;
    let reached = last_revision(&records);
    ensure!(reached == Some(last), "the copy reaches {reached:?}");
    Ok(())
}

#[tokio::test]
async fn res_21_a_restore_is_noticed_with_etcd_3_5() -> anyhow::Result<()> {
    noticed("3.5").await
}

#[tokio::test]
async fn res_21_a_restore_is_noticed_with_etcd_3_6() -> anyhow::Result<()> {
    noticed("3.6").await
}

#[tokio::test]
async fn res_21_a_restore_is_noticed_with_etcd_3_7() -> anyhow::Result<()> {
    noticed("3.7").await
}

/// RES-21: whatever was lost before the first snapshot of the restored cluster was seen by clients, too.
#[tokio::test]
async fn res_21_a_second_restore_from_the_same_snapshots_goes_beyond_the_first() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::single()).await?;
    let stored = rig.put("/kept/", 10).await?;
    rig.until_covered(stored).await?;
    rig.lose_all().await?;
    let seen = rig.put("/lost/", 100).await?;
    ensure!(seen > RAISE, "revision {seen}");
    rig.kill_all();
    // As if none of it had come to the store.
    for name in rig.stored()?.iter().filter(|name| revisions(name).1 > RAISE) {
        fs::remove_file(rig.store().join("v2").join(name))?;
        // It comes a moment later.
        let _ = fs::remove_file(rig.store().join("v2").join(format!("Manifest-{name}")));
    }
    rig.lose_all().await?;
    let (again, _) = content(&mut rig.client().await?).await?;
    ensure!(again > seen, "{again} isn't beyond {seen}");
    let compacted = watched(&mut rig.client().await?, seen + 1, 1).await?;
    ensure!(compacted == Err(again), "{compacted:?}");
    Ok(())
}

/// RES-21: the members that join agree on all of it; history is compacted and the database defragmented as ever.
async fn agreed(etcd: &'static str) -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        etcd,
        ..Setup::default()
    })
    .await?;
    let stored = rig.put("/kept/", 50).await?;
    rig.until_covered(stored).await?;
    rig.lose_all().await?;
    rig.until_all_vote().await?;
    let last = rig.put("/new/", 50).await?;
    ensure!(last > RAISE, "revision {last}");
    same_hashes(&rig, last).await?;
    let mut client = rig.client().await?;
    client.delete("/new/1", None).await?;
    client.compact(last, None).await?;
    for member in &rig.members {
        member.client().await?.defragment().await?;
    }
    let last = rig.put("/newer/", 5).await?;
    same_hashes(&rig, last).await?;
    rig.kill_all();
    rig.start_all()?;
    rig.until_ready().await?;
    same_hashes(&rig, last).await?;
    for member in &rig.members {
        ensure!(member.count("/kept/").await? == 50, "{} lacks keys", member.name);
    }
    Ok(())
}

async fn same_hashes(rig: &Rig, revision: i64) -> anyhow::Result<()> {
    rig.until("all have the same", async || {
        let mut found = Vec::new();
        for member in &rig.members {
            let answer = member.client().await?.hash_kv(revision).await?;
            found.push((answer.hash(), answer.compact_version()));
        }
        let Some(first) = found.first() else {
            bail!("no members")
        };
        ensure!(found.iter().all(|one| one == first), "{found:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn res_21_members_agree_behind_a_raised_revision_with_etcd_3_5() -> anyhow::Result<()> {
    agreed("3.5").await
}

#[tokio::test]
async fn res_21_members_agree_behind_a_raised_revision_with_etcd_3_6() -> anyhow::Result<()> {
    agreed("3.6").await
}

#[tokio::test]
async fn res_21_members_agree_behind_a_raised_revision_with_etcd_3_7() -> anyhow::Result<()> {
    agreed("3.7").await
}

/// RES-21: who doesn't want it goes on at the revision of the backups, with a chain of its own.
#[tokio::test]
async fn res_21_the_revision_is_kept_on_request() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::single()).await?;
    let stored = rig.put("/kept/", 10).await?;
    rig.until_covered(stored).await?;
    rig.lose_all_and_keep_revision().await?;
    let (revision, _) = content(&mut rig.client().await?).await?;
    ensure!(revision == stored, "revision {revision}");
    let told = rig.members[0].call("GET", "/member").await?.1["lastRestoration"].clone();
    ensure!(told["revision"] == stored && told["raisedTo"].is_null(), "{told}");
    let last = rig.put("/new/", 10).await?;
    rig.until_covered(last).await?;
    ensure!(rig.fulls()?.len() == 2, "{:?}", rig.stored()?);
    let log = rig.members[0].log();
    ensure!(
        !log.contains("HistoryDiffers") && !log.contains("another history"),
        "{log}"
    );
    let watched = watched(&mut rig.client().await?, stored + 1, 10).await?;
    ensure!(watched == Ok(10), "{watched:?}");
    Ok(())
}
