//! Server-side apply that sends nothing when nothing changed.
//!
//! An object counts as unchanged when all that is wanted is there (drift shows as a difference) and when the wanted
//! state is the one applied last (a field that is no longer wanted shows as another hash in the annotation).

use std::fmt::Debug;

use api::quantity;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{Patch, PatchParams},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// Holds the hash of the state that was applied last.
pub const APPLIED_HASH: &str = "druid.gardener.cloud/applied-hash";

/// Why an object couldn't be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The wanted object can't be written as JSON.
    #[error("encode {kind} {name}")]
    Encode {
        /// The object's kind.
        kind: String,
        /// The object's name.
        name: String,
        /// Why.
        source: serde_json::Error,
    },
    /// The API server refused, or couldn't be asked.
    #[error("apply {kind} {name}: {source}")]
    Request {
        /// The object's kind.
        kind: String,
        /// The object's name.
        name: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
}

impl ApplyError {
    /// Whether the API server judged the request itself to be wrong, so that repeating it won't help.
    pub fn is_rejection(&self) -> bool {
        match self {
            Self::Encode { .. } => true,
            Self::Request { source, .. } => {
                matches!(source.as_ref(), kube::Error::Api(status) if matches!(status.code, 400 | 403 | 422))
            }
        }
    }
}

/// What an apply did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The object was as wanted.
    None,
    /// It was missing.
    Created,
    /// It differed.
    Updated,
}

/// Applies objects in the name of one field manager.
#[derive(Clone)]
pub struct Applier {
    client: Client,
    manager: &'static str,
}

impl Debug for Applier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Applier")
            .field("manager", &self.manager)
            .finish_non_exhaustive()
    }
}

impl Applier {
    /// An applier for one field manager.
    pub fn new(client: Client, manager: &'static str) -> Self {
        Self { client, manager }
    }

    /// Makes the object be as wanted; `live` is what the cache holds of it. Fields that others own are left alone,
    /// fields of ours that others changed are taken back.
    pub async fn apply<K>(&self, wanted: &K, live: Option<&K>) -> Result<Change, ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Serialize
            + DeserializeOwned
            + Clone
            + Debug,
    {
        let name = wanted.name_any();
        let encode = |source| ApplyError::Encode {
            kind: K::kind(&()).into_owned(),
            name: name.clone(),
            source,
        };
        let mut wanted_json = serde_json::to_value(wanted).map_err(encode)?;
        stamp(
            &mut wanted_json,
            K::api_version(&()).as_ref(),
            K::kind(&()).as_ref(),
        );
        if let Some(live) = live
            && contains(&serde_json::to_value(live).map_err(encode)?, &wanted_json)
        {
            return Ok(Change::None);
        }
        let api = Api::<K>::namespaced(self.client.clone(), &wanted.namespace().unwrap_or_default());
        api.patch(
            &name,
            &PatchParams::apply(self.manager).force(),
            &Patch::Apply(&wanted_json),
        )
        .await
        .map_err(|source| Self::failed::<K>(&name, source))?;
        Ok(if live.is_some() {
            Change::Updated
        } else {
            Change::Created
        })
    }

    /// Makes our part of the object's status be `wanted`. `ours` names the fields of the status that this manager
    /// owns; conditions are compared by the types in `wanted`.
    pub async fn apply_status<K>(
        &self,
        object: &K,
        wanted: &Value,
        ours: &[&str],
    ) -> Result<Change, ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Serialize
            + DeserializeOwned
            + Clone
            + Debug,
    {
        let name = object.name_any();
        let encode = |source| ApplyError::Encode {
            kind: K::kind(&()).into_owned(),
            name: name.clone(),
            source,
        };
        let live = serde_json::to_value(object).map_err(encode)?;
        if !status_differs(live.get("status").unwrap_or(&Value::Null), wanted, ours) {
            return Ok(Change::None);
        }
        let patch = serde_json::json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": {"name": name},
            "status": wanted,
        });
        let api = Api::<K>::namespaced(self.client.clone(), &object.namespace().unwrap_or_default());
        api.patch_status(
            &name,
            &PatchParams::apply(self.manager).force(),
            &Patch::Apply(&patch),
        )
        .await
        .map_err(|source| Self::failed::<K>(&name, source))?;
        Ok(Change::Updated)
    }

    fn failed<K: Resource<DynamicType = ()>>(name: &str, source: kube::Error) -> ApplyError {
        ApplyError::Request {
            kind: K::kind(&()).into_owned(),
            name: name.to_owned(),
            source: Box::new(source),
        }
    }
}

/// Adds what an apply patch must carry, and the hash.
fn stamp(wanted: &mut Value, api_version: &str, kind: &str) {
    wanted["apiVersion"] = Value::from(api_version);
    wanted["kind"] = Value::from(kind);
    let hash = Sha256::digest(wanted.to_string());
    let hash = hash
        .iter()
        .take(8)
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let metadata = &mut wanted["metadata"];
    if !metadata["annotations"].is_object() {
        metadata["annotations"] = Value::Object(Map::new());
    }
    metadata["annotations"][APPLIED_HASH] = Value::from(hash);
}

/// Fields of containers and claims whose values are quantities, which the API server writes in its own way.
const AMOUNTS: [&str; 2] = ["limits", "requests"];

/// Whether everything that is wanted is live. What only `live` has (defaults, other managers' fields) doesn't count.
pub fn contains(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (_, Value::Null) => true,
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| match live.get(key) {
                None => is_empty(wanted),
                Some(live) if AMOUNTS.contains(&key.as_str()) => contains_amounts(live, wanted),
                Some(live) => contains(live, wanted),
            })
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len()
                && live
                    .iter()
                    .zip(wanted)
                    .all(|(live, wanted)| contains(live, wanted))
        }
        _ => live == wanted,
    }
}

fn contains_amounts(live: &Value, wanted: &Value) -> bool {
    let (Value::Object(live), Value::Object(wanted)) = (live, wanted) else {
        return contains(live, wanted);
    };
    wanted.iter().all(|(key, wanted)| match (live.get(key), wanted) {
        (Some(Value::String(live)), Value::String(wanted)) => quantity::same(live, wanted),
        (live, wanted) => live == Some(wanted),
    })
}

/// The API server drops empty maps and lists that are wanted.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_empty),
        Value::Array(values) => values.is_empty(),
        _ => false,
    }
}

fn status_differs(live: &Value, wanted: &Value, ours: &[&str]) -> bool {
    ours.iter().any(|field| {
        let (live, wanted) = (live.get(field), wanted.get(field));
        match (*field, live, wanted) {
            (_, None, Some(wanted)) => !is_empty(wanted),
            ("conditions", Some(Value::Array(live)), Some(Value::Array(wanted))) => {
                wanted.iter().any(|wanted| {
                    !live
                        .iter()
                        .any(|live| live.get("type") == wanted.get("type") && contains(live, wanted))
                })
            }
            (_, None, None) | ("conditions", Some(_), None) => false,
            (_, Some(live), None) => !is_empty(live),
            (_, Some(live), Some(wanted)) => live != wanted,
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_others_add_is_no_difference() {
        let wanted = json!({"spec": {"ports": [{"port": 1}], "labels": {}, "gone": null}});
        let live =
            json!({"spec": {"ports": [{"port": 1, "protocol": "TCP"}], "clusterIP": "x"}, "status": {}});
        assert!(contains(&live, &wanted));
    }

    #[test]
    fn drift_is_a_difference() {
        let wanted = json!({"spec": {"replicas": 3, "ports": [{"port": 1}]}});
        for live in [
            json!({"spec": {"replicas": 2, "ports": [{"port": 1}]}}),
            json!({"spec": {"replicas": 3, "ports": [{"port": 1}, {"port": 2}]}}),
            json!({"spec": {"replicas": 3}}),
        ] {
            assert!(!contains(&live, &wanted), "{live}");
        }
    }

    /// What comes back in other words would be applied again on every pass.
    #[test]
    fn quantities_are_compared_by_value() {
        let resources = |cpu: &str, memory: &str| json!({"containers": [{"resources": {"limits": {"memory": memory}, "requests": {"cpu": cpu}}}]});
        let wanted = resources("0.5", "1024Mi");
        assert!(contains(&resources("500m", "1Gi"), &wanted));
        assert!(!contains(&resources("400m", "1Gi"), &wanted));
        assert!(!contains(
            &json!({"containers": [{"resources": {"requests": {"cpu": "500m"}}}]}),
            &wanted
        ));
        let text = |text: &str| json!({"data": {"cpu": text}});
        assert!(!contains(&text("500m"), &text("0.5")), "no quantity");
    }

    /// A field that is no longer wanted must be applied away, though all that is still wanted is there.
    #[test]
    fn a_field_dropped_from_the_wanted_state_changes_the_hash() {
        let (mut old, mut new) = (
            json!({"metadata": {}, "data": {"a": "1", "b": "2"}}),
            json!({"metadata": {}, "data": {"a": "1"}}),
        );
        stamp(&mut old, "v1", "ConfigMap");
        stamp(&mut new, "v1", "ConfigMap");
        assert!(!contains(&old, &new));
        let mut same = json!({"metadata": {}, "data": {"a": "1"}});
        stamp(&mut same, "v1", "ConfigMap");
        assert!(contains(&new, &same));
    }

    #[test]
    fn status_is_compared_by_what_we_own() {
        let live = json!({
            "ready": true, "lastErrors": [{"code": "x"}],
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}],
        });
        let same = json!({"ready": true, "conditions": [{"type": "Ready", "status": "True"}]});
        assert!(!status_differs(&live, &same, &["ready", "conditions"]));
        assert!(
            status_differs(&live, &same, &["ready", "lastErrors"]),
            "errors that are over must go"
        );
        let other = json!({"ready": true, "conditions": [{"type": "Ready", "status": "False"}]});
        assert!(status_differs(&live, &other, &["conditions"]));
        assert!(!status_differs(&live, &json!({}), &["conditions"]));
        assert!(!status_differs(
            &json!({}),
            &json!({"lastErrors": []}),
            &["lastErrors"]
        ));
    }
}
