//! Where the backups of an etcd cluster lie, and what becomes of them: names and layout of etcd-backup-restore, one
//! contract for local folders and object stores, retention and copying.
//!
//! Nothing here knows what is inside a snapshot, apart from the checksum that ends it.

mod azure;
mod blocking;
mod body;
pub mod chain;
mod config;
pub mod copy;
mod credentials;
mod document;
mod error;
mod explanation;
mod failure;
mod gcs;
mod listing;
mod local;
pub mod manifest;
pub mod name;
mod pages;
mod rate;
mod reload;
mod request;
pub mod retention;
mod s3;
mod store;
mod swift;
mod transport;
mod upload;
mod wire;

pub use etcd_storage::compression::Compression;

pub use crate::{
    body::{Body, ByteStream},
    config::{Environment, Provider, Role, StoreConfig},
    error::{Class, Error, Result},
    listing::{Chunk, Layout, Listing, Object, Orphan, StoredSnapshot, Unparsable},
    local::LocalStore,
    name::{Kind, SnapshotName},
    rate::MinimumRate,
    store::{Immutability, SnapStore},
    transport::Retry,
};
