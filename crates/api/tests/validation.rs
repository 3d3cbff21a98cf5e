//! The table of `validation.yaml` against a real API server: what is taken, what is refused, and with which words.

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    base: BTreeMap<String, Value>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    about: String,
    kind: String,
    /// Changes the base.
    #[serde(default)]
    with: Value,
    /// Is put on the object once it is created.
    status: Option<Value>,
    /// Edits the created object.
    then: Option<Value>,
    /// Part of the only complaint.
    refused: Option<String>,
}

/// Every manifest and edit of the table is taken or refused as it says, and every rule of the CRDs is fired once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_takes_and_refuses_as_the_table_says() -> Result<()> {
    let table: Table = serde_saphyr::from_str(include_str!("validation.yaml"))?;
    let client = support::client().await?;
    support::apply_crds(&client, &api::crd::all()).await?;
    let namespace = support::create_namespace(&client).await?;

    let mut faults = String::new();
    for (number, case) in table.cases.iter().enumerate() {
        let base = table
            .base
            .get(&case.kind)
            .with_context(|| format!("no base for kind {}", case.kind))?;
        let manifest = manifest(number, case, base);
        if let Err(error) = run(&client, &namespace, case, manifest).await {
            let _ = writeln!(faults, "{} ({}): {error:#}", case.about, case.kind);
        }
    }
    Api::<Namespace>::all(client)
        .delete(&namespace, &DeleteParams::default())
        .await?;
    for rule in unfired(&table.cases)? {
        let _ = writeln!(faults, "no case fires {rule}");
    }
    ensure!(faults.is_empty(), "{faults}");
    Ok(())
}

fn manifest(number: usize, case: &Case, base: &Value) -> Value {
    let mut manifest = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1",
        "kind": case.kind,
        "metadata": {"name": format!("case-{number}")},
    });
    merge(&mut manifest, base);
    merge(&mut manifest, &case.with);
    manifest
}

async fn run(client: &Client, namespace: &str, case: &Case, manifest: Value) -> Result<()> {
    let api = support::api_of(client, namespace, &manifest).await?;
    let name = manifest["metadata"]["name"].as_str().context("no name")?;
    let stored = case.then.is_some() || case.status.is_some();
    let created = api
        .patch(name, &support::apply(!stored), &Patch::Apply(&manifest))
        .await;
    if !stored {
        return compare(created, case.refused.as_deref());
    }
    created.context("the object before the edit is refused")?;
    let result = edit(&api, name, case).await;
    api.delete(name, &DeleteParams::default()).await?;
    result
}

async fn edit(api: &Api<DynamicObject>, name: &str, case: &Case) -> Result<()> {
    if let Some(status) = &case.status {
        let patch = Patch::Merge(json!({"status": status}));
        let written = api.patch_status(name, &PatchParams::default(), &patch).await?;
        ensure!(
            support::contains(&written.data["status"], status),
            "the status was cut: {}",
            written.data["status"]
        );
    }
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    match &case.then {
        Some(then) => compare(
            api.patch(name, &params, &Patch::Merge(then)).await,
            case.refused.as_deref(),
        ),
        None => Ok(()),
    }
}

/// Checks that the answer is as expected: accepted, or refused for exactly one reason.
fn compare(answer: kube::Result<DynamicObject>, refused: Option<&str>) -> Result<()> {
    match (answer, refused) {
        (Ok(_), None) => Ok(()),
        (Ok(_), Some(expected)) => bail!("accepted, but must be refused with {expected:?}"),
        (Err(error), None) => Err(error).context("refused, but must be accepted"),
        (Err(kube::Error::Api(status)), Some(expected)) => {
            ensure!(
                status.message.contains(expected),
                "refused, but not with {expected:?}: {}",
                status.message
            );
            let causes = status.details.iter().flat_map(|details| &details.causes);
            // Where the schema itself complains, the server adds that rules weren't looked at.
            let causes =
                causes.filter(|cause| !cause.message.contains("some validation rules were not checked"));
            let reasons: BTreeSet<&str> = causes.map(|cause| cause.message.as_str()).collect();
            ensure!(reasons.len() <= 1, "refused for several reasons: {reasons:#?}");
            Ok(())
        }
        (Err(error), Some(_)) => Err(error).context("no answer"),
    }
}

/// The rules, by kind and message, that no refused case of that kind has the words of.
fn unfired(cases: &[Case]) -> Result<BTreeSet<String>> {
    let fired = |kind: &str, message: &str| {
        cases
            .iter()
            .any(|case| case.kind == kind && case.refused.as_deref().is_some_and(|r| message.contains(r)))
    };
    let mut unfired = BTreeSet::new();
    for crd in api::crd::all() {
        let kind = &crd.spec.names.kind;
        let silent = messages(&crd)?
            .into_iter()
            .filter(|message| !fired(kind, message));
        unfired.extend(silent.map(|message| format!("{kind}: {message}")));
    }
    Ok(unfired)
}

/// The messages of all rules in a CRD.
fn messages(crd: &CustomResourceDefinition) -> Result<BTreeSet<String>> {
    fn collect(value: &Value, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                let rules = fields
                    .get("x-kubernetes-validations")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten();
                into.extend(rules.map(|rule| {
                    rule["message"]
                        .as_str()
                        .unwrap_or("a rule without a message")
                        .to_owned()
                }));
                fields.values().for_each(|field| collect(field, into));
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, into)),
            _ => {}
        }
    }
    let mut all = BTreeSet::new();
    collect(&serde_json::to_value(crd)?, &mut all);
    Ok(all)
}

/// Merges a patch into a value, as RFC 7396 says.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        if !patch.is_null() {
            *target = patch.clone();
        }
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Value::Object(fields) = target else { return };
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}
