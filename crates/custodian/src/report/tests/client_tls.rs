//! Members that serve clients otherwise than the spec wants, and members of which nothing is there.

use super::*;

fn message(status: &EtcdStatus, type_: &str) -> String {
    find_condition(&status.conditions, type_).unwrap().message.clone()
}

/// An Etcd whose spec wants TLS for clients, and what its status says.
fn wanting_tls(scene: &Scene, observed: i64, errors: &Value) -> Report {
    let mut cluster = scene.cluster();
    let mut etcd = serde_json::to_value(&*cluster.etcd).unwrap();
    etcd["spec"]["etcd"] = json!({"clientUrlTls": {
        "tlsCASecretRef": {"name": "ca"}, "serverTLSSecretRef": {"name": "server"},
    }});
    etcd["status"] = json!({"observedGeneration": observed, "lastErrors": errors});
    cluster.etcd = Arc::new(parse(etcd));
    Report::new(&cluster, &EtcdStatus::default(), THRESHOLDS, now())
}

/// A client that goes by the spec would find nobody, while Ready says that all is well.
#[test]
fn members_that_cannot_follow_client_tls_are_not_ready() {
    const SAYS: &str = "/record/status/clientTLSEnabled";
    let plain = (0..3).fold(Scene::new(3), |scene, ordinal| {
        scene.set(ordinal, SAYS, json!(false))
    });
    let refused = || json!([{"code": "InvalidSpec", "description": "peer TLS can't be switched"}]);
    let stuck = plain.clone().set(
        1,
        "/record/status/conditions",
        json!([
            {"type": "Ready", "status": "True", "reason": "Serving"},
            {"type": "Restarting", "status": "False", "reason": "PeerTLSMismatch", "message": "recorded http"},
        ]),
    );
    let follows = (0..3).fold(Scene::new(3), |scene, ordinal| {
        scene.set(ordinal, SAYS, json!(true))
    });
    for (scene, observed, errors, want) in [
        // The new spec is being carried out, or waits to be.
        (&plain, 4, json!([]), ("True", "Quorate")),
        (&plain, 3, json!([]), ("True", "Quorate")),
        (&plain, 3, refused(), ("False", "ClientTLSMismatch")),
        (&stuck, 4, json!([]), ("False", "ClientTLSMismatch")),
        (&follows, 3, refused(), ("True", "Quorate")),
        // Members of an older version don't say.
        (&Scene::new(3), 3, refused(), ("True", "Quorate")),
    ] {
        let report = wanting_tls(scene, observed, &errors);
        is(&report.status, ready::TYPE, want);
    }
    let status = wanting_tls(&plain, 3, &refused()).status;
    let text = message(&status, ready::TYPE);
    for part in [
        "without TLS by main-0, main-1, main-2",
        "peer TLS can't be switched",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let before = wanting_tls(&plain, 4, &json!([])).status;
    let events = transitions::between(&before, &status, Some("main-0"));
    let reasons: Vec<_> = events.iter().map(|event| event.reason).collect();
    assert_eq!(reasons, [event::CLIENT_TLS_MISMATCH]);
    assert_eq!(transitions::between(&status, &status, Some("main-0")), []);
}

/// Who looks for what is missing finds it in the message.
#[test]
fn a_member_of_which_nothing_is_there_is_named() {
    let scene = Scene::new(3)
        .set(2, "/record", Value::Null)
        .set(2, "/lease", Value::Null)
        .set(1, GONE, Value::Null);
    let status = scene.status();
    for type_ in [ready::TYPE, all_members_ready::TYPE] {
        let text = message(&status, type_);
        assert!(
            text.ends_with("not serving: main-1 (PodMissing), main-2 (NotReported)"),
            "{text}"
        );
    }
}
