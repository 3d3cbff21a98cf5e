//! Everything about etcd backups and data directories that needs no running etcd: plain, synchronous code over
//! `Read`, `Write` and files, with memory that does not grow with the data.

pub mod assemble;
pub mod beneath;
pub mod bolt;
pub mod chain;
pub mod cluster;
pub mod compact;
pub mod compression;
pub mod delta;
pub mod dump;
pub mod full;
pub mod mvcc;
pub mod object;
mod raftpb;
pub mod restore;
pub mod schema;
pub mod snap;
mod survivors;
pub mod trailer;
pub mod validate;
pub mod verify;
pub mod wal;
