//! Makes the objects of a cluster be as they were built, in an order in which each finds what it needs.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Service, ServiceAccount},
    policy::v1::PodDisruptionBudget,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, Preconditions},
    core::NamespaceResourceScope,
    runtime::reflector::{ObjectRef, Store},
};
use operator::apply::{Applier, ApplyError, Change};
use serde::{Serialize, de::DeserializeOwned};
use tracing::info;

use crate::build::Objects;

/// What exists, by kind.
#[derive(Clone)]
pub struct Caches {
    pub service_accounts: Store<ServiceAccount>,
    pub roles: Store<Role>,
    pub role_bindings: Store<RoleBinding>,
    pub config_maps: Store<ConfigMap>,
    pub services: Store<Service>,
    pub disruption_budgets: Store<PodDisruptionBudget>,
    pub leases: Store<Lease>,
    pub members: Store<api::v1alpha1::EtcdMember>,
    pub stateful_sets: Store<StatefulSet>,
}

impl std::fmt::Debug for Caches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caches").finish_non_exhaustive()
    }
}

/// The cached object of a name.
pub fn cached<K>(store: &Store<K>, namespace: &str, name: &str) -> Option<std::sync::Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.get(&ObjectRef::new(name).within(namespace))
}

/// Applies everything. The StatefulSet comes last: its pods need all the rest.
pub async fn apply(applier: &Applier, caches: &Caches, objects: &Objects) -> Result<Changes, ApplyError> {
    // Destructured, so that a new kind can't be forgotten here.
    let Objects {
        service_account,
        role,
        role_binding,
        etcd_tls,
        config_map,
        peer_service,
        client_service,
        disruption_budget,
        leases,
        members,
        stateful_set,
    } = objects;
    let mut changes = Changes::default();
    changes.note(one(applier, &caches.service_accounts, service_account).await?);
    changes.note(one(applier, &caches.roles, role).await?);
    changes.note(one(applier, &caches.role_bindings, role_binding).await?);
    if let Some(secret) = etcd_tls {
        // Secrets aren't cached: it is applied whenever the Etcd is looked at.
        applier.apply(secret, None).await?;
    }
    changes.note(one(applier, &caches.config_maps, config_map).await?);
    for service in [peer_service, client_service] {
        changes.note(one(applier, &caches.services, service).await?);
    }
    if let Some(budget) = disruption_budget {
        changes.note(one(applier, &caches.disruption_budgets, budget).await?);
    }
    for lease in leases {
        changes.note(one(applier, &caches.leases, lease).await?);
    }
    for member in members {
        changes.note(one_member(applier, caches, member).await?);
    }
    changes.note(one(applier, &caches.stateful_sets, stateful_set).await?);
    Ok(changes)
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

async fn one<K>(applier: &Applier, store: &Store<K>, wanted: &K) -> Result<(String, Change), ApplyError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + std::fmt::Debug
        + 'static,
{
    let live = cached(store, &wanted.namespace().unwrap_or_default(), &wanted.name_any());
    let change = applier.apply(wanted, live.as_deref()).await?;
    Ok((format!("{} {}", K::kind(&()), wanted.name_any()), change))
}

/// A member's annotation says how it was born: it is set when the member is made, and taken away by its steward.
async fn one_member(
    applier: &Applier,
    caches: &Caches,
    wanted: &api::v1alpha1::EtcdMember,
) -> Result<(String, Change), ApplyError> {
    let mut wanted = wanted.clone();
    let live = cached(
        &caches.members,
        &wanted.namespace().unwrap_or_default(),
        &wanted.name_any(),
    );
    if let Some(live) = live {
        let learner = api::labels::annotation::CREATE_AS_LEARNER;
        let born = live
            .annotations()
            .get_key_value(learner)
            .map(|(key, value)| (key.clone(), value.clone()));
        wanted.metadata.annotations = born.map(|annotation| [annotation].into());
    }
    one(applier, &caches.members, &wanted).await
}

/// Deletes an object of ours that isn't wanted any more.
pub async fn delete<K>(client: &Client, object: &K) -> kube::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api = Api::<K>::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let preconditions = Preconditions {
        uid: object.uid(),
        resource_version: None,
    };
    let params = DeleteParams {
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    };
    info!(kind = %K::kind(&()), name = object.name_any(), "deleting");
    match api.delete(&object.name_any(), &params).await {
        Ok(_) => Ok(()),
        // Gone, or made anew by somebody else: either way not ours to delete.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}
