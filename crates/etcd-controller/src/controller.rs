//! The driver: dereference → validate → build → apply → report, and the deletion of what an Etcd leaves behind.

use std::{sync::Arc, time::Duration};

use api::{
    labels,
    v1alpha1::{Etcd, EtcdMember},
};
use async_trait::async_trait;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::controller::Action,
};
use operator::{
    Context,
    apply::ApplyError,
    finalizers,
    reconcile::{Reason, Reconciler, Retry, chain},
};
use tracing::{debug, info};

use crate::{
    Config,
    apply::{Caches, ChildError, apply, cached, delete, refuse_takeover, secret},
    build::{self, build, secrets::etcd_tls, stateful_set::stateful_set},
    certificates::{CertificateError, Certificates},
    dereference::{DereferenceError, dereference},
    report::{self, Outcome},
    standing::belong_together,
    validate::{Cluster, ValidateError, keeps_all_members, validate},
};

/// Everything is looked at again after this time, for what no watch tells: the content of Secrets.
const RESYNC: Duration = Duration::from_mins(10);
/// Children that are being deleted are waited for by their watches; this is for a watch that missed something.
const DELETION_RESYNC: Duration = Duration::from_secs(30);

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// What the Etcd refers to can't be read.
    #[error(transparent)]
    Dereference(#[from] DereferenceError),
    /// The Etcd, or what it refers to, is wrong.
    #[error(transparent)]
    Validate(#[from] ValidateError),
    /// The configuration can't be written.
    #[error(transparent)]
    Build(#[from] build::config::EncodeError),
    /// A certificate isn't there.
    #[error(transparent)]
    Certificates(#[from] CertificateError),
    /// A child can't be brought about.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The status can't be written.
    #[error(transparent)]
    Status(#[from] ApplyError),
    /// Somebody was faster.
    #[error("the Etcd is gone")]
    Gone,
    /// An object can't be deleted or changed.
    #[error("{action}: {source}")]
    Request {
        /// What was tried.
        action: &'static str,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
}

impl Reason for ReconcileError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Dereference(error) => error.reason(),
            Self::Validate(error) => error.reason(),
            Self::Build(_) => "ConfigurationNotMade",
            Self::Certificates(error) => error.reason(),
            Self::Child(error) => error.reason(),
            Self::Status(error) if error.is_rejection() => "Rejected",
            Self::Status(_) | Self::Request { .. } => "ApiServer",
            Self::Gone => "Gone",
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Self::Validate(error) => error.retry(),
            Self::Gone => Retry::OnChange,
            _ => Retry::Backoff,
        }
    }
}

/// The reconciler of Etcds.
#[derive(Debug)]
pub struct EtcdController {
    /// Shared with the other controllers.
    pub context: Context,
    /// Settings.
    pub config: Config,
    /// What exists.
    pub caches: Caches,
    /// Druid's own certificates.
    pub certificates: Certificates,
}

#[async_trait]
impl Reconciler for EtcdController {
    type Error = ReconcileError;
    type Object = Etcd;

    const NAME: &'static str = "etcd";

    async fn reconcile(&self, etcd: Arc<Etcd>) -> Result<Action, ReconcileError> {
        if etcd.metadata.deletion_timestamp.is_some() {
            return self.delete(&etcd).await;
        }
        if !self.is_due(&etcd) {
            // Certificates end, whether or not the spec may be acted on. What a newer spec names isn't in use yet.
            if is_carried_out(&etcd) {
                self.prepared(&etcd).await?;
            }
            return Ok(Action::requeue(RESYNC));
        }
        let result = self.bring_about(&etcd).await;
        let outcome = match &result {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Failed {
                code: error.reason(),
                description: chain(error),
            },
        };
        self.report(&etcd, &outcome).await?;
        result?;
        self.acknowledge(&etcd).await?;
        Ok(Action::requeue(RESYNC))
    }
}

impl EtcdController {
    /// Whether the spec is to be acted on now: not while suspended, and without auto-reconcile only when asked to.
    fn is_due(&self, etcd: &Etcd) -> bool {
        if etcd
            .annotations()
            .contains_key(labels::annotation::SUSPEND_SPEC_RECONCILE)
        {
            debug!("suspended by annotation");
            return false;
        }
        let status = etcd.status.as_ref();
        let first = status.is_none_or(|status| status.observed_generation.is_none());
        self.config.auto_reconcile || first || asked(etcd).is_some()
    }

    async fn bring_about(&self, etcd: &Etcd) -> Result<(), ReconcileError> {
        self.adopt(etcd).await?;
        let cluster = self.prepared(etcd).await?;
        let objects = build(&cluster, !self.formed(etcd).is_empty())?;
        let changes = apply(&self.context, &self.caches, &objects).await?;
        self.prune(&cluster.namespace, &objects).await?;
        if !changes.is_empty() {
            info!(created = ?changes.created, updated = ?changes.updated, "applied");
        }
        if is_carried_out(etcd) && !changes.created.is_empty() {
            let note = format!("made anew what was missing: {}", changes.created.join(", "));
            self.context
                .events
                .normal(etcd, "Reconcile", "Repaired", note)
                .await;
        }
        Ok(())
    }

    /// The cluster as it is to be, found to be right, with its certificates in place. They come before the pods that mount
    /// them: what isn't there when a pod starts arrives a minute later.
    async fn prepared(&self, etcd: &Etcd) -> Result<Cluster, ReconcileError> {
        let referenced = dereference(&self.context.client, etcd).await?;
        let cluster = validate(etcd, &referenced, &self.config.images)?;
        keeps_all_members(etcd, &self.formed(etcd))?;
        refuse_takeover(&self.context, &self.caches, &stateful_set(&cluster)).await?;
        if let Some(copy) = etcd_tls(&cluster) {
            secret(&self.context, &copy).await?;
        }
        self.certificates.of_cluster(&cluster).await?;
        Ok(cluster)
    }

    /// Members that have formed a cluster, which new members must join. Members of an earlier Etcd of this name, which are
    /// still being collected, say nothing about this one.
    fn formed(&self, etcd: &Etcd) -> Vec<Arc<EtcdMember>> {
        let ours = |member: &EtcdMember| {
            member
                .owner_references()
                .iter()
                .any(|owner| Some(&owner.uid) == etcd.metadata.uid.as_ref())
        };
        let mut formed = self.members_of(etcd);
        formed.retain(|member| {
            let status = member.status.as_ref();
            status.is_some_and(|status| status.cluster_id.is_some())
                && ours(member)
                && member.metadata.deletion_timestamp.is_none()
        });
        formed
    }

    /// All members under this Etcd's name.
    fn members_of(&self, etcd: &Etcd) -> Vec<Arc<EtcdMember>> {
        let (namespace, name) = (etcd.namespace(), etcd.name_any());
        self.caches.members.state_filter(|member| {
            member.namespace() == namespace && member.labels().get(labels::OWNED_BY) == Some(&name)
        })
    }

    /// The finalizer keeps the Etcd until its children are gone.
    async fn adopt(&self, etcd: &Etcd) -> Result<(), ReconcileError> {
        let added = finalizers::add(&self.context.client, etcd, labels::finalizer::DRUID).await;
        let added = added.map_err(|error| request("add the finalizer", error))?;
        added.map(|_| ()).ok_or(ReconcileError::Gone)
    }

    /// A budget that isn't wanted any more.
    async fn prune(&self, namespace: &str, objects: &build::Objects) -> Result<(), ReconcileError> {
        let name = objects.stateful_set.name_any();
        if objects.disruption_budget.is_none()
            && let Some(budget) = cached(&self.caches.disruption_budgets, namespace, &name)
            && belong_together(&*budget, &objects.stateful_set)
        {
            let deleted = delete(&self.context.client, &*budget).await;
            deleted.map_err(|error| request("delete the disruption budget", error))?;
        }
        Ok(())
    }

    async fn report(&self, etcd: &Etcd, outcome: &Outcome) -> Result<(), ReconcileError> {
        let members = self.members_of(etcd);
        let status = report::status(etcd, &members, outcome);
        let known = etcd
            .status
            .as_ref()
            .map(|status| status.last_errors.as_slice())
            .unwrap_or_default();
        if let Outcome::Failed { code, description } = outcome
            && known.iter().all(|error| error.description != *description)
        {
            self.context
                .events
                .warning(etcd, "Reconcile", code, description.clone())
                .await;
        }
        self.context
            .applier
            .apply_status(etcd, &status, report::OURS)
            .await?;
        Ok(())
    }

    /// Takes away the annotation that asked for this reconcile.
    async fn acknowledge(&self, etcd: &Etcd) -> Result<(), ReconcileError> {
        let Some(annotation) = asked(etcd) else {
            return Ok(());
        };
        let api = Api::<Etcd>::namespaced(self.context.client.clone(), &etcd.namespace().unwrap_or_default());
        let patch = Patch::Merge(serde_json::json!({"metadata": {"annotations": {annotation: null}}}));
        let patched = api.patch(&etcd.name_any(), &PatchParams::default(), &patch).await;
        patched.map_err(|error| request("remove the operation annotation", error))?;
        Ok(())
    }

    /// Deletes the pods' owner and what only they need, waits until it is gone, and lets the Etcd go. Volumes and backups
    /// stay.
    async fn delete(&self, etcd: &Etcd) -> Result<Action, ReconcileError> {
        let (namespace, name) = (etcd.namespace().unwrap_or_default(), etcd.name_any());
        if !etcd
            .finalizers()
            .iter()
            .any(|finalizer| finalizer == labels::finalizer::DRUID)
        {
            return Ok(Action::await_change());
        }
        self.certificates.forget(&namespace, &name);
        if let Some(set) = cached(&self.caches.stateful_sets, &namespace, &name) {
            if set.metadata.deletion_timestamp.is_none() {
                let status = report::status(etcd, &self.members_of(etcd), &Outcome::Deleting);
                self.context
                    .applier
                    .apply_status(etcd, &status, report::OURS)
                    .await?;
                self.delete_set(&set).await?;
            }
            return Ok(Action::requeue(DELETION_RESYNC));
        }
        // What the members have recorded must not be found by an Etcd that is made anew under this name. All other children
        // are collected by their owner reference.
        let members = self.members_of(etcd);
        if !members.is_empty() {
            for member in members
                .iter()
                .filter(|member| member.metadata.deletion_timestamp.is_none())
            {
                let deleted = delete(&self.context.client, &**member).await;
                deleted.map_err(|error| request("delete a member", error))?;
            }
            return Ok(Action::requeue(DELETION_RESYNC));
        }
        let removed = finalizers::remove(&self.context.client, etcd, labels::finalizer::DRUID).await;
        removed.map_err(|error| request("remove the finalizer", error))?;
        info!("deleted; volumes and backups stay");
        Ok(Action::await_change())
    }

    /// In the foreground: the StatefulSet is gone only after its pods.
    async fn delete_set(&self, set: &k8s_openapi::api::apps::v1::StatefulSet) -> Result<(), ReconcileError> {
        use kube::api::DeleteParams;
        let namespace = set.namespace().unwrap_or_default();
        let api = Api::<k8s_openapi::api::apps::v1::StatefulSet>::namespaced(
            self.context.client.clone(),
            &namespace,
        );
        match api.delete(&set.name_any(), &DeleteParams::foreground()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(request("delete the StatefulSet", error)),
        }
    }
}

/// Whether the spec as it is now was carried out once.
fn is_carried_out(etcd: &Etcd) -> bool {
    let observed = etcd.status.as_ref().and_then(|status| status.observed_generation);
    observed.is_some() && observed == etcd.metadata.generation
}

/// The annotation that asks for a reconcile, in whichever spelling.
fn asked(etcd: &Etcd) -> Option<&'static str> {
    use labels::annotation::{OPERATION, OPERATION_LEGACY, OPERATION_RECONCILE};
    let asks = |name: &str| {
        etcd.annotations()
            .get(name)
            .is_some_and(|value| value == OPERATION_RECONCILE)
    };
    [OPERATION, OPERATION_LEGACY].into_iter().find(|name| asks(name))
}

fn request(action: &'static str, source: kube::Error) -> ReconcileError {
    ReconcileError::Request {
        action,
        source: Box::new(source),
    }
}
