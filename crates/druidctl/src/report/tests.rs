use serde_json::{Value, json};

use super::*;

fn etcd(replicas: i32, status: &Value) -> Etcd {
    serde_json::from_value(json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd",
        "metadata": {"name": "main", "namespace": "ns"}, "spec": {"replicas": replicas}, "status": status,
    }))
    .unwrap()
}

fn member(name: &str, etcd: &str, status: &Value) -> EtcdMember {
    serde_json::from_value(json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdMember",
        "metadata": {"name": name, "namespace": "ns", "labels": {"gardener.cloud/owned-by": etcd}},
        "status": status,
    }))
    .unwrap()
}

fn condition(type_: &str, status: &str, reason: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": format!("{reason}, at length")})
}

fn healthy() -> Etcd {
    etcd(
        3,
        &json!({
            "membersReady": "3/3", "version": "3.6.6", "lastBackupTime": "2026-01-01T00:00:00Z",
            "conditions": [
                condition("Ready", "True", "Quorate"),
                condition("ClusterIDMismatch", "False", "NoClusterIDMismatchDetected"),
                condition("SomethingElse", "False", "NotOurs"),
            ],
        }),
    )
}

fn members() -> Vec<EtcdMember> {
    vec![
        member(
            "main-0",
            "main",
            &json!({"role": "Follower", "state": "Started", "dbSize": "20Mi", "dbSizeInUse": "1Mi"}),
        ),
        member(
            "main-1",
            "main",
            &json!({"role": "Leader", "state": "Started", "dbSize": "10Mi", "dbSizeInUse": "2Mi", "behind": 0}),
        ),
        member(
            "other-0",
            "other",
            &json!({"role": "Leader", "dbSize": "1Gi", "alarms": ["NOSPACE"]}),
        ),
    ]
}

fn now() -> Timestamp {
    "2026-01-01T00:05:00Z".parse().unwrap()
}

#[test]
fn a_healthy_etcd_in_columns() {
    let report = Report::new(&healthy(), &members());
    assert!(report.healthy);
    assert_eq!(
        table(std::slice::from_ref(&report), false, now()),
        "NAME   QUORATE   MEMBERS   LEADER   VERSION   DB     IN USE   BACKUP   ATTENTION\n\
         main   True      3/3       main-1   3.6.6     20Mi   2Mi      5m\n"
    );
    let all = table(&[report], true, now());
    assert!(
        all.starts_with("NAMESPACE   NAME   ") && all.contains("\nns          main   "),
        "{all}"
    );
}

#[test]
fn what_makes_an_etcd_unhealthy() {
    let with = |condition: Value| json!({"conditions": [condition]});
    let ready = || condition("Ready", "True", "Quorate");
    let rows = [
        (3, json!({}), false, ""),
        (3, with(ready()), true, ""),
        (
            3,
            with(condition("Ready", "False", "QuorumLost")),
            false,
            "Ready (QuorumLost)",
        ),
        (
            3,
            with(condition("Ready", "Unknown", "MemberStatusStale")),
            false,
            "Ready? (MemberStatusStale)",
        ),
        // Too early to tell is no illness.
        (
            3,
            json!({"conditions": [ready(), condition("BackupReady", "Unknown", "BackupPending")]}),
            true,
            "BackupReady? (BackupPending)",
        ),
        (
            3,
            json!({"conditions": [ready(), condition("ClusterIDMismatch", "True", "Multiple")]}),
            false,
            "ClusterIDMismatch (Multiple)",
        ),
        // Asleep: the conditions are those of the time before.
        (0, with(condition("Ready", "False", "NotChecked")), true, ""),
    ];
    for (replicas, status, healthy, attention) in rows {
        let report = Report::new(&etcd(replicas, &status), &[]);
        assert_eq!(
            (report.healthy, report.attention().as_str()),
            (healthy, attention),
            "{status}"
        );
    }
}

#[test]
fn an_alarm_is_a_problem() {
    let full = [member("main-0", "main", &json!({"alarms": ["NOSPACE"]}))];
    let report = Report::new(&healthy(), &full);
    assert!(!report.healthy);
    assert_eq!(report.attention(), "Alarm (NOSPACE)");
}

#[test]
fn details_tell_members_and_problems_in_full() {
    let ill = etcd(
        3,
        &json!({"conditions": [condition("Ready", "False", "QuorumLost")]}),
    );
    let text = details(&Report::new(&ill, &members()), now());
    assert!(
        text.contains("\nmain-0   Follower   Started   -         20Mi   1Mi      -\n"),
        "{text}"
    );
    assert!(
        text.contains("\nReady       QuorumLost   QuorumLost, at length\n"),
        "{text}"
    );
    assert!(!text.contains("other-0"));
}

/// Programs rely on the names.
#[test]
fn the_report_for_programs() {
    let report = serde_json::to_value(Report::new(&healthy(), &members()[..1])).unwrap();
    assert_eq!(
        report,
        json!({
            "namespace": "ns", "name": "main", "healthy": true, "quorate": "True", "membersReady": "3/3",
            "leader": null, "version": "3.6.6", "dbSizeBytes": 20 << 20, "dbSizeInUseBytes": 1 << 20,
            "lastBackupTime": "2026-01-01T00:00:00Z", "problems": [],
            "members": [{
                "name": "main-0", "role": "Follower", "state": "Started", "version": null, "dbSize": "20Mi",
                "dbSizeInUse": "1Mi", "behind": null, "alarms": [],
            }],
        })
    );
}
