//! The driver: dereference → validate → build → apply → report, and the deletion of what an Etcd leaves behind.

use std::{sync::Arc, time::Duration};

use api::{
    labels, names,
    v1alpha1::{Etcd, EtcdMember},
};
use async_trait::async_trait;
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::ConfigMap};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::controller::Action,
};
use operator::{
    Context,
    apply::ApplyError,
    cache::decoded,
    finalizers,
    reconcile::{Guarded, Reason, Reconciler, Retry, chain},
};
use tracing::{debug, info};

use crate::{
    Config,
    apply::{Caches, ChildError, apply, cached, delete, refuse_takeover, secret},
    build::{self, build, secrets::etcd_tls, stateful_set::stateful_set},
    certificates::{CertificateError, Certificates},
    dereference::{DereferenceError, dereference},
    peer_tls::keeps_peer_tls,
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
    /// What a member has recorded isn't known.
    #[error(
        "EtcdMember {member} can't be decoded: {error}. Nothing is changed before it is corrected; if it is deleted, it is made \
         anew, and its steward fills it again"
    )]
    MemberUndecodable {
        /// Its name.
        member: String,
        /// Why.
        error: String,
    },
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
            Self::MemberUndecodable { .. } => "Undecodable",
            Self::Gone => "Gone",
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Self::Validate(error) => error.retry(),
            Self::Gone | Self::MemberUndecodable { .. } => Retry::OnChange,
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
            Ok(()) => self.done(&etcd),
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
        // After what keeps certificates valid.
        self.all_decodable(etcd)?;
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
        let formed = self.formed(etcd);
        keeps_peer_tls(etcd, &formed, self.applied_config(etcd).as_ref())?;
        let referenced = dereference(&self.context.client, etcd).await?;
        let cluster = validate(etcd, &referenced, &self.config.images)?;
        keeps_all_members(etcd, &formed)?;
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
        let mut formed = decoded(self.members_of(etcd));
        formed.retain(|member| {
            let status = member.status.as_ref();
            status.is_some_and(|status| status.cluster_id.is_some())
                && is_owned(&**member, etcd)
                && member.metadata.deletion_timestamp.is_none()
        });
        formed
    }

    /// All members under this Etcd's name.
    fn members_of(&self, etcd: &Etcd) -> Vec<Arc<Guarded<EtcdMember>>> {
        let (namespace, name) = (etcd.namespace(), etcd.name_any());
        self.caches.members.state_filter(|member| {
            member.namespace() == namespace && member.labels().get(labels::OWNED_BY) == Some(&name)
        })
    }

    /// What a member has recorded must not be taken for nothing because it can't be decoded.
    fn all_decodable(&self, etcd: &Etcd) -> Result<(), ReconcileError> {
        let members = self.members_of(etcd);
        let bad = members
            .iter()
            .find_map(|member| Some((member, member.0.as_ref().err()?)));
        bad.map_or(Ok(()), |(member, invalid)| {
            Err(ReconcileError::MemberUndecodable {
                member: member.name_any(),
                error: invalid.error.clone(),
            })
        })
    }

    /// The configuration that was written last for this Etcd.
    fn applied_config(&self, etcd: &Etcd) -> Option<ConfigMap> {
        let (namespace, name) = (etcd.namespace().unwrap_or_default(), etcd.name_any());
        let config = cached(&self.caches.config_maps, &namespace, &names::config_map(&name))?;
        let config = config.0.as_ref().ok()?;
        is_owned(config, etcd).then(|| config.clone())
    }

    /// How a pass ended that has applied everything.
    fn done(&self, etcd: &Etcd) -> Outcome {
        let members = decoded(self.members_of(etcd));
        match report::cannot_follow(&members) {
            Some(description) => Outcome::Behind { description },
            None => Outcome::Done,
        }
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
        let status = report::status(etcd, members.iter().map(|member| member.name_any()), outcome);
        let known = etcd
            .status
            .as_ref()
            .map(|status| status.last_errors.as_slice())
            .unwrap_or_default();
        if let Some((code, description)) = outcome.error()
            && known.iter().all(|error| error.description != *description)
        {
            self.context
                .events
                .warning(etcd, "Reconcile", code, description)
                .await;
        }
        self.context
            .applier
            .apply_status(etcd, &status, report::OURS)
            .await?;
        Ok(())
    }

    /// Takes away the annotation that asked for this reconcile, unless the spec has changed meanwhile: then it asks for the
    /// next one.
    async fn acknowledge(&self, etcd: &Etcd) -> Result<(), ReconcileError> {
        const ACTION: &str = "remove the operation annotation";
        let mut asked = asked(etcd);
        let api = Api::<Etcd>::namespaced(self.context.client.clone(), &etcd.namespace().unwrap_or_default());
        while let Some(annotation) = asked {
            let live = api.get_opt(&etcd.name_any()).await;
            let live = live.map_err(|error| request(ACTION, error))?;
            let Some(live) = live.filter(|live| {
                (live.uid(), live.metadata.generation) == (etcd.uid(), etcd.metadata.generation)
            }) else {
                return Ok(());
            };
            // Whatever changes between the look and the patch refuses it.
            let patch = Patch::Merge(serde_json::json!({"metadata": {
                "resourceVersion": live.resource_version(),
                "annotations": {annotation: null},
            }}));
            match api.patch(&etcd.name_any(), &PatchParams::default(), &patch).await {
                Ok(left) => asked = self::asked(&left),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
                Err(error) => return Err(request(ACTION, error)),
            }
        }
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
            if set.meta().deletion_timestamp.is_none() {
                let members = self.members_of(etcd);
                let names = members.iter().map(|member| member.name_any());
                let status = report::status(etcd, names, &Outcome::Deleting);
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
                .filter(|member| member.meta().deletion_timestamp.is_none())
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
    async fn delete_set(&self, set: &Guarded<StatefulSet>) -> Result<(), ReconcileError> {
        use kube::api::DeleteParams;
        let namespace = set.namespace().unwrap_or_default();
        let api = Api::<StatefulSet>::namespaced(self.context.client.clone(), &namespace);
        match api.delete(&set.name_any(), &DeleteParams::foreground()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(request("delete the StatefulSet", error)),
        }
    }
}

fn is_owned(object: &impl Resource, etcd: &Etcd) -> bool {
    let owners = object.meta().owner_references.iter().flatten();
    owners
        .map(|owner| &owner.uid)
        .any(|uid| Some(uid) == etcd.metadata.uid.as_ref())
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
