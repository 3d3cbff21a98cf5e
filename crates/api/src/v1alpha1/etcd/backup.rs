//! `spec.backup`: how the cluster is backed up.

use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::api::resource::Quantity};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{StewardTlsConfig, rules};
use crate::{
    duration::GoDuration,
    open_enum::open_enum,
    schedule::CronSchedule,
    schema::{embedded, quantity},
    v1alpha1::{SecretReference, StoreSpec},
};

/// How the cluster is backed up, and how the steward that does it runs.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::collection_slower_than_deltas(),
    validation = rules::some_backups_are_kept(),
    validation = rules::secondary_copies_a_store(),
    validation = rules::secondary_is_another_place(),
    validation = rules::signatures_have_a_key()
)]
pub struct BackupSpec {
    /// Port of the steward's HTTP API. Default: 8080.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
    /// Certificates of the steward's ports. Unset lets Druid make them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<StewardTlsConfig>,
    /// Image of the steward. Default: the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub image: Option<String>,
    /// Where backups are kept. Unset turns backups off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreSpec>,
    /// A second place, into which the backups are copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secondary: Option<SecondarySpec>,
    /// Signs snapshots, and refuses those that nobody with the key has made. Unset: snapshots aren't signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing: Option<SigningSpec>,
    /// Resources of the steward's container. Default: requests of 50m CPU and 128Mi memory, no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embedded::<ResourceRequirements>")]
    pub resources: Option<ResourceRequirements>,
    /// When stored snapshots are compacted by a Job, and with which resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_compaction: Option<SnapshotCompactionSpec>,
    /// When full snapshots are taken. Default: `0 */1 * * *`, every hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_snapshot_schedule: Option<CronSchedule>,
    /// Which old backups go: `LimitBased` keeps the newest ones, `Exponential` keeps fewer the older they get.
    /// Default: `LimitBased`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub garbage_collection_policy: Option<GarbageCollectionPolicy>,
    /// How many full snapshots `LimitBased` keeps. Default: 7.
    #[serde(
        rename = "maxBackupsLimitBasedGC",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = 0))]
    pub max_backups_limit_based_gc: Option<i32>,
    /// How often old backups are looked for. Default: 1m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub garbage_collection_period: Option<GoDuration>,
    /// How often changes are saved as a delta snapshot. Less than 1s turns periodic deltas off. Default: 20s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_snapshot_period: Option<GoDuration>,
    /// How many bytes of changes are held before a delta snapshot is taken ahead of time. Default: 100Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub delta_snapshot_memory_limit: Option<Quantity>,
    /// How long delta snapshots stay that no restore needs any more. Default: they go with the next collection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_snapshot_retention_period: Option<GoDuration>,
    /// How snapshots are compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionSpec>,
    /// What a restore by Druid itself does to the revision. `Raise`: the cluster goes on beyond any revision that a client
    /// can have seen, and all before is compacted, so that watches and caches notice. `Keep`: it goes on at the
    /// revision of the backup, and watches from beyond it miss what comes. Default: `Raise`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision_after_restore: Option<RevisionAfterRestore>,
    /// Serves profiling data. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_profiling: Option<bool>,
    /// Longest time that a snapshot may take. Default: 15m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_timeout: Option<GoDuration>,
    /// How the steward finds the member that owns the backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_election: Option<LeaderElectionSpec>,
}

/// A second place that the backups are copied to: losing one of both loses nothing. Old backups go there by the same policy.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecondarySpec {
    /// The second place, with credentials of its own.
    pub store: StoreSpec,
    /// How often what it lacks is copied to it. Default: 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_period: Option<GoDuration>,
}

/// How snapshots are signed: each one gets a manifest beside it, with its size, its hash and what a restore needs, and an
/// HMAC-SHA-256 over that.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SigningSpec {
    /// Secret with the keys, each of at least 32 bytes. An entry's name is the key's ID. The last one by name signs, all
    /// of them are accepted: to change the key, add an entry whose name sorts behind the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Which signatures are asked for before a snapshot is restored, compacted or copied. `Required`: every snapshot must
    /// be signed with one of the keys. `IfPresent`: those that aren't signed are used too. `Ignore`: none is looked at.
    /// Default: `Required`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<SignaturePolicy>,
}

impl SigningSpec {
    /// The name of the Secret with the keys, if there is one.
    pub fn secret_name(&self) -> Option<&str> {
        let name = self.secret_ref.as_ref()?.name.as_deref();
        name.filter(|name| !name.is_empty())
    }
}

open_enum! {
    /// What a restore does to the revision.
    pub enum RevisionAfterRestore {
        /// Raises it beyond anything that a client can have seen, and marks all before as compacted.
        Raise = "Raise",
        /// Goes on at the revision of the backup.
        Keep = "Keep",
    }
}

open_enum! {
    /// Which signatures of snapshots are asked for.
    pub enum SignaturePolicy {
        /// Only signed snapshots are used.
        Required = "Required",
        /// Snapshots without a signature are used too.
        IfPresent = "IfPresent",
        /// Signatures aren't looked at.
        Ignore = "Ignore",
    }
}

/// When stored snapshots are compacted by a Job, and with which resources.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotCompactionSpec {
    /// Resources of the Job's container. Default: requests of 600m CPU and 3Gi memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embedded::<ResourceRequirements>")]
    pub resources: Option<ResourceRequirements>,
    /// Compacts once so many revisions are in delta snapshots. Default: the operator's, 1000000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub events_threshold: Option<i64>,
    /// Takes a full snapshot, instead of compacting, once so many revisions are in delta snapshots. Default: the
    /// operator's, 3000000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub trigger_full_snapshot_threshold: Option<i64>,
    /// Compacts once delta snapshots since the last full one are this large. Default: the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    pub delta_size_threshold: Option<Quantity>,
}

/// How snapshots are compressed.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CompressionSpec {
    /// Compresses if true. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// `gzip`, `zlib`, `lzw` or `zstd`. Default: `gzip`. `zstd` is faster and smaller, but etcd-backup-restore
    /// can't read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<CompressionPolicy>,
}

/// How the steward finds the member that owns the backups.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaderElectionSpec {
    /// How often leadership is looked at. Default: 5s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reelection_period: Option<GoDuration>,
    /// Longest time that a look at leadership may take. Default: 5s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_connection_timeout: Option<GoDuration>,
}

open_enum! {
    /// Which old backups go.
    pub enum GarbageCollectionPolicy {
        /// Keeps fewer the older they get.
        Exponential = "Exponential",
        /// Keeps the newest ones.
        LimitBased = "LimitBased",
    }
}

open_enum! {
    /// How snapshots are compressed.
    pub enum CompressionPolicy {
        /// gzip, by any number of threads.
        Gzip = "gzip",
        /// LZW, for stores that have it already.
        Lzw = "lzw",
        /// zlib.
        Zlib = "zlib",
        /// Zstandard, which etcd-backup-restore can't read.
        Zstd = "zstd",
    }
}
