//! An API server with the CRDs, for tests whose name starts with `cluster_`.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{env, time::Duration};

use anyhow::{Context, Result};
use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams, ValidationDirective,
    },
    discovery::pinned_kind,
    runtime::{conditions::is_crd_established, wait::await_condition},
};
use serde_json::{Value, json};

/// A client of the API server that `KUBECONFIG` names.
pub(crate) async fn client() -> Result<Client> {
    env::var_os("KUBECONFIG").context(
        "this test needs an API server: point KUBECONFIG to one that may be written to, or leave such tests out \
         with `cargo test -- --skip cluster_`",
    )?;
    Client::try_default()
        .await
        .context("connect to the API server of KUBECONFIG")
}

/// Applies CRDs and waits until they are served.
pub(crate) async fn apply_crds(client: &Client, crds: &[CustomResourceDefinition]) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crds {
        let name = crd.name_any();
        api.patch(&name, &apply(false), &Patch::Apply(crd))
            .await
            .with_context(|| format!("apply CRD {name}"))?;
        let established = await_condition(api.clone(), &name, is_crd_established());
        tokio::time::timeout(Duration::from_secs(30), established)
            .await
            .with_context(|| format!("CRD {name} isn't established"))??;
    }
    Ok(())
}

/// Server-side apply that refuses unknown fields.
pub(crate) fn apply(dry_run: bool) -> PatchParams {
    PatchParams {
        dry_run,
        force: true,
        field_manager: Some("api-tests".to_owned()),
        field_validation: Some(ValidationDirective::Strict),
    }
}

/// A new namespace, for one test.
pub(crate) async fn create_namespace(client: &Client) -> Result<String> {
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"generateName": "api-test-"}}))?;
    Ok(api
        .create(&PostParams::default(), &namespace)
        .await
        .context("create a namespace")?
        .name_any())
}

/// The API of whatever kind a manifest is of.
pub(crate) async fn api_of(client: &Client, namespace: &str, manifest: &Value) -> Result<Api<DynamicObject>> {
    let text = |field: &str| {
        manifest[field]
            .as_str()
            .with_context(|| format!("a manifest has no {field}"))
    };
    let (group, version) = text("apiVersion")?
        .split_once('/')
        .unwrap_or(("", text("apiVersion")?));
    let kind = GroupVersionKind::gvk(group, version, text("kind")?);
    // Discovery knows a CRD a moment after it is Established.
    let mut looked_up = pinned_kind(client, &kind).await;
    for _ in 0..150 {
        if looked_up.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        looked_up = pinned_kind(client, &kind).await;
    }
    let (resource, _): (ApiResource, _) = looked_up.with_context(|| format!("look up kind {}", kind.kind))?;
    Ok(Api::namespaced_with(client.clone(), namespace, &resource))
}

/// Whether everything in `part` is in `whole`.
pub(crate) fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(name, value)| whole.get(name).is_some_and(|found| contains(found, value))),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| contains(whole, part))
        }
        _ => whole == part,
    }
}
