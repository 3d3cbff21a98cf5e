//! The pure steps together: from what is there to the status and the events.

mod backups;
mod client_tls;

use std::sync::Arc;

use api::v1alpha1::{Etcd, EtcdMember, MemberStatus};
use k8s_openapi::api::{apps::v1::StatefulSet, coordination::v1::Lease, core::v1::Pod};
use operator::reconcile::Guarded;
use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::Member,
    transitions::{self, event},
};

fn now() -> Timestamp {
    "2026-05-04T10:30:00Z".parse().unwrap()
}

/// So many seconds before [`now`], as objects have it.
fn ago(seconds: i64) -> String {
    format!(
        "{:.6}",
        Timestamp::from_second(now().as_second() - seconds).unwrap()
    )
}

fn in_secs(seconds: i64) -> Timestamp {
    Timestamp::from_second(now().as_second() + seconds).unwrap()
}

const THRESHOLDS: Thresholds = Thresholds {
    unknown: std::time::Duration::from_mins(1),
    not_ready: std::time::Duration::from_mins(5),
};

fn parse<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A member of the Etcd `main` that serves; tests break it.
#[derive(Clone)]
struct Scene {
    replicas: i32,
    /// What the StatefulSet has, if that isn't carried out yet.
    scaled_to: Option<i32>,
    store: bool,
    members: Vec<Value>,
    set_revision: &'static str,
}

fn serving(ordinal: u32) -> Value {
    json!({
        "record": {
            "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdMember",
            "metadata": {"name": format!("main-{ordinal}")},
            "status": {
                "id": format!("a{ordinal}"), "clusterID": "c1", "raftTerm": 2, "etcdVersion": "3.5.21", "state": "Started",
                "role": if ordinal == 0 { "Leader" } else { "Follower" },
                "conditions": [{"type": "Ready", "status": "True", "reason": "Serving"}],
            },
        },
        "lease": {"metadata": {}, "spec": {
            "holderIdentity": format!("a{ordinal}:c1:{}", if ordinal == 0 { "Leader" } else { "Member" }),
            "renewTime": ago(5),
        }},
        "pod": {
            "metadata": {"labels": {"controller-revision-hash": "main-new"}},
            "status": {"conditions": [{"type": "ContainersReady", "status": "True"}]},
        },
    })
}

impl Scene {
    fn new(replicas: i32) -> Self {
        Self {
            replicas,
            scaled_to: None,
            store: false,
            members: (0..u32::try_from(replicas).unwrap()).map(serving).collect(),
            set_revision: "main-new",
        }
    }

    /// Changes a member: what follows a path of keys, or removes it when the value is null.
    fn set(mut self, ordinal: usize, path: &str, value: Value) -> Self {
        let (parent, key) = path.rsplit_once('/').unwrap();
        let parent = self.members[ordinal].pointer_mut(parent).unwrap();
        if value.is_null() {
            parent.as_object_mut().unwrap().remove(key);
        } else {
            parent[key] = value;
        }
        self
    }

    fn cluster(&self) -> Cluster {
        let store = json!({"provider": "Local", "prefix": "main"});
        let backup = if self.store {
            json!({"store": store})
        } else {
            json!({})
        };
        let object = |member: &Value, key: &str| member.get(key).cloned();
        let members = self.members.iter().enumerate().map(|(ordinal, member)| Member {
            name: format!("main-{ordinal}"),
            ordinal: ordinal.try_into().unwrap(),
            record: object(member, "record").map(|json| Arc::new(parse::<Guarded<EtcdMember>>(json))),
            lease: object(member, "lease").map(|json| Arc::new(parse::<Lease>(json))),
            pod: object(member, "pod").map(|json| Arc::new(parse::<Pod>(json))),
        });
        let scaled_to = self.scaled_to.unwrap_or(self.replicas);
        let set: StatefulSet = parse(json!({
            "metadata": {"generation": 1},
            "spec": {"replicas": scaled_to, "selector": {}, "serviceName": "", "template": {}},
            "status": {
                "replicas": scaled_to, "readyReplicas": scaled_to, "observedGeneration": 1,
                "updateRevision": self.set_revision, "currentRevision": "main-old",
            },
        }));
        Cluster {
            members: members.collect(),
            set: Some(Arc::new(set)),
            etcd: Arc::new(parse::<Etcd>(json!({
                "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd",
                "metadata": {"name": "main", "namespace": "ns", "generation": 4},
                "spec": {"replicas": self.replicas, "backup": backup}, "status": {"observedGeneration": 4},
            }))),
        }
    }

    fn report(&self, previous: &EtcdStatus, now: Timestamp) -> Report {
        Report::new(&self.cluster(), previous, THRESHOLDS, now)
    }

    fn status(&self) -> EtcdStatus {
        self.report(&EtcdStatus::default(), now()).status
    }

    /// The events on the way from what `self` reports to what `next` does.
    fn events(&self, next: &Self) -> Vec<&'static str> {
        let before = self.status();
        let after = next.report(&before, in_secs(1)).status;
        transitions::between(&before, &after, leader(&before))
            .into_iter()
            .map(|event| event.reason)
            .collect()
    }
}

fn told(status: &EtcdStatus, type_: &str) -> (String, String) {
    let condition = find_condition(&status.conditions, type_).unwrap();
    (condition.status.to_string(), condition.reason.clone())
}

fn is(status: &EtcdStatus, type_: &str, want: (&str, &str)) {
    let told = told(status, type_);
    assert_eq!((told.0.as_str(), told.1.as_str()), want, "{type_}");
}

const SERVES: &str = "";
const GONE: &str = "/pod";
const SILENT: &str = "/lease/spec/renewTime";

/// Unknown members may make the difference, but never count as serving.
#[test]
fn quorum() {
    for (replicas, gone, silent, want) in [
        (1, 0, 0, ("True", "Quorate")),
        (1, 1, 0, ("False", "QuorumLost")),
        (1, 0, 1, ("Unknown", "MemberStatusStale")),
        (3, 0, 0, ("True", "Quorate")),
        (3, 1, 0, ("True", "Quorate")),
        (3, 0, 1, ("True", "Quorate")),
        (3, 1, 1, ("Unknown", "MemberStatusStale")),
        (3, 2, 0, ("False", "QuorumLost")),
        (3, 2, 1, ("False", "QuorumLost")),
        (3, 0, 3, ("Unknown", "MemberStatusStale")),
        (5, 2, 0, ("True", "Quorate")),
        (5, 2, 1, ("Unknown", "MemberStatusStale")),
        (5, 3, 0, ("False", "QuorumLost")),
        (5, 3, 2, ("False", "QuorumLost")),
    ] {
        let mut scene = Scene::new(replicas);
        for ordinal in 0..gone {
            scene = scene.set(ordinal, GONE, Value::Null);
        }
        for ordinal in gone..gone + silent {
            scene = scene.set(ordinal, SILENT, json!(ago(100)));
        }
        let status = scene.status();
        is(&status, ready::TYPE, want);
        let serve = usize::try_from(replicas).unwrap() - gone - silent;
        assert_eq!(status.members_ready, Some(format!("{serve}/{replicas}")));
    }
}

/// A member that is to join as a learner must not make a serving cluster look as if it had lost its quorum.
#[test]
fn learners_leave_the_quorum_as_it_is() {
    let mut scene = Scene::new(3);
    for ordinal in [1, 2] {
        scene = scene
            .set(ordinal, "/record/status", json!({}))
            .set(ordinal, "/lease", Value::Null)
            .set(
                ordinal,
                "/record/metadata/annotations",
                json!({"druid.gardener.cloud/create-as-learner": ""}),
            );
    }
    let status = scene.status();
    is(&status, ready::TYPE, ("True", "Quorate"));
    is(&status, all_members_ready::TYPE, ("False", "NotAllMembersReady"));
    assert_eq!(status.reason.as_deref(), Some("NotAllMembersReady"));
}

#[test]
fn member() {
    for (path, value, want, reason) in [
        (SERVES, json!(null), MemberStatus::Ready, "Serving"),
        (GONE, json!(null), MemberStatus::NotReady, "PodMissing"),
        (
            "/pod/metadata/deletionTimestamp",
            json!(ago(1)),
            MemberStatus::NotReady,
            "PodTerminating",
        ),
        (
            "/pod/status",
            json!({}),
            MemberStatus::NotReady,
            "ContainersNotReady",
        ),
        (
            "/record/status/conditions",
            json!([{"type": "Ready", "status": "False", "reason": "NoLeader"}]),
            MemberStatus::NotReady,
            "NoLeader",
        ),
        ("/record/status", json!({}), MemberStatus::NotReady, "NotReported"),
        (
            "/record/status/conditions",
            json!([{"type": "Initialized", "status": "False", "reason": "StoreUnreachable"}]),
            MemberStatus::NotReady,
            "StoreUnreachable",
        ),
        (
            "/record/status/id",
            json!(7),
            MemberStatus::Unknown,
            "EtcdMemberUnreadable",
        ),
        ("/lease/spec", json!({}), MemberStatus::Unknown, "NoHeartbeat"),
        ("/lease", json!(null), MemberStatus::Unknown, "NoHeartbeat"),
        (SILENT, json!(ago(60)), MemberStatus::Unknown, "LeaseExpired"),
        (
            SILENT,
            json!(ago(360)),
            MemberStatus::NotReady,
            "UnknownGracePeriodExceeded",
        ),
        ("/record", json!(null), MemberStatus::Ready, "LeaseSucceeded"),
    ] {
        let mut scene = Scene::new(1);
        if !path.is_empty() {
            scene = scene.set(0, path, value);
        }
        let status = scene.status();
        assert_eq!(
            (&status.members[0].status, status.members[0].reason.as_str()),
            (&want, reason),
            "{path}"
        );
    }
}

/// The heartbeats trigger nothing, so the clock must: at the moment when the first one would be too old.
#[test]
fn the_next_look_is_when_the_first_heartbeat_grows_stale() {
    let scene = Scene::new(3).set(1, SILENT, json!(ago(20)));
    assert_eq!(
        scene.report(&EtcdStatus::default(), now()).until,
        Some(in_secs(40))
    );
    let scene = scene.set(1, SILENT, json!(ago(100)));
    let report = scene.report(&EtcdStatus::default(), now());
    assert_eq!(report.until, Some(in_secs(55)), "the others' heartbeats");
}

/// With a heartbeat every two minutes a member would be Unknown half of the time.
#[test]
fn a_heartbeat_holds_as_long_as_its_lease_says() {
    let slow = |age| {
        Scene::new(1)
            .set(0, "/lease/spec/leaseDurationSeconds", json!(480))
            .set(0, SILENT, json!(ago(age)))
            .report(&EtcdStatus::default(), now())
    };
    let report = slow(110);
    assert_eq!(report.status.members[0].status, MemberStatus::Ready);
    assert_eq!(report.until, Some(in_secs(370)));
    assert_eq!(slow(480).status.members[0].reason, "LeaseExpired");
}

#[test]
fn a_healthy_cluster_is_told_in_full() {
    let scene = Scene::new(3).set(2, "/record/status/etcdVersion", json!("3.5.9"));
    let status = scene.status();
    is(&status, ready::TYPE, ("True", "Quorate"));
    is(&status, all_members_ready::TYPE, ("True", "AllMembersReady"));
    is(&status, all_members_updated::TYPE, ("True", "AllMembersUpdated"));
    is(
        &status,
        cluster_id_mismatch::TYPE,
        ("False", "NoClusterIDMismatchDetected"),
    );
    assert!(
        find_condition(&status.conditions, backup_ready::TYPE).is_none(),
        "no store"
    );
    assert!(status.conditions.iter().all(|c| c.observed_generation == Some(4)));
    assert_eq!(
        (
            status.ready,
            status.replicas,
            status.current_replicas,
            status.ready_replicas
        ),
        (Some(true), Some(3), Some(3), Some(3))
    );
    assert_eq!(status.cluster_id.as_deref(), Some("c1"));
    assert_eq!(status.version.as_deref(), Some("3.5.9"), "by number, not by text");
    assert_eq!(status.reason.as_deref(), Some("Quorate"));
    assert_eq!(leader(&status), Some("main-0"));
}

/// What is written must not depend on when it is worked out, else every look would write.
#[test]
fn nothing_new_means_the_same_json() {
    let scene = with_backup(Scene::new(3));
    for scene in [
        scene.clone(),
        scene.clone().set(0, GONE, Value::Null),
        Scene { replicas: 0, ..scene },
    ] {
        let first = scene.status();
        let again = scene.report(&first, in_secs(20)).status;
        assert_eq!(
            serde_json::to_value(&first).unwrap(),
            serde_json::to_value(&again).unwrap()
        );
        let fields = serde_json::to_value(&first).unwrap();
        for field in fields.as_object().unwrap().keys() {
            assert!(FIELDS.contains(&field.as_str()), "{field} isn't ours");
        }
    }
}

#[test]
fn transition_times_move_with_the_status_only() {
    let whole = Scene::new(3);
    let first = whole.status();
    let broken = whole.set(1, GONE, Value::Null);
    let second = broken.report(&first, in_secs(30)).status;
    let time = |status: &EtcdStatus, type_| {
        find_condition(&status.conditions, type_)
            .and_then(|c| c.last_transition_time.clone())
            .unwrap()
            .0
    };
    assert_eq!(time(&second, ready::TYPE), now());
    assert_eq!(time(&second, all_members_ready::TYPE), in_secs(30));
    let of_member = |i: usize| second.members[i].last_transition_time.clone().unwrap().0;
    assert_eq!((of_member(0), of_member(1)), (now(), in_secs(30)));
}

#[test]
fn hibernation_keeps_what_was_so() {
    let awake = with_backup(Scene::new(3));
    let before = awake.status();
    let mut asleep = Scene { replicas: 0, ..awake };
    for ordinal in 0..3 {
        asleep = asleep.set(ordinal, GONE, Value::Null);
    }
    let after = asleep.report(&before, in_secs(60)).status;
    for type_ in [ready::TYPE, all_members_ready::TYPE, backup_ready::TYPE] {
        is(&after, type_, ("True", shared::NOT_CHECKED));
        let old = find_condition(&before.conditions, type_).unwrap();
        let new = find_condition(&after.conditions, type_).unwrap();
        assert_eq!(old.last_transition_time, new.last_transition_time, "{type_}");
    }
    assert_eq!(transitions::between(&before, &after, Some("main-0")), []);
    assert_eq!(after.cluster_id.as_deref(), Some("c1"));
    // Nor is a quorum lost by waking up.
    let mut waking = Scene {
        replicas: 3,
        ..asleep
    };
    waking.store = true;
    let woken = waking.report(&after, in_secs(90)).status;
    is(&woken, ready::TYPE, ("False", "QuorumLost"));
    assert_eq!(transitions::between(&after, &woken, Some("main-0")), []);
}

/// With spec reconcile off or suspended the members run on, though the spec wants none: they are judged as before.
#[test]
fn what_still_runs_is_judged() {
    let before = Scene::new(3).status();
    let mut runs = Scene {
        replicas: 0,
        scaled_to: Some(3),
        ..Scene::new(3)
    };
    let status = runs.report(&before, in_secs(1)).status;
    is(&status, ready::TYPE, ("True", "Quorate"));
    assert_eq!(status.members_ready.as_deref(), Some("3/3"));
    runs = runs.set(1, GONE, Value::Null).set(2, GONE, Value::Null);
    let broken = runs.report(&status, in_secs(2)).status;
    is(&broken, ready::TYPE, ("False", "QuorumLost"));
    let mut cluster = Scene::new(3).cluster();
    let mut etcd = (*cluster.etcd).clone();
    let off = "druid.gardener.cloud/disable-etcd-runtime-component-creation";
    etcd.metadata.annotations = Some([(off.to_owned(), String::new())].into());
    cluster.etcd = Arc::new(etcd);
    let report = Report::new(&cluster, &before, THRESHOLDS, now());
    is(&report.status, ready::TYPE, ("True", "Quorate"));
}

/// A leader that is gone can't say that it leads no more.
#[test]
fn the_newest_leader_leads() {
    let both = Scene::new(3).set(1, "/record/status/role", json!("Leader")).set(
        1,
        "/record/status/raftTerm",
        json!(3),
    );
    let status = both.status();
    assert_eq!(leader(&status), Some("main-1"));
    assert_eq!(status.members[0].role, None);
    let gone = Scene::new(3).set(0, GONE, Value::Null).status();
    assert_eq!(leader(&gone), None);
}

#[test]
fn events_tell_transitions() {
    let whole = Scene::new(3);
    let one_gone = whole.clone().set(1, GONE, Value::Null);
    let two_gone = one_gone.clone().set(2, GONE, Value::Null);
    let other_leader = one_gone
        .clone()
        .set(0, "/record/status/role", json!("Follower"))
        .set(2, "/record/status/role", json!("Leader"));
    let foreign = whole.clone().set(2, "/record/status/clusterID", json!("c2"));
    assert_eq!(whole.events(&whole), [""; 0]);
    assert_eq!(whole.events(&one_gone), [event::MEMBER_NOT_READY]);
    assert_eq!(one_gone.events(&whole), [event::MEMBER_READY]);
    assert_eq!(one_gone.events(&other_leader), [event::LEADER_CHANGED]);
    assert_eq!(
        one_gone.events(&two_gone),
        [event::MEMBER_NOT_READY, event::QUORUM_LOST]
    );
    assert_eq!(two_gone.events(&one_gone), [event::MEMBER_READY, event::QUORATE]);
    assert_eq!(whole.events(&foreign), [event::CLUSTER_ID_MISMATCH]);
    assert_eq!(foreign.events(&whole), [event::CLUSTER_ID_AGREED]);
}

#[test]
fn a_mismatch_needs_attention_and_keeps_the_known_id() {
    let before = Scene::new(3).status();
    let foreign = Scene::new(3).set(0, "/record/status/clusterID", json!("b0"));
    let status = foreign.report(&before, now()).status;
    is(
        &status,
        cluster_id_mismatch::TYPE,
        ("True", "MultipleClusterIDsDetected"),
    );
    assert_eq!(status.cluster_id.as_deref(), Some("c1"));
    assert_eq!(status.reason.as_deref(), Some("MultipleClusterIDsDetected"));
}

/// With updates on deletion the StatefulSet's current revision stays behind for ever: the pods tell.
#[test]
fn updates_are_told_by_the_pods() {
    let old = Scene::new(3).set(
        1,
        "/pod/metadata/labels/controller-revision-hash",
        json!("main-old"),
    );
    let status = old.status();
    is(
        &status,
        all_members_updated::TYPE,
        ("False", "NotAllMembersUpdated"),
    );
    assert_eq!((status.ready, status.current_replicas), (Some(false), Some(2)));
}

/// The pods don't depend on etcd's options: what each etcd runs with is told by its member.
#[test]
fn updates_end_with_the_newest_configuration_in_every_etcd() {
    const WANTED: &str = "/record/metadata/annotations";
    const RUNS: &str = "/record/status/observedConfigHash";
    let wanted = || json!({"druid.gardener.cloud/wanted-config-hash": "new"});
    let both = |runs: Value| Scene::new(1).set(0, WANTED, wanted()).set(0, RUNS, runs);
    let updated = ("True", "AllMembersUpdated");
    let pending = ("False", "NotAllMembersUpdated");
    for (scene, want) in [
        (both(json!("new")), updated),
        (both(json!("old")), pending),
        (both(json!(null)), pending),
        (Scene::new(1).set(0, RUNS, json!("old")), updated),
    ] {
        is(&scene.status(), all_members_updated::TYPE, want);
    }
    // As for a new authority, which the hash of the options doesn't tell.
    let restarting = json!([
        {"type": "Ready", "status": "True", "reason": "Serving"},
        {"type": "Restarting", "status": "False", "reason": "WaitingForTurn"},
    ]);
    let status = both(json!("new"))
        .set(0, "/record/status/conditions", restarting)
        .status();
    is(&status, all_members_updated::TYPE, pending);
    let condition = find_condition(&status.conditions, all_members_updated::TYPE).unwrap();
    assert!(condition.message.contains("main-0"), "{}", condition.message);
}

#[test]
fn an_etcd_that_never_formed_is_unknown() {
    let mut scene = Scene::new(3);
    for ordinal in 0..3 {
        scene = scene
            .set(ordinal, "/record/status", Value::Null)
            .set(ordinal, "/lease", Value::Null);
    }
    let status = scene.status();
    is(&status, ready::TYPE, ("Unknown", "NoMembersInStatus"));
    assert_eq!(status.members.len(), 3);
    assert_eq!(scene.events(&Scene::new(3)).last(), Some(&event::QUORATE));
}

fn with_backup(mut scene: Scene) -> Scene {
    scene.store = true;
    let snapshots = json!({
        "lastFull": {"name": "v2/Full-1", "timestamp": "2026-05-04T10:00:00Z"},
        "lastDelta": {"name": "v2/Incr-2", "timestamp": ago(30)},
        "coveredUntil": ago(30),
    });
    scene
        .set(0, "/record/status/snapshots", snapshots)
        .set(0, "/record/status/backupOwner", json!(true))
}

fn owner_says(scene: Scene, status: &str, reason: &str) -> Scene {
    let conditions = json!([
        {"type": "Ready", "status": "True", "reason": "Serving"},
        {"type": "BackupReady", "status": status, "reason": reason, "message": "no such bucket"},
    ]);
    scene.set(0, "/record/status/conditions", conditions)
}
