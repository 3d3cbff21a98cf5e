use std::fs;
use std::path::Path;

use super::{Error, LogPosition, create, read};
use crate::beneath::Beneath;
use crate::cluster::NewCluster;

fn three() -> NewCluster {
    let url = |port: u16| vec![format!("http://127.0.0.1:{port}")];
    NewCluster::new(
        "etcd-cluster",
        [("n0", url(2380)), ("n1", url(2381)), ("n2", url(2382))],
    )
    .unwrap()
}

fn file(dir: &Path) -> std::path::PathBuf {
    dir.join("0000000000000000-0000000000000000.wal")
}

#[test]
fn a_new_log_reads_as_written() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = three();
    let member = cluster.member("n1").unwrap();
    let snapshot = create(dir.path(), &cluster, member).unwrap();
    assert_eq!(snapshot, LogPosition { term: 1, index: 3 });
    let contents = read(&Beneath::of(dir.path())).unwrap();
    assert_eq!(contents.member_id, Some(member.id()));
    assert_eq!(contents.cluster_id, Some(cluster.id()));
    assert_eq!(
        (contents.last_index, contents.last_term, contents.commit),
        (3, 1, 3)
    );
    assert_eq!(contents.snapshots, [LogPosition::default(), snapshot]);
    assert!(!contents.torn_tail);
}

/// Where the records of the log end and the zeros begin.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1
}

#[test]
fn altered_records_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = three();
    create(dir.path(), &cluster, cluster.member("n0").unwrap()).unwrap();
    let good = fs::read(file(dir.path())).unwrap();
    let good = &good[..used(&good).next_multiple_of(8)];
    let whole = read(&Beneath::of(dir.path())).unwrap();
    for at in 24..good.len() {
        let mut bad = good.to_vec();
        bad[at] ^= 0x40;
        fs::write(file(dir.path()), &bad).unwrap();
        // A bit in the padding means nothing; a longer frame at the end looks like a torn write.
        match read(&Beneath::of(dir.path())) {
            Err(Error::Damaged { .. }) => {}
            Ok(contents) => assert!(contents.torn_tail || contents == whole, "byte {at}: {contents:?}"),
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
}

/// A crash leaves a record half written; etcd drops it, and so it is no damage.
#[test]
fn a_torn_tail_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = three();
    create(dir.path(), &cluster, cluster.member("n0").unwrap()).unwrap();
    let good = fs::read(file(dir.path())).unwrap();
    let keep = used(&good) - 20;
    fs::write(file(dir.path()), &good[..keep]).unwrap();
    let contents = read(&Beneath::of(dir.path())).unwrap();
    assert!(contents.torn_tail);
    assert_eq!(contents.commit, 3);
    assert_eq!(contents.snapshots, [LogPosition::default()]);
    fs::write(dir.path().join("0000000000000001-0000000000000004.wal"), &good).unwrap();
    assert!(
        matches!(read(&Beneath::of(dir.path())), Err(Error::Damaged { .. })),
        "but only at the very end"
    );
}

#[test]
fn missing_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(read(&Beneath::of(dir.path())), Err(Error::Empty)));
    let cluster = three();
    create(dir.path(), &cluster, cluster.member("n0").unwrap()).unwrap();
    fs::copy(
        file(dir.path()),
        dir.path().join("0000000000000002-0000000000000004.wal"),
    )
    .unwrap();
    let error = read(&Beneath::of(dir.path())).unwrap_err();
    assert!(
        matches!(&error, Error::Gap(name) if name == "0000000000000001-*.wal"),
        "{error}"
    );
}
