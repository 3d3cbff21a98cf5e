//! Reconciles against an API server in memory: what is written, what is refused, and what is left alone.

mod formed;
mod server;

use std::sync::Arc;

use api::{
    labels::{self, annotation},
    v1alpha1::{Etcd, EtcdMember},
};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, Secret, ServiceAccount},
};
use kube::{ResourceExt as _, runtime::controller::Action};
use operator::{Context, Reconciler as _, apply::APPLIED_HASH, reconcile::Reason as _};
use serde_json::{Value, json};
use server::Server;

use crate::{
    Config,
    certificates::Certificates,
    controller::{EtcdController, ReconcileError},
};

fn etcd(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd",
        "metadata": {"name": name, "namespace": "ns", "uid": "u2", "generation": 2, "resourceVersion": "1"},
        "spec": {"labels": {}, "etcd": {}, "backup": {}, "replicas": replicas},
    })
}

fn owned(kind: &str, name: &str, uid: &str) -> Value {
    json!({
        "kind": kind,
        "metadata": {
            "name": name, "namespace": "ns", "uid": format!("{kind}-{name}-{uid}"),
            "labels": {
                labels::MANAGED_BY: labels::MANAGED_BY_VALUE, labels::PART_OF: "main", labels::OWNED_BY: "main",
            },
            "ownerReferences": [{
                "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd", "name": "main", "uid": uid, "controller": true,
            }],
        },
    })
}

fn member(ordinal: u32, uid: &str) -> Value {
    let mut member = owned("EtcdMember", &format!("main-{ordinal}"), uid);
    member["apiVersion"] = json!("druid.gardener.cloud/v1alpha1");
    member["status"] = json!({"id": "a1", "clusterID": "c1"});
    member
}

fn tls() -> Value {
    json!({"tlsCASecretRef": {"name": "ca"}, "serverTLSSecretRef": {"name": "server"}})
}

/// The Secrets of [`tls`], all with the same content.
fn put_certificates(server: &Server, text: &str) {
    for name in ["ca", "server"] {
        let data = json!({"ca.crt": text, "tls.crt": text, "tls.key": text});
        server.put::<Secret>(
            json!({"kind": "Secret", "metadata": {"name": name, "namespace": "ns"}, "data": data}),
        );
    }
}

/// One reconcile with the caches as the API server is now.
async fn reconcile(server: &Arc<Server>, etcd: &str, config: Config) -> Result<Action, ReconcileError> {
    let etcd: Etcd = server.get(etcd).unwrap();
    reconcile_as(server, etcd, config).await
}

/// The same of an Etcd as it was read.
async fn reconcile_as(server: &Arc<Server>, etcd: Etcd, config: Config) -> Result<Action, ReconcileError> {
    let client = server.client();
    let controller = EtcdController {
        context: Context::new(
            client.clone(),
            "etcd-controller",
            "etcd-controller-0",
            "druid".to_owned(),
        ),
        config,
        caches: server.caches(),
        certificates: Certificates::begin(client, "druid").await.unwrap(),
    };
    server.forget_requests();
    controller.reconcile(Arc::new(etcd)).await
}

async fn refused(server: &Arc<Server>, etcd: &str) -> (&'static str, String) {
    let error = reconcile(server, etcd, Config::default()).await.unwrap_err();
    let last = server.get::<Etcd>(etcd).unwrap().status.unwrap().last_errors;
    assert_eq!(last[0].code, error.reason(), "told in the status");
    (error.reason(), error.to_string())
}

/// Paths that were written to, without those of the Etcd itself and of events.
fn written(server: &Server) -> Vec<String> {
    let requests = server.requests();
    let written = requests.into_iter().filter(|request| request.method != "GET");
    let paths = written.map(|request| format!("{} {}", request.method, request.path));
    paths
        .filter(|path| !path.contains("/etcds/") && !path.contains("/events"))
        .collect()
}

#[tokio::test]
async fn a_second_reconcile_writes_nothing() {
    let server = Server::new();
    let mut manifest = etcd("main", 3);
    manifest["spec"]["etcd"]["resources"] = json!({"requests": {"cpu": "0.5", "memory": "1024Mi"}});
    manifest["spec"]["etcd"]["peerUrlTls"] = tls();
    put_certificates(&server, "b2xk");
    server.put::<Etcd>(manifest);
    reconcile(&server, "main", Config::default()).await.unwrap();
    assert!(written(&server).len() > 10, "{:?}", written(&server));
    reconcile(&server, "main", Config::default()).await.unwrap();
    assert_eq!(written(&server), [""; 0]);
}

/// The pods of both operators in one template would fight for ports and for the data.
#[tokio::test]
async fn a_stateful_set_of_another_operator_is_left_alone() {
    let server = Server::new();
    server.put::<Etcd>(etcd("main", 1));
    let mut set = owned("StatefulSet", "main", "u2");
    let containers = json!([{"name": "etcd"}, {"name": "backup-restore"}]);
    set["spec"] = json!({
        "selector": {}, "serviceName": "main-peer", "template": {"spec": {"containers": containers}},
    });
    server.put::<StatefulSet>(set);
    let (reason, error) = refused(&server, "main").await;
    assert_eq!(reason, "TakeoverUnsupported");
    assert!(error.contains("StatefulSet main wasn't made by Druid"), "{error}");
    assert_eq!(written(&server), [""; 0]);
}

/// A namespace's own ServiceAccount would be deleted with the Etcd.
#[tokio::test]
async fn what_is_somebody_elses_is_left_alone() {
    let server = Server::new();
    server.put::<Etcd>(etcd("default", 1));
    let account =
        json!({"kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "ns", "uid": "s1"}});
    server.put::<ServiceAccount>(account);
    let (reason, error) = refused(&server, "default").await;
    assert_eq!(reason, "NotOurs");
    assert!(error.contains("ServiceAccount default"), "{error}");
    let account: ServiceAccount = server.get("default").unwrap();
    assert!(account.owner_references().is_empty());
}

/// Objects without an owner, as a restore of the cluster leaves them, are found by their labels.
#[tokio::test]
async fn what_lost_its_owner_is_taken_up() {
    let server = Server::new();
    server.put::<Etcd>(etcd("main", 1));
    let mut orphan = owned("ConfigMap", "main-config", "u1");
    orphan["metadata"]["ownerReferences"] = json!([]);
    server.put::<ConfigMap>(orphan);
    reconcile(&server, "main", Config::default()).await.unwrap();
    let found: ConfigMap = server.get("main-config").unwrap();
    assert_eq!(found.uid().as_deref(), Some("ConfigMap-main-config-u1"));
    assert_eq!(found.owner_references()[0].uid, "u2");
}

/// What the members of a deleted Etcd have recorded would keep those of the new one from forming a cluster.
#[tokio::test]
async fn a_predecessors_members_are_made_anew() {
    let server = Server::new();
    server.put::<Etcd>(etcd("main", 1));
    server.put::<EtcdMember>(member(0, "u1"));
    server.put::<ServiceAccount>(owned("ServiceAccount", "main", "u1"));
    reconcile(&server, "main", Config::default()).await.unwrap();
    let account: ServiceAccount = server.get("main").unwrap();
    assert_eq!(account.owner_references()[0].uid, "u2");
    let member: EtcdMember = server.get("main-0").unwrap();
    assert_eq!(member.owner_references()[0].uid, "u2");
    assert_eq!(member.status, None);
    assert!(!member.annotations().contains_key(annotation::CREATE_AS_LEARNER));
    assert!(member.annotations().contains_key(annotation::WANTED_CONFIG_HASH));
}

#[tokio::test]
async fn what_is_held_of_a_predecessor_is_waited_for() {
    let server = Server::new();
    server.put::<Etcd>(etcd("main", 1));
    let mut held = owned("ConfigMap", "main-config", "u1");
    held["metadata"]["finalizers"] = json!(["somebody/elses"]);
    server.put::<ConfigMap>(held);
    let (reason, error) = refused(&server, "main").await;
    assert_eq!(reason, "PredecessorLeft");
    assert!(error.contains("ConfigMap main-config"), "{error}");
    assert!(server.get::<StatefulSet>("main").is_none());
}

/// Nor may what a cache lacks be taken for a new member.
#[tokio::test]
async fn a_member_that_the_cache_lacks_stays_as_it_was_born() {
    let server = Server::new();
    server.put::<Etcd>(etcd("main", 3));
    server.put::<EtcdMember>(member(0, "u2"));
    let mut unlabelled = member(1, "u2");
    unlabelled["metadata"]["labels"] = json!({});
    server.put::<EtcdMember>(unlabelled);
    reconcile(&server, "main", Config::default()).await.unwrap();
    let learner = |name| {
        let member: EtcdMember = server.get(name).unwrap();
        member.annotations().contains_key(annotation::CREATE_AS_LEARNER)
    };
    assert_eq!(
        [learner("main-0"), learner("main-1"), learner("main-2")],
        [false, false, true]
    );
}

/// Certificates end whether or not anybody may act on the spec.
#[tokio::test]
async fn certificates_are_renewed_without_spec_reconcile() {
    let server = Server::new();
    let mut manifest = etcd("main", 1);
    manifest["spec"]["etcd"]["peerUrlTls"] = tls();
    server.put::<Etcd>(manifest);
    let copied = || {
        serde_json::to_value(server.get::<Secret>("main-etcd-tls").unwrap().data).unwrap()["peer.crt"].clone()
    };
    put_certificates(&server, "b2xk");
    reconcile(&server, "main", Config::default()).await.unwrap();
    assert_eq!(copied(), "b2xk");

    put_certificates(&server, "bmV3");
    let suspended = |generation: i64| {
        let mut etcd = serde_json::to_value(server.get::<Etcd>("main").unwrap()).unwrap();
        etcd["metadata"]["annotations"] = json!({annotation::SUSPEND_SPEC_RECONCILE: ""});
        etcd["metadata"]["generation"] = json!(generation);
        server.put::<Etcd>(etcd);
    };
    // What a newer spec names may not be used yet.
    suspended(3);
    reconcile(&server, "main", Config::default()).await.unwrap();
    assert_eq!((copied(), written(&server)), (json!("b2xk"), vec![]));
    suspended(2);
    reconcile(&server, "main", Config::default()).await.unwrap();
    assert_eq!(copied(), "bmV3");
    let paths = written(&server);
    assert!(paths.iter().all(|path| path.contains("/secrets/")), "{paths:?}");
}

/// Without the Secret no pod starts: those that run must not be replaced.
#[tokio::test]
async fn a_missing_secret_of_a_store_stops_everything() {
    let store = json!({"provider": "S3", "container": "bkp", "prefix": "p"});
    let named = |name: &str| {
        let mut store = store.clone();
        store["secretRef"] = json!({"name": name});
        store
    };
    for (backup, field) in [
        (json!({"store": named("gone")}), "spec.backup.store.secretRef"),
        (
            json!({"store": named("there"), "secondary": {"store": named("gone")}}),
            "spec.backup.secondary.store.secretRef",
        ),
        (
            json!({"store": named("there"), "signing": {"secretRef": {"name": "gone"}}}),
            "spec.backup.signing.secretRef",
        ),
    ] {
        let server = Server::new();
        let mut manifest = etcd("main", 1);
        manifest["spec"]["backup"] = backup;
        server.put::<Etcd>(manifest);
        let there = json!({"kind": "Secret", "metadata": {"name": "there", "namespace": "ns"}, "data": {"k": "c2VjcmV0"}});
        server.put::<Secret>(there);
        let (reason, error) = refused(&server, "main").await;
        assert_eq!(reason, "SecretNotFound");
        assert!(error.contains(field) && error.contains("gone"), "{error}");
        assert_eq!(written(&server), [""; 0]);
        let content = server.requests().into_iter().any(|request| {
            request.path.ends_with("/secrets/there") && !request.accept.contains("PartialObjectMetadata")
        });
        assert!(!content, "credentials are none of this controller's business");
    }
}

/// One of three members alone would wait for a majority for ever.
#[tokio::test]
async fn a_cluster_wakes_up_with_all_its_members() {
    let server = Server::new();
    server.put::<Etcd>(etcd("main", 1));
    for ordinal in 0..3 {
        server.put::<EtcdMember>(member(ordinal, "u2"));
    }
    let (reason, error) = refused(&server, "main").await;
    assert_eq!(reason, "InvalidSpec");
    assert!(
        error.contains("formed with 3 members") && error.contains("set replicas to 3"),
        "{error}"
    );
    for replicas in [0, 3, 5] {
        server.put::<Etcd>(etcd("main", replicas));
        reconcile(&server, "main", Config::default()).await.unwrap();
    }
}

/// Server-side apply takes away each field of ours that isn't repeated.
#[tokio::test]
async fn deletion_keeps_the_rest_of_the_status() {
    let server = Server::new();
    server.put::<Etcd>(etcd("main", 1));
    reconcile(&server, "main", Config::default()).await.unwrap();
    let mut manifest = serde_json::to_value(server.get::<Etcd>("main").unwrap()).unwrap();
    let before = manifest["status"].clone();
    manifest["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    server.put::<Etcd>(manifest);
    reconcile(&server, "main", Config::default()).await.unwrap();
    let told = server
        .requests()
        .into_iter()
        .find(|request| request.path.ends_with("/status"));
    let told = told.unwrap().body["status"].clone();
    assert_eq!(told["lastOperation"]["type"], "Delete");
    for field in ["observedGeneration", "selector", "etcd"] {
        assert!(!told[field].is_null(), "{field}");
        assert_eq!(told[field], before[field], "{field}");
    }
    assert_eq!(told["memberRefs"], json!([{"name": "main-0"}]));
    assert!(server.get::<StatefulSet>("main").is_none());
}

/// What the mark of a takeover rests on.
#[tokio::test]
async fn what_druid_made_has_its_mark() {
    let server = Server::new();
    server.put::<Etcd>(etcd("main", 1));
    reconcile(&server, "main", Config::default()).await.unwrap();
    let set: StatefulSet = server.get("main").unwrap();
    assert!(set.annotations().contains_key(APPLIED_HASH));
}
