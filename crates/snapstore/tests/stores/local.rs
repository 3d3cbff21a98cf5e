//! The contract on folders, and what only folders can do wrong.

use std::sync::Arc;

use snapstore::{Class, Provider, SnapStore, StoreConfig};
use tempfile::TempDir;

use crate::contract;

fn store() -> (TempDir, Arc<dyn SnapStore>) {
    let folder = tempfile::tempdir().unwrap();
    let store = StoreConfig::new(Provider::Local, folder.path().to_str().unwrap(), "ns/etcd")
        .open()
        .unwrap();
    (folder, store)
}

macro_rules! contract {
    ($($name:ident),*) => {$(
        #[tokio::test]
        async fn $name() {
            let (_folder, store) = store();
            contract::$name(&*store).await;
        }
    )*};
}

contract!(
    keeps_what_is_put,
    never_overwrites,
    deletes,
    reads_ranges,
    failed_uploads_leave_nothing
);

/// A missing mount must not look like a cluster without backups.
#[tokio::test]
async fn missing_container_is_no_empty_store() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let store = StoreConfig::new(Provider::Local, missing.to_str().unwrap(), "")
        .open()
        .unwrap();
    assert_eq!(store.list().await.unwrap_err().class(), Class::BucketNotFound);
}
