//! Tasks on a real cluster.

use anyhow::ensure;
use api::v1alpha1::{Etcd, EtcdOpsTask, TaskState};
use e2e::{
    Lab,
    lab::{etcd, run},
    store::Store,
};
use serde_json::{Value, json};

fn task(name: &str, etcd: &str, config: &Value) -> Value {
    json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdOpsTask", "metadata": {"name": name},
        "spec": {"etcdName": etcd, "config": config},
    })
}

async fn ended(lab: &Lab, name: &str) -> anyhow::Result<EtcdOpsTask> {
    lab.until(name, "end", |task: &EtcdOpsTask| {
        let state = task.status.as_ref().and_then(|status| status.state.clone());
        matches!(
            state,
            Some(TaskState::Succeeded | TaskState::Failed | TaskState::Rejected)
        )
    })
    .await
}

fn state(task: &EtcdOpsTask) -> Option<TaskState> {
    task.status.as_ref().and_then(|status| status.state.clone())
}

/// A full and a delta snapshot on demand; without a store the task is rejected, and says why.
#[tokio::test]
async fn e2e_snapshots_on_demand() -> anyhow::Result<()> {
    run("snapshots", |lab| async move {
        let mut backup = lab.backup(Store::S3).await?;
        backup["deltaSnapshotPeriod"] = json!("0s");
        lab.apply::<Etcd>(&etcd("t1", 1, &backup)).await?;
        lab.apply::<Etcd>(&etcd("t2", 1, &json!({}))).await?;
        lab.until_ready("t1").await?;
        lab.put_keys("t1-0", "/tasks/", 3).await?;
        for kind in ["delta", "full"] {
            lab.apply::<EtcdOpsTask>(&task(kind, "t1", &json!({"onDemandSnapshot": {"type": kind}})))
                .await?;
            let done = ended(&lab, kind).await?;
            ensure!(state(&done) == Some(TaskState::Succeeded), "{done:#?}");
        }
        let names: Vec<_> = lab
            .stored(Store::S3)
            .await?
            .snapshots
            .iter()
            .map(|s| s.name.to_string())
            .collect();
        ensure!(
            names.iter().any(|name| name.starts_with("Incr-")),
            "no delta among {names:?}"
        );

        lab.until_ready("t2").await?;
        lab.apply::<EtcdOpsTask>(&task(
            "no-store",
            "t2",
            &json!({"onDemandSnapshot": {"type": "full"}}),
        ))
        .await?;
        let rejected = ended(&lab, "no-store").await?;
        ensure!(state(&rejected) == Some(TaskState::Rejected), "{rejected:#?}");
        Ok(())
    })
    .await
}
