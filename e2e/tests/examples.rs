//! The examples that need nothing but a cluster do what they say.

use std::{fs, path::Path};

use anyhow::{Context as _, ensure};
use api::v1alpha1::{Etcd, EtcdOpsTask, TaskState};
use e2e::{
    lab::{has, run},
    store::Store,
};
use serde_json::{Value, json};

/// The object of a kind in a file of `examples/`.
fn example(file: &str, kind: &str) -> anyhow::Result<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples")
        .join(file);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    documents
        .into_iter()
        .find(|manifest| manifest["kind"] == kind)
        .with_context(|| format!("{file} has no {kind}"))
}

#[tokio::test]
async fn e2e_the_smallest_example_runs() -> anyhow::Result<()> {
    run("single", |lab| async move {
        lab.apply::<Etcd>(&example("etcd-single.yaml", "Etcd")?).await?;
        let took = lab.until_ready("etcd-single").await?;
        eprintln!("one member without backups ready after {took:.1?}");
        lab.check_cluster("etcd-single", 1).await
    })
    .await
}

/// The folder on the node is one of the test's own, and the task names this Etcd; the rest is as it stands.
#[tokio::test]
async fn e2e_the_example_of_a_local_store_is_backed_up() -> anyhow::Result<()> {
    run("local", |lab| async move {
        let own = lab.backup(Store::Local).await?;
        let mut manifest = example("etcd-local-store.yaml", "Etcd")?;
        manifest["spec"]["backup"]["store"]["secretRef"] = own["store"]["secretRef"].clone();
        lab.apply::<Etcd>(&manifest).await?;
        lab.until_ready("etcd-local").await?;
        lab.until("etcd-local", "be backed up", |etcd: &Etcd| {
            has(etcd, "BackupReady")
        })
        .await?;

        let mut task = example("task-snapshot.yaml", "EtcdOpsTask")?;
        task["spec"]["etcdName"] = json!("etcd-local");
        lab.apply::<EtcdOpsTask>(&task).await?;
        let ended = |task: &EtcdOpsTask| {
            let state = task.status.as_ref().and_then(|status| status.state.clone());
            matches!(
                state,
                Some(TaskState::Succeeded | TaskState::Failed | TaskState::Rejected)
            )
        };
        let task = lab.until("snapshot-now", "end", ended).await?;
        let state = task.status.as_ref().and_then(|status| status.state.clone());
        ensure!(state == Some(TaskState::Succeeded), "{task:#?}");
        Ok(())
    })
    .await
}
