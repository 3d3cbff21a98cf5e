//! Watch-fed caches: one watch for each kind, whose objects are kept for reading and whose changes trigger reconciles.
//! An object that can't be decoded is kept as such: it must not break the watch of all others of its kind.

use std::{
    collections::HashMap,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher as _},
    sync::Arc,
    time::Duration,
};

use futures::{Stream, StreamExt as _};
use kube::{
    Api, Resource, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::{reconcile::Guarded, server::Readiness};

/// How long one page of the first listing may be, in objects.
const PAGE_SIZE: u32 = 500;

/// Objects selected by label, as all controllers select the children of Etcds.
pub fn selected(labels: &str) -> watcher::Config {
    watcher::Config::default().labels(labels).page_size(PAGE_SIZE)
}

/// All objects of a kind.
pub fn everything() -> watcher::Config {
    watcher::Config::default().page_size(PAGE_SIZE)
}

/// Starts a watch. The store fills as the returned stream is polled; readiness waits for its first complete listing.
/// A broken watch is retried with backoff, and what is cached stays.
pub fn watch<K>(
    api: Api<Guarded<K>>,
    config: watcher::Config,
    readiness: &Readiness,
) -> (
    Store<Guarded<K>>,
    impl Stream<Item = Result<Guarded<K>, watcher::Error>> + Send + 'static,
)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
{
    let (reader, events) = reflect(api, config, readiness);
    (reader, events.touched_objects())
}

/// What a watch brings.
type Watched<K> = Result<watcher::Event<Guarded<K>>, watcher::Error>;

/// The events of a watch, each kept in the store. Failures are logged, and readiness is held back until the first complete
/// listing: waiting for the store instead would lose a wake-up, for it wakes only one of those who wait, and the controller
/// that is fed from it waits too.
fn reflect<K>(
    api: Api<Guarded<K>>,
    config: watcher::Config,
    readiness: &Readiness,
) -> (Store<Guarded<K>>, impl Stream<Item = Watched<K>> + Send + 'static)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
{
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let waiting = format!("first listing of {kind}");
    readiness.wait_for(&waiting);
    let readiness = readiness.clone();
    let (reader, writer) = reflector::store();
    let events = watcher(api, config)
        .default_backoff()
        .modify(|object| object.managed_fields_mut().clear())
        .reflect(writer)
        .inspect(move |event| match event {
            Ok(watcher::Event::InitDone) => readiness.done(&waiting),
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                warn_if_undecodable(&kind, object);
            }
            Ok(_) => {}
            Err(error) => warn!(kind, %error, "watch failed, retrying"),
        });
    (reader, events)
}

fn warn_if_undecodable<K: Resource>(kind: &str, object: &Guarded<K>) {
    if let Err(invalid) = &object.0 {
        let (namespace, name) = (
            invalid.metadata.namespace.as_deref(),
            invalid.metadata.name.as_deref(),
        );
        warn!(
            kind,
            namespace,
            name,
            error = invalid.error,
            "an object can't be decoded"
        );
    }
}

/// As [`watch`], but the stream has only what was deleted and objects of which `matters` has changed: for objects whose
/// other changes are somebody else's.
pub fn watch_changes<K, M>(
    api: Api<Guarded<K>>,
    config: watcher::Config,
    readiness: &Readiness,
    matters: impl Fn(&Guarded<K>) -> M + Send + 'static,
) -> (
    Store<Guarded<K>>,
    impl Stream<Item = Result<Guarded<K>, watcher::Error>> + Send + 'static,
)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Debug + Eq + Hash + Clone + Send + Sync,
    M: Hash,
{
    let (reader, events) = reflect(api, config, readiness);
    let mut before = HashMap::new();
    let changed = events.filter_map(move |event| {
        std::future::ready(match event {
            Ok(watcher::Event::Delete(object)) => {
                before.remove(&ObjectRef::from_obj(&object));
                Some(Ok(object))
            }
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                let mut hasher = DefaultHasher::new();
                matters(&object).hash(&mut hasher);
                let now = hasher.finish();
                let was = before.insert(ObjectRef::from_obj(&object), now);
                (was != Some(now)).then_some(Ok(object))
            }
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
    });
    (reader, changed)
}

/// The objects among them that can be decoded.
pub fn decoded<K: Clone>(objects: impl IntoIterator<Item = Arc<Guarded<K>>>) -> Vec<Arc<K>> {
    let decoded = objects
        .into_iter()
        .filter_map(|object| object.0.as_ref().ok().cloned());
    decoded.map(Arc::new).collect()
}

/// Polls a watch whose changes trigger nothing, so that its cache stays up to date.
pub fn keep<K: Send + 'static>(stream: impl Stream<Item = Result<K, watcher::Error>> + Send + 'static) {
    tokio::spawn(stream.for_each(|_| std::future::ready(())));
}

/// How long to wait until `at`, at least a moment: for requeues at a point in time.
pub fn until(at: jiff::Timestamp) -> Duration {
    let wait = at.duration_since(jiff::Timestamp::now());
    Duration::try_from(wait)
        .unwrap_or_default()
        .max(Duration::from_millis(100))
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Client, client::Body};
    use serde_json::json;

    use super::*;

    /// A controller waits for the same store: neither may take the other's wake-up.
    #[tokio::test]
    async fn the_first_listing_makes_ready_whoever_else_waits() {
        let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let readiness = Readiness::default();
        let api = Api::all(Client::new(service, "default"));
        let (store, stream) = watch::<ConfigMap>(api, everything(), &readiness);
        assert_eq!(readiness.pending(), ["first listing of ConfigMap"]);
        keep(stream);
        let controller = tokio::spawn(async move { store.wait_until_ready().await });
        let (request, send) = server.next_request().await.unwrap();
        assert!(!request.uri().query().unwrap_or_default().contains("watch"));
        let list = json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": []});
        send.send_response(Response::new(Body::from(list.to_string().into_bytes())));
        controller.await.unwrap().unwrap();
        // The watch follows the listing, so by now the listing has been told.
        let _watch = server.next_request().await.unwrap();
        assert_eq!(readiness.pending(), [""; 0]);
    }

    fn list(items: &serde_json::Value) -> Response<Body> {
        let list = json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": items});
        Response::new(Body::from(list.to_string().into_bytes()))
    }

    /// Something else may have stored it, or a version with another schema: all others of its kind go on.
    #[tokio::test]
    async fn an_object_that_cannot_be_decoded_breaks_no_watch() {
        let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let readiness = Readiness::default();
        let api = Api::all(Client::new(service, "default"));
        let (store, stream) = watch::<ConfigMap>(api, everything(), &readiness);
        keep(stream);
        let (_, send) = server.next_request().await.unwrap();
        send.send_response(list(&json!([
            {"metadata": {"name": "bad", "namespace": "ns"}, "data": "a text"},
            {"metadata": {"name": "good", "namespace": "ns"}, "data": {"a": "text"}},
        ])));
        let _watch = server.next_request().await.unwrap();
        assert_eq!(readiness.pending(), [""; 0]);
        let names: Vec<_> = decoded(store.state())
            .iter()
            .map(|object| object.name_any())
            .collect();
        assert_eq!(names, ["good"]);
        let bad = store.get(&ObjectRef::new("bad").within("ns")).unwrap();
        assert!(bad.0.as_ref().unwrap_err().error.contains("a text"), "{bad:?}");
    }

    /// What changes all the time and is somebody else's business wakes nobody.
    #[tokio::test]
    async fn only_changes_that_matter_are_passed_on() {
        let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let readiness = Readiness::default();
        let api = Api::all(Client::new(service, "default"));
        let data =
            |object: &Guarded<ConfigMap>| object.0.as_ref().ok().and_then(|object| object.data.clone());
        let (_store, stream) = watch_changes(api, everything(), &readiness, data);
        let object = |value: &str, version: &str| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": value},
                "metadata": {"name": "a", "namespace": "ns", "resourceVersion": version},
            })
        };
        let seen = tokio::spawn(stream.take(3).collect::<Vec<_>>());
        let (_, send) = server.next_request().await.unwrap();
        send.send_response(list(&json!([object("1", "1")])));
        let (_, send) = server.next_request().await.unwrap();
        let events = [
            ("MODIFIED", object("1", "2")),
            ("MODIFIED", object("2", "3")),
            ("DELETED", object("2", "4")),
        ]
        .into_iter()
        .map(|(type_, object)| json!({"type": type_, "object": object}).to_string() + "\n")
        .collect::<String>();
        send.send_response(Response::new(Body::from(events.into_bytes())));
        let versions: Vec<_> = seen
            .await
            .unwrap()
            .into_iter()
            .map(|object| object.unwrap().resource_version())
            .collect();
        assert_eq!(versions, ["1", "3", "4"].map(|version| Some(version.to_owned())));
    }
}
