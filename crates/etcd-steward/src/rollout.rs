//! Brings a changed configuration, or a changed authority, into the running etcd: by a restart of the process, one member of
//! the cluster at a time, and only while all others serve. Followers come in the order of their ordinals, the leader last,
//! after it has handed over.
//!
//! Members agree through their EtcdMembers, which the API server orders: who wants to restart first says so there, then
//! looks whether somebody else has said so too. Of two that see each other at least one steps back.

mod turn;

use std::{path::PathBuf, time::Duration};

use api::{
    conditions::member as condition,
    steward::{ClusterConfig, etcd_file},
    v1alpha1::{Condition, ConditionStatus, EtcdMemberStatus, MemberRole, find_condition},
};
use etcd_client::{Member, MemberListResponse};
use futures::future::join_all;
use serde_json::{Map, Value};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::turn::{Peer, Place, Turn, turn};
use crate::{
    bootstrap::{
        config::{self, Version},
        peer_scheme,
        session::Sessions,
    },
    etcd::{CALL_TIMEOUT, Connector, Consistency, EtcdError, call, hex_id, list_members},
    member::{Status, kubernetes::Kubernetes},
};

/// Pause between two looks at the others while the member's turn hasn't come.
const LOOK: Duration = Duration::from_secs(3);
/// Content of a Secret may change without an event that is seen here.
const RECHECK: Duration = Duration::from_mins(1);

/// A member without a vote that works for so long has none to lose, and asks nobody. Nor could it: an etcd that never came
/// to serve answers nobody, and may need nothing but the new configuration.
const WITHOUT_VOTE: Duration = Duration::from_mins(1);
/// Those that seem to have no vote go one after the other.
const STAGGER: Duration = Duration::from_secs(20);

/// Why it can't be told whether the member may restart.
#[derive(Debug, thiserror::Error)]
enum RolloutError {
    #[error(transparent)]
    Config(#[from] config::ConfigError),
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    #[error("the members' EtcdMembers: {0}")]
    Kubernetes(#[from] kube::Error),
}

/// The rollout at one member.
#[derive(Debug)]
pub struct Rollout {
    /// The launcher's session.
    pub sessions: Sessions,
    /// Connections to the members' etcds.
    pub connector: Connector,
    /// The wanted members.
    pub cluster: ClusterConfig,
    /// Name of this member.
    pub own: String,
    /// Folder with all members' configurations.
    pub config: PathBuf,
    /// Where members agree.
    pub kubernetes: Option<Kubernetes>,
    /// What the member tells.
    pub status: Status,
}

impl Rollout {
    /// Works until `shutdown`. `changes` tells when a file may have changed.
    pub async fn run(self, changes: watch::Receiver<()>, shutdown: CancellationToken) {
        tokio::select! {
            () = self.work(changes) => {}
            () = shutdown.cancelled() => {}
        }
    }

    async fn work(&self, mut changes: watch::Receiver<()>) {
        let mut running = self.sessions.running();
        let mut voteless = None;
        loop {
            let now = running.borrow_and_update().clone();
            let pause = match self.step(now, &mut voteless).await {
                Ok(pause) => pause,
                Err(error) => {
                    self.wait(&error.to_string());
                    LOOK
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                Ok(()) = changes.changed() => {}
                Ok(()) = running.changed() => {}
            }
        }
    }

    /// One look, and what follows from it. Returns when to look again. `voteless` tells since when the member has had no vote
    /// that works while a new configuration waits.
    async fn step(
        &self,
        running: Option<Version>,
        voteless: &mut Option<Instant>,
    ) -> Result<Duration, RolloutError> {
        let Some(running) = running else {
            // Whatever starts it next starts it with the newest configuration.
            return Ok(RECHECK);
        };
        let wanted = self.wanted(&self.own)?;
        if running == wanted {
            *voteless = None;
            return Ok(if self.is_done() { RECHECK } else { LOOK });
        }
        if let Some(why) = self.moved_peers().await? {
            self.refuse(&why).await;
            return Ok(LOOK);
        }
        let patience = WITHOUT_VOTE + STAGGER * u32::try_from(self.ordinal()).unwrap_or(0);
        let goes = if is_overdue(voteless, self.status.read(votes), patience) {
            self.goes_alone();
            true
        } else {
            self.goes_in_turn().await?
        };
        if goes {
            info!(%running, %wanted, "restarting etcd with the new configuration");
            *voteless = None;
            self.sessions.restart();
            self.restarted().await;
        }
        Ok(LOOK)
    }

    /// Whether it is the member's turn, and nobody else is faster.
    async fn goes_in_turn(&self) -> Result<bool, RolloutError> {
        match self.turn().await? {
            Turn::Go => return self.claim().await,
            Turn::Wait(why) => self.wait(&why),
            // The restart comes when the other one leads.
            Turn::HandOver(successor) => self.hand_over(&successor).await?,
        }
        Ok(false)
    }

    /// A member without a vote restarts whatever the others do.
    fn goes_alone(&self) {
        info!("the member has had no vote for long: its restart needs nobody's agreement");
        self.announce();
    }

    /// What a member's etcd should run with.
    fn wanted(&self, member: &str) -> Result<Version, RolloutError> {
        Ok(config::version_of(&self.file(member)?)?)
    }

    fn file(&self, member: &str) -> Result<Map<String, Value>, RolloutError> {
        Ok(config::read(&self.config.join(etcd_file(member)))?)
    }

    /// Whether etcd, which runs with what is wanted, serves as well. Then nothing is waited for any more.
    fn is_done(&self) -> bool {
        let serves = self.status.read(|status| {
            find_condition(&status.conditions, condition::READY).is_some_and(Condition::is_true)
        });
        if serves {
            self.status.no_condition(condition::RESTARTING);
        }
        serves
    }

    fn wait(&self, why: &str) {
        let told = self.status.read(|status| {
            let told = find_condition(&status.conditions, condition::RESTARTING);
            told.is_some_and(|told| told.message == why)
        });
        if !told {
            info!(why, "a new configuration waits for its turn");
        }
        self.status.condition(
            condition::RESTARTING,
            ConditionStatus::False,
            condition::WAITING_FOR_TURN,
            why,
        );
    }

    fn announce(&self) {
        self.status.condition(
            condition::RESTARTING,
            ConditionStatus::True,
            condition::CONFIGURATION_CHANGED,
            "etcd is restarted with its new configuration",
        );
    }

    fn ordinal(&self) -> usize {
        let mut members = self.cluster.members.iter();
        members
            .position(|member| member.name == self.own)
            .unwrap_or(usize::MAX)
    }

    async fn turn(&self) -> Result<Turn, RolloutError> {
        let leads = self.status.read(|status| status.role == Some(MemberRole::Leader));
        let place = Place {
            ordinal: self.ordinal(),
            leads,
        };
        if self.cluster.members.len() <= 1 {
            return Ok(Turn::Go);
        }
        let mut client = self.connector.local().await?;
        let listed = list_members(&mut client, Consistency::Local).await?;
        let others = self
            .cluster
            .members
            .iter()
            .enumerate()
            .filter(|(_, member)| member.name != self.own);
        let looks = others.map(|(ordinal, member)| self.peer(ordinal, &member.name, listed.members()));
        let peers: Result<Vec<_>, RolloutError> = join_all(looks).await.into_iter().collect();
        Ok(turn(place, &peers?))
    }

    /// A member whose peers are to reach it in another way than the cluster has recorded must not start like that. Whoever
    /// has lost its vote may run so: it comes back by another start.
    async fn moved_peers(&self) -> Result<Option<String>, RolloutError> {
        let file = self.file(&self.own)?;
        let recorded = self.recorded_peer_urls().await;
        let checked = peer_scheme::matches(&recorded, config::peer_scheme(&file));
        Ok(checked.err().map(|mismatch| mismatch.to_string()))
    }

    /// The URLs by which the cluster reaches this member: as its own etcd lists them, else as another one does, else what it
    /// was started with. Any list will do: a scheme doesn't change.
    async fn recorded_peer_urls(&self) -> Vec<String> {
        let id = self.status.read(|status| status.id.clone());
        let id = id.and_then(|id| u64::from_str_radix(&id, 16).ok());
        let is_own = |member: &&Member| Some(member.id()) == id || member.name() == self.own;
        let own = |listed: &[Member]| {
            let own = listed.iter().find(is_own);
            own.map(|own| own.peer_urls().to_vec())
        };
        let local = async {
            let mut client = self.connector.local().await?;
            list_members(&mut client, Consistency::Local).await
        };
        if let Some(urls) = local.await.ok().and_then(|listed| own(listed.members())) {
            return urls;
        }
        let others = self
            .cluster
            .members
            .iter()
            .filter(|member| member.name != self.own);
        let has_own = |listed: &MemberListResponse| listed.members().iter().any(|member| is_own(&member));
        let listed = self
            .connector
            .listed_by_others(others, Consistency::Local, has_own);
        if let Ok(Some((_, listed))) = listed.await {
            return own(listed.members()).unwrap_or_default();
        }
        let running = self
            .connector
            .running
            .as_ref()
            .and_then(|running| running.options().ok());
        let urls = running.and_then(|running| Some(running.get("listen-peer-urls")?.as_str()?.to_owned()));
        urls.into_iter().collect()
    }

    /// Says that this member can't follow, and what to do about it.
    async fn refuse(&self, why: &str) {
        let known = self.status.read(|status| {
            let known = find_condition(&status.conditions, condition::RESTARTING);
            known.is_some_and(|known| known.message == why)
        });
        self.status.condition(
            condition::RESTARTING,
            ConditionStatus::False,
            condition::PEER_TLS_MISMATCH,
            why,
        );
        if known {
            return;
        }
        warn!(why, "the new configuration is refused");
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes
                .warn("Restart", condition::PEER_TLS_MISMATCH, why)
                .await;
        }
    }

    async fn peer(&self, ordinal: usize, name: &str, listed: &[Member]) -> Result<Peer, RolloutError> {
        let wanted = self.wanted(name)?;
        let record = match &self.kubernetes {
            Some(kubernetes) => kubernetes.member(name).await?.and_then(|member| member.status),
            None => None,
        };
        let updated = record.as_ref().map(|status| {
            status.observed_config_hash.as_deref() == Some(wanted.config.as_str())
                && status.observed_tls_hash.as_deref().unwrap_or_default() == wanted.authorities
        });
        let restarting = record.is_some_and(|status| {
            find_condition(&status.conditions, condition::RESTARTING).is_some_and(Condition::is_true)
        });
        let mut peer = Peer {
            ordinal,
            name: name.to_owned(),
            id: 0,
            serves: false,
            leads: false,
            updated,
            restarting,
        };
        let Some(member) = listed
            .iter()
            .find(|member| member.name() == name && !member.is_learner())
        else {
            return Ok(peer);
        };
        peer.id = member.id();
        // By the URLs that it runs with, which may be other ones than those that are wanted.
        let asked = async {
            let mut client = self.connector.remote(member.client_urls()).await?;
            call("status", CALL_TIMEOUT, client.status()).await
        };
        if let Ok(status) = asked.await {
            (peer.serves, peer.leads) = (status.leader() != 0, status.leader() == member.id());
        }
        Ok(peer)
    }

    async fn hand_over(&self, successor: &Peer) -> Result<(), RolloutError> {
        info!(
            to = successor.name,
            id = hex_id(successor.id),
            "handing over the leadership before the restart"
        );
        let mut client = self.connector.local().await?;
        let moving = client.move_leader(successor.id);
        call("move the leadership", CALL_TIMEOUT, moving).await?;
        let mut followed = self.status.subscribe();
        let follows = followed.wait_for(|status| status.role != Some(MemberRole::Leader));
        let _ = tokio::time::timeout(LOOK, follows).await;
        Ok(())
    }

    /// Says that this member restarts, then looks again. False when somebody else was faster.
    async fn claim(&self) -> Result<bool, RolloutError> {
        self.announce();
        let Some(kubernetes) = &self.kubernetes else {
            return Ok(true);
        };
        let agreed = match kubernetes.publish_now(&self.status).await {
            Ok(_) => self.turn().await,
            Err(error) => Err(error.into()),
        };
        if let Ok(Turn::Go) = agreed {
            return Ok(true);
        }
        self.wait("another member is restarting");
        sleep(LOOK.mul_f64(rand::random())).await;
        agreed.map(|_| false)
    }

    /// Until etcd runs with another configuration, or for so long that it must be asked for again.
    async fn restarted(&self) {
        let mut running = self.sessions.running();
        let before = running.borrow_and_update().clone();
        let changed = running.wait_for(|now| now.is_some() && *now != before);
        if tokio::time::timeout(RECHECK, changed).await.is_err() {
            warn!("etcd doesn't run with the new configuration yet");
        }
    }
}

/// Whether etcd has answered lately as one that votes and knows its leader.
fn votes(status: &EtcdMemberStatus) -> bool {
    matches!(status.role, Some(MemberRole::Leader | MemberRole::Follower))
}

/// Whether there has been no vote for long. `since` goes on from one look to the next.
fn is_overdue(since: &mut Option<Instant>, votes: bool, patience: Duration) -> bool {
    if votes {
        *since = None;
        return false;
    }
    since.get_or_insert_with(Instant::now).elapsed() >= patience
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An etcd that starts or has an election goes through a while without a vote; one that has never served stays so.
    #[tokio::test(start_paused = true)]
    async fn only_who_has_no_vote_for_long_goes_out_of_turn() {
        let mut since = None;
        let mut look = |votes| is_overdue(&mut since, votes, WITHOUT_VOTE);
        let pass = |seconds| tokio::time::advance(Duration::from_secs(seconds));
        assert!(!look(true));
        assert!(!look(false));
        pass(59).await;
        assert!(!look(false));
        assert!(!look(true), "it votes again");
        pass(60).await;
        assert!(!look(false), "it begins anew");
        pass(60).await;
        assert!(look(false));
    }

    #[test]
    fn whoever_does_not_answer_or_knows_no_leader_has_no_vote() {
        for (role, expected) in [
            (None, false),
            (Some(MemberRole::Learner), false),
            (Some(MemberRole::Follower), true),
            (Some(MemberRole::Leader), true),
        ] {
            let status = EtcdMemberStatus {
                role,
                ..EtcdMemberStatus::default()
            };
            assert_eq!(votes(&status), expected, "{:?}", status.role);
        }
    }
}
