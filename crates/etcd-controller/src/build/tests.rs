//! The objects of small clusters, checked for what others rely on.

use std::collections::BTreeMap;

use api::{steward::StewardConfig, v1alpha1::Etcd};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{ResourceExt as _, api::ObjectMeta};
use serde_json::{Value, json};

use super::*;
use crate::{Images, dereference::Referenced, validate::validate};

/// The name differs from every label and component, so that swapped values show.
fn etcd(replicas: u32, change: &Value) -> Etcd {
    let mut manifest = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd",
        "metadata": {"name": "orders", "namespace": "shop", "uid": "u-1", "generation": 1},
        "spec": {"labels": {"app": "mine", "app.kubernetes.io/part-of": "stolen"}, "etcd": {}, "backup": {}, "replicas": replicas},
    });
    merge(&mut manifest, change);
    serde_json::from_value(manifest).unwrap()
}

fn merge(into: &mut Value, change: &Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, value) in change {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, change) => *into = change.clone(),
    }
}

fn secrets() -> Referenced {
    let secret = |keys: &[&str]| Secret {
        metadata: ObjectMeta::default(),
        data: Some(
            keys.iter()
                .map(|key| ((*key).to_owned(), ByteString(key.as_bytes().to_vec())))
                .collect(),
        ),
        ..Secret::default()
    };
    let secrets = [
        ("ca".to_owned(), secret(&["ca.crt", "bundle.crt"])),
        ("server".to_owned(), secret(&["tls.crt", "tls.key"])),
        ("folder".to_owned(), secret(&["hostPath"])),
        ("root".to_owned(), secret(&["username", "password"])),
    ];
    Referenced {
        namespace: "shop".to_owned(),
        secrets: BTreeMap::from(secrets),
    }
}

fn built(replicas: u32, change: &Value) -> Objects {
    let cluster = validate(&etcd(replicas, change), &secrets(), &Images::default()).unwrap();
    build(&cluster, false).unwrap()
}

fn tls() -> Value {
    let surface = json!({
        "tlsCASecretRef": {"name": "ca", "dataKey": "bundle.crt"},
        "serverTLSSecretRef": {"name": "server"}, "clientTLSSecretRef": {"name": "server"},
    });
    json!({"spec": {"etcd": {"clientUrlTls": surface, "peerUrlTls": surface}}})
}

fn file(objects: &Objects, name: &str) -> Value {
    serde_saphyr::from_str(&objects.config_map.data.as_ref().unwrap()[name]).unwrap()
}

/// Only the stewards get at the password of etcd's root user: etcd's own container has no business with it.
#[test]
fn the_password_goes_to_the_stewards_alone() {
    use api::steward::auth;
    let change = json!({"spec": {"etcd": {"authSecretRef": {"name": "root"}}}});
    let cluster = validate(&etcd(1, &change), &secrets(), &Images::default()).unwrap();
    let keys: Vec<_> = cluster.steward_keys.keys().map(String::as_str).collect();
    assert_eq!(keys, [auth::PASSWORD, auth::USERNAME]);
    assert!(cluster.etcd_keys.is_empty());
    let missing = json!({"spec": {"etcd": {"authSecretRef": {"name": "ca"}}}});
    let refused = validate(&etcd(1, &missing), &secrets(), &Images::default()).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("spec.etcd.authSecretRef: Secret ca has no key")
    );
}

/// Turning TLS on or off, changing etcd's options or the number of members restarts no pod.
#[test]
fn the_pod_template_does_not_depend_on_what_changes_in_a_life() {
    let template = |objects: &Objects| {
        serde_json::to_value(&objects.stateful_set.spec.as_ref().unwrap().template).unwrap()
    };
    let plain = built(3, &json!({}));
    let options = json!({"spec": {"etcd": {"quota": "4Gi", "snapshotCount": 5}, "backup": {"deltaSnapshotPeriod": "1m"}}});
    for (replicas, change) in [(3, tls()), (1, json!({})), (5, options)] {
        assert_eq!(template(&plain), template(&built(replicas, &change)));
    }
}

#[test]
fn the_selectors_find_members_pods_only() {
    let objects = built(3, &json!({}));
    let spec = objects.stateful_set.spec.as_ref().unwrap();
    let labels = spec.template.metadata.as_ref().unwrap().labels.clone().unwrap();
    assert_eq!(labels["app"], "mine");
    assert_eq!(
        labels["app.kubernetes.io/part-of"], "orders",
        "the user's labels don't win over ours"
    );
    let budget = objects.disruption_budget.as_ref().unwrap().spec.as_ref().unwrap();
    for selector in [
        objects
            .client_service
            .spec
            .as_ref()
            .unwrap()
            .selector
            .as_ref()
            .unwrap(),
        objects
            .peer_service
            .spec
            .as_ref()
            .unwrap()
            .selector
            .as_ref()
            .unwrap(),
        budget.selector.as_ref().unwrap().match_labels.as_ref().unwrap(),
    ] {
        assert_eq!(selector["app.kubernetes.io/component"], "etcd-statefulset");
        assert!(selector.iter().all(|(key, value)| labels.get(key) == Some(value)));
    }
    let set = spec.selector.match_labels.as_ref().unwrap();
    assert_eq!(
        set.len(),
        2,
        "what etcd-druid selected by: a selector can't be changed"
    );
}

#[test]
fn the_disruption_budget_keeps_a_quorum_of_the_wanted_size() {
    assert!(built(1, &json!({})).disruption_budget.is_none());
    assert!(built(0, &json!({})).disruption_budget.is_none());
    for (replicas, quorum) in [(3, 2), (5, 3), (7, 4)] {
        let budget = built(replicas, &json!({})).disruption_budget.unwrap();
        assert_eq!(
            serde_json::to_value(budget.spec.unwrap().min_available).unwrap(),
            quorum
        );
    }
}

#[test]
fn each_member_has_its_own_configuration() {
    let objects = built(3, &json!({}));
    let file = file(&objects, "etcd-orders-1.yaml");
    assert_eq!(file["name"], "orders-1");
    assert_eq!(
        file["initial-advertise-peer-urls"],
        "http://orders-1.orders-peer.shop.svc:2380"
    );
    assert_eq!(
        file["advertise-client-urls"],
        "http://orders-1.orders-peer.shop.svc:2379"
    );
    assert_eq!(file["initial-cluster-token"], "u-1");
    assert_eq!(file["initial-cluster"].as_str().unwrap().split(',').count(), 3);
    assert_eq!(file["quota-backend-bytes"], 8_589_934_592_u64);
    let text = &objects.config_map.data.as_ref().unwrap()["steward.yaml"];
    let steward: StewardConfig = serde_saphyr::from_str(text).unwrap();
    assert_eq!(
        steward.cluster.member_of_pod("orders-2").unwrap().name,
        "orders-2"
    );
    assert_eq!(
        steward.cluster.member_of_pod("orders-2").unwrap().steward_url,
        "https://orders-2.orders-peer.shop.svc:8080"
    );
}

#[test]
fn prefixed_members_and_their_additional_urls_fit_together() {
    let change = json!({"spec": {
        "memberNamePrefix": "east",
        "etcd": {"additionalAdvertisePeerURLs": [{"memberName": "east-orders-0", "urls": ["http://lb:2380"]}]},
    }});
    let objects = built(1, &change);
    let urls = file(&objects, "etcd-east-orders-0.yaml")["initial-advertise-peer-urls"].clone();
    assert_eq!(urls, "http://orders-0.orders-peer.shop.svc:2380,http://lb:2380");
    assert_eq!(objects.members[0].name_any(), "east-orders-0");
    assert_eq!(objects.leases[0].name_any(), "east-orders-0");
}

#[test]
fn certificates_lie_under_fixed_keys() {
    let copy = |change: &Value| {
        let cluster = validate(&etcd(3, change), &secrets(), &Images::default()).unwrap();
        secrets::etcd_tls(&cluster)
    };
    let keys: Vec<_> = copy(&tls()).unwrap().data.unwrap().into_keys().collect();
    assert_eq!(keys.len(), 8, "{keys:?}");
    let objects = built(3, &tls());
    let client = &file(&objects, "etcd-orders-0.yaml")["client-transport-security"];
    assert_eq!(client["trusted-ca-file"], "/var/etcd/tls/client-ca.crt");
    assert!(copy(&json!({})).is_none());
}

#[test]
fn a_missing_secret_or_key_is_named_with_its_field() {
    let mut change = tls();
    change["spec"]["etcd"]["clientUrlTls"]["serverTLSSecretRef"]["name"] = json!("nowhere");
    let error = validate(&etcd(1, &change), &secrets(), &Images::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("spec.etcd.clientUrlTls") && error.contains("nowhere"),
        "{error}"
    );
    change["spec"]["etcd"]["clientUrlTls"]["serverTLSSecretRef"]["name"] = json!("ca");
    let error = validate(&etcd(1, &change), &secrets(), &Images::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("no key \"tls.crt\""), "{error}");
}

/// The pod passes the restricted profile of Pod Security, but for a store in a folder of the node.
#[test]
fn pods_are_restricted() {
    let objects = built(3, &json!({}));
    let pod = objects.stateful_set.spec.unwrap().template.spec.unwrap();
    let security = pod.security_context.as_ref().unwrap();
    assert_eq!(
        (security.run_as_non_root, security.run_as_user),
        (Some(true), Some(65532))
    );
    assert_eq!(security.seccomp_profile.as_ref().unwrap().type_, "RuntimeDefault");
    assert_eq!(pod.automount_service_account_token, Some(false));
    for container in pod.containers.iter().chain(pod.init_containers.iter().flatten()) {
        let security = container.security_context.as_ref().unwrap();
        assert_eq!(
            security.allow_privilege_escalation,
            Some(false),
            "{}",
            container.name
        );
        assert_eq!(
            security.read_only_root_filesystem,
            Some(true),
            "{}",
            container.name
        );
        let drop = security.capabilities.as_ref().unwrap().drop.clone().unwrap();
        assert_eq!(drop, ["ALL"], "{}", container.name);
    }
    let token = |container: &k8s_openapi::api::core::v1::Container| {
        container
            .volume_mounts
            .iter()
            .flatten()
            .any(|mount| mount.name == "druid-api-token")
    };
    assert!(
        !token(&pod.containers[0]),
        "etcd has no business with the API server"
    );
}

/// Whoever breaks into etcd finds what etcd needs, and no more.
#[test]
fn etcds_container_gets_only_its_own_keys() {
    let pod = built(3, &tls()).stateful_set.spec.unwrap().template.spec.unwrap();
    assert_eq!(pod.enable_service_links, Some(false));
    let mut keys = Vec::new();
    for mount in pod.containers[0].volume_mounts.iter().flatten() {
        let volume = pod
            .volumes
            .iter()
            .flatten()
            .find(|volume| volume.name == mount.name);
        let Some(volume) = volume else { continue };
        assert!(
            volume.projected.is_none() && volume.config_map.is_none(),
            "{}",
            mount.name
        );
        if let Some(secret) = &volume.secret {
            assert_eq!(mount.mount_path, "/var/etcd/tls");
            keys.extend(
                secret
                    .items
                    .as_ref()
                    .unwrap()
                    .iter()
                    .map(|item| item.path.as_str()),
            );
        }
    }
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "client-ca.crt",
            "client-server.crt",
            "client-server.key",
            "peer-ca.crt",
            "peer.crt",
            "peer.key"
        ]
    );
    let steward = pod
        .init_containers
        .iter()
        .flatten()
        .find(|one| one.name == "etcd-steward");
    let mounts = steward.unwrap().volume_mounts.as_ref().unwrap();
    assert!(
        mounts
            .iter()
            .any(|mount| mount.mount_path == "/var/steward/client-tls")
    );
}

/// What a user calls the Service must not hide it from Druid.
#[test]
fn a_users_labels_of_the_client_service_dont_win_over_ours() {
    let mine = json!({"app.kubernetes.io/managed-by": "me", "team": "x"});
    let change = json!({"spec": {"etcd": {"clientService": {"labels": mine, "annotations": {"a": "b"}}}}});
    let service = built(1, &change).client_service;
    assert_eq!(service.labels()[labels::MANAGED_BY], labels::MANAGED_BY_VALUE);
    assert_eq!(service.labels()["team"], "x");
    assert_eq!(service.annotations()["a"], "b");
}

/// Both tell of the same file: the controller what it has written, the steward what its etcd has read.
#[test]
fn the_wanted_hash_is_that_of_the_file() {
    use api::steward::etcd_config_hash;
    for change in [json!({}), tls()] {
        let objects = built(3, &change);
        for member in &objects.members {
            let file = file(&objects, &format!("etcd-{}.yaml", member.name_any()));
            let wanted = &member.annotations()[labels::annotation::WANTED_CONFIG_HASH];
            assert_eq!(*wanted, etcd_config_hash(file.as_object().unwrap()));
        }
    }
}

#[test]
fn a_local_store_is_given_to_the_stewards_user() {
    let change = json!({"spec": {"backup": {"store": {
        "provider": "Local", "container": "bkp", "prefix": "p", "secretRef": {"name": "folder"},
    }}}});
    let pod = built(1, &change)
        .stateful_set
        .spec
        .unwrap()
        .template
        .spec
        .unwrap();
    let own = &pod.init_containers.as_ref().unwrap()[1];
    assert_eq!(own.name, "change-backup-bucket-permissions");
    let volume = pod
        .volumes
        .unwrap()
        .into_iter()
        .find_map(|volume| volume.host_path)
        .unwrap();
    assert_eq!(volume.path, "hostPath/bkp");
}

#[test]
fn members_made_after_the_cluster_has_formed_join_as_learners() {
    let cluster = validate(&etcd(3, &json!({})), &secrets(), &Images::default()).unwrap();
    let learner = |formed| {
        let objects = build(&cluster, formed).unwrap();
        objects.members[2]
            .annotations()
            .contains_key(labels::annotation::CREATE_AS_LEARNER)
    };
    assert!(learner(true) && !learner(false));
}
