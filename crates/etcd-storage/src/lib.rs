//! Everything about etcd backups and data directories that needs no running etcd: plain, synchronous code over
//! `Read`, `Write` and files, with memory that does not grow with the data.

pub mod bolt;
pub mod compression;
pub mod delta;
pub mod full;
pub mod mvcc;
pub mod trailer;
