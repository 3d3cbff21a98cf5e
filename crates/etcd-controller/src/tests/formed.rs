//! Clusters that have formed: what may not be changed, and members whose objects were lost or can't be decoded.

use k8s_openapi::api::coordination::v1::Lease;

use super::*;

/// A member that serves its peers with or without TLS.
fn serving(ordinal: u32, peer_tls: bool) -> Value {
    let mut member = member(ordinal, "u2");
    member["status"]["peerTLSEnabled"] = json!(peer_tls);
    member
}

/// A cluster of three that has formed and was carried out.
async fn formed(peer_tls: bool) -> Arc<Server> {
    let server = Server::new();
    put_certificates(&server, "b2xk");
    let mut manifest = etcd("main", 3);
    if peer_tls {
        manifest["spec"]["etcd"]["peerUrlTls"] = tls();
    }
    server.put::<Etcd>(manifest);
    reconcile(&server, "main", Config::default()).await.unwrap();
    for ordinal in 0..3 {
        server.put::<EtcdMember>(serving(ordinal, peer_tls));
    }
    server
}

fn edit(server: &Server, generation: i64, change: impl FnOnce(&mut Value)) {
    let mut etcd = serde_json::to_value(server.get::<Etcd>("main").unwrap()).unwrap();
    etcd["metadata"]["generation"] = json!(generation);
    change(&mut etcd);
    server.put::<Etcd>(etcd);
}

fn switch_peer_tls(etcd: &mut Value, on: bool) {
    if on {
        etcd["spec"]["etcd"]["peerUrlTls"] = tls();
    } else {
        etcd["spec"]["etcd"].as_object_mut().unwrap().remove("peerUrlTls");
    }
}

/// Pods that restart with another template would come up with another scheme than their peers, and the quorum be lost.
#[tokio::test]
async fn peer_tls_of_a_formed_cluster_is_not_switched() {
    type Change = fn(&mut Value);
    let together: [Change; 4] = [
        |_| (),
        |etcd| etcd["spec"]["annotations"] = json!({"new": "template"}),
        |etcd| etcd["spec"]["replicas"] = json!(5),
        |etcd| etcd["spec"]["etcd"]["clientUrlTls"] = tls(),
    ];
    for on in [true, false] {
        for more in together {
            let server = formed(!on).await;
            edit(&server, 3, |etcd| {
                switch_peer_tls(etcd, on);
                more(etcd);
            });
            let (reason, error) = refused(&server, "main").await;
            assert_eq!(reason, "InvalidSpec");
            assert!(
                error.contains("peerUrlTls") && error.contains("formed cluster"),
                "{error}"
            );
            assert_eq!(written(&server), [""; 0]);
            let told: Vec<_> = server
                .requests()
                .into_iter()
                .filter(|request| request.path.contains("/events"))
                .collect();
            assert_eq!(told.len(), 1, "an Event: {told:?}");
            let status = server.get::<Etcd>("main").unwrap().status.unwrap();
            assert_eq!(status.observed_generation, Some(2));
            assert_eq!(status.last_operation.unwrap().state.as_str(), "Error");

            // Taken back, the rest of the edit is carried out.
            edit(&server, 4, |etcd| switch_peer_tls(etcd, !on));
            reconcile(&server, "main", Config::default()).await.unwrap();
            let status = server.get::<Etcd>("main").unwrap().status.unwrap();
            assert_eq!(status.last_operation.unwrap().state.as_str(), "Succeeded");
        }
    }
}

/// What was never formed has recorded nothing.
#[tokio::test]
async fn a_cluster_that_has_not_formed_may_still_change() {
    let server = formed(false).await;
    for ordinal in 0..3 {
        let mut member = member(ordinal, "u2");
        member["status"] = json!({});
        server.put::<EtcdMember>(member);
    }
    edit(&server, 3, |etcd| switch_peer_tls(etcd, true));
    reconcile(&server, "main", Config::default()).await.unwrap();
}

/// Everything is applied, and yet nothing has succeeded.
#[tokio::test]
async fn members_that_cannot_follow_are_told_of() {
    let server = formed(false).await;
    let mut stuck = serving(1, false);
    stuck["status"]["conditions"] = json!([{"type": "Initialized", "status": "False", "reason": "PeerTLSMismatch", "message": "recorded http"}]);
    server.put::<EtcdMember>(stuck);
    reconcile(&server, "main", Config::default()).await.unwrap();
    let status = server.get::<Etcd>("main").unwrap().status.unwrap();
    assert_eq!(status.last_operation.unwrap().state.as_str(), "Error");
    assert_eq!(status.last_errors[0].code, "MemberCannotFollow");
    assert!(
        status.last_errors[0]
            .description
            .contains("main-1: recorded http"),
        "{:?}",
        status.last_errors
    );

    server.put::<EtcdMember>(serving(1, false));
    reconcile(&server, "main", Config::default()).await.unwrap();
    let status = server.get::<Etcd>("main").unwrap().status.unwrap();
    assert_eq!(status.last_operation.unwrap().state.as_str(), "Succeeded");
    assert_eq!(status.last_errors, []);
}

/// A voter that counted as a learner would be one more than the cluster has.
#[tokio::test]
async fn a_member_that_is_made_again_is_no_learner() {
    let learner = |server: &Server, name: &str| {
        let member: EtcdMember = server.get(name).unwrap();
        member.annotations().contains_key(annotation::CREATE_AS_LEARNER)
    };
    let server = formed(false).await;
    server.lose::<EtcdMember>("main-1");
    edit(&server, 3, |etcd| etcd["spec"]["replicas"] = json!(5));
    reconcile(&server, "main", Config::default()).await.unwrap();
    let found = ["main-1", "main-3", "main-4"].map(|name| learner(&server, name));
    assert_eq!(found, [false, true, true]);

    // While the Etcd sleeps, its members' Leases tell.
    let server = formed(false).await;
    let mut lease = owned("Lease", "main-2", "u2");
    lease["spec"] = json!({"holderIdentity": "a1:c1:Member"});
    server.put::<Lease>(lease);
    edit(&server, 3, |etcd| etcd["spec"]["replicas"] = json!(0));
    reconcile(&server, "main", Config::default()).await.unwrap();
    server.lose::<EtcdMember>("main-2");
    edit(&server, 4, |etcd| etcd["spec"]["replicas"] = json!(5));
    reconcile(&server, "main", Config::default()).await.unwrap();
    let found = ["main-2", "main-3"].map(|name| learner(&server, name));
    assert_eq!(found, [false, true]);
}

/// An edit with a second annotation while the first is carried out.
#[tokio::test]
async fn an_annotation_for_a_newer_spec_stays() {
    let by_hand = || Config {
        auto_reconcile: false,
        ..Config::default()
    };
    let asks = |server: &Server| {
        let etcd: Etcd = server.get("main").unwrap();
        etcd.annotations().keys().cloned().collect::<Vec<_>>()
    };
    let server = formed(false).await;
    let annotations = json!({annotation::OPERATION: "reconcile", annotation::OPERATION_LEGACY: "reconcile"});
    edit(&server, 3, |etcd| {
        etcd["metadata"]["annotations"] = annotations.clone();
    });
    let read: Etcd = server.get("main").unwrap();
    edit(&server, 4, |etcd| {
        etcd["spec"]["etcd"]["snapshotCount"] = json!(7);
    });
    reconcile_as(&server, read, by_hand()).await.unwrap();
    assert_eq!(asks(&server).len(), 2, "the newer spec is yet to be carried out");
    reconcile(&server, "main", by_hand()).await.unwrap();
    assert_eq!(asks(&server), [""; 0]);
    let config: ConfigMap = server.get("main-config").unwrap();
    assert!(config.data.unwrap()["etcd-main-0.yaml"].contains("snapshot-count: 7"));
}

/// One object that can't be decoded holds up what depends on it, and nothing else.
#[tokio::test]
async fn an_undecodable_member_is_told_of_and_can_be_deleted() {
    let server = formed(false).await;
    let mut bad = serving(1, false);
    bad["status"]["id"] = json!(7);
    server.put::<EtcdMember>(bad);
    edit(&server, 3, |etcd| etcd["spec"]["replicas"] = json!(5));
    let (reason, error) = refused(&server, "main").await;
    assert_eq!(reason, "Undecodable");
    assert!(error.contains("EtcdMember main-1"), "{error}");
    assert!(
        written(&server).iter().all(|path| path.contains("/secrets/")),
        "{:?}",
        written(&server)
    );

    // It isn't in the way of the end.
    server.lose::<StatefulSet>("main");
    edit(&server, 4, |etcd| {
        etcd["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    reconcile(&server, "main", Config::default()).await.unwrap();
    for ordinal in 0..3 {
        let deleted =
            format!("DELETE /apis/druid.gardener.cloud/v1alpha1/namespaces/ns/etcdmembers/main-{ordinal}");
        assert!(written(&server).contains(&deleted), "{:?}", written(&server));
    }
}

#[tokio::test]
async fn an_undecodable_child_is_told_of() {
    let server = formed(false).await;
    let mut bad = owned("ConfigMap", "main-config", "u2");
    bad["data"] = json!("a text");
    server.put::<ConfigMap>(bad);
    let (reason, error) = refused(&server, "main").await;
    assert_eq!(reason, "Undecodable");
    assert!(error.contains("ConfigMap main-config"), "{error}");
}
