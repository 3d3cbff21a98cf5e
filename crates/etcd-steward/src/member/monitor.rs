//! Follows the etcd beside the steward: whether it answers, its role, sizes and alarms.

use std::{path::PathBuf, time::Duration};

use api::{
    conditions, quantity,
    steward::{ClusterConfig, ClusterMember},
    v1alpha1::{
        Alarm, ConditionStatus, Defragmentation, DefragmentationStatus, EtcdMemberStatus, Initialization,
        MemberRole, MemberState, MemberSubState, transition_reason as reason,
    },
};
use etcd_client::{Client, StatusResponse};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    Status,
    catch_up::{self, CatchUp},
    lag::{self, Lag},
    readiness::Readiness,
    restored,
    stored_voters::StoredVoters,
    whole_seconds,
};
use crate::bootstrap::config::{self, Version};
use crate::etcd::{CALL_TIMEOUT, Connector, EtcdError, call, hex_id};
use crate::metrics::Metrics;

/// etcd has no watch for its own state, so it is asked. A local call, well below a millisecond.
const PERIOD: Duration = Duration::from_secs(1);
/// While it starts, it is asked more often, for as long as this.
const STARTING_PERIOD: Duration = Duration::from_millis(50);
const STARTING: Duration = Duration::from_secs(30);
/// A single missed answer says nothing.
const SILENCE: Duration = Duration::from_secs(6);
/// Sizes are published in steps of 1/STEPS of themselves.
const STEPS: u64 = 16;

/// What the monitor tells the other parts.
#[derive(Debug, Clone)]
pub struct Monitor {
    connector: Connector,
    status: Status,
    /// What the configuration says that etcd runs with.
    serves_with: Option<(Version, ServesWith)>,
    /// Whether etcd completes no linearizable reads.
    stalled: watch::Receiver<bool>,
    metrics: Metrics,
    running: watch::Receiver<Option<Version>>,
    alive: watch::Sender<bool>,
    lag: Lag,
    /// etcd's data directory: what arrives there before etcd answers.
    data_dir: PathBuf,
    /// How far a learner was when it was last told, in percent.
    told: Option<i32>,
    /// The wanted members, and the voters in the data.
    wanted: ClusterConfig,
    stored_voters: StoredVoters,
    /// When was last looked for a quorum that etcd waits for, and what was found.
    quorum: Option<(Instant, Option<String>)>,
    /// The database's size at the last look, for as long as etcd runs.
    size: Option<u64>,
}

impl Monitor {
    /// `running` tells what the etcd that runs was started with, if one does.
    pub fn new(
        connector: Connector,
        status: Status,
        (cluster, own): (&ClusterConfig, &ClusterMember),
        metrics: Metrics,
        running: watch::Receiver<Option<Version>>,
        data_dir: PathBuf,
        stored_voters: StoredVoters,
    ) -> Self {
        Self {
            lag: Lag::new(connector.clone(), cluster, own),
            connector,
            status,
            serves_with: None,
            stalled: watch::Sender::new(false).subscribe(),
            metrics,
            running,
            alive: watch::Sender::new(false),
            data_dir,
            wanted: cluster.clone(),
            stored_voters,
            quorum: None,
            told: None,
            size: None,
        }
    }

    /// Whether etcd answers.
    pub fn alive(&self) -> watch::Receiver<bool> {
        self.alive.subscribe()
    }

    /// Asks etcd again and again.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let readiness = Readiness::new(self.running.clone(), self.connector.running.clone());
        self.stalled = readiness.stalled();
        tokio::select! {
            () = self.follow(shutdown) => {}
            () = readiness.run() => {}
        }
    }

    async fn follow(&mut self, shutdown: CancellationToken) {
        let mut client: Option<Client> = None;
        let mut last_answer: Option<Instant> = None;
        // Whether etcd runs is the launcher's to say, which comes back a moment after the steward.
        tokio::select! {
            _ = timeout(SILENCE, self.running.changed()) => {}
            () = shutdown.cancelled() => return,
        }
        let mut started = Instant::now();
        loop {
            let Some(version) = self.running.borrow_and_update().clone() else {
                (client, last_answer) = (None, None);
                self.size = None;
                self.silent("etcd doesn't run");
                tokio::select! {
                    changed = self.running.changed() => if changed.is_err() { return },
                    () = shutdown.cancelled() => return,
                }
                started = Instant::now();
                self.quorum = None;
                continue;
            };
            match self.ask(&mut client, last_answer.is_none()).await {
                Ok(answer) => {
                    last_answer = Some(Instant::now());
                    self.look_at_others(&answer).await;
                    self.answered(&answer, &version);
                    restored::count(&self.connector, &self.status).await;
                }
                Err(error) => {
                    client = None;
                    debug!(%error, "etcd doesn't answer");
                    if last_answer.is_none() && self.status.read(has_yet_to_join) {
                        self.joins().await;
                    } else if last_answer.is_none() && started.elapsed() > SILENCE {
                        self.silent_since_start(&error.to_string()).await;
                    } else if last_answer.is_some_and(|at| at.elapsed() > SILENCE) {
                        self.silent(&error.to_string());
                    }
                }
            }
            let starting = last_answer.is_none() && started.elapsed() < STARTING;
            tokio::select! {
                () = sleep(if starting { STARTING_PERIOD } else { PERIOD }) => {}
                _ = self.running.changed() => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    /// An etcd that starts takes connections long before it answers: it isn't waited for.
    async fn ask(&self, client: &mut Option<Client>, starts: bool) -> Result<StatusResponse, EtcdError> {
        let asked = async {
            let client = match client {
                Some(client) => client,
                None => client.insert(self.connector.local().await?),
            };
            call("status of etcd", CALL_TIMEOUT, client.status()).await
        };
        let patience = if starts { PERIOD } else { CALL_TIMEOUT };
        let late = |_| EtcdError::Timeout {
            call: "status of etcd",
            after: patience,
        };
        timeout(patience, asked).await.map_err(late)?
    }

    /// The leader knows best itself.
    async fn look_at_others(&mut self, own: &StatusResponse) {
        let header = own.header();
        if header.is_some_and(|header| header.member_id() == own.leader()) {
            return;
        }
        let period = if own.is_learner() {
            lag::LEARNER
        } else {
            lag::FOLLOWER
        };
        self.lag.look(period).await;
    }

    /// A learner doesn't answer before it has most of the data; until then its files tell.
    async fn joins(&mut self) {
        self.lag.look(lag::LEARNER).await;
        let catch_up = catch_up::on_disk(&self.data_dir, self.lag.newest());
        self.metrics.set_learner(true);
        self.status
            .update(|status| status.role = Some(MemberRole::Learner));
        self.step(Some(&MemberRole::Learner));
        self.catches_up(&catch_up);
    }

    /// Tells how far a learner is, in whole percent: what moves all the time would have the status written all the time.
    fn catches_up(&mut self, catch_up: &CatchUp) {
        self.metrics.set_behind(catch_up.behind);
        self.metrics.set_caught_up(catch_up.percent);
        if self.told.replace(catch_up.percent) == Some(catch_up.percent) {
            return;
        }
        self.status.update(|status| {
            status.behind = signed(lag::rounded(catch_up.behind));
            status.initialization = Some(Initialization {
                progress_percent: catch_up.percent,
                message: catch_up.message.clone(),
            });
        });
        self.status.condition(
            conditions::member::READY,
            ConditionStatus::False,
            conditions::member::LEARNER,
            &catch_up.message,
        );
    }

    /// An etcd that has data and no quorum takes connections and doesn't answer. The others are looked for now and then only:
    /// each look is a connection that they note as broken.
    async fn silent_since_start(&mut self, why: &str) {
        self.goes_silent(why);
        let looked = self.quorum.take().filter(|(at, _)| at.elapsed() < lag::FOLLOWER);
        let (at, missing) = if let Some(looked) = looked {
            looked
        } else {
            let missing = self.stored_voters.missing(&self.connector, &self.wanted).await;
            (Instant::now(), missing)
        };
        let (reason, message) = match &missing {
            Some(missing) => (conditions::member::QUORUM_MISSING, missing.as_str()),
            None => (conditions::member::NOT_SERVING, why),
        };
        self.status
            .condition(conditions::member::READY, ConditionStatus::False, reason, message);
        self.quorum = Some((at, missing));
    }

    fn silent(&mut self, why: &str) {
        self.goes_silent(why);
        let is_member = |status: &EtcdMemberStatus| {
            status.state == Some(MemberState::Started) || status.role == Some(MemberRole::Learner)
        };
        if self.status.read(is_member) {
            self.status.condition(
                conditions::member::READY,
                ConditionStatus::False,
                conditions::member::NOT_SERVING,
                why,
            );
        }
    }

    /// Who leads and who follows isn't known any more; a learner stays one, for others count the votes by it.
    fn goes_silent(&mut self, why: &str) {
        self.told = None;
        if self
            .alive
            .send_if_modified(|alive| std::mem::replace(alive, false))
        {
            warn!(why, "etcd is silent");
        }
        self.status.update(|status| {
            status.role.take_if(|role| *role != MemberRole::Learner);
        });
    }

    fn answered(&mut self, answer: &StatusResponse, version: &Version) {
        let own = answer.header().map_or(0, etcd_client::ResponseHeader::member_id);
        let cluster = answer.header().map_or(0, etcd_client::ResponseHeader::cluster_id);
        let stalled = *self.stalled.borrow();
        // A follower goes on naming a leader that it has lost.
        let role = role_of(answer, own).filter(|role| !stalled || *role != MemberRole::Follower);
        let serves_with = self.serves_with(version);
        let defragmentation = self.shrunk(answer.db_size());
        let behind = self.lag.of(answer.raft_index(), answer.raft_applied_index());
        let learns = answer.is_learner();
        self.metrics.set_learner(learns);
        self.metrics.set_behind(behind);
        self.status.update(|status| {
            status.id = Some(hex_id(own));
            status.cluster_id = Some(hex_id(cluster));
            status.role.clone_from(&role);
            status.etcd_version = Some(answer.version().to_owned());
            status.raft_term = signed(answer.raft_term());
            status.raft_index = signed(answer.raft_index());
            status.raft_applied_index = signed(answer.raft_applied_index());
            status.behind = signed(lag::rounded(behind));
            if let Some(serves_with) = serves_with {
                status.peer_tls_enabled = Some(serves_with.peer_tls);
                status.client_tls_enabled = Some(serves_with.client_tls);
            }
            status.alarms = alarms(answer, own);
            status.observed_config_hash = Some(version.config.clone());
            status.observed_tls_hash =
                Some(version.authorities.clone()).filter(|authorities| !authorities.is_empty());
            status.initialization.take_if(|_| !learns);
            update_sizes(status, answer);
            if let Some(done) = &defragmentation {
                status.last_defragmentation = Some(done.clone());
            }
        });
        self.step(role.as_ref());
        if learns {
            self.catches_up(&catch_up::applied(answer.raft_applied_index(), behind));
        } else {
            self.metrics.set_caught_up(100);
            self.serves(role.as_ref(), stalled);
        }
        // Told last: who waits for it finds the IDs in the status.
        self.alive
            .send_if_modified(|alive| !std::mem::replace(alive, true));
    }

    /// A database file only ever shrinks by being rewritten, whoever asked for that.
    fn shrunk(&mut self, size: i64) -> Option<Defragmentation> {
        let (size, before) = (bytes(size), self.size.replace(bytes(size))?);
        (size < before).then(|| Defragmentation {
            status: DefragmentationStatus::Succeeded,
            reason: None,
            message: None,
            start_time: None,
            end_time: Some(Time(whole_seconds(Timestamp::now()))),
            initial_db_size: Some(quantity::from_bytes(before)),
            final_db_size: Some(quantity::from_bytes(size)),
        })
    }

    /// The member's life goes on by what etcd says it is.
    fn step(&self, role: Option<&MemberRole>) {
        let before = self
            .status
            .read(|status| (status.state.clone(), status.sub_state.clone()));
        let why = why((before.0.as_ref(), before.1.as_ref()), role);
        let (state, sub_state, message) = match role {
            Some(MemberRole::Leader) => (MemberState::Started, MemberSubState::Leader, "leads the cluster"),
            Some(MemberRole::Follower) => (
                MemberState::Started,
                MemberSubState::Follower,
                "votes and follows",
            ),
            Some(MemberRole::Learner) => (MemberState::Starting, MemberSubState::Learner, "catches up"),
            // No leader is known: the member waits for a quorum, which the condition tells.
            _ => return,
        };
        self.status.transition(state, Some(sub_state), why, message);
    }

    /// Read anew when etcd was started anew.
    fn serves_with(&mut self, version: &Version) -> Option<ServesWith> {
        if self
            .serves_with
            .as_ref()
            .is_none_or(|(known, _)| known != version)
        {
            let running = self.connector.running.as_ref();
            let found = running.and_then(|running| ServesWith::of(&running.options().ok()?));
            self.serves_with = found.map(|found| (version.clone(), found));
        }
        self.serves_with.as_ref().map(|(_, found)| *found)
    }

    fn serves(&self, role: Option<&MemberRole>, stalled: bool) {
        let (serves, reason, message) = match role {
            _ if stalled => (
                ConditionStatus::False,
                conditions::member::NO_QUORUM,
                "etcd answers, and completes no linearizable read: a quorum is missing, or doesn't keep up",
            ),
            Some(_) => (
                ConditionStatus::True,
                conditions::member::SERVING,
                "etcd answers, and knows its leader",
            ),
            None => (
                ConditionStatus::False,
                "NoLeader",
                "etcd answers, and knows no leader: a quorum is missing",
            ),
        };
        self.status
            .condition(conditions::member::READY, serves, reason, message);
    }
}

/// How an etcd serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ServesWith {
    peer_tls: bool,
    client_tls: bool,
}

impl ServesWith {
    fn of(running: &Map<String, Value>) -> Option<Self> {
        Some(Self {
            peer_tls: config::peer_scheme(running)? == "https",
            client_tls: config::client_scheme(running)? == "https",
        })
    }
}

/// Whether the member has set out to join and hasn't voted since, however often it was started anew.
fn has_yet_to_join(status: &EtcdMemberStatus) -> bool {
    let mut steps = status.transitions.iter().rev().map(|step| &step.state);
    steps.find(|state| matches!(state, MemberState::Starting | MemberState::Started))
        == Some(&MemberState::Starting)
}

/// Why the member is now in this role.
fn why(before: (Option<&MemberState>, Option<&MemberSubState>), role: Option<&MemberRole>) -> &'static str {
    use MemberSubState as Sub;
    let leads = role == Some(&MemberRole::Leader);
    match before {
        _ if role == Some(&MemberRole::Learner) => reason::JOINED_AS_LEARNER,
        (Some(MemberState::Started), Some(Sub::Follower)) if leads => reason::GAINED_CLUSTER_LEADERSHIP,
        (Some(MemberState::Started), Some(Sub::Leader)) if !leads => reason::LOST_CLUSTER_LEADERSHIP,
        (Some(MemberState::Initializing), Some(Sub::Restoration)) => reason::RESTORATION_SUCCEEDED,
        (Some(MemberState::Initializing), _) => reason::DB_VALIDATION_SUCCEEDED,
        (_, Some(Sub::Learner)) => reason::PROMOTED_AS_VOTING_MEMBER,
        _ => reason::CLUSTER_FORMED,
    }
}

fn role_of(answer: &StatusResponse, own: u64) -> Option<MemberRole> {
    if answer.is_learner() {
        Some(MemberRole::Learner)
    } else if answer.leader() == 0 {
        None
    } else if answer.leader() == own {
        Some(MemberRole::Leader)
    } else {
        Some(MemberRole::Follower)
    }
}

/// etcd lists the alarms of all members as texts: `memberID:123 alarm:NOSPACE `.
fn alarms(answer: &StatusResponse, own: u64) -> Vec<Alarm> {
    let marker = format!("memberID:{own} ");
    let of_this_member = answer.errors().iter().filter(|text| text.contains(&marker));
    of_this_member
        .filter_map(|text| text.split("alarm:").nth(1))
        .map(|alarm| Alarm::from(alarm.trim()))
        .collect()
}

fn update_sizes(status: &mut EtcdMemberStatus, answer: &StatusResponse) {
    let (size, in_use) = (bytes(answer.db_size()), bytes(answer.raft_used_db_size()));
    for (published, size) in [(&mut status.db_size, size), (&mut status.db_size_in_use, in_use)] {
        let known = published
            .as_ref()
            .and_then(|quantity| quantity::bytes(quantity).ok());
        if known.is_none_or(|known| moved(known, size)) {
            *published = Some(quantity::from_bytes(rounded(size)));
        }
    }
}

fn bytes(size: i64) -> u64 {
    u64::try_from(size).unwrap_or(0)
}

/// Whether a size left the step that was published. Growing and shrinking around a border must not flap.
fn moved(published: u64, size: u64) -> bool {
    published.abs_diff(size) > (published / STEPS).max(1 << 18)
}

fn rounded(size: u64) -> u64 {
    let unit = if size >= 64 << 20 { 1 << 20 } else { 1 << 12 };
    size.div_ceil(unit) * unit
}

fn signed(value: u64) -> Option<i64> {
    i64::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use api::v1alpha1::find_condition;

    use super::*;

    /// The steps of DEP-04.
    #[test]
    fn every_step_has_its_reason() {
        use MemberRole::{Follower, Leader, Learner};
        use MemberState::{Initializing, New, Started, Starting};
        use MemberSubState as Sub;
        for (state, sub_state, role, expected) in [
            (New, None, Leader, "ClusterFormed"),
            (New, None, Follower, "ClusterFormed"),
            (
                Initializing,
                Some(Sub::DbValidationSanity),
                Follower,
                "DBValidationSucceeded",
            ),
            (
                Initializing,
                Some(Sub::DbValidationFull),
                Leader,
                "DBValidationSucceeded",
            ),
            (
                Initializing,
                Some(Sub::DbValidationFull),
                Learner,
                "JoinedAsLearner",
            ),
            (
                Initializing,
                Some(Sub::Restoration),
                Leader,
                "RestorationSucceeded",
            ),
            (Starting, Some(Sub::PendingLearner), Learner, "JoinedAsLearner"),
            (Starting, Some(Sub::Learner), Follower, "PromotedAsVotingMember"),
            (Starting, Some(Sub::Learner), Leader, "PromotedAsVotingMember"),
            (Started, Some(Sub::Follower), Leader, "GainedClusterLeadership"),
            (Started, Some(Sub::Leader), Follower, "LostClusterLeadership"),
        ] {
            let found = why((Some(&state), sub_state.as_ref()), Some(&role));
            assert_eq!(found, expected, "{state} {sub_state:?} to {role}");
        }
    }

    fn monitor(status: &Status, running: watch::Receiver<Option<Version>>) -> Monitor {
        Monitor::new(
            Connector::plain("http://127.0.0.1:1"),
            status.clone(),
            (&ClusterConfig::default(), &ClusterMember::default()),
            Metrics::new(&operator::metrics::Metrics::default()),
            running,
            PathBuf::from("/nowhere"),
            StoredVoters::default(),
        )
    }

    fn ready(status: &Status) -> (ConditionStatus, String) {
        status.read(|status| {
            let ready = find_condition(&status.conditions, conditions::member::READY).unwrap();
            (ready.status.clone(), ready.message.clone())
        })
    }

    /// A steward that starts anew beside an etcd that serves must not say that it doesn't, until it has asked.
    #[tokio::test(start_paused = true)]
    async fn a_launcher_that_is_yet_to_come_says_nothing_of_etcd() {
        for (runs, expected) in [
            (None, "etcd doesn't run"),
            (Some(Version::from("abc")), "status of etcd"),
        ] {
            let status = Status::new(EtcdMemberStatus {
                state: Some(MemberState::Started),
                ..EtcdMemberStatus::default()
            });
            status.condition(conditions::member::READY, ConditionStatus::True, "Serving", "");
            let (launcher, running) = watch::channel(None);
            let mut work = std::pin::pin!(monitor(&status, running).run(CancellationToken::new()));
            assert!(timeout(SILENCE / 2, &mut work).await.is_err());
            assert_eq!(ready(&status).0, ConditionStatus::True, "nothing is known yet");
            if runs.is_some() {
                launcher.send_replace(runs.clone());
                assert!(timeout(SILENCE / 2, &mut work).await.is_err());
                assert_eq!(ready(&status).0, ConditionStatus::True, "it may answer soon");
            }
            assert!(timeout(SILENCE * 2, &mut work).await.is_err());
            let (ready, message) = ready(&status);
            assert_eq!(ready, ConditionStatus::False);
            assert!(message.contains(expected), "{runs:?}: {message}");
        }
    }

    /// A dead learner is told of as dead, and still as a learner: who counts votes must not count it.
    #[test]
    fn a_silent_learner_stays_one() {
        for (role, expected) in [
            (MemberRole::Learner, Some(MemberRole::Learner)),
            (MemberRole::Leader, None),
        ] {
            let status = Status::new(EtcdMemberStatus::default());
            status.update(|status| {
                status.state = Some(match role {
                    MemberRole::Learner => MemberState::Starting,
                    _ => MemberState::Started,
                });
                status.role = Some(role);
            });
            monitor(&status, watch::channel(None).1).silent("gone");
            assert_eq!(status.read(|status| status.role.clone()), expected);
            assert_eq!(ready(&status), (ConditionStatus::False, "gone".to_owned()));
        }
    }

    #[test]
    fn sizes_are_published_in_steps() {
        assert!(!moved(20 << 20, 21 << 20));
        assert!(moved(20 << 20, 22 << 20));
        assert!(!moved(0, 100_000));
        assert_eq!(rounded(20_480), 20_480);
        assert_eq!(rounded((64 << 20) + 1), 65 << 20);
    }
}
