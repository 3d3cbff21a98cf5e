//! A learner asks for its promotion until it votes; etcd itself refuses as long as it hasn't caught up. A member that
//! votes takes the mark away that says that it is yet to join.

use std::{future::pending, time::Duration};

use api::{
    steward::ClusterConfig,
    v1alpha1::{EtcdMemberStatus, MemberRole},
};
use operator::reconcile::chain;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{Status, kubernetes::Kubernetes};
use crate::{
    etcd::{CALL_TIMEOUT, Connector, call},
    metrics::{Metrics, Step},
};

const PERIOD: Duration = Duration::from_secs(1);
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LAST_RETRY: Duration = Duration::from_mins(2);

/// Sees a member through from learner to voter.
#[derive(Debug)]
pub struct Promotion {
    /// What the member tells.
    pub status: Status,
    /// Connections to the voters.
    pub connector: Connector,
    /// The wanted members.
    pub cluster: ClusterConfig,
    /// Name of this member.
    pub own: String,
    /// Where the mark is, if there is a Kubernetes API.
    pub kubernetes: Option<Kubernetes>,
    /// Metrics.
    pub metrics: Metrics,
}

impl Promotion {
    /// Works whenever this member is a learner, or has become a voter.
    pub async fn run(self, shutdown: CancellationToken) {
        tokio::select! {
            () = self.work() => {}
            () = shutdown.cancelled() => {}
        }
    }

    async fn work(&self) {
        let learns = |status: &EtcdMemberStatus| status.role == Some(MemberRole::Learner);
        let mut changes = self.status.subscribe();
        loop {
            if changes.wait_for(|status| status.role.is_some()).await.is_err() {
                return;
            }
            if self.status.read(learns) {
                self.ask().await;
                sleep(PERIOD).await;
                continue;
            }
            let unmarked = async {
                self.unmark().await;
                pending::<()>().await;
            };
            tokio::select! {
                () = unmarked => {}
                changed = changes.wait_for(learns) => if changed.is_err() { return },
            }
        }
    }

    /// Asks one voter after the other.
    async fn ask(&self) {
        let id = self.status.read(|status| status.id.clone());
        let Some(id) = id.and_then(|id| u64::from_str_radix(&id, 16).ok()) else {
            return;
        };
        let others = self
            .cluster
            .members
            .iter()
            .filter(|member| member.name != self.own);
        for voter in others {
            let begun = Instant::now();
            let promoted = async {
                let mut client = self.connector.remote(&voter.client_urls).await?;
                call("promote this member", CALL_TIMEOUT, client.member_promote(id)).await
            };
            match promoted.await {
                Ok(_) => {
                    info!(by = voter.name, "promoted to a voter");
                    self.metrics.stepped(Step::Promote, true, begun.elapsed());
                    if let Some(kubernetes) = &self.kubernetes {
                        kubernetes
                            .tell("Join", "PromotedAsVotingMember", "the member votes")
                            .await;
                    }
                    return;
                }
                Err(error) => debug!(by = voter.name, %error, "not promoted yet"),
            }
        }
    }

    /// Takes the mark away, for as long as it takes. A mark that stays would make the member wait for others to join,
    /// should it ever lose its data.
    async fn unmark(&self) {
        let Some(kubernetes) = &self.kubernetes else {
            return;
        };
        let mut retry = FIRST_RETRY;
        while let Err(error) = kubernetes.no_learner_any_more().await {
            warn!(
                error = chain(&error),
                ?retry,
                "failed to take the learner annotation off this member's EtcdMember, trying again"
            );
            sleep(retry).await;
            retry = (retry * 2).min(LAST_RETRY);
        }
    }
}
