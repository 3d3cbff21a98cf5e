//! The etcd-controller: Etcd → objects.

pub mod apply;
pub mod build;
pub mod certificates;
pub mod controller;
pub mod dereference;
pub mod peer_tls;
pub mod pki;
pub mod report;
pub mod standing;
pub mod validate;

use std::time::Duration;

use api::{labels, v1alpha1::EtcdMember};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, runtime::Controller};
use operator::{
    Context, cache,
    reconcile::{self, Guarded, chain},
};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::{apply::Caches, certificates::Certificates, controller::EtcdController};

/// The controllers' certificate is looked at this often; it is renewed months before it ends.
const RENEWAL: Duration = Duration::from_hours(6);

/// What only this controller has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    /// Images of Etcds that don't name their own.
    pub images: Images,
    /// Act on every change of a spec at once. Off: only on the annotation `druid.gardener.cloud/operation: reconcile`.
    pub auto_reconcile: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            images: Images::default(),
            auto_reconcile: true,
        }
    }
}

/// Images of the pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Images {
    /// Any image with `etcd` in its PATH.
    pub etcd: String,
    /// The steward's.
    pub steward: String,
}

impl Default for Images {
    fn default() -> Self {
        let version = env!("CARGO_PKG_VERSION");
        Self {
            etcd: "registry.k8s.io/etcd:3.6.6-0".to_owned(),
            steward: format!("druid/etcd-steward:{version}"),
        }
    }
}

/// Runs the controller until the process is told to stop.
pub async fn run(context: Context, config: Config) -> anyhow::Result<()> {
    let certificates = Certificates::begin(context.client.clone(), &context.namespace).await?;
    tokio::spawn(renew(certificates.clone(), context.namespace.clone()));
    let (controller, caches) = watches(&context);
    let reconciler = EtcdController {
        context: context.clone(),
        config,
        caches,
        certificates,
    };
    reconcile::run(controller, reconciler, &context).await;
    Ok(())
}

async fn renew(certificates: Certificates, namespace: String) {
    loop {
        tokio::time::sleep(RENEWAL).await;
        if let Err(error) = certificates.controllers(&namespace).await {
            warn!(
                error = chain(&error),
                "failed to renew the controllers' certificate"
            );
        }
    }
}

/// One watch for each kind of child: it fills the cache, and wakes the Etcd when something changes.
fn watches(context: &Context) -> (Controller<Guarded<api::v1alpha1::Etcd>>, Caches) {
    let selector = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_VALUE);
    let selected = || cache::selected(&selector);
    let client = &context.client;
    let readiness = &context.readiness;
    let (etcds, stream) = cache::watch(Api::all(client.clone()), cache::everything(), readiness);
    let mut controller = Controller::for_stream(stream, etcds);
    macro_rules! owned {
        () => {{
            let (store, stream) = cache::watch(Api::all(client.clone()), selected(), readiness);
            controller = controller.owns_stream(stream);
            store
        }};
    }
    let caches = Caches {
        service_accounts: owned!(),
        roles: owned!(),
        role_bindings: owned!(),
        config_maps: owned!(),
        services: owned!(),
        disruption_budgets: owned!(),
        stateful_sets: owned!(),
        leases: {
            // Heartbeats are no business of this controller: only a Lease that goes away wakes it.
            let (store, gone) =
                cache::watch_changes::<Lease, _>(Api::all(client.clone()), selected(), readiness, |_| ());
            controller = controller.owns_stream(gone);
            store
        },
        members: {
            let (store, changed) = cache::watch_changes::<EtcdMember, _>(
                Api::all(client.clone()),
                selected(),
                readiness,
                report::what_matters,
            );
            controller = controller.owns_stream(changed);
            store
        },
    };
    (controller, caches)
}

#[cfg(test)]
mod tests;
