//! The gRPC face of the API.

use std::{collections::HashMap, pin::Pin, time::Duration};

use futures::{Stream, StreamExt as _};
use operator::reconcile::chain;
use snapstore::Kind;
use steward_proto::{
    FILE_DESCRIPTOR_SET,
    v1::{
        CancelOperationRequest, CancelOperationResponse, CompactRequest, CompactResponse,
        CreateSnapshotRequest, CreateSnapshotResponse, DefragmentRequest, DefragmentResponse,
        GetBackupStatusRequest, GetBackupStatusResponse, GetLatestSnapshotsRequest,
        GetLatestSnapshotsResponse, GetMemberRequest, GetMemberResponse, GetOperationRequest,
        GetOperationResponse, GetVolumeRequest, GetVolumeResponse, ListMembersRequest, ListMembersResponse,
        ListOperationsRequest, ListOperationsResponse, ListSnapshotsRequest, ListSnapshotsResponse,
        Operation, OperationError, OperationState, SnapshotType, WaitOperationRequest, WaitOperationResponse,
        WatchOperationRequest, WatchOperationResponse,
        maintenance_service_server::{MaintenanceService, MaintenanceServiceServer},
        members_service_server::{MembersService, MembersServiceServer},
        operations_service_server::{OperationsService, OperationsServiceServer},
        snapshots_service_server::{SnapshotsService, SnapshotsServiceServer},
    },
};
use tokio::{sync::watch, time::Instant};
use tonic::{Code, Request, Response, Status, service::Routes};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::{
    Api,
    actions::{Refusal, snapshot},
    operations::{states, wait},
};
use crate::{backup::Marks, etcd::EtcdError};

const DOMAIN: &str = "steward.druid.gardener.cloud";

/// All services, with reflection and health.
pub(super) fn routes(api: &Api) -> Routes {
    let (health, health_service) = tonic_health::server::health_reporter();
    let mut builder = Routes::builder();
    builder
        .add_service(health_service)
        .add_service(SnapshotsServiceServer::new(api.clone()))
        .add_service(MembersServiceServer::new(api.clone()))
        .add_service(MaintenanceServiceServer::new(api.clone()))
        .add_service(OperationsServiceServer::new(api.clone()));
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // Both versions: not every client speaks the newer one. The descriptors are our own and checked by a test.
    if let (Ok(v1), Ok(v1alpha)) = (reflection().build_v1(), reflection().build_v1alpha()) {
        builder.add_service(v1).add_service(v1alpha);
    }
    tokio::spawn(async move {
        health.set_serving::<SnapshotsServiceServer<Api>>().await;
        health.set_serving::<MembersServiceServer<Api>>().await;
        health.set_serving::<MaintenanceServiceServer<Api>>().await;
        health.set_serving::<OperationsServiceServer<Api>>().await;
    });
    builder.routes()
}

/// How a call is to be answered.
struct Wanted {
    asynchronous: bool,
    deadline: Option<Instant>,
}

impl Wanted {
    fn new<T>(request: &Request<T>, asynchronous: bool) -> Self {
        let timeout = request.metadata().get("grpc-timeout");
        let timeout = timeout
            .and_then(|value| value.to_str().ok())
            .and_then(grpc_timeout);
        Self {
            asynchronous,
            deadline: timeout.map(|timeout| Instant::now() + timeout),
        }
    }
}

/// The wire form of a deadline: at most eight digits and a unit.
fn grpc_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let amount: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(amount * 3600),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return None,
    })
}

impl Api {
    /// The operation as the call wants it: at once, or done. A call with a deadline takes its operation along when that
    /// has passed; one whose caller just went away doesn't.
    async fn outcome(
        &self,
        operation: watch::Receiver<Operation>,
        wanted: &Wanted,
    ) -> Result<Operation, Status> {
        let id = operation.borrow().id.clone();
        match wanted.deadline.filter(|_| !wanted.asynchronous) {
            Some(deadline) => self.operations.cancel_at(id, deadline),
            None => self.operations.keep(&id),
        }
        if wanted.asynchronous {
            return Ok(operation.borrow().clone());
        }
        let operation = wait(operation, None).await;
        match &operation.error {
            Some(error) => Err(failed(error)),
            None if operation.state() == OperationState::Cancelled => Err(cancelled(&operation, wanted)),
            None => Ok(operation),
        }
    }
}

fn cancelled(operation: &Operation, wanted: &Wanted) -> Status {
    if wanted.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
        Status::deadline_exceeded(format!(
            "operation {} wasn't done in time, and was cancelled",
            operation.id
        ))
    } else {
        Status::cancelled(format!("operation {} was cancelled", operation.id))
    }
}

fn failed(error: &OperationError) -> Status {
    let code = if error.retryable {
        Code::Unavailable
    } else {
        Code::FailedPrecondition
    };
    with_reason(code, &error.message, &error.reason, &[])
}

fn with_reason(code: Code, message: &str, reason: &str, metadata: &[(&str, &str)]) -> Status {
    let metadata: HashMap<String, String> = metadata
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let mut details = ErrorDetails::new();
    details.set_error_info(reason, DOMAIN, metadata);
    Status::with_error_details(code, message, details)
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.message();
        match &refusal {
            Refusal::Invalid(parameter, what) => {
                let mut details = ErrorDetails::new();
                details.add_bad_request_violation(*parameter, what.clone());
                details.set_error_info(refusal.reason(), DOMAIN, HashMap::new());
                Self::with_error_details(Code::InvalidArgument, message, details)
            }
            Refusal::NotOwner(Some(url)) => with_reason(
                Code::FailedPrecondition,
                &message,
                refusal.reason(),
                &[("owner", url)],
            ),
            Refusal::NotOwner(None) | Refusal::Failing(..) => {
                with_reason(Code::Unavailable, &message, refusal.reason(), &[])
            }
            Refusal::NoStore => with_reason(Code::FailedPrecondition, &message, refusal.reason(), &[]),
        }
    }
}

fn of_store(error: &snapstore::Error) -> Status {
    let code = if error.is_retryable() {
        Code::Unavailable
    } else {
        Code::FailedPrecondition
    };
    with_reason(code, &chain(error), error.reason(), &[])
}

fn of_etcd(error: &EtcdError) -> Status {
    with_reason(Code::Unavailable, &chain(error), "EtcdUnreachable", &[])
}

fn unknown(id: &str) -> Status {
    with_reason(
        Code::NotFound,
        &format!("no operation {id:?}: it is forgotten, or another steward's"),
        "NotFound",
        &[],
    )
}

#[tonic::async_trait]
impl SnapshotsService for Api {
    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        let wanted = Wanted::new(&request, request.get_ref().r#async);
        let request = request.into_inner();
        let kind = match request.r#type() {
            SnapshotType::Full => Kind::Full,
            SnapshotType::Delta => Kind::Delta,
            SnapshotType::Unspecified => {
                return Err(Refusal::Invalid(
                    "type",
                    "say SNAPSHOT_TYPE_FULL or SNAPSHOT_TYPE_DELTA".to_owned(),
                )
                .into());
            }
        };
        let marks = Marks {
            is_final: request.r#final,
            accepts_fewer_keys: request.accept_fewer_keys,
        };
        let operation = self.start_snapshot(kind, marks, &request.request_id).await?;
        let operation = Some(self.outcome(operation, &wanted).await?);
        Ok(Response::new(CreateSnapshotResponse { operation }))
    }

    async fn get_latest_snapshots(
        &self,
        _: Request<GetLatestSnapshotsRequest>,
    ) -> Result<Response<GetLatestSnapshotsResponse>, Status> {
        let backups = self.backups.as_ref().ok_or(Refusal::NoStore)?;
        let (full, deltas) = backups.latest().await.map_err(|error| of_store(&error))?;
        Ok(Response::new(GetLatestSnapshotsResponse {
            full: full.as_ref().map(snapshot),
            deltas: deltas.iter().map(snapshot).collect(),
        }))
    }

    async fn list_snapshots(
        &self,
        _: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        let backups = self.backups.as_ref().ok_or(Refusal::NoStore)?;
        let listing = backups.store.list().await.map_err(|error| of_store(&error))?;
        let snapshots = listing.snapshots.iter().map(snapshot).collect();
        Ok(Response::new(ListSnapshotsResponse { snapshots }))
    }

    async fn get_backup_status(
        &self,
        _: Request<GetBackupStatusRequest>,
    ) -> Result<Response<GetBackupStatusResponse>, Status> {
        let backups = self.backups.as_ref().ok_or(Refusal::NoStore)?;
        let known = backups.known.borrow().clone();
        Ok(Response::new(GetBackupStatusResponse {
            owner: known.owner,
            last_full: known.full.as_ref().map(snapshot),
            last_delta: known.deltas.last().map(snapshot),
            uncovered_revisions: known.current.saturating_sub(known.covered).max(0),
            next_full_time: known
                .next_full
                .map(|time| std::time::SystemTime::from(time).into()),
            error: known.failures.newest().map(|trouble| OperationError {
                reason: trouble.reason.to_owned(),
                message: trouble.message.clone(),
                retryable: true,
            }),
        }))
    }
}

#[tonic::async_trait]
impl MaintenanceService for Api {
    async fn defragment(
        &self,
        request: Request<DefragmentRequest>,
    ) -> Result<Response<DefragmentResponse>, Status> {
        let wanted = Wanted::new(&request, request.get_ref().r#async);
        let request = request.into_inner();
        let operation = self.start_defragmentation(request.min_reclaimable_bytes, &request.request_id)?;
        let operation = Some(self.outcome(operation, &wanted).await?);
        Ok(Response::new(DefragmentResponse { operation }))
    }

    async fn compact(&self, request: Request<CompactRequest>) -> Result<Response<CompactResponse>, Status> {
        let wanted = Wanted::new(&request, request.get_ref().r#async);
        let request = request.into_inner();
        let operation = self.start_compaction(request.revision, &request.request_id)?;
        let operation = Some(self.outcome(operation, &wanted).await?);
        Ok(Response::new(CompactResponse { operation }))
    }
}

#[tonic::async_trait]
impl MembersService for Api {
    async fn get_member(&self, _: Request<GetMemberRequest>) -> Result<Response<GetMemberResponse>, Status> {
        let member = Some(self.own_member().await);
        Ok(Response::new(GetMemberResponse { member }))
    }

    async fn list_members(
        &self,
        _: Request<ListMembersRequest>,
    ) -> Result<Response<ListMembersResponse>, Status> {
        let members = self.members().await.map_err(|error| of_etcd(&error))?;
        Ok(Response::new(ListMembersResponse { members }))
    }

    async fn get_volume(&self, _: Request<GetVolumeRequest>) -> Result<Response<GetVolumeResponse>, Status> {
        let volume = Some(self.own_volume());
        Ok(Response::new(GetVolumeResponse { volume }))
    }
}

#[tonic::async_trait]
impl OperationsService for Api {
    type WatchOperationStream = Pin<Box<dyn Stream<Item = Result<WatchOperationResponse, Status>> + Send>>;

    async fn get_operation(
        &self,
        request: Request<GetOperationRequest>,
    ) -> Result<Response<GetOperationResponse>, Status> {
        let id = request.into_inner().id;
        let operation = self.operations.get(&id).ok_or_else(|| unknown(&id))?;
        let operation = Some(operation.borrow().clone());
        Ok(Response::new(GetOperationResponse { operation }))
    }

    async fn list_operations(
        &self,
        _: Request<ListOperationsRequest>,
    ) -> Result<Response<ListOperationsResponse>, Status> {
        Ok(Response::new(ListOperationsResponse {
            operations: self.operations.list(),
        }))
    }

    async fn wait_operation(
        &self,
        request: Request<WaitOperationRequest>,
    ) -> Result<Response<WaitOperationResponse>, Status> {
        let request = request.into_inner();
        let operation = self
            .operations
            .get(&request.id)
            .ok_or_else(|| unknown(&request.id))?;
        let limit = request
            .timeout
            .and_then(|timeout| Duration::try_from(timeout).ok());
        Ok(Response::new(WaitOperationResponse {
            operation: Some(wait(operation, limit).await),
        }))
    }

    async fn watch_operation(
        &self,
        request: Request<WatchOperationRequest>,
    ) -> Result<Response<Self::WatchOperationStream>, Status> {
        let id = request.into_inner().id;
        let operation = self.operations.get(&id).ok_or_else(|| unknown(&id))?;
        let states = states(operation).map(|operation| {
            Ok(WatchOperationResponse {
                operation: Some(operation),
            })
        });
        Ok(Response::new(Box::pin(states)))
    }

    async fn cancel_operation(
        &self,
        request: Request<CancelOperationRequest>,
    ) -> Result<Response<CancelOperationResponse>, Status> {
        let id = request.into_inner().id;
        let operation = self.operations.cancel(&id).ok_or_else(|| unknown(&id))?;
        Ok(Response::new(CancelOperationResponse {
            operation: Some(operation),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_as_they_come_over_the_wire() {
        for (text, expected) in [
            ("1H", Some(Duration::from_hours(1))),
            ("2M", Some(Duration::from_mins(2))),
            ("30S", Some(Duration::from_secs(30))),
            ("500m", Some(Duration::from_millis(500))),
            ("7u", Some(Duration::from_micros(7))),
            ("9n", Some(Duration::from_nanos(9))),
            ("123456789S", None),
            ("10", None),
            ("", None),
            ("1é", None),
        ] {
            assert_eq!(grpc_timeout(text), expected, "{text}");
        }
    }

    /// Without them grpcurl can't list the services.
    #[test]
    fn the_descriptors_can_be_reflected() {
        let builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        assert!(builder.build_v1().is_ok());
    }
}
