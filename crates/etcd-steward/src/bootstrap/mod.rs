//! Brings etcd up: looks, decides, acts, and has the launcher start it. Every start of etcd comes through here.

pub mod config;
pub mod decision;
pub mod evidence;
mod membership;
mod peers;
pub mod session;

use std::{path::PathBuf, time::Duration};

use api::{
    conditions::member as condition,
    v1alpha1::{
        BootstrapDecision, ConditionStatus, MemberBootstrap, MemberState, MemberSubState,
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
    decision::{Decision, Place, decide},
    evidence::{Findings, Scene},
    membership::MembershipError,
};
use crate::{
    member::whole_seconds,
    volume::{self, VolumeError},
};

/// Pause before the next look; grows to the last one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(10);
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
    /// The backups can't be restored.
    #[error(transparent)]
    Restore(#[from] crate::restore::RestoreError),
}

impl BootstrapError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Config(ConfigError::CertificateMissing(_)) => "CertificateMissing",
            Self::Config(_) => "InvalidConfiguration",
            Self::Membership(_) => condition::WAITING_TO_JOIN,
            Self::Record(_) => "RecordUnwritable",
            Self::Restore(error) => error.reason(),
            Self::Membership(MembershipError::Volume(_)) | Self::Volume(_) => "VolumeUnwritable",
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
    /// Comes back when etcd can be started, with its configuration. Waits for as long as it takes, and says for what.
    pub async fn prepare(&self) -> EtcdConfig {
        let mut waiting = Waiting::new();
        loop {
            let (reason, message) = match self.attempt().await {
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
                Ok(Err((reason, message))) => (reason, message),
                Err(error) => (error.reason(), chain(&error)),
            };
            self.wait(&mut waiting, reason, &message).await;
        }
    }

    async fn attempt(&self) -> Result<Result<EtcdConfig, (&'static str, String)>, BootstrapError> {
        let findings = self.scene.look().await;
        let decision = decide(&findings.evidence);
        info!(?decision, evidence = ?findings.evidence, notes = ?findings.notes, "decided");
        let (entry, record) = match decision {
            Decision::Wait(waiting) => return Ok(Err((waiting.reason(), noted(&waiting, &findings)))),
            Decision::Refuse(refusal) => return Ok(Err((refusal.reason(), noted(&refusal, &findings)))),
            Decision::Start => (Entry::Founding, BootstrapDecision::ExistingData),
            Decision::Form => (Entry::Founding, BootstrapDecision::NewCluster),
            Decision::Restore => (Entry::Founding, BootstrapDecision::Restore),
            Decision::StartAsLearner | Decision::Join | Decision::Rejoin => {
                (Entry::Joining(Vec::new()), BootstrapDecision::JoinAsLearner)
            }
        };
        // Read first, so that nothing is done for a configuration that can't be used.
        config::complete(&self.config_file, &self.scene.data_dir, &entry)?;
        self.begin(record, findings.evidence.place).await?;
        let entry = match (decision, &findings.cluster) {
            (Decision::Restore, _) => {
                crate::restore::run(&self.scene).await?;
                entry
            }
            (Decision::StartAsLearner | Decision::Join | Decision::Rejoin, Some(cluster)) => {
                Entry::Joining(membership::join(&self.scene, cluster, decision).await?)
            }
            _ => entry,
        };
        Ok(Ok(config::complete(
            &self.config_file,
            &self.scene.data_dir,
            &entry,
        )?))
    }

    /// Marks the volume and records the decision before anything is done that can't be taken back.
            (Decision::Form, _) => {
                // A first start that failed may have left something that nobody looks at any more.
                volume::move_aside(&self.scene.data_dir)?;
                entry
            }
    async fn begin(&self, decision: BootstrapDecision, place: Place) -> Result<(), BootstrapError> {
        let scene = &self.scene;
        let fresh = scene.status.read(|status| status.state.is_none());
        let joins = decision == BootstrapDecision::JoinAsLearner;
        if fresh {
            let why = match place {
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
            let why = reason::DB_VALIDATION_FAILED;
            scene.status.transition(
                MemberState::New,
                None,
                why,
                "its data is damaged or gone: joins anew",
            );
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
        if let Some(kubernetes) = &scene.kubernetes {
            kubernetes
                .publish_now(&scene.status)
                .await
                .map_err(|error| BootstrapError::Record(Box::new(error)))?;
        }
        Ok(())
    }

    async fn wait(&self, waiting: &mut Waiting, reason: &'static str, message: &str) {
        warn!(reason, message, pause = ?waiting.pause, "etcd can't be started yet");
        self.scene
            .status
            .condition(condition::INITIALIZED, ConditionStatus::False, reason, message);
        self.scene.status.progress(0, message);
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
        waiting.pause = (waiting.pause * 2).min(LAST_PAUSE);
    }

    async fn tell(&self, note: &str) {
        if let Some(kubernetes) = &self.scene.kubernetes {
            kubernetes.tell("Initialize", "Initialized", note).await;
        }
    }
}

/// For how long, and for what, the member has been waiting.
struct Waiting {
    reason: Option<&'static str>,
    since: Instant,
    announced: bool,
    pause: Duration,
}

impl Waiting {
    fn new() -> Self {
        Self {
            reason: None,
            since: Instant::now(),
            announced: false,
            pause: FIRST_PAUSE,
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
