//! Makes the objects of a cluster be as they were built, in an order in which each finds what it needs.

use std::sync::Arc;

use api::{labels, v1alpha1::EtcdMember};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Secret, Service, ServiceAccount},
    policy::v1::PodDisruptionBudget,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, Preconditions},
    core::NamespaceResourceScope,
    runtime::reflector::{ObjectRef, Store},
};
use operator::{
    Context,
    apply::{APPLIED_HASH, ApplyError, Change},
    reconcile::{Guarded, Reason},
};
use serde::{Serialize, de::DeserializeOwned};
use tracing::info;

use crate::{
    build::Objects,
    standing::{NotOurs, Standing, belong_together, standing},
};

/// Why a child can't be brought about.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It can't be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// Another object has its name.
    #[error(transparent)]
    NotOurs(#[from] NotOurs),
    /// What a predecessor left of it is held by finalizers.
    #[error("{0} of an earlier Etcd of this name is still being deleted")]
    PredecessorLeft(String),
    /// The pods are etcd-druid's, or of some other program.
    #[error(
        "StatefulSet {0} wasn't made by Druid, and this version doesn't take over the pods of another operator. Nothing is \
         changed: leave the cluster to the operator that made it, and bring its data over by a backup"
    )]
    TakeoverUnsupported(String),
    /// Something else wrote it, or a version with another schema.
    #[error("{child} can't be decoded: {error}. Nothing of it is changed: correct it or delete it")]
    Undecodable {
        /// Kind and name.
        child: String,
        /// Why.
        error: String,
    },
    /// It can't be looked at, or what is in its way not be deleted.
    #[error("{action} {child}: {source}")]
    Request {
        /// What was tried.
        action: &'static str,
        /// Kind and name.
        child: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
}

impl Reason for ChildError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Apply(error) if error.is_rejection() => "Rejected",
            Self::NotOurs(_) => "NotOurs",
            Self::PredecessorLeft(_) => "PredecessorLeft",
            Self::TakeoverUnsupported(_) => "TakeoverUnsupported",
            Self::Undecodable { .. } => "Undecodable",
            Self::Apply(_) | Self::Request { .. } => "ApiServer",
        }
    }
}

/// What exists, by kind.
#[derive(Clone)]
pub struct Caches {
    pub service_accounts: Store<Guarded<ServiceAccount>>,
    pub roles: Store<Guarded<Role>>,
    pub role_bindings: Store<Guarded<RoleBinding>>,
    pub config_maps: Store<Guarded<ConfigMap>>,
    pub services: Store<Guarded<Service>>,
    pub disruption_budgets: Store<Guarded<PodDisruptionBudget>>,
    pub leases: Store<Guarded<Lease>>,
    pub members: Store<Guarded<EtcdMember>>,
    pub stateful_sets: Store<Guarded<StatefulSet>>,
}

impl std::fmt::Debug for Caches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caches").finish_non_exhaustive()
    }
}

/// The cached object of a name.
pub fn cached<K>(store: &Store<Guarded<K>>, namespace: &str, name: &str) -> Option<Arc<Guarded<K>>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.get(&ObjectRef::new(name).within(namespace))
}

/// Applies everything but the certificates. The StatefulSet comes last: its pods need all the rest.
pub async fn apply(context: &Context, caches: &Caches, objects: &Objects) -> Result<Changes, ChildError> {
    // Destructured, so that a new kind can't be forgotten here.
    let Objects {
        service_account,
        role,
        role_binding,
        config_map,
        peer_service,
        client_service,
        disruption_budget,
        leases,
        members,
        stateful_set,
    } = objects;
    let mut changes = Changes::default();
    changes.note(one(context, &caches.service_accounts, service_account).await?);
    changes.note(one(context, &caches.roles, role).await?);
    changes.note(one(context, &caches.role_bindings, role_binding).await?);
    changes.note(one(context, &caches.config_maps, config_map).await?);
    for service in [peer_service, client_service] {
        changes.note(one(context, &caches.services, service).await?);
    }
    if let Some(budget) = disruption_budget {
        changes.note(one(context, &caches.disruption_budgets, budget).await?);
    }
    for lease in leases {
        changes.note(one(context, &caches.leases, lease).await?);
    }
    for (ordinal, member) in members.iter().enumerate() {
        let is_new = !existed_before(caches, objects, ordinal);
        changes.note(one_member(context, caches, member, is_new).await?);
    }
    changes.note(one(context, &caches.stateful_sets, stateful_set).await?);
    Ok(changes)
}

/// Applies a Secret. Secrets aren't cached: each is read first. One of a predecessor is taken over, for all of its content
/// is replaced.
pub async fn secret(context: &Context, wanted: &Secret) -> Result<(), ChildError> {
    let live = read(context, wanted).await?;
    if let Some(live) = &live {
        standing(live, wanted)?;
    }
    context.applier.apply(wanted, live.as_ref()).await?;
    Ok(())
}

/// To be asked before anything is written: containers and volumes of a StatefulSet that another program has made would
/// stay beside ours, and no pod of such a mixture can run.
pub async fn refuse_takeover(
    context: &Context,
    caches: &Caches,
    wanted: &StatefulSet,
) -> Result<(), ChildError> {
    match live(context, &caches.stateful_sets, wanted).await? {
        Some(set) if !set.annotations().contains_key(APPLIED_HASH) => {
            Err(ChildError::TakeoverUnsupported(wanted.name_any()))
        }
        _ => Ok(()),
    }
}

/// What an apply changed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Changes {
    /// Objects that were missing.
    pub created: Vec<String>,
    /// Objects that differed.
    pub updated: Vec<String>,
}

impl Changes {
    fn note(&mut self, (name, change): (String, Change)) {
        match change {
            Change::None => {}
            Change::Created => self.created.push(name),
            Change::Updated => self.updated.push(name),
        }
    }

    /// Whether nothing had to be done.
    pub fn is_empty(&self) -> bool {
        self.created.is_empty() && self.updated.is_empty()
    }
}

/// What can be a child.
pub trait Child:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Serialize
    + DeserializeOwned
    + Clone
    + std::fmt::Debug
    + 'static
{
}

impl<K> Child for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + std::fmt::Debug
        + 'static
{
}

async fn one<K: Child>(
    context: &Context,
    store: &Store<Guarded<K>>,
    wanted: &K,
) -> Result<(String, Change), ChildError> {
    let live = live(context, store, wanted).await?;
    let change = context.applier.apply(wanted, live.as_ref()).await?;
    Ok((name_of(wanted), change))
}

/// A member's annotation says how it was born: it is set when a scale-out makes the member, and taken away by its steward.
async fn one_member(
    context: &Context,
    caches: &Caches,
    wanted: &EtcdMember,
    is_new: bool,
) -> Result<(String, Change), ChildError> {
    let mut wanted = wanted.clone();
    let live = live(context, &caches.members, &wanted).await?;
    let learner = labels::annotation::CREATE_AS_LEARNER;
    let annotations = wanted.metadata.annotations.get_or_insert_default();
    match &live {
        Some(live) => {
            annotations.remove(learner);
            let born = live.annotations().get_key_value(learner);
            annotations.extend(born.map(|(key, value)| (key.clone(), value.clone())));
        }
        None if is_new => {}
        // Somebody has deleted the object of a member that has its place in the cluster. One that hasn't voted yet learns
        // from the records of the others that it has to join.
        None => drop(annotations.remove(learner)),
    }
    let change = context.applier.apply(&wanted, live.as_ref()).await?;
    Ok((name_of(&wanted), change))
}

/// Whether a member was there before, whatever has become of its EtcdMember: a scale-out makes EtcdMembers before pods, and
/// only a member that has been up fills its Lease.
fn existed_before(caches: &Caches, objects: &Objects, ordinal: usize) -> bool {
    let set = &objects.stateful_set;
    let namespace = set.namespace().unwrap_or_default();
    let had_pod = cached(&caches.stateful_sets, &namespace, &set.name_any())
        .filter(|live| belong_together(&**live, set))
        .and_then(|live| live.0.as_ref().ok()?.spec.as_ref()?.replicas)
        .is_some_and(|replicas| usize::try_from(replicas).is_ok_and(|replicas| ordinal < replicas));
    let has_lease = objects.leases.get(ordinal).is_some_and(|lease| {
        cached(&caches.leases, &namespace, &lease.name_any())
            .filter(|live| belong_together(&**live, set))
            .and_then(|live| live.0.as_ref().ok()?.spec.as_ref()?.holder_identity.clone())
            .is_some_and(|holder| !holder.is_empty())
    });
    had_pod || has_lease
}

/// What is there of a wanted object. What a predecessor has left under its name is deleted first: nothing of it may be
/// taken for this Etcd's, least of all what its members have recorded.
async fn live<K: Child>(
    context: &Context,
    store: &Store<Guarded<K>>,
    wanted: &K,
) -> Result<Option<K>, ChildError> {
    let cached = cached(store, &wanted.namespace().unwrap_or_default(), &wanted.name_any());
    let live = match cached {
        Some(cached) => match &cached.0 {
            Ok(live) => live.clone(),
            Err(invalid) => {
                return Err(ChildError::Undecodable {
                    child: name_of(wanted),
                    error: invalid.error.clone(),
                });
            }
        },
        // The cache holds only what has Druid's label.
        None => match read(context, wanted).await? {
            Some(live) => live,
            None => return Ok(None),
        },
    };
    match standing(&live, wanted)? {
        Standing::Ours => Ok(Some(live)),
        Standing::Predecessors => match delete(&context.client, &live).await {
            Ok(Deleted::Gone) => Ok(None),
            Ok(Deleted::Held) => Err(ChildError::PredecessorLeft(name_of(wanted))),
            Err(source) => Err(failed("delete", wanted, source)),
        },
    }
}

async fn read<K: Child>(context: &Context, wanted: &K) -> Result<Option<K>, ChildError> {
    let api = Api::<K>::namespaced(context.client.clone(), &wanted.namespace().unwrap_or_default());
    api.get_opt(&wanted.name_any())
        .await
        .map_err(|source| failed("read", wanted, source))
}

fn name_of<K: Child>(object: &K) -> String {
    format!("{} {}", K::kind(&()), object.name_any())
}

fn failed<K: Child>(action: &'static str, wanted: &K, source: kube::Error) -> ChildError {
    if let kube::Error::SerdeError(error) = &source {
        return ChildError::Undecodable {
            child: name_of(wanted),
            error: error.to_string(),
        };
    }
    ChildError::Request {
        action,
        child: name_of(wanted),
        source: Box::new(source),
    }
}

/// What came of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    /// The object isn't there any more.
    Gone,
    /// Its finalizers hold it.
    Held,
}

/// Deletes an object of ours that isn't wanted any more, whether or not it can be decoded.
pub async fn delete<K>(client: &Client, object: &K) -> kube::Result<Deleted>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug,
{
    let api = Api::<K>::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let preconditions = Preconditions {
        uid: object.uid(),
        resource_version: None,
    };
    let params = DeleteParams {
        preconditions: Some(preconditions),
        ..DeleteParams::background()
    };
    info!(kind = %K::kind(&()), name = object.name_any(), "deleting");
    match api.delete(&object.name_any(), &params).await {
        // Of some kinds the API server answers with the object though it is gone.
        Ok(answer) => Ok(answer
            .left()
            .filter(|left| !left.finalizers().is_empty())
            .map_or(Deleted::Gone, |_| Deleted::Held)),
        // Gone, or made anew by somebody else: either way not ours to delete.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Deleted::Gone),
        Err(error) => Err(error),
    }
}
