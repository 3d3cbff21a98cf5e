//! The flags that name a store. Credentials come from files that the environment names, never from flags.

use std::{path::PathBuf, sync::Arc};

use snapstore::{
    Provider, Role, SnapStore, StoreConfig,
    manifest::{Signatures, Signing},
};

use super::error::CliError;

/// The store to work on.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct StoreArgs {
    /// Local, S3, GCS, ABS, OSS, Swift, ECS or OCS. Required, unless a file is named instead.
    #[arg(long = "store-provider", value_name = "PROVIDER")]
    provider: Option<Provider>,
    /// Bucket or container; for Local a folder, absolute or below $HOME. By default $STORAGE_CONTAINER.
    #[arg(
        long = "store-container",
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    container: String,
    /// Folder within the container. If it is empty, v2/ lies directly in the container.
    #[arg(
        long = "store-prefix",
        value_name = "PREFIX",
        default_value = "",
        hide_default_value = true
    )]
    prefix: String,
    /// Address of the store, if it isn't the provider's own.
    #[arg(long = "store-endpoint", value_name = "URL")]
    endpoint: Option<String>,
    /// Allow plain http. What is sent can be read and changed on the way.
    #[arg(long)]
    allow_http: bool,
    #[command(flatten)]
    signing: SigningArgs,
}

/// Who vouches for snapshots.
#[derive(Debug, Clone, clap::Args)]
struct SigningArgs {
    /// Folder of the keys that snapshots are signed with, one file each; the last one by name signs.
    #[arg(long, value_name = "FOLDER", env = "SNAPSHOT_SIGNING_KEYS")]
    signing_keys: Option<PathBuf>,
    /// Required uses signed snapshots only, IfPresent refuses wrong signatures only, Ignore looks at none. By default
    /// Required with keys, IfPresent without.
    #[arg(long, value_name = "WHICH", env = "SNAPSHOT_SIGNATURES")]
    signatures: Option<Signatures>,
}

impl SigningArgs {
    fn signing(&self) -> Signing {
        Signing {
            keys: self.signing_keys.clone(),
            signatures: self.signatures,
        }
    }
}

/// The store that is copied from.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct SourceArgs {
    /// Local, S3, GCS, ABS, OSS, Swift, ECS or OCS.
    #[arg(id = "source-store-provider", long, value_name = "PROVIDER")]
    provider: Provider,
    /// Bucket or container. By default $SOURCE_STORAGE_CONTAINER.
    #[arg(
        id = "source-store-container",
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    container: String,
    /// Folder within the container.
    #[arg(
        id = "source-store-prefix",
        long,
        value_name = "PREFIX",
        default_value = "",
        hide_default_value = true
    )]
    prefix: String,
    /// Address of the store, if it isn't the provider's own.
    #[arg(id = "source-store-endpoint", long, value_name = "URL")]
    endpoint: Option<String>,
}

impl StoreArgs {
    pub(super) fn open(&self) -> Result<Arc<dyn SnapStore>, CliError> {
        let missing = || CliError::Usage("--store-provider says where the backups are".to_owned());
        let provider = self.provider.ok_or_else(missing)?;
        let config = StoreConfig {
            endpoint: self.endpoint.clone(),
            allow_http: self.allow_http,
            ..StoreConfig::new(provider, &self.container, &self.prefix)
        };
        Ok(config.open_attesting(&self.signing.signing())?)
    }
}

impl SourceArgs {
    /// `target` says whether plain http is allowed, and which signatures are asked for.
    pub(super) fn open(&self, target: &StoreArgs) -> Result<Arc<dyn SnapStore>, CliError> {
        let config = StoreConfig {
            endpoint: self.endpoint.clone(),
            allow_http: target.allow_http,
            role: Role::Source,
            ..StoreConfig::new(self.provider, &self.container, &self.prefix)
        };
        Ok(config.open_attesting(&target.signing.signing())?)
    }
}
