//! Everything about etcd backups and data directories that needs no running etcd: plain, synchronous code over
//! `Read`, `Write` and files, with memory that does not grow with the data.

#![allow(dead_code, unused_imports, reason = "restore and compaction use the rest")]

pub mod bolt;
pub mod cluster;
pub mod compression;
pub mod delta;
pub mod full;
pub mod mvcc;
mod raftpb;
pub mod schema;
pub mod snap;
pub mod trailer;
pub mod validate;
pub mod wal;
