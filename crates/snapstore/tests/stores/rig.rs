//! Real servers, and stores with a prefix of their own on them. `e2e/cluster/stores.sh up s3 gcs azurite` and
//! `tests/stores/swift-server.sh up` start them.

use std::{collections::BTreeMap, fs, path::PathBuf};

use snapstore::{Environment, Provider, StoreConfig};
use tempfile::TempDir;

/// What is known of one server.
pub(crate) struct Rig {
    pub(crate) dir: PathBuf,
    provider: Provider,
    variable: &'static str,
    /// The variable's value, below `dir`.
    secret: &'static str,
}

impl Rig {
    pub(crate) fn s3() -> Self {
        Self::new("s3", Provider::S3, "AWS_APPLICATION_CREDENTIALS", "secret")
    }

    /// The key in the secret is made up: the server is spoken to in plain http, and gets no token.
    pub(crate) fn gcs() -> Self {
        Self::new(
            "gcs",
            Provider::Gcs,
            "GOOGLE_APPLICATION_CREDENTIALS",
            "secret/serviceaccount.json",
        )
    }

    pub(crate) fn azure() -> Self {
        Self::new(
            "azurite",
            Provider::Azure,
            "AZURE_APPLICATION_CREDENTIALS",
            "secret",
        )
    }

    pub(crate) fn swift() -> Self {
        Self::new(
            "swift",
            Provider::Swift,
            "OPENSTACK_APPLICATION_CREDENTIALS",
            "secret",
        )
    }

    fn new(name: &str, provider: Provider, variable: &'static str, secret: &'static str) -> Self {
        let state = std::env::var("DRUID_DEV_STATE").unwrap_or_else(|_| "/var/lib/druid-dev".to_owned());
        let dir = PathBuf::from(state).join("stores").join(name);
        assert!(
            dir.is_dir(),
            "no {name} server in {}: start it, see this file",
            dir.display()
        );
        Self {
            dir,
            provider,
            variable,
            secret,
        }
    }

    pub(crate) fn file(&self, name: &str) -> String {
        fs::read_to_string(self.dir.join(name)).unwrap().trim().to_owned()
    }

    pub(crate) fn config(&self) -> StoreConfig {
        self.config_in("bucket")
    }

    /// With credentials that a test may change: a copy of the folder that they are in.
    pub(crate) fn config_with_own_secret(&self) -> (TempDir, StoreConfig) {
        let folder = tempfile::tempdir().unwrap();
        for file in fs::read_dir(self.dir.join(self.secret)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        let variable = [(self.variable, folder.path().to_str().unwrap())];
        let config = StoreConfig {
            environment: Environment::from_iter(variable),
            ..self.config()
        };
        (folder, config)
    }

    /// For the bucket whose name is in the file `bucket`.
    pub(crate) fn config_in(&self, bucket: &str) -> StoreConfig {
        let prefix = format!("test/{:032x}/etcd-main", rand::random::<u128>());
        let secret = self.dir.join(self.secret).to_str().unwrap().to_owned();
        StoreConfig {
            endpoint: Some(self.file("endpoint")),
            allow_http: true,
            environment: Environment::from_iter(BTreeMap::from([(self.variable, secret)])),
            ..StoreConfig::new(self.provider, self.file(bucket), prefix)
        }
    }
}
