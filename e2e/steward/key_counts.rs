//! Full snapshots that have lost most of their keys: etcd loses those that one transaction deletes and puts again when the
//! history is compacted at exactly its revision (etcd-io/etcd#22376), and no event tells.

use std::{collections::HashSet, fs, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use etcd_client::{Client, CompactionOptions, DeleteOptions, Txn, TxnOp};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    kube_api::KubeApi,
    rig::{Rig, Setup, restored_with, stored_in},
};

const KEYS: usize = 300;
const PLAUSIBLE: &str = "BackupPlausible";
const COLLAPSED: &str = "etcdbr_snapshot_keys_collapsed";

fn setup(etcd: &'static str, size: usize) -> Setup {
    Setup {
        size,
        etcd,
        backup: json!({
            "fullSnapshotSchedule": "0 0 1 1 *", "deltaSnapshotPeriod": "1s", "maxBackupsLimitBasedGC": 1,
            "garbageCollectionPeriod": "1s", "secondary": {"syncPeriod": "1s"},
        }),
        options: json!({"max-txn-ops": 1000}),
        ..Setup::default()
    }
}

async fn started(setup: Setup) -> anyhow::Result<(Rig, KubeApi)> {
    let api = KubeApi::start().await?;
    let mut rig = Rig::new(setup)?;
    api.lead(&mut rig)?;
    fs::create_dir(rig.second_store())?;
    rig.start_all()?;
    rig.until_ready().await?;
    Ok((rig, api))
}

/// Asks the owner for a full snapshot. Names have whole seconds: a delta of the same second would do in its place.
async fn full(rig: &Rig, parameters: &str) -> anyhow::Result<()> {
    sleep(Duration::from_secs(1)).await;
    rig.until("a full snapshot is taken", async || {
        let owner = &rig.members[rig.leader().await?];
        let (status, answer) = owner.call("POST", &format!("/snapshot/full{parameters}")).await?;
        ensure!(status == 200, "{status}: {answer}");
        Ok(())
    })
    .await
}

/// Waits until the owner says so of the newest full snapshot. Returns the message.
async fn until_judged(rig: &Rig, wanted: &str) -> anyhow::Result<String> {
    rig.until(&format!("the owner says {wanted}"), async || {
        let owner = &rig.members[rig.leader().await?];
        let (reason, message) = owner.condition(PLAUSIBLE).await?;
        ensure!(reason == wanted, "{reason}: {message}");
        let collapsed = owner.metric(COLLAPSED).await? > 0.0;
        ensure!(collapsed == (wanted == "KeysCollapsed"), "{collapsed}");
        Ok(message)
    })
    .await
}

fn fulls_in(store: &Path) -> anyhow::Result<Vec<String>> {
    let mut stored = stored_in(store)?;
    stored.retain(|name| name.starts_with("Full-"));
    Ok(stored)
}

/// Waits until both stores hold so many full snapshots.
async fn until_fulls(rig: &Rig, wanted: usize) -> anyhow::Result<()> {
    rig.until(&format!("{wanted} full snapshots are left"), async || {
        let (one, other) = (rig.fulls()?, fulls_in(&rig.second_store())?);
        ensure!(one.len() == wanted && one == other, "{one:?}, {other:?}");
        Ok(())
    })
    .await
}

/// Whether everything of a chain is still in both stores, after retention had time to look at it.
async fn ensure_kept(rig: &Rig, chain: &[String]) -> anyhow::Result<()> {
    sleep(Duration::from_secs(5)).await;
    for store in [rig.store(), rig.second_store()] {
        let stored: HashSet<_> = stored_in(&store)?.into_iter().collect();
        let gone: Vec<_> = chain.iter().filter(|name| !stored.contains(*name)).collect();
        ensure!(gone.is_empty(), "{gone:?} are gone from {}", store.display());
    }
    Ok(())
}

/// Keys below `/k/`, deleted and put again in one transaction: its revision.
async fn recreate(client: &mut Client) -> anyhow::Result<i64> {
    let puts = (0..KEYS).map(|number| TxnOp::put(format!("/k/{number}"), "2", None));
    let from_key = Some(DeleteOptions::new().with_from_key());
    let all: Vec<_> = [TxnOp::delete("/k/", from_key)].into_iter().chain(puts).collect();
    let done = client.txn(Txn::new().and_then(all)).await?;
    Ok(done.header().context("a header")?.revision())
}

/// Keys below `/k/` that a restore has.
fn keys_at(rig: &Rig, revision: i64) -> anyhow::Result<usize> {
    let records = restored_with(&rig.store(), &[&format!("--revision={revision}")])?;
    let keys = records.iter().filter_map(|record| record["key"].as_str());
    let mut keys: HashSet<_> = keys.collect();
    // `/k/` in base64.
    keys.retain(|key| key.starts_with("L2sv"));
    Ok(keys.len())
}

/// MVC-02: most keys are deleted, and the deltas show it: nothing is said, and the old chain goes by the policy.
#[tokio::test]
async fn mvc_02_deleted_keys_are_accounted_for() -> anyhow::Result<()> {
    for etcd in ["3.6", "3.7"] {
        let (rig, api) = started(setup(etcd, 1)).await?;
        let revision = rig.put("/k/", KEYS).await?;
        rig.until_covered(revision).await?;
        full(&rig, "").await?;
        until_judged(&rig, "KeysAccountedFor").await?;
        let prefix = Some(DeleteOptions::new().with_prefix());
        let deleted = rig.client().await?.delete("/k/", prefix).await?;
        let revision = deleted.header().context("a header")?.revision();
        rig.until_covered(revision).await?;
        full(&rig, "").await?;
        until_fulls(&rig, 1).await?;
        let message = until_judged(&rig, "KeysAccountedFor").await?;
        let events = api.events(&rig.members[0].name);
        ensure!(!events.contains(&"KeysCollapsed".to_owned()), "{events:?}");
        ensure!(!rig.members[0].log().contains("etcd may have lost keys"));
        println!("etcd {etcd}: {KEYS} keys deleted, 1 full snapshot left: {message}");
    }
    Ok(())
}

/// MVC-02: etcd loses keys without an event: the full snapshot of what is left takes the place of nothing, whoever owns the
/// backups, until somebody has accepted it.
#[tokio::test]
async fn mvc_02_lost_keys_stay_in_the_backups() -> anyhow::Result<()> {
    for (etcd, size) in [("3.6", 3), ("3.7", 1)] {
        let (mut rig, api) = started(setup(etcd, size)).await?;
        rig.put("/k/", KEYS).await?;
        let mut client = rig.client().await?;
        let revision = recreate(&mut client).await?;
        rig.until_covered(revision).await?;
        full(&rig, "").await?;
        until_fulls(&rig, 1).await?;
        client.put("/other", "x", None).await?;
        let last = client.put("/other", "y", None).await?;
        rig.until_covered(last.header().context("a header")?.revision())
            .await?;
        let chain = rig.stored()?;
        let physical = Some(CompactionOptions::new().with_physical());
        client.compact(revision, physical).await?;
        // Up to 3.6 etcd ends at the next read, and is started again. 3.7 goes on, and says that all keys are there.
        if etcd == "3.6" {
            rig.kill_all();
            rig.start_all()?;
            rig.until_ready().await?;
        }
        let left = rig.members[0].count("/k/").await?;
        full(&rig, "").await?;
        let message = until_judged(&rig, "KeysCollapsed").await?;
        ensure_kept(&rig, &chain).await?;
        let owner = rig.leader().await?;
        let events = api.events(&rig.members[owner].name);
        ensure!(events.contains(&"KeysCollapsed".to_owned()), "{events:?}");
        println!("etcd {etcd} says that {left} of {KEYS} keys are left: {message}");

        // Another owner, or at least another process.
        if size == 1 {
            rig.start_stewards_anew()?;
        } else {
            let next = rig.members[(owner + 1) % size].id().await?;
            rig.members[owner].client().await?.move_leader(next).await?;
        }
        full(&rig, "").await?;
        until_judged(&rig, "KeysCollapsed").await?;
        ensure_kept(&rig, &chain).await?;
        let newest = rig.fulls()?.pop().context("a full snapshot")?;
        let collapsed = message.split(' ').next().unwrap_or_default();
        let (_, advice) = message.split_once("restore revision ").context(message.clone())?;
        let at = advice.split(';').next().unwrap_or_default().parse()?;
        ensure!(
            keys_at(&rig, at)? == KEYS,
            "a restore of revision {at} lacks keys"
        );
        ensure!(newest != collapsed, "{newest}");

        full(&rig, "?acceptFewerKeys=true").await?;
        until_judged(&rig, "KeysAccountedFor").await?;
        until_fulls(&rig, 1).await?;
        let gone = chain
            .iter()
            .all(|name| !rig.stored().is_ok_and(|stored| stored.contains(name)));
        ensure!(gone, "{:?}", rig.stored()?);
        println!(
            "etcd {etcd}: accepted, {:?} is left of {newest} and what was before",
            rig.fulls()?
        );
    }
    Ok(())
}
