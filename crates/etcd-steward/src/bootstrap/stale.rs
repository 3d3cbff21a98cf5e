//! Data that is in order and still not the newest that its member has had: a volume that was put back to an earlier state. Raft
//! has no way to go on from it. The leader goes by what the member has acknowledged and holds no more, so that etcd ends with a
//! panic soon after each start. Nor does the data say so itself: it has to be compared with what the others have.

use etcd_client::StatusResponse;
use etcd_storage::validate::{self, DataDir, Verdict};
use nix::sys::statvfs::statvfs;
use tracing::warn;

use super::{
    decision::Data,
    evidence::{LOCK_DEADLINE, Scene},
    membership,
    peers::Cluster,
};

/// An etcd that ends with a panic so many times in a row, each time soon after its start, is compared with the others.
const PANICS: u32 = 2;
/// What a new member needs beside its database: two files of the write-ahead log.
const LOG_BYTES: u64 = 2 * (64 << 20);

/// How a member's log compares with what a quorum of the others has committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    /// It lacks committed entries, as the log of every member does that was down for a while.
    Behind,
    /// It has what they have.
    Current,
    /// It holds entries as committed that they don't have.
    Ahead,
}

/// Raft indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Positions {
    /// The last entry in the member's log.
    log_end: u64,
    /// The last one that it knows to be committed.
    committed: u64,
    /// The last one that a quorum of the others has committed.
    others: u64,
}

impl Positions {
    /// A cluster never loses what is committed: a member that knows more of it than a quorum of the others proves that they
    /// have lost it.
    fn compare(self) -> Comparison {
        if self.committed > self.others {
            Comparison::Ahead
        } else if self.log_end < self.others {
            Comparison::Behind
        } else {
            Comparison::Current
        }
    }
}

impl Scene {
    /// Compares data that is in order with what its member has stored, and, after panics, with what the others have. `cluster`
    /// is the data's, lists the member, and has a quorum.
    pub(super) async fn compare(
        &self,
        found: &DataDir,
        panics: u32,
        cluster: Option<&mut Cluster>,
        notes: &mut Vec<String>,
    ) -> Data {
        match (self.lacks_what_was_stored(found, notes).await, cluster) {
            (true, Some(cluster)) => self.compare_stale(cluster, notes).await,
            (true, None) => Data::Stale,
            (false, Some(cluster)) => self.compare_after_panics(found, panics, cluster, notes).await,
            (false, None) => Data::Valid,
        }
    }

    /// Whether the log ends before an index that this member has stored, by its heartbeats.
    async fn lacks_what_was_stored(&self, found: &DataDir, notes: &mut Vec<String>) -> bool {
        let Some(kubernetes) = &self.kubernetes else {
            return false;
        };
        let Some(stored) = kubernetes
            .stored_index()
            .await
            .filter(|stored| stored.is_of(found))
        else {
            return false;
        };
        if stored.index <= found.consistent_index {
            return false;
        }
        let Some(log_end) = self.log_end(found).await else {
            return false;
        };
        if log_end < stored.index {
            notes.push(format!(
                "the log on the volume ends at raft index {log_end}, and this member had stored {} by its Lease",
                stored.index
            ));
        }
        log_end < stored.index
    }

    /// Where the log ends. A check after an end in order hasn't read that far.
    async fn log_end(&self, found: &DataDir) -> Option<u64> {
        if found.last_log_index.is_some() {
            return found.last_log_index;
        }
        let dir = self.data_dir.clone();
        let read = tokio::task::spawn_blocking(move || validate::full(&dir, LOCK_DEADLINE)).await;
        match read {
            Ok(Verdict::Valid(found)) => found.last_log_index,
            read => {
                warn!(?read, "failed to find the end of the log");
                None
            }
        }
    }

    /// What data is that lacks what the member had stored: with a quorum of the others it can be given up.
    async fn compare_stale(&self, cluster: &mut Cluster, notes: &mut Vec<String>) -> Data {
        if let Err(why) = membership::confirm_quorum(self, cluster).await {
            notes.push(why);
            return Data::Stale;
        }
        let others = membership::statuses_of_others(self, cluster).await;
        if self.has_room(&others, notes) {
            Data::Behind
        } else {
            Data::Stale
        }
    }

    /// What the data of a member is whose etcd has ended with a panic, `panics` times in a row.
    async fn compare_after_panics(
        &self,
        found: &DataDir,
        panics: u32,
        cluster: &mut Cluster,
        notes: &mut Vec<String>,
    ) -> Data {
        let (Some(log_end), Some(committed)) = (found.last_log_index, found.commit_index) else {
            return Data::Valid;
        };
        // With good data a start needs nobody, and waits for nobody.
        if panics < PANICS {
            return Data::Valid;
        }
        if let Err(why) = membership::confirm_quorum(self, cluster).await {
            notes.push(why);
            return Data::Valid;
        }
        let others = membership::statuses_of_others(self, cluster).await;
        // A follower may not know yet of all that is committed.
        let leads = |status: &&StatusResponse| {
            let header = status.header();
            header.is_some_and(|header| header.member_id() == status.leader())
        };
        let Some(newest) = others.iter().find(leads).map(StatusResponse::raft_index) else {
            notes.push("the leader doesn't say how much is committed".to_owned());
            return Data::Valid;
        };
        let positions = Positions {
            log_end,
            committed,
            others: newest,
        };
        notes.push(format!(
            "etcd has panicked {panics} times in a row on a log that ends at raft index {log_end} and is committed up to \
             {committed}; {} is at {newest}",
            cluster.display()
        ));
        match positions.compare() {
            Comparison::Ahead => Data::Ahead,
            Comparison::Behind if self.has_room(&others, notes) => Data::Behind,
            Comparison::Behind | Comparison::Current => Data::Valid,
        }
    }

    /// A disk that is full makes etcd end as well. Without room for another copy the data stays what it is.
    fn has_room(&self, others: &[StatusResponse], notes: &mut Vec<String>) -> bool {
        let size = others.iter().map(StatusResponse::db_size).max().unwrap_or(0);
        let needed = u64::try_from(size).unwrap_or(0) + LOG_BYTES;
        let free = match statvfs(&self.volume) {
            Ok(found) => found.blocks_available().saturating_mul(found.fragment_size()),
            Err(error) => {
                warn!(%error, "failed to look for room on the volume");
                0
            }
        };
        if free < needed {
            notes.push(format!(
                "the volume has {} MiB left, and {} are needed to join anew beside the old data",
                free >> 20,
                needed >> 20
            ));
        }
        free >= needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_committed_can_contradict() {
        for ((log_end, committed, others), expected) in [
            ((900, 890, 1900), Comparison::Behind),
            ((900, 900, 900), Comparison::Current),
            // Entries that were never committed, of a leader that lost its office.
            ((1905, 1900, 1900), Comparison::Current),
            ((1905, 1900, 2000), Comparison::Behind),
            ((1900, 1900, 900), Comparison::Ahead),
            ((1900, 901, 900), Comparison::Ahead),
        ] {
            let positions = Positions {
                log_end,
                committed,
                others,
            };
            assert_eq!(positions.compare(), expected, "{positions:?}");
        }
    }
}
