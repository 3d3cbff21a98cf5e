//! Adds and removes a finalizer without losing those of others: each change of the list is checked against the version
//! that it was made from, and made again from a newer one.

use std::fmt::Debug;

use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{Patch, PatchParams},
    core::NamespaceResourceScope,
};
use serde::de::DeserializeOwned;
use serde_json::json;

/// How often a change is made again, when somebody else is always faster.
const TRIES: u32 = 5;

/// Adds a finalizer, and returns the object with it; `None`: the object is gone.
pub async fn add<K>(client: &Client, object: &K, finalizer: &str) -> kube::Result<Option<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
{
    change(client, object, |all| {
        if !all.iter().any(|known| known == finalizer) {
            all.push(finalizer.to_owned());
        }
    })
    .await
}

/// Removes a finalizer, and returns the object without it; `None`: the object is gone.
pub async fn remove<K>(client: &Client, object: &K, finalizer: &str) -> kube::Result<Option<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
{
    change(client, object, |all| all.retain(|known| known != finalizer)).await
}

async fn change<K>(client: &Client, object: &K, edit: impl Fn(&mut Vec<String>)) -> kube::Result<Option<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
{
    let api = Api::<K>::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let (name, mut known, mut tries) = (object.name_any(), object.clone(), 1);
    loop {
        let mut finalizers = known.finalizers().to_vec();
        edit(&mut finalizers);
        if finalizers == known.finalizers() {
            return Ok(Some(known));
        }
        let patch = json!({"metadata": {
            "resourceVersion": known.resource_version(),
            "finalizers": finalizers,
        }});
        let params = PatchParams::default();
        match api.patch(&name, &params, &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
            Err(kube::Error::Api(status)) if status.code == 409 && tries < TRIES => tries += 1,
            done => return done.map(Some),
        }
        match api.get_opt(&name).await? {
            Some(live) if live.uid() == object.uid() => known = live,
            _ => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use serde_json::Value;

    use super::*;

    fn object(version: &str, finalizers: &[&str]) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "a", "namespace": "ns", "uid": "u1", "resourceVersion": version, "finalizers": finalizers,
            },
        })
    }

    fn answer(code: u16, body: &Value) -> Response<Body> {
        Response::builder()
            .status(code)
            .body(Body::from(body.to_string().into_bytes()))
            .unwrap()
    }

    /// A cached list may be old: what somebody has added since must stay.
    #[tokio::test]
    async fn finalizers_that_others_add_meanwhile_stay() {
        let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let client = Client::new(service, "default");
        let cached: ConfigMap = serde_json::from_value(object("1", &["own"])).unwrap();
        let removal = tokio::spawn(async move { remove(&client, &cached, "own").await });
        let sent = async |request: Request<Body>| -> Value {
            serde_json::from_slice(&request.into_body().collect_bytes().await.unwrap()).unwrap()
        };

        let (request, send) = server.next_request().await.unwrap();
        assert_eq!(sent(request).await["metadata"]["resourceVersion"], "1");
        let conflict = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409, "message": "",
        });
        send.send_response(answer(409, &conflict));
        let (request, send) = server.next_request().await.unwrap();
        assert_eq!(request.method(), "GET");
        send.send_response(answer(200, &object("2", &["own", "other"])));
        let (request, send) = server.next_request().await.unwrap();
        assert_eq!(
            sent(request).await["metadata"],
            json!({"resourceVersion": "2", "finalizers": ["other"]})
        );
        send.send_response(answer(200, &object("3", &["other"])));
        let left = removal.await.unwrap().unwrap().unwrap();
        assert_eq!(left.finalizers(), ["other"]);
    }
}
