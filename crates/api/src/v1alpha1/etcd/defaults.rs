//! What a field means when it isn't set. The CRD carries no defaults, so this is their one place.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{
    BackupSpec, CompactionMode, CompressionPolicy, Etcd, EtcdConfig, EtcdSpec, FreelistType,
    GarbageCollectionPolicy, MetricsLevel, RevisionAfterRestore,
};
use crate::{
    duration::{GoDuration, InvalidDuration},
    quantity::{self, InvalidQuantity},
    schedule::{CronSchedule, InvalidSchedule, Schedule},
    v1alpha1::{StoreProvider, StoreSpec, UnknownStoreProvider},
};

fn quantity_or(value: Option<&Quantity>, default: u64) -> Result<u64, InvalidQuantity> {
    value.map_or(Ok(default), quantity::bytes)
}

fn duration_or(value: Option<&GoDuration>, default: Duration) -> Result<Duration, InvalidDuration> {
    value.map_or(Ok(default), GoDuration::parse)
}

fn schedule_or(value: Option<&CronSchedule>, default: &str) -> Result<Schedule, InvalidSchedule> {
    value.map_or_else(|| CronSchedule::new(default).parse(), CronSchedule::parse)
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

impl EtcdSpec {
    /// Size of each volume in bytes.
    pub fn storage_capacity(&self) -> Result<u64, InvalidQuantity> {
        quantity_or(self.storage_capacity.as_ref(), 16 * GIB)
    }

    pub fn auto_compaction_mode(&self) -> CompactionMode {
        let mode = self
            .shared_config
            .as_ref()
            .and_then(|shared| shared.auto_compaction_mode.clone());
        mode.unwrap_or(CompactionMode::Periodic)
    }

    pub fn auto_compaction_retention(&self) -> &str {
        let retention = self
            .shared_config
            .as_ref()
            .and_then(|shared| shared.auto_compaction_retention.as_deref());
        retention.unwrap_or("30m")
    }

    pub fn runs_as_root(&self) -> bool {
        self.run_as_root.unwrap_or(false)
    }

    /// The store, if backups are on: a store with a provider is there.
    pub fn backup_store(&self) -> Result<Option<(StoreProvider, &StoreSpec)>, UnknownStoreProvider> {
        let Some(store) = &self.backup.store else {
            return Ok(None);
        };
        Ok(store.provider()?.map(|provider| (provider, store)))
    }
}

impl Etcd {
    /// Name of the volume claim template.
    pub fn volume_claim_template(&self) -> &str {
        let own = self.metadata.name.as_deref().unwrap_or_default();
        self.spec
            .volume_claim_template
            .as_deref()
            .filter(|name| !name.is_empty())
            .unwrap_or(own)
    }
}

impl EtcdConfig {
    pub fn client_port(&self) -> i32 {
        self.client_port.unwrap_or(2379)
    }

    /// Port for peers.
    pub fn server_port(&self) -> i32 {
        self.server_port.unwrap_or(2380)
    }

    /// Port of the launcher.
    pub fn wrapper_port(&self) -> i32 {
        self.wrapper_port.unwrap_or(9095)
    }

    /// Size of the database, in bytes, at which etcd stops taking writes.
    pub fn quota(&self) -> Result<u64, InvalidQuantity> {
        quantity_or(self.quota.as_ref(), 8 * GIB)
    }

    pub fn snapshot_count(&self) -> i64 {
        self.snapshot_count.unwrap_or(10_000)
    }

    pub fn enable_grpc_gateway(&self) -> bool {
        self.enable_grpc_gateway.unwrap_or(false)
    }

    pub fn defragmentation_schedule(&self) -> Result<Schedule, InvalidSchedule> {
        schedule_or(self.defragmentation_schedule.as_ref(), "0 0 */3 * *")
    }

    /// How long the defragmentation of one member may take; `None`: as its size asks for.
    pub fn defrag_timeout(&self) -> Result<Option<Duration>, InvalidDuration> {
        self.etcd_defrag_timeout
            .as_ref()
            .map(GoDuration::parse)
            .transpose()
    }

    pub fn metrics(&self) -> MetricsLevel {
        self.metrics.clone().unwrap_or(MetricsLevel::Basic)
    }

    pub fn heartbeat(&self) -> Result<Duration, InvalidDuration> {
        duration_or(self.heartbeat_duration.as_ref(), Duration::from_secs(10))
    }

    pub fn freelist_type(&self) -> FreelistType {
        self.backend_bbolt_freelist_type
            .clone()
            .unwrap_or(FreelistType::Array)
    }
}

impl BackupSpec {
    /// Port of the steward's HTTP API.
    pub fn port(&self) -> i32 {
        self.port.unwrap_or(8080)
    }

    pub fn full_snapshot_schedule(&self) -> Result<Schedule, InvalidSchedule> {
        schedule_or(self.full_snapshot_schedule.as_ref(), "0 */1 * * *")
    }

    pub fn garbage_collection_policy(&self) -> GarbageCollectionPolicy {
        self.garbage_collection_policy
            .clone()
            .unwrap_or(GarbageCollectionPolicy::LimitBased)
    }

    /// Whether a restore by Druid itself raises the revision beyond all that clients have seen.
    pub fn raises_revision(&self) -> bool {
        self.revision_after_restore != Some(RevisionAfterRestore::Keep)
    }

    /// Full snapshots that `LimitBased` keeps.
    pub fn max_backups(&self) -> i32 {
        self.max_backups_limit_based_gc.unwrap_or(7)
    }

    pub fn garbage_collection_period(&self) -> Result<Duration, InvalidDuration> {
        duration_or(self.garbage_collection_period.as_ref(), Duration::from_mins(1))
    }

    /// Time between two copies to the second store.
    pub fn secondary_sync_period(&self) -> Result<Duration, InvalidDuration> {
        let period = self
            .secondary
            .as_ref()
            .and_then(|secondary| secondary.sync_period.as_ref());
        Ok(duration_or(period, Duration::from_hours(1))?.max(Duration::from_secs(1)))
    }

    /// Time between periodic delta snapshots; `None` when they are off.
    pub fn delta_snapshot_period(&self) -> Result<Option<Duration>, InvalidDuration> {
        let period = duration_or(self.delta_snapshot_period.as_ref(), Duration::from_secs(20))?;
        Ok((period >= Duration::from_secs(1)).then_some(period))
    }

    /// Bytes of changes that are held before a delta snapshot is taken ahead of time.
    pub fn delta_snapshot_memory_limit(&self) -> Result<u64, InvalidQuantity> {
        quantity_or(self.delta_snapshot_memory_limit.as_ref(), 100 * MIB)
    }

    /// How long delta snapshots stay that no restore needs any more.
    pub fn delta_snapshot_retention(&self) -> Result<Duration, InvalidDuration> {
        duration_or(self.delta_snapshot_retention_period.as_ref(), Duration::ZERO)
    }

    /// How snapshots are compressed; `None` when they aren't.
    pub fn compression(&self) -> Option<CompressionPolicy> {
        let Some(compression) = &self.compression else {
            return Some(CompressionPolicy::Gzip);
        };
        let policy = compression.policy.clone().unwrap_or(CompressionPolicy::Gzip);
        compression.enabled.unwrap_or(true).then_some(policy)
    }

    pub fn enable_profiling(&self) -> bool {
        self.enable_profiling.unwrap_or(false)
    }

    pub fn snapshot_timeout(&self) -> Result<Duration, InvalidDuration> {
        duration_or(self.etcd_snapshot_timeout.as_ref(), Duration::from_mins(15))
    }

    pub fn reelection_period(&self) -> Result<Duration, InvalidDuration> {
        let election = self.leader_election.as_ref();
        duration_or(
            election.and_then(|e| e.reelection_period.as_ref()),
            Duration::from_secs(5),
        )
    }

    pub fn leader_connection_timeout(&self) -> Result<Duration, InvalidDuration> {
        let election = self.leader_election.as_ref();
        duration_or(
            election.and_then(|e| e.etcd_connection_timeout.as_ref()),
            Duration::from_secs(5),
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn etcd(spec: &serde_json::Value) -> Etcd {
        serde_json::from_value(json!({"metadata": {"name": "main"}, "spec": spec})).unwrap()
    }

    /// Users rely on these without having written them: a change changes running clusters.
    #[test]
    fn unset_fields_mean_what_is_documented() {
        let etcd = etcd(&json!({"replicas": 1}));
        let (spec, config, backup) = (&etcd.spec, &etcd.spec.etcd, &etcd.spec.backup);
        assert_eq!(spec.storage_capacity(), Ok(16 * GIB));
        assert_eq!(
            (spec.auto_compaction_mode(), spec.auto_compaction_retention()),
            (CompactionMode::Periodic, "30m")
        );
        assert!(!spec.runs_as_root());
        assert_eq!(spec.backup_store(), Ok(None));
        assert_eq!(etcd.volume_claim_template(), "main");
        assert_eq!(
            (config.client_port(), config.server_port(), config.wrapper_port()),
            (2379, 2380, 9095)
        );
        assert_eq!(config.quota(), Ok(8 * GIB));
        assert_eq!(
            (config.snapshot_count(), config.enable_grpc_gateway()),
            (10_000, false)
        );
        assert_eq!(config.defrag_timeout(), Ok(None));
        assert_eq!(config.heartbeat(), Ok(Duration::from_secs(10)));
        assert_eq!(
            (config.metrics(), config.freelist_type()),
            (MetricsLevel::Basic, FreelistType::Array)
        );
        assert!(config.defragmentation_schedule().is_ok() && backup.full_snapshot_schedule().is_ok());
        assert_eq!(
            (backup.port(), backup.max_backups(), backup.enable_profiling()),
            (8080, 7, false)
        );
        assert_eq!(
            backup.garbage_collection_policy(),
            GarbageCollectionPolicy::LimitBased
        );
        assert_eq!(backup.garbage_collection_period(), Ok(Duration::from_mins(1)));
        assert_eq!(backup.delta_snapshot_period(), Ok(Some(Duration::from_secs(20))));
        assert_eq!(backup.delta_snapshot_memory_limit(), Ok(100 * MIB));
        assert_eq!(backup.delta_snapshot_retention(), Ok(Duration::ZERO));
        assert_eq!(backup.compression(), Some(CompressionPolicy::Gzip));
        assert_eq!(backup.snapshot_timeout(), Ok(Duration::from_mins(15)));
        assert_eq!(backup.reelection_period(), Ok(Duration::from_secs(5)));
        assert_eq!(backup.leader_connection_timeout(), Ok(Duration::from_secs(5)));
    }

    #[test]
    fn set_fields_win() {
        let etcd = etcd(&json!({
            "replicas": 1, "volumeClaimTemplate": "data", "storageCapacity": 1_073_741_824,
            "etcd": {"quota": "1Gi", "clientPort": 1},
            "backup": {"deltaSnapshotPeriod": "0s", "compression": {"enabled": false, "policy": "zlib"},
                       "store": {"provider": "aws", "container": "abc", "prefix": "p"}},
        }));
        assert_eq!(etcd.volume_claim_template(), "data");
        assert_eq!(
            (etcd.spec.storage_capacity(), etcd.spec.etcd.quota()),
            (Ok(GIB), Ok(GIB))
        );
        assert_eq!(etcd.spec.etcd.client_port(), 1);
        assert_eq!(
            (
                etcd.spec.backup.delta_snapshot_period(),
                etcd.spec.backup.compression()
            ),
            (Ok(None), None)
        );
        let (provider, store) = etcd.spec.backup_store().unwrap().unwrap();
        assert_eq!((provider, store.container()), (StoreProvider::S3, Some("abc")));
    }

    #[test]
    fn bad_texts_are_errors() {
        let etcd = etcd(&json!({
            "replicas": 1, "etcd": {"quota": "big", "heartbeatDuration": "1d"}, "backup": {"fullSnapshotSchedule": "never"},
        }));
        assert!(etcd.spec.etcd.quota().is_err());
        assert!(etcd.spec.etcd.heartbeat().is_err());
        assert!(etcd.spec.backup.full_snapshot_schedule().is_err());
    }
}
