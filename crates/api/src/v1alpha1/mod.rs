//! Version `v1alpha1` of group `druid.gardener.cloud`.

#![expect(
    unreachable_pub,
    reason = "KubeSchema copies each struct, with its visibility, into a function"
)]
#![expect(
    clippy::duplicated_attributes,
    reason = "several printer columns have the same type or priority"
)]

mod condition;
mod copy;
mod etcd;
mod member;
mod operation;
mod snapshot;
mod store;
mod task;
mod url;

pub use condition::{Condition, ConditionStatus, find as find_condition};
pub use copy::{
    EtcdCopyBackupsTask, EtcdCopyBackupsTaskSpec, EtcdCopyBackupsTaskStatus, WaitForFinalSnapshotSpec,
};
pub use etcd::*;
pub use member::*;
pub use operation::{LastError, LastOperation, LastOperationState, LastOperationType};
pub use snapshot::SnapshotInfo;
pub use store::{
    ImmutabilitySpec, RetentionType, SecretReference, StoreProvider, StoreSpec, UnknownStoreProvider,
};
pub use task::*;
pub use url::HttpUrl;

/// The API group of every kind here.
pub const GROUP: &str = "druid.gardener.cloud";
/// The version of every kind here.
pub const VERSION: &str = "v1alpha1";
