//! A restored cluster has IDs of its own: its old volumes stay outside, and new members join it.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use etcd_storage::schema::Minor;
use serde_json::Value;

use crate::{
    cases,
    program::{Ran, on},
    server::{Etcd, Place},
};

/// Restores a member of the cluster that `places` make.
fn restore(minor: Minor, data_dir: &Path, own: &Place, places: &[Place], token: Option<&str>) -> Ran {
    let (minor, url) = (minor.to_string(), own.peer_url());
    let pairs: Vec<_> = places
        .iter()
        .map(|place| format!("{}={}", place.name, place.peer_url()))
        .collect();
    let pairs = pairs.join(",");
    let mut args = vec![
        ["--data-dir", data_dir.to_str().unwrap()],
        ["--etcd-version", &minor],
        ["--name", &own.name],
        ["--initial-cluster", &pairs],
        ["--initial-advertise-peer-urls", &url],
        ["--output", "json"],
    ];
    args.extend(token.map(|token| ["--initial-cluster-token", token]));
    on(&cases::case("gzip-basic").store(), "restore", args.as_flattened())
}

/// The IDs of the cluster and of its member.
fn ids(done: &Value) -> (String, String) {
    let id = |name: &str| done[name].as_str().unwrap().to_owned();
    (id("clusterId"), id("memberId"))
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// RES-20: with the same name and URL each restore makes another cluster, and so do other tokens. Members of one restore
/// are told the token.
#[test]
fn res_20_each_restore_has_ids_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let places = ["t1-0", "t1-1"].map(Place::new);
    let one = std::slice::from_ref(&places[0]);
    let restored = |name: &str, own: &Place, places: &[Place], token| {
        restore(Minor::V3_6, &dir.path().join(name), own, places, token)
    };
    let alone: Vec<_> = ["a", "b"]
        .map(|name| restored(name, &places[0], one, None).ok().json())
        .into();
    let (first, second) = (ids(&alone[0]), ids(&alone[1]));
    assert!(first.0 != second.0 && first.1 != second.1, "{alone:?}");
    let token = alone[0]["initialClusterToken"].as_str().unwrap();
    let again = restored("c", &places[0], one, Some(token)).ok().json();
    assert_eq!(ids(&again), first, "the token and the URLs make the IDs");

    restored("d", &places[0], &places, None)
        .exits(2)
        .says(&["same --initial-cluster-token"]);
    assert!(!dir.path().join("d").exists());
    let both = ["e", "f"].map(|name| {
        let own = &places[usize::from(name == "f")];
        ids(&restored(name, own, &places, Some(token)).ok().json())
    });
    assert!(both[0].0 == both[1].0 && both[0].1 != both[1].1, "{both:?}");
}

/// A cluster of three, restored with a token.
struct Three {
    dir: tempfile::TempDir,
    minor: Minor,
    places: [Place; 3],
}

impl Three {
    fn data_dir(&self, name: &str, member: usize) -> PathBuf {
        self.dir.path().join(format!("{name}-{member}"))
    }

    fn restore(&self, name: &str, token: &str, members: std::ops::Range<usize>) -> Vec<Etcd> {
        let start = |member: usize| {
            let (data_dir, place) = (self.data_dir(name, member), &self.places[member]);
            restore(self.minor, &data_dir, place, &self.places, Some(token)).ok();
            Etcd::spawn(self.minor, &data_dir, place, &self.places)
        };
        let mut etcds: Vec<_> = members.map(start).collect();
        etcds.iter_mut().for_each(Etcd::wait);
        etcds
    }
}

/// RES-20: a member that comes back with its volume from before the restore stays outside of the restored cluster, and
/// joins it with an empty one.
#[test]
fn res_20_an_old_volume_stays_outside_of_the_restored_cluster() {
    for minor in Minor::ALL {
        let three = Three {
            dir: tempfile::tempdir().unwrap(),
            minor,
            places: ["t1-0", "t1-1", "t1-2"].map(Place::new),
        };
        let mut old = three.restore("old", "test-token", 0..3);
        old[0].put("/before", b"1", 0);
        old.into_iter().for_each(Etcd::stop);

        let mut new = three.restore("new", "another-token", 0..2);
        let own = three.data_dir("old", 2);
        let left_over = Etcd::spawn(minor, &own, &three.places[2], &three.places);
        let log = own.with_extension("log");
        eventually("the old member is turned away", || {
            let log = fs::read_to_string(&log).unwrap();
            log.contains("cluster ID mismatch") || log.contains("cluster-id-mismatch")
        });
        let revision = new[0].put("/after", b"1", 0);
        eventually("both have it", || new[1].hash_kv().1 == revision);
        let (serves, _) = left_over.try_etcdctl(&["get", "/after", "--command-timeout=2s"]);
        assert!(!serves, "{minor}: the old member has joined the restored cluster");
        left_over.stop();

        let listed = new[0].etcdctl(&["member", "list"]);
        let url = three.places[2].peer_url();
        let id = listed.lines().find(|line| line.contains(&url)).unwrap();
        new[0].etcdctl(&["member", "remove", id.split(',').next().unwrap()]);
        eventually("the cluster takes a new member", || {
            new[0]
                .try_etcdctl(&["member", "add", "t1-2", "--peer-urls", &url])
                .0
        });
        let fresh = three.data_dir("fresh", 2);
        let mut joined = Etcd::spawn_joining(minor, &fresh, &three.places[2], &three.places);
        joined.wait();
        assert_eq!(joined.value("/after"), Some(b"1".to_vec()), "{minor}");
        assert_eq!(joined.value("/before"), None, "{minor}");
        assert_eq!(joined.hash_kv(), new[0].hash_kv(), "{minor}");
    }
}
