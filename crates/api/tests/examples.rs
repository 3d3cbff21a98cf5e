//! Every manifest in `examples/` means what it says: no field of it is unknown to the types or to the API server.

mod support;

use std::{fs, path::Path};

use anyhow::{Context, Result};
use api::v1alpha1::{Etcd, EtcdCopyBackupsTask, EtcdOpsTask};
use kube::api::Patch;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// All manifests, each with the name of its file.
fn examples() -> Result<Vec<(String, Value)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut manifests = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        let file = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&fs::read_to_string(&path)?)
            .with_context(|| format!("parse {file}"))?;
        manifests.extend(documents.into_iter().map(|manifest| (file.clone(), manifest)));
    }
    Ok(manifests)
}

/// What the controllers read of an example is all that stands in it.
#[test]
fn examples_survive_the_types() {
    fn round_trip<T: DeserializeOwned + Serialize>(manifest: &Value) -> Value {
        serde_json::to_value(serde_json::from_value::<T>(manifest.clone()).unwrap()).unwrap()
    }
    let mut kinds = Vec::new();
    for (file, manifest) in examples().unwrap() {
        let kind = manifest["kind"].as_str().unwrap().to_owned();
        let read = match kind.as_str() {
            "Etcd" => round_trip::<Etcd>(&manifest),
            "EtcdOpsTask" => round_trip::<EtcdOpsTask>(&manifest),
            "EtcdCopyBackupsTask" => round_trip::<EtcdCopyBackupsTask>(&manifest),
            _ => continue,
        };
        assert!(
            support::contains(&read, &manifest),
            "{file}: {manifest:#}\nis read as {read:#}"
        );
        kinds.push(kind);
    }
    assert!(
        kinds.iter().filter(|kind| *kind == "EtcdOpsTask").count() >= 5,
        "an example per type of task"
    );
    assert!(kinds.contains(&"Etcd".to_owned()) && kinds.contains(&"EtcdCopyBackupsTask".to_owned()));
}

/// Users copy these files: each is accepted as it stands, unknown fields refused.
#[tokio::test]
async fn cluster_accepts_every_example() -> Result<()> {
    let client = support::client().await?;
    support::apply_crds(&client, &api::crd::all()).await?;
    for (file, manifest) in examples()? {
        let api = support::api_of(&client, "default", &manifest).await?;
        let name = manifest["metadata"]["name"].as_str().context("no name")?;
        api.patch(name, &support::apply(true), &Patch::Apply(&manifest))
            .await
            .with_context(|| file)?;
    }
    Ok(())
}
