//! A learner asks for its promotion until it votes. etcd itself refuses as long as it hasn't caught up.

use std::time::Duration;

use api::{
    steward::ClusterConfig,
    v1alpha1::{EtcdMemberStatus, MemberRole},
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::{Status, kubernetes::Kubernetes};
use crate::etcd::{CALL_TIMEOUT, Connector, call};

const PERIOD: Duration = Duration::from_secs(1);

/// Works whenever this member is a learner.
pub async fn run(
    status: Status,
    connector: Connector,
    cluster: ClusterConfig,
    own: String,
    kubernetes: Option<Kubernetes>,
    shutdown: CancellationToken,
) {
    let mut changes = status.subscribe();
    let learns = |status: &EtcdMemberStatus| status.role == Some(MemberRole::Learner);
    loop {
        tokio::select! {
            changed = changes.wait_for(learns) => if changed.is_err() { return },
            () = shutdown.cancelled() => return,
        }
        let id = status
            .read(|status| status.id.clone())
            .and_then(|id| u64::from_str_radix(&id, 16).ok());
        let others = cluster.members.iter().filter(|member| member.name != own);
        for voter in others {
            let promoted = async {
                let mut client = connector.remote(&voter.client_urls).await?;
                call(
                    "promote this member",
                    CALL_TIMEOUT,
                    client.member_promote(id.unwrap_or_default()),
                )
                .await
            };
            match promoted.await {
                Ok(_) => {
                    info!(by = voter.name, "promoted to a voter");
                    if let Some(kubernetes) = &kubernetes {
                        kubernetes.promoted().await;
                    }
                    break;
                }
                Err(error) => debug!(by = voter.name, %error, "not promoted yet"),
            }
        }
        sleep(PERIOD).await;
    }
}
