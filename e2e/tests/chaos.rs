//! Controllers that are killed while a cluster is made: that delays it, and breaks nothing.

use std::time::Duration;

use anyhow::ensure;
use api::v1alpha1::Etcd;
use e2e::{
    Lab,
    lab::{etcd, run},
    store::Store,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use serde_json::json;

/// Where Druid is installed.
const DRUID: &str = "druid-system";

/// Kills all controllers at once, without a moment to finish anything.
async fn kill_controllers(lab: &Lab) -> anyhow::Result<usize> {
    let api = Api::<Pod>::namespaced(lab.client.clone(), DRUID);
    let pods = api.list(&ListParams::default()).await?.items;
    let at_once = DeleteParams::default().grace_period(0);
    for pod in &pods {
        api.delete(&pod.name_any(), &at_once).await?;
    }
    Ok(pods.len())
}

/// The moments differ, so that every step of the creation is cut off at some time.
#[tokio::test]
async fn e2e_controllers_killed_during_creation() -> anyhow::Result<()> {
    run("killed", |lab| async move {
        let mut backup = lab.backup(Store::S3).await?;
        backup["deltaSnapshotPeriod"] = json!("10s");
        let mut killed = 0;
        for (name, moment) in [("t1", 150), ("t2", 700), ("t3", 2500)] {
            // Two clusters must not share a folder in the store.
            backup["store"]["prefix"] = json!(format!("{}/{name}", lab.namespace));
            lab.apply::<Etcd>(&etcd(name, 3, &backup)).await?;
            tokio::time::sleep(Duration::from_millis(moment)).await;
            killed += kill_controllers(&lab).await?;
            let took = lab.until_ready(name).await?;
            eprintln!("killed after {moment} ms, ready {took:.1?} later");
            lab.check_cluster(name, 3).await?;
            lab.put_keys(&format!("{name}-1"), "/killed/", 3).await?;
        }
        ensure!(killed >= 12, "only {killed} controllers were killed");
        Ok(())
    })
    .await
}
