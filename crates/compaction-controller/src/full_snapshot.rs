//! Full snapshots in place of compactions: asked of the steward that owns the backups, and looked after until they have
//! ended. What runs is remembered in memory only; the request id keeps a restarted controller from asking twice.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use api::v1alpha1::{Etcd, EtcdMember};
use kube::ResourceExt as _;
use operator::{
    owner::locations,
    steward::{StewardError, Stewards, Target},
};
use steward_proto::v1::{
    CreateSnapshotRequest, GetOperationRequest, Operation, OperationState, SnapshotType, operation,
};
use tonic::{Code, Status};

use crate::decision::Backlog;

/// How a full snapshot stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Under way.
    Running,
    /// Stored: the object's name.
    Stored(String),
    /// Stored and told before; the members don't tell of it yet.
    Known,
    /// It failed: why.
    Failed(String),
}

#[derive(Debug, Clone)]
struct Begun {
    target: Target,
    id: String,
}

/// What is remembered of an Etcd.
#[derive(Debug, Clone, Default)]
struct Memory {
    /// Last revision of the full snapshot that is to be replaced.
    replaces: i64,
    begun: Option<Begun>,
    failures: u32,
    stored: bool,
}

/// The full snapshots that are under way, by the Etcd's UID.
#[derive(Debug)]
pub struct FullSnapshots {
    stewards: Stewards,
    memories: Mutex<HashMap<String, Memory>>,
}

impl FullSnapshots {
    /// Asks through `stewards`.
    pub fn new(stewards: Stewards) -> Self {
        Self {
            stewards,
            memories: Mutex::default(),
        }
    }

    /// Begins a full snapshot, or looks at the one that is under way.
    pub async fn advance(
        &self,
        etcd: &Etcd,
        members: &[Arc<EtcdMember>],
        backlog: Backlog,
    ) -> Result<Standing, StewardError> {
        let uid = etcd.uid().unwrap_or_default();
        let known = self.memories().get(&uid).cloned();
        let mut memory = known
            .filter(|memory| memory.replaces == backlog.full)
            .unwrap_or_else(|| Memory {
                replaces: backlog.full,
                ..Memory::default()
            });
        if memory.stored {
            return Ok(Standing::Known);
        }
        let operation = match memory.begun.take() {
            Some(begun) => self.look(&begun).await.map(|operation| (begun.target, operation)),
            None => self.begin(etcd, members, &memory).await,
        };
        let result = operation.map(|(target, operation)| {
            let standing = standing(&operation);
            match standing {
                Standing::Stored(_) | Standing::Known => memory.stored = true,
                Standing::Failed(_) => memory.failures += 1,
                Standing::Running => {
                    let id = operation.id;
                    memory.begun = Some(Begun { target, id });
                }
            }
            standing
        });
        // After an error the next look asks again, with the same request id.
        self.memories().insert(uid, memory);
        result
    }

    /// Nothing is wanted of this Etcd any more.
    pub fn forget(&self, uid: &str) {
        self.memories().remove(uid);
    }

    fn memories(&self) -> std::sync::MutexGuard<'_, HashMap<String, Memory>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn begin(
        &self,
        etcd: &Etcd,
        members: &[Arc<EtcdMember>],
        memory: &Memory,
    ) -> Result<(Target, Operation), StewardError> {
        let (uid, replaces, failures) = (etcd.uid().unwrap_or_default(), memory.replaces, memory.failures);
        let request = CreateSnapshotRequest {
            r#type: SnapshotType::Full.into(),
            r#final: false,
            accept_fewer_keys: false,
            request_id: format!("compaction-{uid}-{replaces}-{failures}"),
            r#async: true,
        };
        let none = Status::unavailable("the Etcd has no members that could take a snapshot");
        let mut refused = call(&etcd.name_any(), none);
        // The most likely owner of the backups comes first; what the members tell may be older than a change of leaders.
        for location in locations(etcd, members) {
            let target = location.target;
            match self
                .stewards
                .snapshots(&target)?
                .create_snapshot(request.clone())
                .await
            {
                Ok(response) => {
                    let operation = carried(&target, response.into_inner().operation)?;
                    return Ok((target, operation));
                }
                Err(status) if matches!(status.code(), Code::FailedPrecondition | Code::Unavailable) => {
                    refused = call(&target.address, status);
                }
                Err(status) => return Err(call(&target.address, status)),
            }
        }
        Err(refused)
    }

    async fn look(&self, begun: &Begun) -> Result<Operation, StewardError> {
        let request = GetOperationRequest { id: begun.id.clone() };
        let answer = self
            .stewards
            .operations(&begun.target)?
            .get_operation(request)
            .await;
        let response = answer.map_err(|status| call(&begun.target.address, status))?;
        carried(&begun.target, response.into_inner().operation)
    }
}

fn standing(operation: &Operation) -> Standing {
    match operation.state() {
        OperationState::Succeeded => {
            let snapshot = match &operation.result {
                Some(operation::Result::Snapshot(result)) => result.snapshot.as_ref(),
                _ => None,
            };
            Standing::Stored(snapshot.map(|snapshot| snapshot.name.clone()).unwrap_or_default())
        }
        OperationState::Failed => {
            let error = operation.error.clone().unwrap_or_default();
            Standing::Failed(format!("{}: {}", error.reason, error.message))
        }
        OperationState::Cancelled => Standing::Failed("cancelled at the steward".to_owned()),
        OperationState::Running | OperationState::Pending | OperationState::Unspecified => Standing::Running,
    }
}

fn call(address: &str, status: Status) -> StewardError {
    StewardError::Call {
        address: address.to_owned(),
        status: Box::new(status),
    }
}

fn carried(target: &Target, operation: Option<Operation>) -> Result<Operation, StewardError> {
    operation.ok_or_else(|| {
        let status = Status::new(Code::Internal, "the answer carries no operation");
        call(&target.address, status)
    })
}
