//! What operations do, whichever way they are asked for.

use snapstore::{Kind, StoredSnapshot};
use steward_proto::v1::{Operation, Snapshot, SnapshotResult, SnapshotType, operation};
use tokio::sync::watch;

use super::{
    Api,
    operations::{Asked, Failure, KeyTaken},
};
use crate::{
    backup::{Backups, Marks},
    maintenance::Threshold,
};

/// An operation couldn't be begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The request itself is wrong: the parameter and what is wrong with it.
    Invalid(&'static str, String),
    /// No store is configured.
    NoStore,
    /// Another steward owns the backups; its URL, where it is known.
    NotOwner(Option<String>),
    /// This steward is to own the backups, and can't: reason and message.
    Failing(&'static str, String),
}

/// Longest idempotency key.
const MAX_REQUEST_ID: usize = 128;

impl Api {
    /// Starts to take a snapshot.
    pub async fn start_snapshot(
        &self,
        kind: Kind,
        marks: Marks,
        request_id: &str,
    ) -> Result<watch::Receiver<Operation>, Refusal> {
        check_request_id(request_id)?;
        if kind == Kind::Delta {
            refuse_marks(marks)?;
        }
        let Some(backups) = self.backups.clone() else {
            return Err(Refusal::NoStore);
        };
        if backups.orders.borrow().is_none() {
            return Err(self.not_owner(&backups).await);
        }
        let asked = Asked {
            type_: "CreateSnapshot",
            parameters: format!("{} {marks:?}", kind.as_str()),
            request_id,
        };
        let operation = self.operations.start(&asked, |_| async move {
            match backups.take(kind, marks).await {
                Ok(stored) => Ok(operation::Result::Snapshot(SnapshotResult {
                    skipped: stored.is_none(),
                    snapshot: stored.as_ref().map(snapshot),
                })),
                Err(error) => Err(Failure::from(&error)),
            }
        });
        Ok(operation?)
    }

    /// Why this steward takes no orders. Sending callers to the owner would send them here again if this is it.
    async fn not_owner(&self, backups: &Backups) -> Refusal {
        let owner = self.owner().await;
        if owner.is_none_or(|owner| owner.name != self.member) {
            return Refusal::NotOwner(owner.map(|owner| owner.steward_url.clone()));
        }
        let failure = backups.known.borrow().failures.newest().cloned();
        failure.map_or(Refusal::NotOwner(None), |trouble| {
            Refusal::Failing(trouble.reason, trouble.message)
        })
    }

    /// Starts to defragment all members.
    pub fn start_defragmentation(
        &self,
        min_reclaimable: i64,
        request_id: &str,
    ) -> Result<watch::Receiver<Operation>, Refusal> {
        check_request_id(request_id)?;
        if min_reclaimable < 0 {
            return Err(Refusal::Invalid(
                "minReclaimableBytes",
                format!("{min_reclaimable} is negative"),
            ));
        }
        let worth = Threshold {
            bytes: min_reclaimable.unsigned_abs(),
            percent: 0,
        };
        let maintenance = self.maintenance.clone();
        let asked = Asked {
            type_: "Defragment",
            parameters: min_reclaimable.to_string(),
            request_id,
        };
        let operation = self.operations.start(&asked, |run| async move {
            let result = maintenance.defragment(worth, &run).await;
            result
                .map(operation::Result::Defragment)
                .map_err(|error| Failure::from(&error))
        });
        Ok(operation?)
    }

    /// Starts to compact the history.
    pub fn start_compaction(
        &self,
        revision: i64,
        request_id: &str,
    ) -> Result<watch::Receiver<Operation>, Refusal> {
        check_request_id(request_id)?;
        if revision < 0 {
            return Err(Refusal::Invalid("revision", format!("{revision} is negative")));
        }
        let maintenance = self.maintenance.clone();
        let asked = Asked {
            type_: "Compact",
            parameters: revision.to_string(),
            request_id,
        };
        let operation = self.operations.start(&asked, |_| async move {
            let result = maintenance.compact(revision).await;
            result
                .map(operation::Result::Compact)
                .map_err(|error| Failure::from(&error))
        });
        Ok(operation?)
    }
}

/// Deltas have none.
fn refuse_marks(marks: Marks) -> Result<(), Refusal> {
    if marks.is_final {
        let what = "only a full snapshot can be final".to_owned();
        return Err(Refusal::Invalid("final", what));
    }
    if marks.accepts_fewer_keys {
        let what = "only a full snapshot can take the place of what was before".to_owned();
        return Err(Refusal::Invalid("acceptFewerKeys", what));
    }
    Ok(())
}

fn check_request_id(request_id: &str) -> Result<(), Refusal> {
    if request_id.len() > MAX_REQUEST_ID {
        return Err(Refusal::Invalid(
            "requestId",
            format!("longer than {MAX_REQUEST_ID} characters"),
        ));
    }
    Ok(())
}

impl From<KeyTaken> for Refusal {
    fn from(KeyTaken(id): KeyTaken) -> Self {
        Self::Invalid(
            "requestId",
            format!("operation {id} has this key, with other parameters"),
        )
    }
}

/// A stored snapshot as the API tells it.
pub(super) fn snapshot(stored: &StoredSnapshot) -> Snapshot {
    let type_ = match stored.name.kind {
        Kind::Full => SnapshotType::Full,
        Kind::Delta => SnapshotType::Delta,
    };
    Snapshot {
        r#type: type_.into(),
        name: stored.name.to_string(),
        start_revision: stored.name.start_revision,
        end_revision: stored.name.last_revision,
        create_time: Some(std::time::SystemTime::from(stored.name.created_on).into()),
        size_bytes: i64::try_from(stored.object.size).unwrap_or(i64::MAX),
        r#final: stored.name.is_final,
    }
}

impl Refusal {
    /// CamelCase class.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Failing(reason, _) => reason,
            Self::Invalid(..) => "InvalidArgument",
            Self::NoStore => "NoStore",
            Self::NotOwner(_) => "NotOwner",
        }
    }

    /// For people.
    pub fn message(&self) -> String {
        match self {
            Self::Invalid(parameter, what) => format!("{parameter}: {what}"),
            Self::Failing(_, message) => message.clone(),
            Self::NoStore => "this Etcd has no backup store: set spec.backup.store".to_owned(),
            Self::NotOwner(Some(url)) => format!("the steward beside the leader owns the backups: ask {url}"),
            Self::NotOwner(None) => {
                "the steward beside the leader owns the backups, and no leader is known at the moment: try again".to_owned()
            }
        }
    }
}
