//! The stores that `spec.backup` names.

use std::sync::Arc;

use anyhow::Context as _;
use api::v1alpha1::{BackupSpec, StoreSpec};
use snapstore::{Role, SnapStore, StoreConfig, manifest::Signing};
use tracing::warn;

use crate::backup::Secondary;

pub(super) fn primary(backup: &BackupSpec) -> anyhow::Result<Option<Arc<dyn SnapStore>>> {
    match &backup.store {
        Some(spec) => open_store(spec, Role::Primary),
        None => Ok(None),
    }
}

pub(super) fn secondary(backup: &BackupSpec) -> anyhow::Result<Option<Secondary>> {
    let Some(spec) = &backup.secondary else {
        return Ok(None);
    };
    let store = open_store(&spec.store, Role::Secondary).context("spec.backup.secondary.store")?;
    let period = backup
        .secondary_sync_period()
        .context("spec.backup.secondary.syncPeriod")?;
    Ok(store.map(|store| Secondary { store, period }))
}

fn open_store(spec: &StoreSpec, role: Role) -> anyhow::Result<Option<Arc<dyn SnapStore>>> {
    let Some(provider) = spec.provider()? else {
        return Ok(None);
    };
    let container = spec.container().unwrap_or_default();
    let mut config = StoreConfig::new(provider.as_str().parse()?, container, spec.prefix.clone());
    config.role = role;
    config.endpoint.clone_from(&spec.endpoint_override);
    config.allow_http = spec.is_plain_http();
    if config.allow_http {
        warn!(
            endpoint = config.endpoint,
            "backups travel unencrypted: the store's endpoint is plain http"
        );
    }
    let signing = Signing::of(&config.environment)?;
    Ok(Some(config.open_attesting(&signing)?))
}
