//! Everything about etcd backups and data directories that needs no running etcd: plain, synchronous code over
//! `Read`, `Write` and files, with memory that does not grow with the data.

pub mod compression;
