//! A learner asks for its promotion until it votes, once its own etcd serves and has applied nearly all: etcd itself only
//! looks at what was sent to it, and a voter that doesn't serve may cost a quorum. It counts as a voter when it says so
//! itself and all that answer list it as one. Then the mark goes that says that it is yet to join, and the hold on what it
//! was before.

mod proof;

use std::{future::pending, path::PathBuf, time::Duration};

use api::{
    steward::{ClusterConfig, ClusterMember},
    v1alpha1::{EtcdMemberStatus, MemberRole},
};
use etcd_client::StatusResponse;
use futures::future::join_all;
use operator::reconcile::chain;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::proof::{Says, prove};
use super::{Status, kubernetes::Kubernetes};
use crate::{
    etcd::{CALL_TIMEOUT, Connector, Consistency, EtcdError, call, list_members},
    metrics::{Metrics, Step},
    volume,
};

const PERIOD: Duration = Duration::from_secs(1);
/// Entries that a member may have yet to apply; with more of them etcd refuses requests.
const MOST_BEHIND: u64 = 5000;
/// How an etcd that learns answers what only voters can.
const ONLY_A_LEARNER: &str = "rpc not supported for learner";
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
    /// Its etcd's data directory.
    pub data_dir: PathBuf,
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
        let mut learned = false;
        loop {
            if changes.wait_for(|status| status.role.is_some()).await.is_err() {
                return;
            }
            if self.status.read(learns) {
                learned = true;
                self.ask().await;
                sleep(PERIOD).await;
                continue;
            }
            let settled = async {
                if learned {
                    self.until_proven().await;
                    learned = false;
                }
                if let Err(error) = volume::votes(&self.data_dir) {
                    warn!(%error, "failed to let go of the data that was moved aside");
                }
                self.unmark().await;
                pending::<()>().await;
            };
            // It may come back with other data.
            let begins_anew = |status: &EtcdMemberStatus| status.role.is_none() || learns(status);
            tokio::select! {
                () = settled => {}
                changed = changes.wait_for(begins_anew) => if changed.is_err() { return },
            }
        }
    }

    /// Asks one voter after the other.
    async fn ask(&self) {
        let Some(id) = self.id() else {
            return;
        };
        let applied = match self.own_etcd().await {
            Ok(own) if own.is_learner() => Some(own.raft_applied_index()),
            Ok(_) => return,
            // With authentication it can't know who asks, and says no more than that.
            Err(error) if error.message().contains(ONLY_A_LEARNER) => None,
            Err(error) => {
                debug!(%error, "not asking for the promotion: its own etcd doesn't answer");
                return;
            }
        };
        let others = self
            .cluster
            .members
            .iter()
            .filter(|member| member.name != self.own);
        for voter in others {
            let begun = Instant::now();
            match self.ask_one(voter, id, applied).await {
                Ok(true) => {
                    info!(by = voter.name, "promoted");
                    self.metrics.stepped(Step::Promote, true, begun.elapsed());
                    return;
                }
                Ok(false) => debug!(by = voter.name, ?applied, "too far behind to be promoted"),
                Err(error) => debug!(by = voter.name, %error, "not promoted yet"),
            }
        }
    }

    /// Has one voter promote this member, unless that one is known to have applied much more.
    async fn ask_one(&self, voter: &ClusterMember, id: u64, applied: Option<u64>) -> Result<bool, EtcdError> {
        let mut client = self.connector.remote(&voter.client_urls).await?;
        if let Some(applied) = applied {
            let voters = call("status of a voter", CALL_TIMEOUT, client.status()).await?;
            if !is_near(applied, voters.raft_applied_index()) {
                return Ok(false);
            }
        }
        call("promote this member", CALL_TIMEOUT, client.member_promote(id)).await?;
        Ok(true)
    }

    /// What the etcd beside us says, if it serves.
    async fn own_etcd(&self) -> Result<StatusResponse, EtcdError> {
        let mut client = self.connector.local().await?;
        call("status of etcd", CALL_TIMEOUT, client.status()).await
    }

    fn id(&self) -> Option<u64> {
        let id = self.status.read(|status| status.id.clone())?;
        u64::from_str_radix(&id, 16).ok()
    }

    /// The promotion is stored with the Raft log, and each member reads it there at its own time. What one list says
    /// need not be so for Raft.
    async fn until_proven(&self) {
        loop {
            match self.said().await {
                Ok(said) => match prove(&said) {
                    Ok(()) => break,
                    Err(doubt) => debug!(%doubt, "not proven to be a voter yet"),
                },
                Err(error) => debug!(%error, "can't be proven to be a voter yet"),
            }
            sleep(PERIOD).await;
        }
        info!("is a voter: says so itself, and all that answer list it as one");
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes
                .tell("Join", "PromotedAsVotingMember", "the member votes")
                .await;
        }
    }

    /// What each voter says of this one, and what it says itself.
    async fn said(&self) -> Result<Vec<(String, Says)>, EtcdError> {
        let mut client = self.connector.local().await?;
        let listed = list_members(&mut client, Consistency::Local).await?;
        let id = listed.header().map_or(0, etcd_client::ResponseHeader::member_id);
        let voters = listed.members().iter().filter(|member| !member.is_learner());
        let asked = voters.map(|member| async move {
            let says = if member.id() == id {
                self.says_itself().await
            } else {
                self.listed_by(member.client_urls(), id).await
            };
            let silent = |error: EtcdError| {
                debug!(member = member.name(), %error, "doesn't say who votes");
                Says::Nothing
            };
            (member.name().to_owned(), says.unwrap_or_else(silent))
        });
        Ok(join_all(asked).await)
    }

    async fn says_itself(&self) -> Result<Says, EtcdError> {
        Ok(if self.own_etcd().await?.is_learner() {
            Says::Learner
        } else {
            Says::Voter
        })
    }

    /// Each member answers with its own list.
    async fn listed_by(&self, urls: &[String], id: u64) -> Result<Says, EtcdError> {
        let mut client = self.connector.remote(urls).await?;
        let listed = list_members(&mut client, Consistency::Local).await?;
        let own = listed.members().iter().find(|member| member.id() == id);
        Ok(match own {
            Some(own) if own.is_learner() => Says::Learner,
            Some(_) => Says::Voter,
            None => Says::NotListed,
        })
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

fn is_near(applied: u64, voters: u64) -> bool {
    voters.saturating_sub(applied) <= MOST_BEHIND
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_nearly_all_is_to_vote() {
        for (applied, voters, expected) in [
            (10, 10, true),
            // The voter was asked later, or is itself behind.
            (1_000_000, 1_005_000, true),
            (1_000_000, 10, true),
            (1_000_000, 1_005_001, false),
            (0, u64::MAX, false),
        ] {
            assert_eq!(is_near(applied, voters), expected, "{applied} of {voters}");
        }
    }
}
