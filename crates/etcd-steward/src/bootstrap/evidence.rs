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
use etcd_client::Member;
use etcd_storage::{
    beneath::Beneath,
    validate::{self, DataDir, Meter, Verdict},
};
use snapstore::SnapStore;
use tokio::time::timeout;
use tracing::info;

use super::{
    config::scheme_of,
    decision::{Backups, Data, Evidence, Formation, Live, Others, Place},
    known::{Known, State},
    origin::{Claim, Origin},
    peer_scheme::own_peer_urls,
    peers::{self, Answers, Cluster, ClusterOfData},
    records::Uncovered,
    volumes::{self, Contents, OwnContents},
};
use crate::{
    etcd::{CALL_TIMEOUT, Connector, hex_id},
    exit_record::ExitRecord,
    identity::{Identity, Owner},
    member::{Status, kubernetes::Kubernetes, stored_voters::StoredVoters},
    metrics::Metrics,
};

/// How long a data directory may be held by a process that is just ending.
pub(super) const LOCK_DEADLINE: Duration = Duration::from_secs(5);
/// How long another member may take to answer while no member has a record of a cluster. One that runs answers at once;
/// one that waits for this member, to found the cluster with it, takes connections and doesn't answer.
const FOUNDING_PATIENCE: Duration = Duration::from_millis(700);
/// How long the other members' stewards may take to say what is on their volumes, from memory.
const VOLUMES_PATIENCE: Duration = Duration::from_secs(3);
/// How long the Kubernetes API may keep a member with good data waiting.
const RECORDS_PATIENCE: Duration = Duration::from_secs(2);
/// A check that takes longer says how far it is.
const TOLD_EVERY: Duration = Duration::from_secs(1);

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
    /// Where the store is, if the Etcd says so.
    pub store_endpoint: Option<String>,
    /// Whether a restore raises the revision beyond all that clients have seen.
    pub raises_revision: bool,
    /// What this member tells.
    pub status: Status,
    /// What the other members are told of its volume.
    pub contents: OwnContents,
    /// The certificate with which the other members' stewards are asked.
    pub steward_tls: PathBuf,
    /// The voters that the data lists, for who waits for them.
    pub stored_voters: StoredVoters,
    /// Scratch space.
    pub temp: PathBuf,
    /// Metrics.
    pub metrics: Metrics,
}

/// What was found.
#[derive(Debug)]
pub struct Findings {
    /// For the decision.
    pub evidence: Evidence,
    /// For the action on it.
    pub cluster: Option<Cluster>,
    /// The data directory, if it is in order.
    pub found: Option<DataDir>,
    /// What a restore will lack, as far as it was reported.
    pub(super) uncovered: Option<Uncovered>,
    /// What a person would want to know about the parts that are not as they should be.
    pub notes: Vec<String>,
}

impl Scene {
    /// Looks at everything that matters: the volume, then, all at once, everybody else. `panics` is how many times in a row etcd
    /// has just ended with a panic.
    pub(super) async fn look(&self, known: &mut Known, panics: u32) -> Findings {
        let mut notes = Vec::new();
        let (data, found) = self.data(known, &mut notes).await;
        self.contents.set(contents(data, found.as_ref()));
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
            others: Others::Unknown,
            backups: Backups::Unknown,
            place,
            as_learner: false,
        };
        let mut uncovered = None;
        let cluster = match (data, &found) {
            (Data::Valid, Some(found)) => self.with_data(found, panics, &mut evidence, &mut notes).await,
            (Data::Missing | Data::Invalid, _) => {
                self.without_data(&mut evidence, &mut uncovered, &mut notes).await
            }
            _ => None,
        };
        Findings {
            evidence,
            cluster,
            found,
            uncovered,
            notes,
        }
    }

    /// Asks everybody else.
    async fn without_data(
        &self,
        evidence: &mut Evidence,
        uncovered: &mut Option<Uncovered>,
        notes: &mut Vec<String>,
    ) -> Option<Cluster> {
        let several = evidence.place != Place::Only;
        let (records, backups, said) = tokio::join!(
            self.records(),
            self.backups(notes),
            volumes::ask(self, VOLUMES_PATIENCE)
        );
        evidence.formation = records.formation(self.cluster.members.len(), &said);
        evidence.as_learner = records.as_learner;
        evidence.begun |= records.begun;
        evidence.backups = backups;
        evidence.others = volumes::summary(&said);
        *uncovered = records.uncovered;
        if !several {
            return None;
        }
        let mut recorded = records.clusters;
        recorded.extend(self.recorded_cluster().ok().flatten());
        let patience = match evidence.formation {
            Formation::Never | Formation::Unproven => FOUNDING_PATIENCE,
            Formation::Formed | Formation::Unknown => CALL_TIMEOUT,
        };
        let cluster = match peers::choose(peers::ask(self, patience).await, &self.cluster, &recorded) {
            Answers::Nobody => None,
            Answers::Ours(cluster) => {
                evidence.live = self.live(&cluster);
                Some(*cluster)
            }
            Answers::Strangers(who) => {
                notes.push(who);
                evidence.live = Live::OtherCluster;
                None
            }
        };
        if evidence.live == Live::Unreachable {
            notes.push(volumes::told(&said));
        }
        cluster
    }

    /// Compares the cluster of good data with what was recorded, what runs, and what the others hold.
    async fn with_data(
        &self,
        found: &DataDir,
        panics: u32,
        evidence: &mut Evidence,
        notes: &mut Vec<String>,
    ) -> Option<Cluster> {
        let Some(id) = found.cluster_id.map(|id| hex_id(id.0)) else {
            // It has no log that could be followed, and none that could be wrong.
            return None;
        };
        let asked = async {
            match evidence.place {
                Place::Only => (Vec::new(), Vec::new()),
                Place::First | Place::Other => {
                    let patience = self.patience_with_data();
                    tokio::join!(peers::ask(self, patience), volumes::ask(self, patience))
                }
            }
        };
        let read = timeout(RECORDS_PATIENCE, self.records());
        let (records, (answers, said)) = tokio::join!(read, asked);
        let mut records = records.unwrap_or_default();
        if records.clusters.is_empty()
            && let Ok(Some(recorded)) = self.recorded_cluster()
        {
            records.clusters.insert(recorded);
            records.shared = false;
        }
        let same = answers.iter().any(|answer| hex_id(answer.id) == id);
        let mut running = if same {
            self.cluster_of_data(answers, found, evidence, notes)
        } else {
            match peers::choose(answers, &self.cluster, &records.clusters) {
                Answers::Ours(cluster) => Some(*cluster),
                Answers::Nobody => None,
                Answers::Strangers(who) => {
                    notes.push(who);
                    None
                }
            }
        };
        let live = running.as_ref().map(|cluster| hex_id(cluster.id));
        let claim = Claim {
            cluster: &id,
            voters: found.voters,
            live: if same { Some(&id) } else { live.as_deref() },
            recorded: &records.clusters,
            shared: records.shared,
            others: said.iter().map(|(_, contents)| contents).collect(),
        };
        let origin = claim.origin();
        info!(?origin, ?claim, "compared the cluster of the data");
        match origin {
            Origin::Ours => {}
            Origin::OtherCluster => {
                evidence.data = Data::OtherCluster;
                evidence.live = running
                    .as_ref()
                    .map_or(Live::Unreachable, |cluster| self.live(cluster));
            }
            Origin::Unconfirmed => evidence.data = Data::Unconfirmed,
        }
        if origin != Origin::Ours {
            notes.push(claim.told(&volumes::told(&said)));
        } else if evidence.data == Data::Valid {
            let cluster = running.as_mut().filter(|_| same);
            evidence.data = self.compare(found, panics, cluster, notes).await;
        }
        running
    }

    /// The data's own cluster, if it runs and says whether it lists the member.
    fn cluster_of_data(
        &self,
        answers: Vec<Cluster>,
        found: &DataDir,
        evidence: &mut Evidence,
        notes: &mut Vec<String>,
    ) -> Option<Cluster> {
        match peers::cluster_of(answers, found)? {
            ClusterOfData::Lists(cluster) => Some(cluster),
            ClusterOfData::Removed(cluster) => {
                notes.push(format!("{} doesn't list its member any more", cluster.display()));
                evidence.data = Data::Removed;
                evidence.live = self.live(&cluster);
                Some(cluster)
            }
        }
    }

    /// Where only the volume records the cluster, whoever takes connections is waited for.
    fn patience_with_data(&self) -> Duration {
        if self.kubernetes.is_some() {
            FOUNDING_PATIENCE
        } else {
            CALL_TIMEOUT
        }
    }

    /// Checks the volume and the data directory.
    async fn data(&self, known: &mut Known, notes: &mut Vec<String>) -> (Data, Option<DataDir>) {
        let identity = self.identity();
        match identity.owner_of(&self.volume) {
            Ok(Owner::Nobody | Owner::Us) => {}
            Ok(Owner::Predecessor) => info!("the volume is of an earlier Etcd of this name: taking it over"),
            Ok(Owner::Other(who)) => {
                notes.push(format!("the volume holds the data of {who}"));
                return (Data::Foreign, None);
            }
            Err(error) => {
                notes.push(format!("read the identity on the volume: {error}"));
                return (Data::Unknown, None);
            }
        }
        let data = match self.validate(known).await {
            Verdict::Missing => Data::Missing,
            // As etcd does, without a log.
            Verdict::Unformed => {
                notes.push("etcd's first start ended before it had stored anything".to_owned());
                Data::Missing
            }
            Verdict::Valid(found) => return (Data::Valid, Some(found)),
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
        };
        (data, None)
    }

    /// Records who the member is by the data that it starts on. Its etcd can be asked only when that serves, which a learner
    /// doesn't for long.
    pub(super) fn recognize(&self, found: &DataDir) {
        self.stored_voters.set(found);
        if let (Some(member), Some(cluster)) = (found.member_id, found.cluster_id) {
            self.status.update(|status| {
                status.id = Some(hex_id(member.0));
                status.cluster_id = Some(hex_id(cluster.0));
                // Until etcd runs: the cluster has recorded how it must.
                if let Some(scheme) = own_peer_urls(found).next().and_then(|url| scheme_of(url)) {
                    status.peer_tls_enabled = Some(scheme == "https");
                }
            });
        }
    }

    /// A quick check after a clean end, a complete one otherwise; none while it is known what it would find.
    async fn validate(&self, known: &mut Known) -> Verdict {
        if matches!(Beneath::of(&self.data_dir).exists(), Ok(false)) {
            return Verdict::Missing;
        }
        let clean = ExitRecord::read(&self.volume).is_some_and(|record| record.is_clean());
        let state = State::of(&self.data_dir, clean);
        if let Some(verdict) = known.verdict(state.as_ref()) {
            return verdict;
        }
        let verdict = self.check(clean).await;
        known.remember(state, &verdict);
        verdict
    }

    async fn check(&self, clean: bool) -> Verdict {
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
        let meter = Arc::new(Meter::default());
        let mut checked = tokio::task::spawn_blocking({
            let meter = Arc::clone(&meter);
            move || {
                if clean {
                    validate::sanity(&dir, LOCK_DEADLINE)
                } else {
                    validate::full_metered(&dir, LOCK_DEADLINE, &meter)
                }
            }
        });
        let checked = loop {
            match timeout(TOLD_EVERY, &mut checked).await {
                Ok(checked) => break checked,
                Err(_) => self.validates(&meter),
            }
        };
        match checked {
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

    /// Says how far a check is that takes longer.
    fn validates(&self, meter: &Meter) {
        let (read, size) = meter.progress();
        let percent = read.saturating_mul(100).checked_div(size).unwrap_or(0).min(99);
        let message = format!(
            "the data directory is being checked: {percent} % of {} MiB",
            size.div_ceil(1 << 20)
        );
        info!(percent, size, "checking the data directory");
        self.status
            .progress(i32::try_from(percent).unwrap_or(99), &message);
        self.status.condition(
            conditions::member::INITIALIZED,
            api::v1alpha1::ConditionStatus::False,
            conditions::member::VALIDATING,
            &message,
        );
    }

    async fn backups(&self, notes: &mut Vec<String>) -> Backups {
        let Some(store) = &self.store else {
            return Backups::NoStore;
        };
        match store.list().await {
            Ok(listing) if listing.is_empty() => Backups::Absent,
            // Objects that can't be understood may be backups of a newer version, and a manifest is what is left of a
            // backup: no reason to start empty.
            Ok(_) => Backups::Present,
            Err(error) => {
                let (location, error) = (store.location(), operator::reconcile::chain(&error));
                notes.push(match &self.store_endpoint {
                    Some(endpoint) => format!("backup store {location} at {endpoint}: {error}"),
                    None => format!("backup store {location}: {error}"),
                });
                Backups::Unknown
            }
        }
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
            cluster_id: None,
        }
    }
}

/// What the other members are told.
fn contents(data: Data, found: Option<&DataDir>) -> Contents {
    match data {
        Data::Missing => Contents::Empty,
        Data::Invalid => Contents::Damaged,
        Data::Valid
        | Data::Removed
        | Data::OtherCluster
        | Data::Unconfirmed
        | Data::Behind
        | Data::Stale
        | Data::Ahead => found
            .and_then(|found| found.cluster_id)
            .map_or(Contents::Unknown, |id| Contents::Intact(hex_id(id.0))),
        Data::Locked | Data::Foreign | Data::Unknown => Contents::Unknown,
    }
}
