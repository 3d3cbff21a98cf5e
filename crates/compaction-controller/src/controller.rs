//! The driver: an Etcd's backlog and last Job → a new Job, a full snapshot, or nothing; a Job's end → the condition.

use std::{sync::Arc, time::Duration};

use api::{
    conditions::compaction as condition,
    labels, names,
    v1alpha1::{
        Condition, ConditionStatus, Etcd, EtcdMember, StoreProvider, StoreSpec, UnknownStoreProvider,
    },
};
use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Pod, Secret},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    runtime::{
        controller::Action,
        reflector::{ObjectRef, Store},
    },
};
use operator::{
    Context,
    apply::ApplyError,
    cache::{decoded, until},
    reconcile::{Guarded, Reason, Reconciler, Retry, chain},
    steward::StewardError,
};
use serde_json::json;
use tracing::info;

use crate::{
    Config,
    decision::{Backlog, Decision, Thresholds, backlog, decide, forget_at},
    full_snapshot::{FullSnapshots, Standing},
    job::{self, ENDED, Order, RECORDED, last_run},
    metrics::CompactionMetrics,
    outcome::{Outcome, outcome, runs},
};

/// A full snapshot that is done shows in an EtcdMember, which wakes the Etcd; one that failed doesn't.
const FULL_SNAPSHOT_LOOK: Duration = Duration::from_secs(15);
/// The deletion of a Job wakes its Etcd; this is for a watch that missed it.
const DELETION_LOOK: Duration = Duration::from_secs(30);

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub enum CompactionError {
    /// The Etcd's store has a provider that nothing here can talk to.
    #[error(transparent)]
    Store(#[from] UnknownStoreProvider),
    /// The API server refused, or couldn't be asked.
    #[error("{action}: {source}")]
    Request {
        /// What was tried.
        action: &'static str,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// The condition can't be written.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The owner of the backups can't be asked for a full snapshot.
    #[error(transparent)]
    Steward(#[from] StewardError),
    /// The full snapshot failed.
    #[error("take a full snapshot: {0}")]
    FullSnapshot(String),
}

impl Reason for CompactionError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Store(_) => "UnknownStoreProvider",
            Self::Request { .. } | Self::Apply(_) => "ApiServer",
            Self::Steward(error) => error.reason(),
            Self::FullSnapshot(_) => condition::FULL_SNAPSHOT_FAILED,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Self::Store(_) => Retry::OnChange,
            _ => Retry::Backoff,
        }
    }
}

fn request(action: &'static str) -> impl Fn(kube::Error) -> CompactionError {
    move |source| CompactionError::Request {
        action,
        source: Box::new(source),
    }
}

/// The reconciler of Etcds' snapshots.
#[derive(Debug)]
pub struct CompactionController {
    /// Shared with the other controllers.
    pub context: Context,
    /// Settings.
    pub config: Config,
    /// Members, which know the snapshots.
    pub members: Store<Guarded<EtcdMember>>,
    /// Compaction Jobs.
    pub jobs: Store<Guarded<Job>>,
    /// Full snapshots.
    pub full_snapshots: FullSnapshots,
    /// Counts.
    pub metrics: CompactionMetrics,
}

#[async_trait]
impl Reconciler for CompactionController {
    type Error = CompactionError;
    type Object = Etcd;

    const NAME: &'static str = "compaction";

    async fn reconcile(&self, etcd: Arc<Etcd>) -> Result<Action, CompactionError> {
        let (namespace, name) = (etcd.namespace().unwrap_or_default(), etcd.name_any());
        let key = ObjectRef::new(&names::compaction_job(&name)).within(&namespace);
        let job = self.jobs.get(&key).and_then(|job| job.0.as_ref().ok().cloned());
        let store = etcd.spec.backup_store()?;
        let Some((_, store)) = store.filter(|_| etcd.metadata.deletion_timestamp.is_none()) else {
            self.metrics.forget(&namespace, &name);
            self.full_snapshots.forget(&etcd.uid().unwrap_or_default());
            return match job {
                Some(job) => self.delete(&job).await,
                None => Ok(Action::await_change()),
            };
        };
        self.metrics.running(&namespace, &name, runs(job.as_ref()));
        let backlog = backlog(&self.members_of(&etcd));
        if let Some(backlog) = backlog {
            self.metrics.backlog(&namespace, &name, backlog.events);
        }
        if let Some(job) = &job
            && (job.metadata.deletion_timestamp.is_some() || last_run(job).is_none())
        {
            return self.look_after(&etcd, job).await;
        }
        match backlog {
            Some(backlog) => self.act(&etcd, store, job.as_ref(), backlog).await,
            None => Ok(Action::await_change()),
        }
    }
}

impl CompactionController {
    async fn act(
        &self,
        etcd: &Etcd,
        store: &StoreSpec,
        job: Option<&Job>,
        backlog: Backlog,
    ) -> Result<Action, CompactionError> {
        let thresholds = Thresholds::of(etcd, &self.config);
        let last = job.and_then(last_run);
        let awake = etcd.spec.replicas > 0;
        match decide(backlog, &thresholds, last.as_ref(), awake, Timestamp::now()) {
            Decision::Nothing => match job.zip(last.and_then(|last| forget_at(backlog, &last))) {
                Some((job, then)) if then <= Timestamp::now() => self.delete(job).await,
                Some((_, then)) => Ok(Action::requeue(until(then))),
                None => Ok(Action::await_change()),
            },
            Decision::Wait(then) => Ok(Action::requeue(until(then))),
            Decision::FullSnapshot => self.full_snapshot(etcd, job, backlog).await,
            Decision::Compact { attempt } => match job {
                Some(old) => {
                    self.delete(old).await?;
                    self.create(etcd, store, attempt, backlog).await
                }
                None => self.create(etcd, store, attempt, backlog).await,
            },
        }
    }

    /// A Job that hasn't ended, or whose end isn't told yet.
    async fn look_after(&self, etcd: &Etcd, cached: &Job) -> Result<Action, CompactionError> {
        let namespace = etcd.namespace().unwrap_or_default();
        if cached.metadata.deletion_timestamp.is_some() {
            return Ok(Action::requeue(DELETION_LOOK));
        }
        if runs(Some(cached)) {
            return Ok(Action::await_change());
        }
        // The cache may be older than what was told last.
        let live = self.jobs_api(&namespace).get_opt(&cached.name_any()).await;
        let live = live.map_err(request("read the compaction Job"))?;
        let Some(job) = live.filter(|job| job.uid() == cached.uid() && last_run(job).is_none()) else {
            return Ok(Action::await_change());
        };
        let pod = self.pod_of(&job).await?;
        if let Some(outcome) = outcome(&job, pod.as_ref(), Timestamp::now()) {
            self.tell(etcd, &job, &outcome).await?;
        }
        Ok(Action::await_change())
    }

    /// Condition first, then the mark on the Job, then what must not be told twice.
    async fn tell(&self, etcd: &Etcd, job: &Job, outcome: &Outcome) -> Result<(), CompactionError> {
        let (namespace, name) = (etcd.namespace().unwrap_or_default(), etcd.name_any());
        let (status, message) = if outcome.succeeded {
            (ConditionStatus::True, outcome.message.clone())
        } else {
            let message = format!("{}; it will be tried again", outcome.message);
            (ConditionStatus::False, message)
        };
        self.condition(etcd, status, outcome.reason, &message).await?;
        let mark = json!({"metadata": {"annotations": {
            RECORDED: outcome.reason,
            ENDED: outcome.ended.to_string(),
        }}});
        let marked = self
            .jobs_api(&namespace)
            .patch(&job.name_any(), &PatchParams::default(), &Patch::Merge(&mark))
            .await;
        marked.map_err(request("mark the compaction Job"))?;
        self.metrics.job_ended(&namespace, &name, outcome);
        info!(reason = outcome.reason, message, "compaction has ended");
        let events = &self.context.events;
        if outcome.succeeded {
            events
                .normal(etcd, "Compaction", "SnapshotsCompacted", message)
                .await;
        } else {
            let note = format!("{message}. Backups may not restore before it succeeds");
            events.warning(etcd, "Compaction", "CompactionFailed", note).await;
        }
        Ok(())
    }

    async fn full_snapshot(
        &self,
        etcd: &Etcd,
        job: Option<&Job>,
        backlog: Backlog,
    ) -> Result<Action, CompactionError> {
        let (namespace, name) = (etcd.namespace().unwrap_or_default(), etcd.name_any());
        let members = self.members_of(etcd);
        let standing = match self.full_snapshots.advance(etcd, &members, backlog).await {
            Ok(standing) => standing,
            Err(error) => {
                self.full_snapshot_failed(etcd, &chain(&error)).await?;
                return Err(error.into());
            }
        };
        match standing {
            Standing::Running | Standing::Known => Ok(Action::requeue(FULL_SNAPSHOT_LOOK)),
            Standing::Failed(why) => {
                self.metrics.full_snapshot(&namespace, &name, false);
                self.full_snapshot_failed(etcd, &why).await?;
                Err(CompactionError::FullSnapshot(why))
            }
            Standing::Stored(object) => {
                self.metrics.full_snapshot(&namespace, &name, true);
                let message = format!(
                    "took full snapshot {object} in place of a compaction of {} revisions",
                    backlog.events
                );
                let reason = condition::FULL_SNAPSHOT_TAKEN;
                self.condition(etcd, ConditionStatus::True, reason, &message)
                    .await?;
                self.context
                    .events
                    .normal(etcd, "Compaction", reason, message)
                    .await;
                match job {
                    // What failed is over.
                    Some(job) => self.delete(job).await,
                    // The owner tells of the new snapshot soon.
                    None => Ok(Action::requeue(DELETION_LOOK)),
                }
            }
        }
    }

    async fn full_snapshot_failed(&self, etcd: &Etcd, why: &str) -> Result<(), CompactionError> {
        let message =
            format!("a full snapshot in place of a compaction failed: {why}; it will be tried again");
        let reason = condition::FULL_SNAPSHOT_FAILED;
        self.condition(etcd, ConditionStatus::False, reason, &message)
            .await
    }

    async fn condition(
        &self,
        etcd: &Etcd,
        status: ConditionStatus,
        reason: &str,
        message: &str,
    ) -> Result<(), CompactionError> {
        let known = etcd.status.as_ref().map(|status| status.conditions.as_slice());
        let condition = Condition::new(condition::TYPE, status, reason, message)
            .observed(etcd.metadata.generation)
            .since(known.unwrap_or_default(), Timestamp::now());
        let wanted = json!({"conditions": [condition]});
        self.context
            .applier
            .apply_status(etcd, &wanted, &["conditions"])
            .await?;
        Ok(())
    }

    async fn create(
        &self,
        etcd: &Etcd,
        store: &StoreSpec,
        attempt: u32,
        backlog: Backlog,
    ) -> Result<Action, CompactionError> {
        let namespace = etcd.namespace().unwrap_or_default();
        let host_path = self.host_path(&namespace, store).await?;
        let job = job::job(&Order {
            etcd,
            store,
            host_path: host_path.as_deref(),
            image: &self.config.images.steward,
            deadline: self.config.active_deadline.into(),
            attempt,
            backlog,
        })?;
        let created = self
            .jobs_api(&namespace)
            .create(&PostParams::default(), &job)
            .await;
        match created {
            Ok(_) => {}
            // The old one isn't gone yet, or the cache hasn't seen the new one.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                return Ok(Action::requeue(DELETION_LOOK));
            }
            Err(error) => return Err(request("create the compaction Job")(error)),
        }
        let note = format!(
            "{} revisions are in delta snapshots: compacting them by Job {}",
            backlog.events,
            job.name_any()
        );
        info!(attempt, events = backlog.events, "compaction begins");
        self.context
            .events
            .normal(etcd, "Compaction", "CompactionStarted", note)
            .await;
        Ok(Action::await_change())
    }

    async fn delete(&self, job: &Job) -> Result<Action, CompactionError> {
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            preconditions: Some(Preconditions {
                uid: job.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let api = self.jobs_api(&job.namespace().unwrap_or_default());
        match api.delete(&job.name_any(), &params).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            other => drop(other.map_err(request("delete the compaction Job"))?),
        }
        Ok(Action::requeue(DELETION_LOOK))
    }

    /// The newest pod of a Job.
    async fn pod_of(&self, job: &Job) -> Result<Option<Pod>, CompactionError> {
        let namespace = job.namespace().unwrap_or_default();
        let api = Api::<Pod>::namespaced(self.context.client.clone(), &namespace);
        let of_job = format!(
            "batch.kubernetes.io/controller-uid={}",
            job.uid().unwrap_or_default()
        );
        let pods = api.list(&ListParams::default().labels(&of_job)).await;
        let pods = pods.map_err(request("list the pods of the compaction Job"))?;
        Ok(pods
            .items
            .into_iter()
            .max_by_key(|pod| pod.creation_timestamp().map(|time| time.0)))
    }

    /// Where on the node a Local store lies, if its Secret says so.
    async fn host_path(&self, namespace: &str, store: &StoreSpec) -> Result<Option<String>, CompactionError> {
        let (Some(StoreProvider::Local), Some(secret)) = (store.provider()?, store.secret_name()) else {
            return Ok(None);
        };
        let api = Api::<Secret>::namespaced(self.context.client.clone(), namespace);
        let secret = api
            .get_opt(secret)
            .await
            .map_err(request("read the store's Secret"))?;
        let path = secret.and_then(|secret| secret.data?.remove("hostPath"));
        Ok(path.and_then(|bytes| String::from_utf8(bytes.0).ok()))
    }

    fn members_of(&self, etcd: &Etcd) -> Vec<Arc<EtcdMember>> {
        let of_etcd = |member: &Guarded<EtcdMember>| {
            member.namespace() == etcd.namespace()
                && member.labels().get(labels::OWNED_BY) == Some(&etcd.name_any())
        };
        decoded(self.members.state_filter(of_etcd))
    }

    fn jobs_api(&self, namespace: &str) -> Api<Job> {
        Api::namespaced(self.context.client.clone(), namespace)
    }
}
