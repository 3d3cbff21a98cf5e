//! Which store, and how it is opened. Where credentials come from is the provider's matter; where the bucket and the
//! prefix come from is decided here.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use crate::{
    azure::AzureStore,
    error::{Class, Error, Result},
    gcs::GcsStore,
    local::LocalStore,
    manifest::{Attesting, Keyring, Signing},
    s3::{self, S3Store},
    store::SnapStore,
    swift::SwiftStore,
    transport::Retry,
};

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Provider {
    Local,
    S3,
    Gcs,
    Azure,
    Swift,
    Oss,
    /// Dell EMC ECS, by its S3 API.
    Ecs,
    /// OpenShift Container Storage, by its S3 API.
    Ocs,
}

impl Provider {
    /// The name that etcd-backup-restore uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "Local",
            Self::S3 => "S3",
            Self::Gcs => "GCS",
            Self::Azure => "ABS",
            Self::Swift => "Swift",
            Self::Oss => "OSS",
            Self::Ecs => "ECS",
            Self::Ocs => "OCS",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Provider {
    type Err = Error;

    /// Accepts the names of etcd-backup-restore and the infrastructure names of `spec.backup.store.provider`.
    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "Local" | "local" => Self::Local,
            "S3" | "s3" | "aws" | "stackit" => Self::S3,
            "GCS" | "gcs" | "gcp" => Self::Gcs,
            "ABS" | "abs" | "azure" => Self::Azure,
            "Swift" | "swift" | "openstack" => Self::Swift,
            "OSS" | "oss" | "alicloud" => Self::Oss,
            "ECS" | "ecs" | "dell" => Self::Ecs,
            "OCS" | "ocs" | "openshift" => Self::Ocs,
            _ => return Err(invalid(format!("unsupported storage provider {text:?}"))),
        })
    }
}

/// Which of a process's stores this is. Decides the prefix of the environment variables that name its credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Role {
    #[default]
    Primary,
    /// Where a copy reads from.
    Source,
    /// Where a second copy of the backups is kept.
    Secondary,
}

impl Role {
    pub fn env_prefix(self) -> &'static str {
        match self {
            Self::Primary => "",
            Self::Source => "SOURCE_",
            Self::Secondary => "SECONDARY_",
        }
    }
}

/// Environment variables, as the process has them or as a test says.
#[derive(Clone)]
pub struct Environment(Arc<BTreeMap<String, String>>);

impl Environment {
    pub fn of_process() -> Self {
        let text = |os: std::ffi::OsString| os.into_string().ok();
        Self(Arc::new(
            std::env::vars_os()
                .filter_map(|(k, v)| Some((text(k)?, text(v)?)))
                .collect(),
        ))
    }

    /// The value of a variable; an empty one counts as absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        Self(Arc::new(
            variables.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
        ))
    }
}

/// Values may be secret.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Environment({} variables)", self.0.len())
    }
}

/// A store to open.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    pub provider: Provider,
    /// Bucket, container or folder; empty: from the environment's `STORAGE_CONTAINER`.
    pub container: String,
    /// Folder within the container; may be empty. Snapshots lie below its `v2/`.
    pub prefix: String,
    /// Instead of the provider's own address.
    pub endpoint: Option<String>,
    pub role: Role,
    /// Lets plain http be spoken with the store: what is sent can be read and changed on the way.
    pub allow_http: bool,
    pub retry: Retry,
    pub environment: Environment,
}

impl StoreConfig {
    pub fn new(provider: Provider, container: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self {
            provider,
            container: container.into(),
            prefix: prefix.into(),
            endpoint: None,
            role: Role::Primary,
            allow_http: false,
            retry: Retry::default(),
            environment: Environment::of_process(),
        }
    }

    /// The store, whose snapshots get manifests. Like [`open`](Self::open) it doesn't talk to it.
    pub fn open_attesting(&self, signing: &Signing) -> Result<Arc<dyn SnapStore>> {
        let keys = Keyring::open(signing)?;
        Ok(Arc::new(Attesting::new(self.open()?, keys)))
    }

    /// Reads the credentials and makes the store. Doesn't talk to it.
    pub fn open(&self) -> Result<Arc<dyn SnapStore>> {
        Ok(match self.provider {
            Provider::Local => Arc::new(LocalStore::open(self)?),
            Provider::S3 => Arc::new(S3Store::open(self, s3::Flavor::Aws)?),
            Provider::Oss => Arc::new(S3Store::open(self, s3::Flavor::Oss)?),
            Provider::Ecs => Arc::new(S3Store::open(self, s3::Flavor::Ecs)?),
            Provider::Ocs => Arc::new(S3Store::open(self, s3::Flavor::Ocs)?),
            Provider::Gcs => Arc::new(GcsStore::open(self)?),
            Provider::Azure => Arc::new(AzureStore::open(self)?),
            Provider::Swift => Arc::new(SwiftStore::open(self)?),
        })
    }

    /// A variable of this store: its name begins with the role's prefix.
    pub(crate) fn env(&self, name: &str) -> Option<&str> {
        self.environment.get(&format!("{}{name}", self.role.env_prefix()))
    }

    /// Plain http must be allowed.
    pub(crate) fn check_scheme(&self, endpoint: &str) -> Result<()> {
        match endpoint.split_once("://") {
            Some(("http", _)) if !self.allow_http => Err(invalid(
                "the endpoint is plain http, which needs to be allowed explicitly: --allow-http, or in an Etcd an endpointOverride that begins with http://",
            )),
            Some(("http" | "https", _)) => Ok(()),
            _ => Err(invalid("the endpoint is no http or https URL")),
        }
    }

    pub(crate) fn container(&self) -> Result<&str> {
        Some(self.container.as_str())
            .filter(|container| !container.is_empty())
            .or_else(|| self.env("STORAGE_CONTAINER"))
            .ok_or_else(|| {
                let variable = format!("{}STORAGE_CONTAINER", self.role.env_prefix());
                invalid(format!("no container: set one or the variable {variable}"))
            })
    }

    /// The prefix as it begins keys: empty or without leading and with one trailing slash.
    pub(crate) fn key_prefix(&self) -> Result<String> {
        if self.prefix.starts_with('/') {
            // Keys below it would begin with a slash; cutting it off would look into another place.
            return Err(invalid(format!(
                "store prefix {:?} begins with a slash",
                self.prefix
            )));
        }
        let parts: Vec<_> = self.prefix.split('/').filter(|part| !part.is_empty()).collect();
        if parts.iter().any(|part| matches!(*part, "." | "..")) {
            return Err(invalid(format!(
                "store prefix {:?} holds a relative part",
                self.prefix
            )));
        }
        Ok(parts.iter().flat_map(|part| [*part, "/"]).collect())
    }
}

pub(crate) fn invalid(detail: impl Into<String>) -> Error {
    Error::new(Class::InvalidConfig, "open the store", detail)
}
