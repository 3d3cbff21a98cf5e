//! The few protobuf messages of etcd's raft log, WAL, `.snap` files and leases. Fields that etcd always writes,
//! even when zero, are `required` here.

use prost::Message;

/// `walpb.Record`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Record {
    #[prost(int64, required, tag = "1")]
    pub(crate) kind: i64,
    #[prost(uint32, required, tag = "2")]
    pub(crate) crc: u32,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub(crate) data: Option<Vec<u8>>,
}

/// `walpb.Snapshot`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WalSnapshot {
    #[prost(uint64, required, tag = "1")]
    pub(crate) index: u64,
    #[prost(uint64, required, tag = "2")]
    pub(crate) term: u64,
    #[prost(message, optional, tag = "3")]
    pub(crate) conf_state: Option<ConfState>,
}

/// `etcdserverpb.Metadata`
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Metadata {
    #[prost(uint64, required, tag = "1")]
    pub(crate) node_id: u64,
    #[prost(uint64, required, tag = "2")]
    pub(crate) cluster_id: u64,
}

/// `raftpb.Entry`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    #[prost(int32, required, tag = "1")]
    pub(crate) kind: i32,
    #[prost(uint64, required, tag = "2")]
    pub(crate) term: u64,
    #[prost(uint64, required, tag = "3")]
    pub(crate) index: u64,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(crate) data: Option<Vec<u8>>,
}

/// `raftpb.EntryConfChange`
pub(crate) const ENTRY_CONF_CHANGE: i32 = 1;

/// `raftpb.ConfChange`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConfChange {
    #[prost(uint64, required, tag = "1")]
    pub(crate) id: u64,
    /// 0 is `ConfChangeAddNode`.
    #[prost(int32, required, tag = "2")]
    pub(crate) kind: i32,
    #[prost(uint64, required, tag = "3")]
    pub(crate) node_id: u64,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(crate) context: Option<Vec<u8>>,
}

/// `raftpb.HardState`
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct HardState {
    #[prost(uint64, required, tag = "1")]
    pub(crate) term: u64,
    #[prost(uint64, required, tag = "2")]
    pub(crate) vote: u64,
    #[prost(uint64, required, tag = "3")]
    pub(crate) commit: u64,
}

/// `raftpb.ConfState`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConfState {
    #[prost(uint64, repeated, packed = "false", tag = "1")]
    pub(crate) voters: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub(crate) learners: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub(crate) voters_outgoing: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "4")]
    pub(crate) learners_next: Vec<u64>,
    #[prost(bool, required, tag = "5")]
    pub(crate) auto_leave: bool,
}

/// `raftpb.SnapshotMetadata`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SnapshotMetadata {
    #[prost(message, required, tag = "1")]
    pub(crate) conf_state: ConfState,
    #[prost(uint64, required, tag = "2")]
    pub(crate) index: u64,
    #[prost(uint64, required, tag = "3")]
    pub(crate) term: u64,
}

/// `raftpb.Snapshot`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Snapshot {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub(crate) data: Option<Vec<u8>>,
    #[prost(message, required, tag = "2")]
    pub(crate) metadata: SnapshotMetadata,
}

/// `snappb.Snapshot`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SnapFile {
    #[prost(uint32, required, tag = "1")]
    pub(crate) crc: u32,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(crate) data: Option<Vec<u8>>,
}

/// `leasepb.Lease`
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Lease {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
    #[prost(int64, tag = "2")]
    pub(crate) ttl: i64,
    #[prost(int64, tag = "3")]
    pub(crate) remaining_ttl: i64,
}
