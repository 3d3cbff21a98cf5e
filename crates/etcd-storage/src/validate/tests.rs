use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{DataDir, Verdict, full, sanity};
use crate::bolt;
use crate::cluster::NewCluster;
use crate::mvcc::{RecordKey, Revision};
use crate::{snap, wal};

const NO_WAIT: Duration = Duration::ZERO;

/// A data dir as etcd leaves it: two records, one member.
fn data_dir(consistent_index: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (snap, wal) = (dir.path().join("member/snap"), dir.path().join("member/wal"));
    fs::create_dir_all(&snap).unwrap();
    fs::create_dir_all(&wal).unwrap();
    let cluster = NewCluster::new("t", [("a", vec!["http://a:1"])]).unwrap();
    let position = wal::create(&wal, &cluster, &cluster.members()[0]).unwrap();
    snap::create(&snap, &cluster, position).unwrap();
    let key = |main, tombstone| {
        RecordKey {
            revision: Revision { main, sub: 0 },
            tombstone,
        }
        .bytes()
    };
    bolt::create(&snap.join("db"), 4096, |writer| {
        writer.bucket(b"key", 0, 100)?;
        writer.put(key(2, false).as_ref(), &[b"\x0a\x01k"])?;
        writer.put(key(3, true).as_ref(), &[b"\x0a\x01k"])?;
        // Pages of their own, so that there is something to damage.
        (4..400).try_for_each(|main| writer.put(key(main, false).as_ref(), &[b"\x0a\x01k"]))?;
        writer.bucket(b"members", 0, 90)?;
        let member = cluster.members()[0].json().unwrap();
        writer.put(b"one", &[&member])?;
        writer.put(b"two", &[br#"{"id":7,"peerURLs":[],"isLearner":true}"#])?;
        writer.bucket(b"meta", 0, 90)?;
        writer.put(b"consistent_index", &[&consistent_index.to_be_bytes()])
    })
    .unwrap();
    dir
}

fn db(dir: &Path) -> PathBuf {
    dir.join("member/snap/db")
}

fn reason(verdict: Verdict) -> String {
    match verdict {
        Verdict::Invalid { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_good_dir_is_valid_and_untouched() {
    let dir = data_dir(1);
    let before = fs::metadata(db(dir.path())).unwrap().modified().unwrap();
    let cluster = NewCluster::new("t", [("a", vec!["http://a:1"])]).unwrap();
    let Verdict::Valid(found) = sanity(dir.path(), NO_WAIT) else {
        panic!()
    };
    assert_eq!((found.revision, found.consistent_index), (399, 1));
    assert_eq!(found.cluster_id, Some(cluster.id()));
    assert_eq!(found.member_id, Some(cluster.members()[0].id()));
    let Verdict::Valid(all) = full(dir.path(), NO_WAIT) else {
        panic!()
    };
    assert_eq!((all.last_log_index, all.commit_index), (Some(1), Some(1)));
    let names = found
        .members
        .iter()
        .map(|member| (member.name.as_str(), member.is_learner));
    assert_eq!(names.collect::<Vec<_>>(), [("a", false), ("", true)]);
    assert_eq!(found.members[0].id, cluster.members()[0].id().0);
    assert_eq!(
        all.db_size_in_use,
        Some(all.db_size - 4096),
        "all but the list of free pages"
    );
    assert_eq!(
        DataDir {
            last_log_index: None,
            commit_index: None,
            db_size_in_use: None,
            ..all
        },
        found
    );
    assert_eq!(fs::metadata(db(dir.path())).unwrap().modified().unwrap(), before);
}

#[test]
fn nothing_there_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(sanity(&dir.path().join("none"), NO_WAIT), Verdict::Missing);
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    assert_eq!(full(dir.path(), NO_WAIT), Verdict::Missing);
    fs::create_dir(dir.path().join("member")).unwrap();
    assert_eq!(full(dir.path(), NO_WAIT), Verdict::Missing);
}

/// What etcd's container can put in the place of a file is neither followed nor waited for, and says nothing about the data.
#[test]
fn links_and_pipes_are_not_read() {
    for part in [
        "member",
        "member/wal",
        "member/wal/0000000000000000-0000000000000000.wal",
        "member/snap",
        "member/snap/0000000000000001-0000000000000001.snap",
        "member/snap/db",
    ] {
        for pipe in [false, true] {
            let dir = data_dir(1);
            let (path, aside) = (dir.path().join(part), dir.path().join("aside"));
            fs::rename(&path, &aside).unwrap();
            if pipe {
                nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
            } else {
                std::os::unix::fs::symlink(&aside, &path).unwrap();
            }
            let verdict = full(dir.path(), NO_WAIT);
            match &verdict {
                Verdict::Unknown { .. } => {}
                Verdict::Invalid { reason } if pipe && reason.contains("is no folder") => {}
                _ => panic!("{part}, {pipe}: {verdict:?}"),
            }
        }
    }
    let (volume, dir) = (tempfile::tempdir().unwrap(), data_dir(1));
    let link = volume.path().join("new.etcd");
    std::os::unix::fs::symlink(dir.path(), &link).unwrap();
    assert!(matches!(sanity(&link, NO_WAIT), Verdict::Unknown { .. }));
}

#[test]
fn missing_parts_are_named() {
    for part in ["member/wal", "member/snap", "member/snap/db"] {
        let dir = data_dir(1);
        let path = dir.path().join(part);
        if path.is_dir() {
            fs::remove_dir_all(&path).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
        assert!(reason(sanity(dir.path(), NO_WAIT)).contains(part));
    }
}

/// A first start that ended before there was a log has lost nothing: that must not count as damage. Without its log,
/// data is damaged.
#[test]
fn a_first_start_that_ended_early_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let snap = dir.path().join("member/snap");
    fs::create_dir_all(&snap).unwrap();
    assert_eq!(sanity(dir.path(), NO_WAIT), Verdict::Unformed, "no database yet");
    bolt::create(&snap.join("db"), 4096, |writer| writer.bucket(b"meta", 0, 90)).unwrap();
    fs::create_dir(dir.path().join("member/wal.tmp")).unwrap();
    assert_eq!(sanity(dir.path(), NO_WAIT), Verdict::Unformed);
    assert_eq!(full(dir.path(), NO_WAIT), Verdict::Unformed);
    let file = File::open(db(dir.path())).unwrap();
    file.lock().unwrap();
    assert_eq!(sanity(dir.path(), NO_WAIT), Verdict::Locked, "etcd is at it");
    file.unlock().unwrap();
    fs::write(snap.join("0000000000000001.snap.db"), "").unwrap();
    assert!(
        reason(full(dir.path(), NO_WAIT)).contains("member/wal"),
        "a snapshot has come"
    );

    for consistent_index in [0, 1] {
        let dir = data_dir(consistent_index);
        fs::remove_dir_all(dir.path().join("member/wal")).unwrap();
        fs::remove_file(
            dir.path()
                .join("member/snap/0000000000000001-0000000000000001.snap"),
        )
        .unwrap();
        assert!(reason(full(dir.path(), NO_WAIT)).contains("member/wal"));
    }
}

#[test]
fn a_dir_in_use_is_locked() {
    let dir = data_dir(1);
    let file = File::open(db(dir.path())).unwrap();
    file.lock().unwrap();
    assert_eq!(sanity(dir.path(), Duration::from_millis(120)), Verdict::Locked);
    assert_eq!(full(dir.path(), NO_WAIT), Verdict::Locked);
    file.unlock().unwrap();
    assert!(matches!(sanity(dir.path(), NO_WAIT), Verdict::Valid(_)));
}

#[test]
fn damage_to_the_database_is_found() {
    let dir = data_dir(1);
    let file = File::options().write(true).open(db(dir.path())).unwrap();
    file.write_all_at(&[0xff; 64], 3 * 4096).unwrap();
    assert!(
        matches!(sanity(dir.path(), NO_WAIT), Verdict::Valid(_)),
        "not looked at"
    );
    assert!(reason(full(dir.path(), NO_WAIT)).contains("page 3"));
    file.set_len(4 * 4096).unwrap();
    assert!(reason(sanity(dir.path(), NO_WAIT)).contains("cut"));
    file.set_len(0).unwrap();
    assert!(reason(sanity(dir.path(), NO_WAIT)).contains("not a usable database"));
}

#[test]
fn damage_to_log_and_snap_is_found() {
    let dir = data_dir(1);
    let log = dir
        .path()
        .join("member/wal/0000000000000000-0000000000000000.wal");
    let file = File::options().write(true).open(&log).unwrap();
    file.write_all_at(b"x", 140).unwrap();
    assert!(
        matches!(sanity(dir.path(), NO_WAIT), Verdict::Valid(_)),
        "not looked at"
    );
    assert!(reason(full(dir.path(), NO_WAIT)).contains("0000000000000000-0000000000000000.wal"));

    let dir = data_dir(1);
    let snap = dir
        .path()
        .join("member/snap/0000000000000001-0000000000000001.snap");
    File::options()
        .write(true)
        .open(&snap)
        .unwrap()
        .write_all_at(b"x", 40)
        .unwrap();
    assert!(reason(full(dir.path(), NO_WAIT)).contains("0000000000000001-0000000000000001.snap"));
}

/// A log that ends before what the database has applied would let etcd give indexes out twice.
#[test]
fn database_and_log_must_belong_together() {
    assert!(reason(full(data_dir(7).path(), NO_WAIT)).contains("write-ahead log ends at 1"));
    assert!(
        matches!(full(data_dir(0).path(), NO_WAIT), Verdict::Valid(_)),
        "an index that was never stored"
    );
}

/// What can't be read is not what is bad: the answer must not lead to a restore.
#[test]
fn what_cannot_be_read_is_unknown() {
    let dir = data_dir(1);
    fs::remove_file(db(dir.path())).unwrap();
    fs::create_dir(db(dir.path())).unwrap();
    assert!(matches!(sanity(dir.path(), NO_WAIT), Verdict::Unknown { .. }));
}
