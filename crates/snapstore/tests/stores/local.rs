//! The contract on folders, and what only folders can do wrong.

use snapstore::{Class, Provider, StoreConfig};
use tempfile::TempDir;

fn config() -> (TempDir, StoreConfig) {
    let folder = tempfile::tempdir().unwrap();
    let config = StoreConfig::new(Provider::Local, folder.path().to_str().unwrap(), "ns/etcd");
    (folder, config)
}

contract!(config());

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
