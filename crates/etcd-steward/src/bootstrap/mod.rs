//! Brings etcd up: looks, decides, acts, and has the launcher start it. Every start of etcd comes through here.

pub mod config;
pub mod decision;
pub mod evidence;
mod known;
mod membership;
mod origin;
pub mod peer_scheme;
mod peers;
mod records;
pub mod session;
mod stale;
pub mod volumes;

use std::{path::PathBuf, time::Duration};

use api::{
    conditions::member as condition,
    v1alpha1::{
        BootstrapDecision, ConditionStatus, EtcdMemberStatus, MemberBootstrap, MemberState, MemberSubState,
        transition_reason as reason,
    },
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use operator::reconcile::chain;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use self::{
    config::{ConfigError, Entry, EtcdConfig},
    decision::{Data, Decision, Evidence, Formation, Place, decide},
    evidence::{Findings, Scene},
    known::Known,
    membership::MembershipError,
    peer_scheme::PeerSchemeMismatch,
    volumes::Contents,
};
use crate::{
    member::whole_seconds,
    volume::{self, VolumeError},
};

/// Pause before the next look; grows to the last one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// The same after a restore that has read the backups for nothing.
const LAST_COSTLY_PAUSE: Duration = Duration::from_mins(5);
/// A wait shorter than this is nothing that anybody needs an Event for.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why a step towards etcd's start failed. All of them are tried again.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// etcd's configuration can't be made.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The running cluster refused, or couldn't be asked.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The volume can't be written.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The decision can't be recorded before it is acted on.
    #[error("record the decision in this member's EtcdMember: {0}")]
    Record(#[source] Box<kube::Error>),
    /// The configuration is for another scheme of the peers than the cluster has recorded.
    #[error(transparent)]
    PeerScheme(#[from] PeerSchemeMismatch),
    /// The backups can't be restored.
    #[error(transparent)]
    Restore(#[from] crate::restore::RestoreError),
}

impl BootstrapError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Config(ConfigError::CertificateMissing(_)) => "CertificateMissing",
            Self::Config(_) => "InvalidConfiguration",
            Self::Membership(MembershipError::Volume(_)) | Self::Volume(_) => "VolumeUnwritable",
            Self::Membership(_) => condition::WAITING_TO_JOIN,
            Self::Record(_) => "RecordUnwritable",
            Self::PeerScheme(_) => condition::PEER_TLS_MISMATCH,
            Self::Restore(error) => error.reason(),
        }
    }

    /// How far the pauses before it is tried again grow.
    fn longest_pause(&self) -> Duration {
        match self {
            Self::Restore(error) if error.is_costly() => LAST_COSTLY_PAUSE,
            _ => LAST_PAUSE,
        }
    }
}

/// Prepares the data directory until etcd can be started.
#[derive(Debug, Clone)]
pub struct Bootstrap {
    /// What is looked at and worked on.
    pub scene: Scene,
    /// The file that the etcd-controller wrote for this member's etcd.
    pub config_file: PathBuf,
}

impl Bootstrap {
    /// Comes back when etcd can be started, with its configuration. Waits for as long as it takes, and says for what. `panics`
    /// is how many times in a row etcd has just ended with a panic.
    pub async fn prepare(&self, panics: u32) -> EtcdConfig {
        let mut waiting = Waiting::new(panics);
        loop {
            let (reason, message, longest) = match self.attempt(&mut waiting).await {
                Ok(Ok(config)) => {
                    self.scene.status.condition(
                        condition::INITIALIZED,
                        ConditionStatus::True,
                        condition::DONE,
                        "the data directory is ready",
                    );
                    if waiting.announced {
                        self.tell("the wait is over, etcd is started").await;
                    }
                    return config;
                }
                Ok(Err((reason, message))) => (reason, message, LAST_PAUSE),
                Err(error) => (error.reason(), chain(&error), error.longest_pause()),
            };
            waiting.pause = waiting.pause.min(longest);
            self.wait(&mut waiting, reason, &message).await;
        }
    }

    async fn attempt(
        &self,
        waiting: &mut Waiting,
    ) -> Result<Result<EtcdConfig, (&'static str, String)>, BootstrapError> {
        let (decision, findings) = self.decide(waiting).await;
        let (entry, record) = match decision {
            Decision::Wait(why) => return Ok(Err((why.reason(), noted(&why, &findings)))),
            Decision::Refuse(why) => return Ok(Err((why.reason(), noted(&why, &findings)))),
            Decision::Start => (Entry::Founding, BootstrapDecision::ExistingData),
            Decision::Form => (Entry::Founding, BootstrapDecision::NewCluster),
            Decision::Restore => (Entry::Founding, BootstrapDecision::Restore),
            Decision::StartAsLearner | Decision::Join | Decision::Rejoin => {
                (Entry::Joining(Vec::new()), BootstrapDecision::JoinAsLearner)
            }
        };
        // Read first, so that nothing is done for a configuration that can't be used.
        config::complete(&self.config_file, &self.scene.data_dir, &entry)?;
        let wanted = config::read(&self.config_file)?;
        let recorded = peer_scheme::recorded(decision, &findings);
        peer_scheme::matches(&recorded, config::peer_scheme(&wanted))?;
        if waiting.begun.as_ref() != Some(&record) {
            self.begin(record.clone(), &findings.evidence).await?;
            waiting.begun = Some(record);
            self.say_why_it_joins_anew(&findings).await;
        }
        let entry = match (decision, &findings.cluster) {
            (Decision::Start, _) => {
                if let Some(found) = &findings.found {
                    self.scene.recognize(found);
                }
                entry
            }
            (Decision::Form, _) => {
                // A first start that failed may have left something that nobody looks at any more.
                volume::move_aside(&self.scene.data_dir)?;
                entry
            }
            (Decision::Restore, _) => {
                self.restore(&findings).await?;
                entry
            }
            (Decision::StartAsLearner | Decision::Join | Decision::Rejoin, Some(cluster)) => {
                Entry::Joining(membership::join(&self.scene, cluster, decision).await?)
            }
            _ => entry,
        };
        let config = config::complete(&self.config_file, &self.scene.data_dir, &entry)?;
        if decision != Decision::Start {
            self.scene.contents.set(Contents::Starting);
        }
        Ok(Ok(config))
    }

    /// Looks, and decides. Whoever is to be removed first waits until the others have a quorum.
    async fn decide(&self, waiting: &mut Waiting) -> (Decision, Findings) {
        let mut findings = self.scene.look(&mut waiting.known, waiting.panics).await;
        let mut decision = decide(&findings.evidence);
        if let (Decision::Rejoin, Some(cluster)) = (decision, &mut findings.cluster)
            && let Err(why) = membership::confirm_quorum(&self.scene, cluster).await
        {
            findings.notes.push(why);
            decision = Decision::Wait(decision::Waiting::PeersUnreachable);
        }
        info!(?decision, evidence = ?findings.evidence, notes = ?findings.notes, "decided");
        (decision, findings)
    }

    /// Marks the volume and records the decision before anything is done that can't be taken back.
    async fn begin(&self, decision: BootstrapDecision, evidence: &Evidence) -> Result<(), BootstrapError> {
        let scene = &self.scene;
        let fresh = scene.status.read(|status| status.state.is_none());
        let joins = decision == BootstrapDecision::JoinAsLearner;
        if fresh {
            let why = match evidence.place {
                _ if joins => reason::CLUSTER_SCALED_UP,
                Place::Only => reason::NEW_SINGLE_NODE_CLUSTER_CREATED,
                Place::First | Place::Other => reason::NEW_MULTI_NODE_CLUSTER_CREATED,
            };
            scene.status.transition(MemberState::New, None, why, "begins");
        } else if joins
            && scene
                .status
                .read(|status| status.state != Some(MemberState::Starting))
        {
            // It has been a member before, and gives up what is left of that.
            let (why, message) = if evidence.data == Data::Behind {
                let message = "its data is older than what the member has acknowledged: joins anew";
                (reason::DATA_BEHIND, message)
            } else {
                let message = "its data is damaged or gone: joins anew";
                (reason::DB_VALIDATION_FAILED, message)
            };
            scene.status.transition(MemberState::New, None, why, message);
        }
        if joins {
            let pending = Some(MemberSubState::PendingLearner);
            scene.status.transition(
                MemberState::Starting,
                pending,
                reason::WAITING_TO_JOIN_AS_LEARNER,
                "asks to join",
            );
        }
        scene.identity().claim(&scene.volume)?;
        if scene.status.read(|status| status.bootstrap.is_some())
            && decision == BootstrapDecision::ExistingData
        {
            return Ok(());
        }
        let takes_nothing_back = decision == BootstrapDecision::ExistingData;
        scene.status.update(|status| {
            status.bootstrap = Some(MemberBootstrap {
                decision,
                decided_at: Time(whole_seconds(Timestamp::now())),
                message: None,
            });
        });
        if takes_nothing_back {
            // Good data doesn't wait for the API server.
            return Ok(());
        }
        let Some(kubernetes) = &scene.kubernetes else {
            return Ok(());
        };
        let record = async {
            kubernetes.publish_now(&scene.status).await?;
            kubernetes.forget_stored_index().await
        };
        record
            .await
            .map_err(|error| BootstrapError::Record(Box::new(error)))
    }

    /// Restores the backups; of a cluster that has lost all its data, says what that costs.
    async fn restore(&self, findings: &Findings) -> Result<(), BootstrapError> {
        let scene = &self.scene;
        let lost = (findings.evidence.formation == Formation::Formed).then(|| {
            let uncovered = match &findings.uncovered {
                Some(uncovered) => uncovered.to_string(),
                None => "how many revisions were uncovered isn't known".to_owned(),
            };
            format!("no member of this cluster has data left, so its backups are restored: {uncovered}")
        });
        if let Some(lost) = &lost {
            warn!(lost, "restoring a cluster that has lost all its data");
            if let Some(kubernetes) = &scene.kubernetes {
                kubernetes.warn("Restore", condition::ALL_DATA_LOST, lost).await;
            }
        }
        crate::restore::run(scene).await?;
        scene.status.update(|status| {
            if let (Some(lost), Some(restoration)) = (lost, &mut status.last_restoration) {
                restoration.reason = Some(condition::ALL_DATA_LOST.to_owned());
                let restored = restoration.message.take().unwrap_or_default();
                restoration.message = Some(format!("{lost}; {restored}"));
            }
        });
        Ok(())
    }

    async fn wait(&self, waiting: &mut Waiting, reason: &'static str, message: &str) {
        warn!(reason, message, pause = ?waiting.pause, "etcd can't be started yet");
        self.scene
            .status
            .condition(condition::INITIALIZED, ConditionStatus::False, reason, message);
        self.scene.status.progress(0, message);
        self.shows_that_it_waits(reason, message);
        if waiting.reason != Some(reason) {
            (waiting.reason, waiting.since, waiting.announced) = (Some(reason), Instant::now(), false);
        }
        if !waiting.announced && waiting.since.elapsed() >= PATIENCE {
            waiting.announced = true;
            if let Some(kubernetes) = &self.scene.kubernetes {
                kubernetes.warn("Initialize", reason, message).await;
            }
        }
        sleep(waiting.pause).await;
        waiting.pause *= 2;
    }

    /// What an earlier process has published, that the member has started and serves, doesn't hold any more.
    fn shows_that_it_waits(&self, reason: &str, message: &str) {
        let status = &self.scene.status;
        let ran = |status: &EtcdMemberStatus| {
            status.state == Some(MemberState::Started) || status.sub_state == Some(MemberSubState::Learner)
        };
        if status.read(ran) {
            status.transition(MemberState::Initializing, None, reason, message);
        }
        status.condition(condition::READY, ConditionStatus::False, reason, message);
    }

    /// That damaged or lost data is given up is no surprise; that data is which passes every check is.
    async fn say_why_it_joins_anew(&self, findings: &Findings) {
        if findings.evidence.data != Data::Behind {
            return;
        }
        let why = "an earlier state of this member's volume was put back, or the end of its log is lost: the member is removed \
                   from the cluster, and joins anew. The old data is moved aside, and stays until the member votes again";
        let note = noted(&why, findings);
        warn!(reason = reason::DATA_BEHIND, note, "the data is given up");
        if let Some(kubernetes) = &self.scene.kubernetes {
            kubernetes.warn("Initialize", reason::DATA_BEHIND, &note).await;
        }
    }

    async fn tell(&self, note: &str) {
        if let Some(kubernetes) = &self.scene.kubernetes {
            kubernetes.tell("Initialize", "Initialized", note).await;
        }
    }
}

/// For how long, and for what, the member has been waiting, and what it needn't find out or record again.
struct Waiting {
    reason: Option<&'static str>,
    since: Instant,
    announced: bool,
    pause: Duration,
    known: Known,
    begun: Option<BootstrapDecision>,
    panics: u32,
}

impl Waiting {
    fn new(panics: u32) -> Self {
        Self {
            panics,
            reason: None,
            since: Instant::now(),
            announced: false,
            pause: FIRST_PAUSE,
            known: Known::default(),
            begun: None,
        }
    }
}

fn noted(what: &impl ToString, findings: &Findings) -> String {
    let mut text = what.to_string();
    for note in &findings.notes {
        text = format!("{text} ({note})");
    }
    text
}
