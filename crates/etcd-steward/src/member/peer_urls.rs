//! Keeps the URLs by which the cluster reaches this member the same as the configured ones. etcd heeds them only when a
//! member is founded; after that its cluster has to be told. What versions of etcd do wrong with it is known here.

mod gate;

use std::path::PathBuf;

use api::{
    steward::{ClusterConfig, ClusterMember},
    v1alpha1::{EtcdMemberStatus, MemberRole},
};
use etcd_client::{Client, Member, MemberListResponse};
use futures::future::join_all;
use tokio::{
    sync::watch,
    time::{Duration, sleep},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::gate::{Change, change};
use super::{Status, kubernetes::Kubernetes};
use crate::{
    bootstrap::config::{self, ConfigError, Version},
    etcd::{CALL_TIMEOUT, Connector, Consistency, EtcdError, call, list_members},
};

const RETRY: Duration = Duration::from_secs(5);

/// Why the URLs can't be compared or changed.
#[derive(Debug, thiserror::Error)]
enum PeerUrlError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Etcd(#[from] EtcdError),
}

/// What keeps them.
#[derive(Debug)]
pub struct PeerUrls {
    /// What the member tells.
    pub status: Status,
    /// Connections to etcd.
    pub connector: Connector,
    /// The wanted members.
    pub cluster: ClusterConfig,
    /// This member, as it is wanted.
    pub member: ClusterMember,
    /// The file with its etcd's configuration.
    pub config_file: PathBuf,
    /// What its etcd runs with.
    pub running: watch::Receiver<Option<Version>>,
    /// The version of its etcd, which doesn't answer while it is a learner.
    pub version: watch::Receiver<String>,
    /// For Events.
    pub kubernetes: Option<Kubernetes>,
}

impl PeerUrls {
    /// Works until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        tokio::select! {
            () = self.work() => {}
            () = shutdown.cancelled() => {}
        }
    }

    /// Looks whenever etcd has started anew, for the configuration of a running one doesn't change, and whenever the
    /// member's role is another one: it decides whom to ask, and what may be changed.
    async fn work(&self) {
        let mut changes = self.status.subscribe();
        let mut running = self.running.clone();
        let mut told = None;
        loop {
            running.mark_unchanged();
            let Ok(role) = changes
                .wait_for(|status| status.id.is_some())
                .await
                .map(|status| status.role.clone())
            else {
                return;
            };
            let again = async {
                loop {
                    match self.look(&mut told).await {
                        Ok(true) => std::future::pending::<()>().await,
                        // Others may be updated, or answer by then.
                        Ok(false) => {}
                        Err(error) => debug!(%error, "failed to compare the peer URLs"),
                    }
                    sleep(RETRY).await;
                }
            };
            tokio::select! {
                () = again => {}
                changed = running.changed() => if changed.is_err() { return },
                changed = changes.wait_for(|status| status.role != role) => if changed.is_err() { return },
            }
        }
    }

    /// False if something is left to be done. `told` is the last refusal.
    async fn look(&self, told: &mut Option<String>) -> Result<bool, PeerUrlError> {
        let newest = config::version_of(&config::read(&self.config_file)?)?;
        if self.running.borrow().as_ref() != Some(&newest) {
            // It still listens where it did.
            return Ok(true);
        }
        let Some((mut client, members, id)) = self.listed().await? else {
            return Ok(true);
        };
        let Some(own) = members.iter().find(|member| member.id() == id) else {
            return Ok(true);
        };
        let change = change(own.peer_urls(), &self.member.peer_urls);
        let learner_at = match change {
            Change::Update if own.is_learner() => self.versions(&members, id).await,
            _ => Vec::new(),
        };
        match gate::allowed(change, &learner_at) {
            Change::None => Ok(true),
            Change::Update => {
                self.update(&mut client, id, own.peer_urls()).await?;
                Ok(true)
            }
            Change::Refuse(refusal) => {
                let refusal = refusal.to_string();
                if told.replace(refusal.clone()).as_ref() != Some(&refusal) {
                    self.refuse(&refusal).await;
                }
                Ok(false)
            }
        }
    }

    /// The members as the one beside us lists them, its ID, and whom to tell. One that doesn't vote answers no such call, so
    /// another one that lists it is asked; `None` if there is none.
    async fn listed(&self) -> Result<Option<(Client, Vec<Member>, u64)>, PeerUrlError> {
        let votes = |status: &EtcdMemberStatus| {
            matches!(status.role, Some(MemberRole::Leader | MemberRole::Follower))
        };
        if self.status.read(votes) {
            let mut client = self.connector.local().await?;
            let listed = list_members(&mut client, Consistency::Quorum).await?;
            let id = listed.header().map_or(0, etcd_client::ResponseHeader::member_id);
            return Ok(Some((client, listed.members().to_vec(), id)));
        }
        let id = self.status.read(|status| status.id.clone());
        let Some(id) = id.and_then(|id| u64::from_str_radix(&id, 16).ok()) else {
            return Ok(None);
        };
        let members = self.cluster.members.iter();
        let others = members.filter(|member| member.name != self.member.name);
        let has_own = |listed: &MemberListResponse| listed.members().iter().any(|member| member.id() == id);
        let listed = self
            .connector
            .listed_by_others(others, Consistency::Quorum, has_own)
            .await?;
        Ok(listed.map(|(client, listed)| (client, listed.members().to_vec(), id)))
    }

    /// Versions of all members that have ever started: each carries out the change itself. One that doesn't answer has none.
    async fn versions(&self, members: &[Member], own: u64) -> Vec<String> {
        let started = members
            .iter()
            .filter(|member| member.id() != own && !member.client_urls().is_empty());
        let asked = started.map(|member| async move {
            let mut client = self.connector.remote(member.client_urls()).await?;
            let status = call("status", CALL_TIMEOUT, client.status()).await?;
            Ok::<_, EtcdError>(status.version().to_owned())
        });
        let others = join_all(asked).await.into_iter().map(Result::unwrap_or_default);
        let own = self.version.borrow().clone();
        others.chain([own]).collect()
    }

    async fn update(&self, client: &mut Client, id: u64, before: &[String]) -> Result<(), PeerUrlError> {
        let wanted = &self.member.peer_urls;
        let updating = client.member_update(id, wanted.clone());
        call("update the peer URLs", CALL_TIMEOUT, updating).await?;
        info!(?before, after = ?wanted, "told the cluster this member's new peer URLs");
        Ok(())
    }

    async fn refuse(&self, refusal: &str) {
        warn!(refusal, "the cluster isn't told this member's new peer URLs");
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes
                .warn("UpdatePeerURLs", "PeerURLsNotUpdated", refusal)
                .await;
        }
    }
}
