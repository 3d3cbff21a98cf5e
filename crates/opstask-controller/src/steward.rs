//! What tasks ask of stewards. A trait, so that handlers can be tested without a network.

use std::fmt::Debug;

use async_trait::async_trait;
use futures::{StreamExt as _, stream::BoxStream};
use operator::steward::{StewardError, Stewards, Target};
use steward_proto::v1::{
    CancelOperationRequest, CreateSnapshotRequest, GetOperationRequest, Operation, WatchOperationRequest,
};
use tonic::Status;

/// A way to reach stewards.
#[async_trait]
pub trait Steward: Debug + Send + Sync {
    /// Starts a snapshot, or finds the operation that was started with the same request id.
    async fn create_snapshot(
        &self,
        target: &Target,
        request: CreateSnapshotRequest,
    ) -> Result<Operation, StewardError>;

    /// An operation as it stands.
    async fn operation(&self, target: &Target, id: &str) -> Result<Operation, StewardError>;

    /// An operation at each of its changes, until it is done.
    async fn watch(
        &self,
        target: &Target,
        id: &str,
    ) -> Result<BoxStream<'static, Result<Operation, StewardError>>, StewardError>;

    /// Asks an operation to stop.
    async fn cancel(&self, target: &Target, id: &str) -> Result<(), StewardError>;
}

#[async_trait]
impl Steward for Stewards {
    async fn create_snapshot(
        &self,
        target: &Target,
        request: CreateSnapshotRequest,
    ) -> Result<Operation, StewardError> {
        let response = self.snapshots(target)?.create_snapshot(request).await;
        let response = response.map_err(|status| call(target, status))?;
        carried(target, response.into_inner().operation)
    }

    async fn operation(&self, target: &Target, id: &str) -> Result<Operation, StewardError> {
        let request = GetOperationRequest { id: id.to_owned() };
        let response = self.operations(target)?.get_operation(request).await;
        let response = response.map_err(|status| call(target, status))?;
        carried(target, response.into_inner().operation)
    }

    async fn watch(
        &self,
        target: &Target,
        id: &str,
    ) -> Result<BoxStream<'static, Result<Operation, StewardError>>, StewardError> {
        let request = WatchOperationRequest { id: id.to_owned() };
        let response = self.operations(target)?.watch_operation(request).await;
        let states = response.map_err(|status| call(target, status))?.into_inner();
        let target = target.clone();
        let states = states.map(move |state| match state {
            Ok(response) => carried(&target, response.operation),
            Err(broken) => Err(call(&target, broken)),
        });
        Ok(states.boxed())
    }

    async fn cancel(&self, target: &Target, id: &str) -> Result<(), StewardError> {
        let request = CancelOperationRequest { id: id.to_owned() };
        let response = self.operations(target)?.cancel_operation(request).await;
        response.map_err(|status| call(target, status))?;
        Ok(())
    }
}

/// A status as the error of a call.
pub(crate) fn call(target: &Target, status: Status) -> StewardError {
    StewardError::Call {
        address: target.address.clone(),
        status: Box::new(status),
    }
}

fn carried(target: &Target, operation: Option<Operation>) -> Result<Operation, StewardError> {
    operation.ok_or_else(|| call(target, Status::internal("the answer carries no operation")))
}
