//! Gathers what the decision rests on: the volume, the records, the other members, the store.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use api::{
    conditions,
    steward::{ClusterConfig, ClusterMember},
    v1alpha1::{MemberState, MemberSubState, transition_reason as reason},
};
use etcd_client::{Client, Member};
use etcd_storage::validate::{self, Verdict};
use futures::future::join_all;
use snapstore::SnapStore;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::decision::{Backups, Data, Evidence, Formation, Live, Place};
use crate::{
    etcd::{CALL_TIMEOUT, Connector, EtcdError, call, hex_id},
    exit_record::ExitRecord,
    identity::{Identity, Owner},
    member::{Status, kubernetes::Kubernetes},
    metrics::Metrics,
};

/// How long a data directory may be held by a process that is just ending.
const LOCK_DEADLINE: Duration = Duration::from_secs(5);
/// How long another member may take to answer while no member has a record of a cluster. One that runs answers at once;
/// one that waits for this member, to found the cluster with it, takes connections and doesn't answer.
const FOUNDING_PATIENCE: Duration = Duration::from_millis(700);

/// Everything that is looked at.
#[derive(Debug, Clone)]
pub struct Scene {
    /// The cluster and its wanted members.
    pub cluster: Arc<ClusterConfig>,
    /// This member.
    pub member: ClusterMember,
    /// The data volume.
    pub volume: PathBuf,
    /// etcd's data directory on it.
    pub data_dir: PathBuf,
    /// Connections to etcd.
    pub connector: Connector,
    /// The member's record and those of the others, where there is a Kubernetes API.
    pub kubernetes: Option<Kubernetes>,
    /// The backup store, where one is configured.
    pub store: Option<Arc<dyn SnapStore>>,
    /// What this member tells.
    pub status: Status,
    /// Scratch space.
    pub temp: PathBuf,
    /// Metrics.
    pub metrics: Metrics,
}

/// The running cluster, when it answers.
pub struct Cluster {
    /// A connection to a member that answers.
    pub client: Client,
    /// All members that it lists.
    pub members: Vec<Member>,
    /// Its ID.
    pub id: u64,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("id", &self.id)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

/// What was found.
#[derive(Debug)]
pub struct Findings {
    /// For the decision.
    pub evidence: Evidence,
    /// For the action on it.
    pub cluster: Option<Cluster>,
    /// What a person would want to know about the parts that are not as they should be.
    pub notes: Vec<String>,
}

impl Scene {
    /// Looks at everything that matters, cheapest first: with good data nothing else is asked.
    pub async fn look(&self) -> Findings {
        let mut notes = Vec::new();
        let data = self.data(&mut notes).await;
        let place = match (self.cluster.members.len(), self.cluster.members.first()) {
            (0 | 1, _) => Place::Only,
            (_, Some(first)) if first.name == self.member.name => Place::First,
            _ => Place::Other,
        };
        let mut evidence = Evidence {
            data,
            formation: Formation::Unknown,
            begun: self
                .status
                .read(|status| status.bootstrap.is_some() || status.id.is_some()),
            live: Live::Unreachable,
            backups: Backups::Unknown,
            place,
            as_learner: false,
        };
        if !matches!(data, Data::Missing | Data::Invalid) {
            return Findings {
                evidence,
                cluster: None,
                notes,
            };
        }
        let (record, backups) = tokio::join!(self.record(), self.backups(&mut notes));
        (evidence.formation, evidence.as_learner) = record;
        evidence.backups = backups;
        let patience = match evidence.formation {
            Formation::Never => FOUNDING_PATIENCE,
            Formation::Formed | Formation::Unknown => CALL_TIMEOUT,
        };
        let cluster = self.running_cluster(place, patience).await;
        if let Some(cluster) = &cluster {
            evidence.live = self.live(cluster);
        }
        Findings {
            evidence,
            cluster,
            notes,
        }
    }

    /// Checks the volume and the data directory.
    async fn data(&self, notes: &mut Vec<String>) -> Data {
        let identity = self.identity();
        match identity.owner_of(&self.volume) {
            Ok(Owner::Nobody | Owner::Us) => {}
            Ok(Owner::Predecessor) => info!("the volume is of an earlier Etcd of this name: taking it over"),
            Ok(Owner::Other(who)) => {
                notes.push(format!("the volume holds the data of {who}"));
                return Data::Foreign;
            }
            Err(error) => {
                notes.push(format!("read the identity on the volume: {error}"));
                return Data::Unknown;
            }
        }
        match self.validate().await {
            Verdict::Missing => Data::Missing,
            Verdict::Valid(_) => Data::Valid,
            Verdict::Invalid { reason } => {
                notes.push(format!("the data directory is damaged: {reason}"));
                self.status.setback(reason::DB_VALIDATION_FAILED, &reason);
                Data::Invalid
            }
            Verdict::Locked => Data::Locked,
            Verdict::Unknown { reason } => {
                notes.push(format!("read the data directory: {reason}"));
                Data::Unknown
            }
        }
    }

    /// A quick check after a clean end, a complete one otherwise.
    async fn validate(&self) -> Verdict {
        if !self.data_dir.exists() {
            return Verdict::Missing;
        }
        let clean = ExitRecord::read(&self.volume).is_some_and(|record| record.is_clean());
        let (step, why) = if clean {
            (
                MemberSubState::DbValidationSanity,
                reason::DETECTED_PREVIOUS_CLEAN_EXIT,
            )
        } else {
            (
                MemberSubState::DbValidationFull,
                reason::DETECTED_PREVIOUS_UNCLEAN_EXIT,
            )
        };
        self.status.transition(
            MemberState::Initializing,
            Some(step),
            why,
            "checks the data directory",
        );
        self.status.condition(
            conditions::member::INITIALIZED,
            api::v1alpha1::ConditionStatus::False,
            conditions::member::VALIDATING,
            "the data directory is being checked",
        );
        let (dir, begun) = (self.data_dir.clone(), Instant::now());
        let checked = tokio::task::spawn_blocking(move || {
            if clean {
                validate::sanity(&dir, LOCK_DEADLINE)
            } else {
                validate::full(&dir, LOCK_DEADLINE)
            }
        });
        match checked.await {
            Ok(verdict) => {
                let took = begun.elapsed();
                info!(?verdict, clean, ?took, "checked the data directory");
                self.metrics.validated(matches!(verdict, Verdict::Valid(_)), took);
                verdict
            }
            Err(error) => Verdict::Unknown {
                reason: format!("the check broke off: {error}"),
            },
        }
    }

    async fn record(&self) -> (Formation, bool) {
        let Some(kubernetes) = &self.kubernetes else {
            // Without a place for records only the running cluster and the backups can tell.
            return (Formation::Never, false);
        };
        match kubernetes.own().await {
            Ok(own) => (
                kubernetes.formation().await,
                own.as_ref().is_some_and(Kubernetes::as_learner),
            ),
            Err(error) => {
                warn!(
                    error = operator::reconcile::chain(&error),
                    "failed to read this member's record"
                );
                (Formation::Unknown, false)
            }
        }
    }

    async fn backups(&self, notes: &mut Vec<String>) -> Backups {
        let Some(store) = &self.store else {
            return Backups::NoStore;
        };
        match store.list().await {
            Ok(listing) if listing.snapshots.is_empty() && listing.unparsable.is_empty() => Backups::Absent,
            // Objects that can't be understood may be backups of a newer version: no reason to start empty.
            Ok(_) => Backups::Present,
            Err(error) => {
                notes.push(format!(
                    "backup store {}: {}",
                    store.location(),
                    operator::reconcile::chain(&error)
                ));
                Backups::Unknown
            }
        }
    }

    /// Asks the other members for the cluster, all at once. Only those at whose address something listens are asked.
    async fn running_cluster(&self, place: Place, patience: Duration) -> Option<Cluster> {
        if place == Place::Only {
            return None;
        }
        let others = self
            .cluster
            .members
            .iter()
            .filter(|member| member.name != self.member.name);
        let asked = others
            .filter_map(|member| member.client_urls.first())
            .map(|url| async move {
                if !self.connector.answers(url).await {
                    return None;
                }
                match timeout(patience, self.ask(url)).await {
                    Ok(Ok(cluster)) => Some(cluster),
                    Ok(Err(error)) => {
                        debug!(
                            url,
                            error = operator::reconcile::chain(&error),
                            "no answer from a member"
                        );
                        None
                    }
                    Err(_) => {
                        debug!(url, ?patience, "no answer from a member in time");
                        None
                    }
                }
            });
        join_all(asked).await.into_iter().flatten().next()
    }

    async fn ask(&self, url: &String) -> Result<Cluster, EtcdError> {
        let mut client = self.connector.remote(&[url]).await?;
        let mut answer = call("list members", CALL_TIMEOUT, client.member_list()).await?;
        let id = answer.take_header().map_or(0, |header| header.cluster_id());
        Ok(Cluster {
            client,
            members: answer.members().to_vec(),
            id,
        })
    }

    fn live(&self, cluster: &Cluster) -> Live {
        match self.listed(cluster) {
            None => Live::NotListed,
            Some(member) if !member.client_urls().is_empty() => Live::Started,
            Some(member) if member.is_learner() => Live::UnstartedLearner,
            Some(_) => Live::Unstarted,
        }
    }

    /// This member's entry. One that has never started has no name yet; its peer URL tells.
    pub fn listed<'a>(&self, cluster: &'a Cluster) -> Option<&'a Member> {
        let named = cluster
            .members
            .iter()
            .find(|member| member.name() == self.member.name);
        named.or_else(|| {
            let ours = &self.member.peer_urls;
            let of_ours = |member: &&Member| {
                member.name().is_empty() && member.peer_urls().iter().any(|url| ours.contains(url))
            };
            cluster.members.iter().find(of_ours)
        })
    }

    /// Who this member is, for the volume.
    pub fn identity(&self) -> Identity {
        Identity {
            namespace: self.cluster.namespace.clone(),
            etcd: self.cluster.name.clone(),
            uid: self.cluster.uid.clone(),
            member: self.member.name.clone(),
        }
    }
}

impl Cluster {
    /// What it is called in messages.
    pub fn display(&self) -> String {
        format!("cluster {} of {} members", hex_id(self.id), self.members.len())
    }
}
