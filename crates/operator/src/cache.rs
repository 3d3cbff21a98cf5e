//! Watch-fed caches: one watch for each kind, whose objects are kept for reading and whose changes trigger reconciles.

use std::{fmt::Debug, hash::Hash, time::Duration};

use futures::{Stream, StreamExt as _};
use kube::{
    Api, Resource, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::server::Readiness;

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
    api: Api<K>,
    config: watcher::Config,
    readiness: &Readiness,
) -> (
    Store<K>,
    impl Stream<Item = Result<K, watcher::Error>> + Send + 'static,
)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
{
    let (reader, events) = reflect(api, config, readiness);
    (reader, events.touched_objects())
}

/// The events of a watch, each kept in the store. Failures are logged, and readiness is held back until the first complete
/// listing: waiting for the store instead would lose a wake-up, for it wakes only one of those who wait, and the controller
/// that is fed from it waits too.
fn reflect<K>(
    api: Api<K>,
    config: watcher::Config,
    readiness: &Readiness,
) -> (
    Store<K>,
    impl Stream<Item = Result<watcher::Event<K>, watcher::Error>> + Send + 'static,
)
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
            Ok(_) => {}
            Err(error) => warn!(kind, %error, "watch failed, retrying"),
        });
    (reader, events)
}

/// As [`watch`], but the stream tells only what was deleted: for objects whose other changes are somebody else's.
pub fn watch_deletions<K>(
    api: Api<K>,
    config: watcher::Config,
    readiness: &Readiness,
) -> (
    Store<K>,
    impl Stream<Item = Result<K, watcher::Error>> + Send + 'static,
)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
{
    let (reader, events) = reflect(api, config, readiness);
    let deleted = events.filter_map(|event| {
        std::future::ready(match event {
            Ok(watcher::Event::Delete(object)) => Some(Ok(object)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
    });
    (reader, deleted)
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
        let api = Api::<ConfigMap>::all(Client::new(service, "default"));
        let (store, stream) = watch(api, everything(), &readiness);
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
}
