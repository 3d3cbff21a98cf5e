//! Fetches what an Etcd refers to: Secrets, each by its name. Nothing else is read outside the caches, and Secrets are
//! never listed.

use std::collections::{BTreeMap, BTreeSet};

use api::v1alpha1::{Etcd, SecretReference, StoreProvider};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt as _};
use operator::reconcile::Reason;

/// A referenced object couldn't be read.
#[derive(Debug, thiserror::Error)]
#[error("read Secret {name}: {source}")]
pub struct DereferenceError {
    name: String,
    #[source]
    source: Box<kube::Error>,
}

impl Reason for DereferenceError {
    fn reason(&self) -> &'static str {
        "SecretUnreadable"
    }
}

/// What an Etcd refers to; a Secret that doesn't exist is left out.
#[derive(Debug, Clone, Default)]
pub struct Referenced {
    /// The Etcd's namespace.
    pub namespace: String,
    /// By name.
    pub secrets: BTreeMap<String, Secret>,
}

/// Fetches the Secrets that the building needs.
pub async fn dereference(client: &Client, etcd: &Etcd) -> Result<Referenced, DereferenceError> {
    let namespace = etcd.namespace().unwrap_or_default();
    let api = Api::<Secret>::namespaced(client.clone(), &namespace);
    let fetched = try_join_all(secret_names(etcd).into_iter().map(|name| {
        let api = api.clone();
        async move {
            match api.get_opt(&name).await {
                Ok(secret) => Ok(secret.map(|secret| (name, secret))),
                Err(source) => Err(DereferenceError {
                    name,
                    source: Box::new(source),
                }),
            }
        }
    }))
    .await?;
    Ok(Referenced {
        namespace,
        secrets: fetched.into_iter().flatten().collect(),
    })
}

/// Names of the Secrets whose content is copied or looked into. The store's credentials are mounted, never read,
/// except for provider Local, whose Secret only names a folder.
fn secret_names(etcd: &Etcd) -> BTreeSet<String> {
    let (spec, mut names) = (&etcd.spec, BTreeSet::new());
    let mut add = |name: Option<&String>| names.extend(name.cloned());
    let of = |reference: &SecretReference| reference.name.clone();
    for tls in [&spec.etcd.client_url_tls, &spec.backup.tls]
        .into_iter()
        .flatten()
    {
        add(tls.tls_ca_secret_ref.name.as_ref());
        add(of(&tls.server_tls_secret_ref).as_ref());
        add(tls.client_tls_secret_ref.as_ref().and_then(of).as_ref());
    }
    add(spec.etcd.auth_secret_ref.as_ref().and_then(of).as_ref());
    if let Some(tls) = &spec.etcd.peer_url_tls {
        add(tls.tls_ca_secret_ref.name.as_ref());
        add(of(&tls.server_tls_secret_ref).as_ref());
    }
    let secondary = spec.backup.secondary.as_ref().map(|secondary| &secondary.store);
    for store in [spec.backup.store.as_ref(), secondary].into_iter().flatten() {
        if matches!(store.provider(), Ok(Some(StoreProvider::Local))) {
            add(store.secret_ref.as_ref().and_then(of).as_ref());
        }
    }
    names
}
