//! `EtcdCopyBackupsTask`: copies backups from one store to another.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema, core::Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, StoreSpec, TaskState};
use crate::{duration::GoDuration, schema::labels, tolerant::null_as_default};

/// Both stores of a copy are there.
pub(super) fn stores_set() -> Rule {
    Rule::new(
        "has(self.sourceStore.provider) && self.sourceStore.provider != '' \
         && has(self.targetStore.provider) && self.targetStore.provider != ''",
    )
    .message("set the provider of sourceStore and of targetStore")
}

/// A copy goes from one place to another. The Secret counts too, since it may name the account.
pub(super) fn stores_differ() -> Rule {
    let field = |store: &str, field: &str| format!("(has(self.{store}.{field}) ? self.{store}.{field} : '')");
    let secret = |store: &str| {
        format!(
            "(has(self.{store}.secretRef) && has(self.{store}.secretRef.name) ? self.{store}.secretRef.name : '')"
        )
    };
    let differs = |name: &str| format!("{} != {}", field("sourceStore", name), field("targetStore", name));
    let mut ways = ["provider", "container", "prefix", "endpointOverride"]
        .map(differs)
        .to_vec();
    ways.push(format!("{} != {}", secret("sourceStore"), secret("targetStore")));
    Rule::new(ways.join(" || "))
        .message("sourceStore and targetStore are the same place: change the container or prefix of one")
}

/// What to copy, and how much of it.
#[derive(Clone, CustomResource, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "druid.gardener.cloud",
    version = "v1alpha1",
    kind = "EtcdCopyBackupsTask",
    plural = "etcdcopybackupstasks",
    shortname = "ecbt",
    category = "druid",
    namespaced,
    status = "EtcdCopyBackupsTaskStatus",
    derive = "PartialEq",
    doc = "Copies backups from one store to another. Neither needs to belong to an Etcd.",
    validation = Rule::new("oldSelf.hasValue() || size(self.metadata.name) <= 56").optional_old_self(true).message(
        "the name must not be longer than 56 characters: the name of the Job is made of it"
    ),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Progress", type_ = "string", json_path = ".status.progress"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Error",
        type_ = "string",
        json_path = ".status.lastError",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = stores_set(),
    validation = stores_differ()
)]
pub struct EtcdCopyBackupsTaskSpec {
    /// Extra labels for the Job's pod, for example to pass network policies.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    #[schemars(schema_with = "labels")]
    pub pod_labels: BTreeMap<String, String>,
    /// Where backups are read.
    pub source_store: StoreSpec,
    /// Where backups are written.
    pub target_store: StoreSpec,
    /// Copies only backups that are at most this many days old. Unset copies all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = u32::MAX))]
    pub max_backup_age: Option<i64>,
    /// Copies at most this many backups, newest first. Unset copies all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = u32::MAX))]
    pub max_backups: Option<i64>,
    /// Waits for the final full snapshot of the source before copying.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_final_snapshot: Option<WaitForFinalSnapshotSpec>,
}

/// Whether and how long to wait for a final full snapshot.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitForFinalSnapshotSpec {
    /// Waits if true.
    pub enabled: bool,
    /// Longest wait, after which what is there is copied. Unset or `0` waits for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<GoDuration>,
}

/// How far the copy is.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdCopyBackupsTaskStatus {
    /// `Succeeded` and `Failed` as the Job has them, and `Progressing`.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// The generation that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What went wrong last, with what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub last_error: Option<String>,
    /// `Pending`, `InProgress`, `Succeeded`, `Failed` or `Rejected`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
    /// How far the copy is, in a few words: `12/40 objects`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub progress: Option<String>,
}
