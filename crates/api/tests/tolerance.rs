//! An object decodes whatever an older or newer writer may have stored, and nothing of it is lost.
//!
//! The objects are made from the CRDs, with every field set, so that a new field is tested without a word here.

#![expect(clippy::panic, clippy::unwrap_used, reason = "everything here is a test")]

mod support;

use api::v1alpha1::{Etcd, EtcdCopyBackupsTask, EtcdMember, EtcdOpsTask};
use serde_json::{Map, Value, json};

/// Reads an object as its kind, and writes it again.
fn round_trip(kind: &str, object: &Value) -> serde_json::Result<Value> {
    let object = object.clone();
    match kind {
        "Etcd" => serde_json::to_value(serde_json::from_value::<Etcd>(object)?),
        "EtcdMember" => serde_json::to_value(serde_json::from_value::<EtcdMember>(object)?),
        "EtcdOpsTask" => serde_json::to_value(serde_json::from_value::<EtcdOpsTask>(object)?),
        "EtcdCopyBackupsTask" => serde_json::to_value(serde_json::from_value::<EtcdCopyBackupsTask>(object)?),
        _ => panic!("no type for kind {kind}"),
    }
}

/// Each kind with its schema and an object that has every field.
fn samples() -> Vec<(String, Value, Value)> {
    let sample = |crd: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition| {
        let kind = crd.spec.names.kind;
        let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap()["openAPIV3Schema"].take();
        let mut object = sample_of(&schema);
        object["apiVersion"] = json!("druid.gardener.cloud/v1alpha1");
        object["kind"] = json!(kind);
        object["metadata"] = json!({"name": "sample"});
        (kind, schema, object)
    };
    api::crd::all().into_iter().map(sample).collect()
}

/// A value that has every field of a schema.
fn sample_of(schema: &Value) -> Value {
    if let Some(values) = schema["enum"].as_array() {
        return values[0].clone();
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return json!("64Mi");
    }
    match (schema["type"].as_str(), schema["format"].as_str()) {
        (Some("object"), _) if schema["additionalProperties"].is_object() => {
            json!({"key": sample_of(&schema["additionalProperties"])})
        }
        (Some("object"), _) => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            Value::Object(
                fields
                    .map(|(name, field)| (name.clone(), sample_of(field)))
                    .collect(),
            )
        }
        (Some("array"), _) => json!([sample_of(&schema["items"])]),
        (Some("integer"), _) => json!(7),
        (Some("boolean"), _) => json!(true),
        (Some("string"), Some("date-time")) => json!("2026-01-02T03:04:05Z"),
        (Some("string"), _) => json!("text"),
        other => panic!("no sample for {other:?}: {schema:#}"),
    }
}

/// Calls `visit` with the JSON pointer of every field that may be missing. Where there is a default, the server fills
/// it in whenever it hands out the object.
fn optional_fields(schema: &Value, pointer: &str, visit: &mut impl FnMut(&str)) {
    let none = Map::new();
    let required = |name: &str| {
        schema["required"]
            .as_array()
            .is_some_and(|all| all.contains(&json!(name)))
    };
    for (name, field) in schema["properties"].as_object().unwrap_or(&none) {
        let pointer = format!("{pointer}/{name}");
        if !required(name) && field["default"].is_null() {
            visit(&pointer);
        }
        optional_fields(field, &pointer, visit);
    }
    if schema["items"].is_object() {
        optional_fields(&schema["items"], &format!("{pointer}/0"), visit);
    }
}

/// A field of the schema that the types forget would be lost when a controller writes the object back.
#[test]
fn every_field_survives() {
    for (kind, _, object) in samples() {
        let written = round_trip(&kind, &object).unwrap();
        assert!(
            support::contains(&written, &object),
            "{kind}: {object:#}\nis written as {written:#}"
        );
    }
}

/// Objects stored while fields were nullable, or by a careless client, hold nulls.
#[test]
fn nulls_are_read() {
    for (kind, schema, object) in samples() {
        let mut tried = 0;
        optional_fields(&schema, "", &mut |pointer| {
            let mut broken = object.clone();
            *broken.pointer_mut(pointer).unwrap() = Value::Null;
            assert!(
                round_trip(&kind, &broken).is_ok(),
                "{kind}: {pointer} is null: {:?}",
                round_trip(&kind, &broken)
            );
            tried += 1;
        });
        assert!(tried > 10, "{kind}");
    }
}

/// A newer writer may know more values: they are read, and written back as they were.
#[test]
fn unknown_values_are_kept() {
    let mut tried = 0;
    for (kind, schema, object) in samples() {
        let mut pointers = Vec::new();
        enums(&schema, "", &mut pointers);
        for pointer in pointers {
            let mut newer = object.clone();
            *newer.pointer_mut(&pointer).unwrap() = json!("SomethingNew");
            let written =
                round_trip(&kind, &newer).unwrap_or_else(|error| panic!("{kind}: {pointer}: {error}"));
            assert_eq!(
                written.pointer(&pointer),
                Some(&json!("SomethingNew")),
                "{kind}: {pointer}"
            );
            tried += 1;
        }
    }
    assert!(tried > 20, "only {tried} enums");
}

/// The JSON pointers of all fields with a closed set of values.
fn enums(schema: &Value, pointer: &str, into: &mut Vec<String>) {
    if schema["enum"].is_array() {
        into.push(pointer.to_owned());
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        enums(field, &format!("{pointer}/{name}"), into);
    }
    if schema["items"].is_object() {
        enums(&schema["items"], &format!("{pointer}/0"), into);
    }
}

/// A status as etcd-druid writes it, with a condition status that is long out of use.
#[test]
fn status_of_etcd_druid_is_read() {
    let object = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd", "metadata": {"name": "main"},
        "spec": {"replicas": 1, "labels": {}, "etcd": {}, "backup": {}},
        "status": {
            "conditions": [{
                "type": "BackupReady", "status": "Progressing", "reason": "r", "message": "m",
                "lastTransitionTime": "2024-01-01T00:00:00Z", "lastUpdateTime": "2024-01-01T00:00:00Z",
            }],
            "members": [{
                "name": "main-0", "id": "8e9e05c52164694d", "role": "Member", "status": "Ready",
                "reason": "LeaseSucceeded", "lastTransitionTime": "2024-01-01T00:00:00Z",
            }],
            "lastErrors": null, "ready": true, "replicas": 1, "currentReplicas": 1, "readyReplicas": 1,
            "lastOperation": {
                "type": "Reconcile", "state": "Succeeded", "description": "d", "runID": "x",
                "lastUpdateTime": "2024-01-01T00:00:00Z",
            },
        },
    });
    let etcd: Etcd = serde_json::from_value(object).unwrap();
    let status = etcd.status.unwrap();
    assert_eq!(status.conditions[0].status.as_str(), "Progressing");
    assert!(status.conditions[0].last_update_time.is_some());
    assert!(status.last_errors.is_empty());
}
