//! The stores that backups go to.

use std::{fs, net::SocketAddr, path::PathBuf};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Map, Value, json};
use snapstore::{Environment, Listing, Provider, StoreConfig};

use crate::Lab;

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// A folder of the node.
    Local,
    /// The S3 server that `stores.sh up s3` started.
    S3,
}

/// Where the scripts of the dev cluster keep what belongs to it.
fn state() -> PathBuf {
    std::env::var_os("DRUID_DEV_STATE").map_or_else(|| "/var/lib/druid-dev".into(), PathBuf::from)
}

/// The S3 server that `e2e/cluster/stores.sh up s3` has started: what is known of it, one file each.
#[derive(Debug)]
pub struct S3(PathBuf);

impl S3 {
    /// The one that runs.
    pub fn running() -> Self {
        Self(state().join("stores/s3"))
    }

    /// What is known of it under a name.
    pub fn file(&self, name: &str) -> anyhow::Result<String> {
        read(&self.0.join(name))
    }

    /// Where it listens.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        let endpoint = self.file("endpoint")?;
        let address = endpoint.strip_prefix("http://").context("plain http")?;
        Ok(address.parse()?)
    }

    /// Folder of the credentials.
    pub fn secret(&self) -> PathBuf {
        self.0.join("secret")
    }
}

fn read(path: &PathBuf) -> anyhow::Result<String> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("read {}: start the store first", path.display()))?;
    Ok(text.trim().to_owned())
}

impl Lab {
    /// Makes the Secret, and returns what goes under `spec.backup` to use the store.
    pub async fn backup(&self, store: Store) -> anyhow::Result<Value> {
        let spec = match store {
            Store::Local => {
                self.secret(json!({"hostPath": self.local_folder()})).await?;
                json!({"provider": "Local", "container": "bkp", "prefix": self.prefix(), "secretRef": {"name": "backup"}})
            }
            Store::S3 => {
                let server = S3::running();
                let mut data = Map::new();
                for entry in
                    fs::read_dir(server.secret()).context("start the store first: stores.sh up s3")?
                {
                    let path = entry?.path();
                    let key = path
                        .file_name()
                        .unwrap_or_default()
                        .to_string_lossy()
                        .into_owned();
                    data.insert(key, Value::from(read(&path)?));
                }
                self.secret(Value::Object(data)).await?;
                json!({
                    "provider": "S3",
                    "container": server.file("bucket")?,
                    "prefix": self.prefix(),
                    "endpointOverride": server.file("endpoint")?,
                    "secretRef": {"name": "backup"},
                })
            }
        };
        Ok(json!({"store": spec, "deltaSnapshotPeriod": "2s", "garbageCollectionPeriod": "1m"}))
    }

    fn prefix(&self) -> String {
        format!("{}/backups", self.namespace)
    }

    fn local_folder(&self) -> String {
        state()
            .join("local")
            .join(&self.namespace)
            .to_string_lossy()
            .into_owned()
    }

    async fn secret(&self, data: Value) -> anyhow::Result<()> {
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "backup"}, "stringData": data});
        self.apply::<Secret>(&secret).await?;
        Ok(())
    }

    /// What lies in the store.
    pub async fn stored(&self, store: Store) -> anyhow::Result<Listing> {
        let config = match store {
            Store::Local => {
                let container = format!("{}/bkp", self.local_folder());
                StoreConfig::new(Provider::Local, container, self.prefix())
            }
            Store::S3 => {
                let server = S3::running();
                let mut config = StoreConfig::new(Provider::S3, server.file("bucket")?, self.prefix());
                config.endpoint = Some(server.file("endpoint")?);
                config.allow_http = true;
                let credentials = server.secret().to_string_lossy().into_owned();
                config.environment = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", credentials)]);
                config
            }
        };
        Ok(config.open()?.list().await?)
    }
}
