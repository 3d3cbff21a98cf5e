//! History compaction on request: etcd loses a key that was deleted and put again in one transaction when the history is
//! compacted at exactly that revision (etcd-io/etcd#22376).

use anyhow::{Context as _, ensure};
use etcd_client::{Client, CompactionOptions, DeleteOptions, GetOptions, Txn, TxnOp};
use serde_json::Value;

use crate::rig::{Rig, Setup};

/// Keys that are deleted and put again in one transaction. Returns its revision.
async fn recreate(client: &mut Client) -> anyhow::Result<i64> {
    for key in ["/k/a", "/k/b", "/k/c"] {
        client.put(key, "1", None).await?;
    }
    let from_key = Some(DeleteOptions::new().with_from_key());
    let txn = Txn::new().and_then([
        TxnOp::delete("/k/", from_key),
        TxnOp::put("/k/a", "2", None),
        TxnOp::put("/k/b", "2", None),
    ]);
    let done = client.txn(txn).await?;
    ensure!(done.succeeded(), "the transaction was refused");
    Ok(done.header().context("a header")?.revision())
}

async fn keys(rig: &Rig) -> anyhow::Result<i64> {
    let options = Some(GetOptions::new().with_prefix().with_serializable());
    let found = rig.members[0].client().await?.get("/k/", options).await?;
    ensure!(
        found.kvs().iter().all(|kv| kv.value() == b"2"),
        "{:?}",
        found.kvs()
    );
    Ok(found.count())
}

async fn restart(rig: &mut Rig) -> anyhow::Result<()> {
    rig.kill_all();
    rig.start_all()?;
    rig.until_ready().await
}

/// MVC-01: neither at the head nor at a later look are keys lost, in any version.
#[tokio::test]
async fn mvc_01_compaction_loses_no_key() -> anyhow::Result<()> {
    for etcd in ["3.5", "3.6", "3.7"] {
        let mut rig = Rig::start(Setup {
            etcd,
            backup: Value::Null,
            ..Setup::single()
        })
        .await?;
        let revision = recreate(&mut rig.client().await?).await?;
        let compact = async |rig: &Rig, wanted: i64| {
            let path = format!("/maintenance/compact?revision={wanted}");
            let (status, answer) = rig.members[0].call("POST", &path).await?;
            ensure!(
                status == 200 && answer["state"] == "Succeeded",
                "{status}: {answer}"
            );
            answer["result"]["revision"].as_i64().context("a revision")
        };
        let at_head = compact(&rig, 0).await?;
        ensure!(
            at_head == revision - 1,
            "compacted at {at_head}, the head is {revision}"
        );
        rig.client().await?.put("/other", "x", None).await?;
        // Now it is behind the head, and as dangerous.
        let behind = compact(&rig, revision).await?;
        ensure!(
            behind == revision - 1,
            "compacted at {behind}, {revision} puts deleted keys again"
        );
        restart(&mut rig).await?;
        ensure!(
            keys(&rig).await? == 2,
            "etcd {etcd} has {} keys",
            keys(&rig).await?
        );
        println!(
            "etcd {etcd}: compacted at {behind} instead of {revision}, 2 of 2 keys are there after a restart"
        );
    }
    Ok(())
}

/// What would happen otherwise. When this fails, etcd has mended it, and the look at the history may go.
#[tokio::test]
async fn mvc_01_etcd_loses_such_keys_by_itself() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup {
        backup: Value::Null,
        ..Setup::single()
    })
    .await?;
    let mut client = rig.client().await?;
    let revision = recreate(&mut client).await?;
    client.put("/other", "x", None).await?;
    let physical = Some(CompactionOptions::new().with_physical());
    client.compact(revision, physical).await?;
    restart(&mut rig).await?;
    let left = keys(&rig).await?;
    ensure!(left == 0, "{left} keys are left: this etcd doesn't lose them");
    println!("compacted at {revision} by etcd's own call, 0 of 2 keys are left after a restart");
    Ok(())
}
