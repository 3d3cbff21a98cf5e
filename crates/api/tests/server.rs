//! What the API server makes of the CRDs beyond validation: columns, scaling, explanations, and objects that were
//! stored before a rule existed.

mod support;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::v1alpha1::Etcd;
use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// Runs `body` in a namespace of its own.
async fn in_namespace(body: impl AsyncFnOnce(Client, String) -> Result<()>) -> Result<()> {
    let client = support::client().await?;
    support::apply_crds(&client, &api::crd::all()).await?;
    let namespace = support::create_namespace(&client).await?;
    let result = body(client.clone(), namespace.clone()).await;
    Api::<Namespace>::all(client)
        .delete(&namespace, &DeleteParams::default())
        .await?;
    result
}

/// `kubectl get etcd` answers what people look for first.
#[tokio::test]
async fn cluster_shows_columns() -> Result<()> {
    in_namespace(async |client, namespace| {
        let api: Api<Etcd> = Api::namespaced(client.clone(), &namespace);
        let etcd = serde_json::from_value(json!({"metadata": {"name": "main"}, "spec": {"replicas": 3}}))?;
        api.create(&PostParams::default(), &etcd).await?;
        // Where Druid is installed, it writes the status too.
        eventually(async || shows_columns(&client, &api, &namespace).await).await
    })
    .await
}

async fn shows_columns(client: &Client, api: &Api<Etcd>, namespace: &str) -> Result<()> {
    let status = json!({"status": {
        "conditions": [
            {"type": "BackupReady", "status": "False", "reason": "BackupOverdue", "message": ""},
            {"type": "Ready", "status": "True", "reason": "Quorate", "message": ""},
        ],
        "membersReady": "2/3", "version": "3.6.1", "reason": "BackupOverdue", "lastBackupTime": "2020-01-01T00:00:00Z",
    }});
    api.patch_status("main", &PatchParams::default(), &Patch::Merge(status))
        .await?;

    let request = http::Request::get(format!(
        "/apis/druid.gardener.cloud/v1alpha1/namespaces/{namespace}/etcds"
    ))
    .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
    .body(Vec::new())?;
    let table: Value = client.request(request).await?;
    let names = table["columnDefinitions"].as_array().context("no columns")?;
    let narrow = names
        .iter()
        .filter(|column| column["priority"] == 0)
        .map(|column| &column["name"]);
    let cells = table["rows"][0]["cells"].as_array().context("no row")?;
    let shown: Vec<(&Value, &Value)> = narrow.zip(cells).collect();
    let expected = [
        ("Name", "main"),
        ("Quorate", "True"),
        ("Members", "2/3"),
        ("Version", "3.6.1"),
        ("Reason", "BackupOverdue"),
    ];
    for (name, cell) in expected {
        ensure!(
            shown.contains(&(&json!(name), &json!(cell))),
            "no {name} {cell} in {shown:?}"
        );
    }
    let backup = shown
        .iter()
        .find(|(name, _)| *name == "Backup")
        .context("no Backup column")?;
    ensure!(
        backup
            .1
            .as_str()
            .is_some_and(|age| age.ends_with('y') || age.ends_with('d')),
        "{backup:?}"
    );
    Ok(())
}

/// Autoscalers and `kubectl scale` use the scale subresource: it must find the pods, and rules hold there too.
#[tokio::test]
async fn cluster_scales() -> Result<()> {
    in_namespace(async |client, namespace| {
        let api: Api<Etcd> = Api::namespaced(client, &namespace);
        let etcd = serde_json::from_value(json!({"metadata": {"name": "main"}, "spec": {"replicas": 1}}))?;
        api.create(&PostParams::default(), &etcd).await?;
        let selector = api::labels::selector(&api::labels::of_component(
            "main",
            api::labels::component::STATEFUL_SET,
            "main",
        ));
        let status = json!({"status": {"replicas": 1, "selector": selector}});
        // Where Druid is installed, it writes the status too.
        eventually(async || {
            api.patch_status("main", &PatchParams::default(), &Patch::Merge(&status))
                .await?;
            let scale = api.get_scale("main").await?;
            let seen = scale.status.context("no status of scale")?;
            ensure!(
                (seen.replicas, seen.selector.as_deref()) == (1, Some(selector.as_str())),
                "{seen:?}"
            );
            Ok(())
        })
        .await?;

        let to = async |replicas: i32| {
            api.patch_scale(
                "main",
                &PatchParams::default(),
                &Patch::Merge(json!({"spec": {"replicas": replicas}})),
            )
            .await
        };
        to(3).await?;
        let refused = to(4).await.err().context("four members are accepted")?;
        ensure!(refused.to_string().contains("odd number"), "{refused}");
        let refused = to(1).await.err().context("scaling in is accepted")?;
        ensure!(refused.to_string().contains("can't be lowered"), "{refused}");
        Ok(())
    })
    .await
}

/// `kubectl explain` reads the published OpenAPI document: every field of ours must be there with its meaning.
#[tokio::test]
async fn cluster_explains_every_field() -> Result<()> {
    let client = support::client().await?;
    support::apply_crds(&client, &api::crd::all()).await?;
    for crd in api::crd::all() {
        let kind = &crd.spec.names.kind;
        let schema = serde_json::to_value(&crd.spec.versions[0].schema)?["openAPIV3Schema"].take();
        let published = || async {
            let path = "/openapi/v3/apis/druid.gardener.cloud/v1alpha1";
            let document: Value = client.request(http::Request::get(path).body(Vec::new())?).await?;
            let model = &document["components"]["schemas"][format!("cloud.gardener.druid.v1alpha1.{kind}")];
            let (ours, theirs) = (&schema["properties"], &model["properties"]);
            ensure!(
                ["spec", "status"]
                    .iter()
                    .all(|part| same_meaning(&ours[part], &theirs[part])),
                "{kind}: {theirs:#}"
            );
            Ok(())
        };
        eventually(published).await?;
    }
    Ok(())
}

/// Whether `published` has every property and description of `schema`.
fn same_meaning(schema: &Value, published: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.iter().all(|(name, field)| match name.as_str() {
            "properties" | "items" | "description" => same_meaning(field, &published[name]),
            _ if fields.contains_key("type") => true,
            _ => same_meaning(field, &published[name]),
        }),
        _ => schema == published,
    }
}

/// Asks until the answer is right, for what the server does in the background.
async fn eventually(ask: impl AsyncFn() -> Result<()>) -> Result<()> {
    for _ in 0..150 {
        if ask().await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    ask().await
}

/// The CRD of Etcd in a group of its own, where nothing else is disturbed.
fn etcd_crd_apart() -> CustomResourceDefinition {
    let mut crd = api::crd::all().swap_remove(0);
    "stored.druid.test".clone_into(&mut crd.spec.group);
    crd.metadata.name = Some("etcds.stored.druid.test".to_owned());
    crd
}

/// Removes rules and enums, as if the object had been stored by something that didn't know them.
fn without_rules(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields
                .retain(|name, _| !matches!(name.as_str(), "x-kubernetes-validations" | "enum" | "maximum"));
            fields.values_mut().for_each(without_rules);
        }
        Value::Array(items) => items.iter_mut().for_each(without_rules),
        _ => {}
    }
}

/// An Etcd that breaks rules which came later can still be changed elsewhere, get its status, and go away.
#[tokio::test]
async fn cluster_keeps_stored_objects_editable() -> Result<()> {
    in_namespace(async |client, namespace| {
        let mut lax = serde_json::to_value(etcd_crd_apart())?;
        without_rules(&mut lax);
        support::apply_crds(&client, &[serde_json::from_value(lax)?]).await?;
        let name = "a-name-with-more-than-52-characters-234567890123456789012345678";
        let stored = json!({
            "apiVersion": "stored.druid.test/v1alpha1", "kind": "Etcd",
            "metadata": {"name": name, "finalizers": ["druid.gardener.cloud/etcd-druid"]},
            "spec": {
                "replicas": 2, "labels": {}, "etcd": {"metrics": "verbose", "defragmentationSchedule": "@daily"},
                "backup": {"store": {"provider": "s4", "container": "abc", "prefix": "p"}},
            },
        });
        let api = support::api_of(&client, &namespace, &stored).await?;
        api.patch(name, &support::apply(false), &Patch::Apply(&stored)).await?;
        let old = json!({"type": "Ready", "status": "Progressing", "reason": "r", "message": "m",
            "lastTransitionTime": "2024-01-01T00:00:00Z", "lastUpdateTime": "2024-01-01T00:00:00Z"});
        let merge = |patch: Value| Patch::Merge(patch);
        api.patch_status(name, &PatchParams::default(), &merge(json!({"status": {"conditions": [old]}}))).await?;

        support::apply_crds(&client, &[etcd_crd_apart()]).await?;
        eventually(async || refuses_two_members(&api).await).await?;

        let edits = [
            json!({"metadata": {"annotations": {"druid.gardener.cloud/operation": "reconcile"}}}),
            json!({"spec": {"etcd": {"snapshotCount": 5000}}}),
            json!({"spec": {"replicas": 3}}),
        ];
        for edit in edits {
            api.patch(name, &PatchParams::default(), &merge(edit.clone())).await.with_context(|| edit.to_string())?;
        }
        let status = json!({"status": {"observedGeneration": 1}});
        api.patch_status(name, &PatchParams::default(), &merge(status)).await.context("write the status")?;
        api.delete(name, &DeleteParams::default()).await?;
        let release = json!({"metadata": {"finalizers": null}});
        api.patch(name, &PatchParams::default(), &merge(release)).await.context("remove the finalizer")?;
        ensure!(api.get_opt(name).await?.is_none(), "the object is still there");
        Ok(())
    })
    .await
}

async fn refuses_two_members(api: &Api<DynamicObject>) -> Result<()> {
    let bad = json!({
        "apiVersion": "stored.druid.test/v1alpha1", "kind": "Etcd", "metadata": {"name": "new"}, "spec": {"replicas": 2},
    });
    match api.patch("new", &support::apply(true), &Patch::Apply(&bad)).await {
        Err(kube::Error::Api(status)) if status.message.contains("odd number") => Ok(()),
        other => anyhow::bail!("not refused yet: {other:?}"),
    }
}
