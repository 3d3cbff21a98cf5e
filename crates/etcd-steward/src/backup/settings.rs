//! `spec.backup` as the owner of the backups works with it: read once, checked, and refused as a whole if a part of it
//! can't be understood.

use std::{path::PathBuf, time::Duration};

use api::{
    schedule::Schedule,
    v1alpha1::{BackupSpec, GarbageCollectionPolicy},
};
use etcd_storage::compression::{Compression, UnknownCompression};
use jiff::SignedDuration;
use snapstore::retention::{KeepFulls, Policy};

/// Settings of the backups, checked.
#[derive(Debug, Clone)]
pub struct Settings {
    /// When full snapshots are due.
    pub schedule: Schedule,
    /// Time between periodic deltas; `None` when they are off.
    pub delta_period: Option<Duration>,
    /// Bytes of events that make a delta before its time.
    pub memory_limit: u64,
    /// How objects are compressed.
    pub compression: Compression,
    /// How long a full snapshot may take.
    pub timeout: Duration,
    /// Which old backups go.
    pub retention: Policy,
    /// Time between two looks for old backups; `None` when none may go.
    pub retention_period: Option<Duration>,
    /// Scratch space.
    pub temp: PathBuf,
    /// UID of the Etcd, by which its snapshots are told from those of others.
    pub etcd_uid: Option<String>,
}

/// The settings can't be understood.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The schedule of full snapshots.
    #[error("spec.backup.fullSnapshotSchedule: {0}")]
    Schedule(#[from] api::schedule::InvalidSchedule),
    /// One of the durations.
    #[error("spec.backup: {0}")]
    Duration(#[from] api::duration::InvalidDuration),
    /// The memory limit.
    #[error("spec.backup.deltaSnapshotMemoryLimit: {0}")]
    Quantity(#[from] api::quantity::InvalidQuantity),
    /// The compression.
    #[error("spec.backup.compression.policy: {0}")]
    Compression(#[from] UnknownCompression),
    /// The policy of retention.
    #[error("spec.backup.garbageCollectionPolicy: unknown policy {0:?}: use LimitBased or Exponential")]
    Retention(String),
}

impl Settings {
    /// Reads them from the Etcd's spec.
    pub fn new(spec: &BackupSpec, temp: PathBuf) -> Result<Self, SettingsError> {
        let compression = match spec.compression() {
            Some(policy) => policy.as_str().parse()?,
            None => Compression::None,
        };
        let retention_period = spec.garbage_collection_period()?;
        Ok(Self {
            schedule: spec.full_snapshot_schedule()?,
            delta_period: spec.delta_snapshot_period()?,
            memory_limit: spec.delta_snapshot_memory_limit()?.max(1),
            compression,
            timeout: spec.snapshot_timeout()?,
            retention: Policy {
                fulls: keep_fulls(spec)?,
                delta_retention: SignedDuration::try_from(spec.delta_snapshot_retention()?)
                    .unwrap_or(SignedDuration::MAX),
                ..Policy::default()
            },
            retention_period: (retention_period >= Duration::from_secs(1)).then_some(retention_period),
            temp,
            etcd_uid: None,
        })
    }
}

fn keep_fulls(spec: &BackupSpec) -> Result<KeepFulls, SettingsError> {
    match spec.garbage_collection_policy() {
        GarbageCollectionPolicy::Exponential => Ok(KeepFulls::Exponential),
        GarbageCollectionPolicy::LimitBased => Ok(KeepFulls::LimitBased {
            // Without any there would be nothing to restore from.
            max_backups: u32::try_from(spec.max_backups()).unwrap_or(0).max(1),
        }),
        GarbageCollectionPolicy::Unrecognised(text) => Err(SettingsError::Retention(text)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn settings(spec: Value) -> Result<Settings, SettingsError> {
        Settings::new(&serde_json::from_value(spec).unwrap(), PathBuf::new())
    }

    /// What a user writes is done, or refused by name; nothing is replaced by something else in silence.
    #[test]
    fn every_compression_is_used_or_refused() {
        for (policy, expected) in [
            ("gzip", Some(Compression::Gzip)),
            ("zlib", Some(Compression::Zlib)),
            ("lzw", Some(Compression::Lzw)),
            ("zstd", Some(Compression::Zstd)),
            ("none", Some(Compression::None)),
            ("brotli", None),
        ] {
            let read = settings(json!({"compression": {"policy": policy}}));
            assert_eq!(
                read.ok().map(|settings| settings.compression),
                expected,
                "{policy}"
            );
        }
        let off = settings(json!({"compression": {"enabled": false, "policy": "zstd"}})).unwrap();
        assert_eq!(off.compression, Compression::None);
        assert_eq!(settings(json!({})).unwrap().compression, Compression::Gzip);
        let refused = settings(json!({"compression": {"policy": "brotli"}})).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("spec.backup.compression.policy: unknown compression \"brotli\"")
        );
    }

    #[test]
    fn the_policy_of_retention_is_that_of_the_spec() {
        let default = settings(json!({})).unwrap();
        assert_eq!(default.retention.fulls, KeepFulls::LimitBased { max_backups: 7 });
        assert_eq!(default.retention_period, Some(Duration::from_mins(1)));
        let told = settings(json!({
            "garbageCollectionPolicy": "Exponential", "garbageCollectionPeriod": "12h",
            "deltaSnapshotRetentionPeriod": "24h",
        }))
        .unwrap();
        assert_eq!(told.retention.fulls, KeepFulls::Exponential);
        assert_eq!(told.retention.delta_retention, SignedDuration::from_hours(24));
        assert_eq!(told.retention_period, Some(Duration::from_hours(12)));
        assert_eq!(
            settings(json!({"garbageCollectionPeriod": "0s"}))
                .unwrap()
                .retention_period,
            None
        );
        let none_kept = settings(json!({"maxBackupsLimitBasedGC": 0})).unwrap();
        assert_eq!(
            none_kept.retention.fulls,
            KeepFulls::LimitBased { max_backups: 1 }
        );
        let unknown = settings(json!({"garbageCollectionPolicy": "Newest"})).unwrap_err();
        assert!(unknown.to_string().contains("Newest"));
    }
}
