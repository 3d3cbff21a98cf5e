//! An API server in memory, as far as this controller needs one.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use api::labels;
use http::{Method, Request, Response, header};
use kube::{
    Client, Resource,
    client::Body,
    runtime::{
        reflector::{self, Store},
        watcher::Event,
    },
};
use operator::reconcile::Guarded;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::apply::Caches;

#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) accept: String,
    pub(super) body: Value,
}

#[derive(Default)]
pub(super) struct Server {
    /// By path.
    objects: Mutex<BTreeMap<String, Value>>,
    requests: Mutex<Vec<Asked>>,
}

impl Server {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(super) fn client(self: &Arc<Self>) -> Client {
        let server = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    pub(super) fn put<K: Resource<DynamicType = ()>>(&self, mut object: Value) {
        object["apiVersion"] = json!(K::api_version(&()));
        let path = format!(
            "{}/{}",
            K::url_path(&(), Some("ns")),
            object["metadata"]["name"].as_str().unwrap()
        );
        self.objects.lock().unwrap().insert(path, object);
    }

    pub(super) fn get<K: Resource<DynamicType = ()> + DeserializeOwned>(&self, name: &str) -> Option<K> {
        let path = format!("{}/{name}", K::url_path(&(), Some("ns")));
        let object = self.objects.lock().unwrap().get(&path).cloned()?;
        Some(serde_json::from_value(object).unwrap())
    }

    pub(super) fn requests(&self) -> Vec<Asked> {
        self.requests.lock().unwrap().clone()
    }

    pub(super) fn forget_requests(&self) {
        self.requests.lock().unwrap().clear();
    }

    pub(super) fn caches(&self) -> Caches {
        Caches {
            service_accounts: self.cache(),
            roles: self.cache(),
            role_bindings: self.cache(),
            config_maps: self.cache(),
            services: self.cache(),
            disruption_budgets: self.cache(),
            leases: self.cache(),
            members: self.cache(),
            stateful_sets: self.cache(),
        }
    }

    /// Objects with Druid's label, as the controller watches them.
    fn cache<K>(&self) -> Store<Guarded<K>>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + 'static,
    {
        let (store, mut writer) = reflector::store();
        writer.apply_watcher_event(&Event::Init);
        let folder = format!("{}/", K::url_path(&(), Some("ns")));
        for (_, object) in self
            .objects
            .lock()
            .unwrap()
            .iter()
            .filter(|(path, _)| path.starts_with(&folder))
        {
            if object["metadata"]["labels"][labels::MANAGED_BY] == labels::MANAGED_BY_VALUE {
                writer
                    .apply_watcher_event(&Event::InitApply(serde_json::from_value(object.clone()).unwrap()));
            }
        }
        writer.apply_watcher_event(&Event::InitDone);
        store
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let header = |name| {
            parts
                .headers
                .get(name)
                .map_or("", |value| value.to_str().unwrap())
                .to_owned()
        };
        let body = body.collect_bytes().await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let path = parts.uri.path().to_owned();
        self.requests.lock().unwrap().push(Asked {
            method: parts.method.to_string(),
            path: path.clone(),
            accept: header(header::ACCEPT),
            body: body.clone(),
        });
        let (code, answer) = match parts.method {
            Method::GET => self.read(&path),
            Method::DELETE => self.delete(&path, &body["preconditions"]["uid"]),
            Method::POST => {
                let name = body["metadata"]["name"]
                    .as_str()
                    .unwrap_or("generated")
                    .to_owned();
                self.write(&format!("{path}/{name}"), &body)
            }
            Method::PATCH => self.write(path.trim_end_matches("/status"), &body),
            _ => (405, json!({})),
        };
        Response::builder()
            .status(code)
            .body(Body::from(answer.to_string().into_bytes()))
            .unwrap()
    }

    fn read(&self, path: &str) -> (u16, Value) {
        let found = self.objects.lock().unwrap().get(path).cloned();
        found.map_or_else(|| status(404), |object| (200, object))
    }

    /// Takes an object away, whoever may hold it.
    pub(super) fn lose<K: Resource<DynamicType = ()>>(&self, name: &str) {
        let path = format!("{}/{name}", K::url_path(&(), Some("ns")));
        self.objects.lock().unwrap().remove(&path);
    }

    fn write(&self, path: &str, patch: &Value) -> (u16, Value) {
        let mut objects = self.objects.lock().unwrap();
        let expected = &patch["metadata"]["resourceVersion"];
        if !expected.is_null()
            && objects.get(path).map(|live| &live["metadata"]["resourceVersion"]) != Some(expected)
        {
            return status(409);
        }
        let made = format!("made-{}", objects.len());
        let object = objects
            .entry(path.to_owned())
            .or_insert_with(|| json!({"metadata": {"uid": made}}));
        merge(object, patch);
        (200, object.clone())
    }

    /// Answers with the object where the API server does: when it isn't gone yet, and for ServiceAccounts always.
    fn delete(&self, path: &str, uid: &Value) -> (u16, Value) {
        let mut objects = self.objects.lock().unwrap();
        let Some(object) = objects.get_mut(path) else {
            return status(404);
        };
        if !uid.is_null() && object["metadata"]["uid"] != *uid {
            return status(409);
        }
        let held = object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|held| !held.is_empty());
        if held {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            return (200, object.clone());
        }
        match objects.remove(path) {
            Some(object) if path.contains("/serviceaccounts/") => (200, object),
            _ => (
                200,
                json!({"apiVersion": "v1", "kind": "Status", "status": "Success", "code": 200}),
            ),
        }
    }
}

fn status(code: u16) -> (u16, Value) {
    let reason = if code == 404 { "NotFound" } else { "Conflict" };
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "message": "", "code": code,
    });
    (code, status)
}

/// The one manager's fields, each list as a whole, and quantities as the API server writes them.
fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    into.remove(key);
                } else {
                    merge(into.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (into, Value::Object(patch)) => {
            *into = json!({});
            merge(into, &Value::Object(patch.clone()));
        }
        (into, patch) => *into = canonical(patch),
    }
}

fn canonical(value: &Value) -> Value {
    match value {
        Value::String(text) if text == "0.5" => json!("500m"),
        Value::String(text) if text == "1024Mi" => json!("1Gi"),
        Value::Array(values) => values.iter().map(canonical).collect(),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), canonical(value)))
            .collect(),
        value => value.clone(),
    }
}
