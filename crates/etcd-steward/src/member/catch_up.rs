//! How far a member that joins has come. etcd answers nobody before it has most of the data, so until then what has
//! arrived on the disk tells.

use std::{io, path::Path};

use etcd_storage::beneath::Beneath;

use super::lag::Newest;

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CatchUp {
    /// Raft entries that it lacks.
    pub(super) behind: u64,
    /// Share of the way; 100 is for a member that votes.
    pub(super) percent: i32,
    /// For people.
    pub(super) message: String,
}

/// By the files of an etcd that doesn't answer yet. It has applied nothing that it would tell of.
pub(super) fn on_disk(data_dir: &Path, newest: Newest) -> CatchUp {
    let received = received(data_dir).unwrap_or(0).min(newest.db_size);
    let message = if newest.index == 0 {
        "learner, catching up: no other member answers".to_owned()
    } else {
        format!(
            "learner, catching up: {} entries behind, {} of {} MiB received",
            newest.index,
            mebibytes(received),
            mebibytes(newest.db_size)
        )
    };
    CatchUp {
        behind: newest.index,
        percent: percent(received, newest.db_size),
        message,
    }
}

/// By what etcd says itself.
pub(super) fn applied(applied: u64, behind: u64) -> CatchUp {
    CatchUp {
        behind,
        percent: percent(applied, applied + behind),
        message: format!("learner, catching up: {behind} entries behind"),
    }
}

/// Bytes of the leader's database that have arrived: a snapshot of it under a name of its own while it arrives, then one
/// that says up to which entry it is; or the own database, that grows when entries are sent instead.
fn received(data_dir: &Path) -> io::Result<u64> {
    let mut most = 0;
    let folder = Beneath::of(data_dir).join("member/snap");
    for file in folder.names()? {
        let name = file.to_string_lossy();
        if name == "db" || name.starts_with("tmp") || name.ends_with(".snap.db") {
            // It may just have been renamed.
            most = most.max(folder.join(&file).size().unwrap_or(0));
        }
    }
    Ok(most)
}

fn percent(done: u64, of: u64) -> i32 {
    let percent = (u128::from(done) * 100).checked_div(u128::from(of)).unwrap_or(0);
    i32::try_from(percent).map_or(99, |percent| percent.min(99))
}

fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn newest(index: u64, db_size: u64) -> Newest {
        Newest { index, db_size }
    }

    /// The share grows with what arrives, whichever way it does.
    #[test]
    fn what_has_arrived_counts() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(on_disk(dir.path(), newest(7, 100)).percent, 0);
        let snap = dir.path().join("member/snap");
        fs::create_dir_all(&snap).unwrap();
        let mut shares = Vec::new();
        for (name, size) in [
            ("db", 20),
            ("tmp123", 10),
            ("tmp123", 50),
            ("0000000000000008.snap.db", 100),
        ] {
            fs::write(snap.join(name), vec![0; size]).unwrap();
            shares.push(on_disk(dir.path(), newest(7, 100)).percent);
        }
        assert_eq!(shares, [20, 20, 50, 99]);
        let told = on_disk(dir.path(), newest(7, 3 << 20));
        assert_eq!(
            (told.behind, told.message.contains("7 entries behind")),
            (7, true)
        );
        assert!(
            on_disk(dir.path(), newest(0, 0))
                .message
                .contains("no other member")
        );
    }

    #[test]
    fn a_learner_that_answers_counts_entries() {
        assert_eq!(applied(30, 70).percent, 30);
        assert_eq!(applied(0, 0).percent, 0);
        assert_eq!(applied(u64::MAX / 2, 0).percent, 99);
    }
}
