//! Writes the log of a member that is about to start for the first time with data: who it is, the members as
//! configuration changes, all committed, and a snapshot after them.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{FallocateFlags, fallocate};
use prost::Message;

use super::{LogPosition, kind};
use crate::cluster::{Member, NewCluster};
use crate::raftpb::{ConfChange, ENTRY_CONF_CHANGE, Entry, HardState, Metadata, Record, WalSnapshot};

/// etcd allocates its log files with so many bytes.
const SEGMENT: i64 = 64_000_000;

/// Term of a cluster's first entries.
const TERM: u64 = 1;

/// Writes the first file of the log in `dir`, which exists. Returns the place of the snapshot.
pub(crate) fn create(dir: &Path, cluster: &NewCluster, member: &Member) -> io::Result<LogPosition> {
    let path = dir.join(format!("{:016x}-{:016x}.wal", 0, 0));
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    let mut log = Log::default();
    let snapshot = log.found(cluster, member)?;
    file.write_all(&log.bytes)?;
    // Only an optimization of etcd's own: a file system that can't do it does without.
    let _ = fallocate(file.as_fd(), FallocateFlags::empty(), 0, SEGMENT);
    file.sync_all()?;
    Ok(snapshot)
}

#[derive(Default)]
struct Log {
    bytes: Vec<u8>,
    crc: u32,
}

impl Log {
    fn found(&mut self, cluster: &NewCluster, member: &Member) -> io::Result<LogPosition> {
        self.record(kind::CRC, None);
        let metadata = Metadata {
            node_id: member.id().0,
            cluster_id: cluster.id().0,
        };
        self.record(kind::METADATA, Some(metadata.encode_to_vec()));
        self.record(kind::SNAPSHOT, Some(WalSnapshot::default().encode_to_vec()));
        let mut index = 0;
        for one in cluster.members() {
            index += 1;
            let change = ConfChange {
                id: 0,
                kind: 0,
                node_id: one.id().0,
                context: Some(one.json()?),
            };
            let data = Some(change.encode_to_vec());
            let entry = Entry {
                kind: ENTRY_CONF_CHANGE,
                term: TERM,
                index,
                data,
            };
            self.record(kind::ENTRY, Some(entry.encode_to_vec()));
        }
        let vote = cluster.members().first().map_or(0, |first| first.id().0);
        let state = HardState {
            term: TERM,
            vote,
            commit: index,
        };
        self.record(kind::STATE, Some(state.encode_to_vec()));
        let snapshot = WalSnapshot {
            index,
            term: TERM,
            conf_state: Some(cluster.conf_state()),
        };
        self.record(kind::SNAPSHOT, Some(snapshot.encode_to_vec()));
        Ok(LogPosition { term: TERM, index })
    }

    fn record(&mut self, kind: i64, data: Option<Vec<u8>>) {
        self.crc = crc32c::crc32c_append(self.crc, data.as_deref().unwrap_or_default());
        let record = Record {
            kind,
            crc: self.crc,
            data,
        }
        .encode_to_vec();
        let padding = record.len().next_multiple_of(8) - record.len();
        let flag = if padding == 0 { 0 } else { 0x80 | padding as u64 };
        self.bytes
            .extend_from_slice(&(record.len() as u64 | flag << 56).to_le_bytes());
        self.bytes.extend_from_slice(&record);
        self.bytes.resize(self.bytes.len() + padding, 0);
    }
}
