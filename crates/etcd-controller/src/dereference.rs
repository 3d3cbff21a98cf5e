//! Fetches what an Etcd refers to: Secrets, each by its name. Nothing else is read outside the caches, and Secrets are
//! never listed.

use std::collections::{BTreeMap, BTreeSet};

use api::v1alpha1::{Etcd, SecretReference, StoreProvider, StoreSpec};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt as _, core::PartialObjectMeta};
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

/// Fetches the Secrets that the building needs. Of those that are only mounted no content is asked for.
pub async fn dereference(client: &Client, etcd: &Etcd) -> Result<Referenced, DereferenceError> {
    let namespace = etcd.namespace().unwrap_or_default();
    let api = Api::<Secret>::namespaced(client.clone(), &namespace);
    let looked_into = looked_into(etcd);
    let names = mounted(etcd).into_iter().chain(looked_into.clone());
    let fetched = try_join_all(names.collect::<BTreeSet<_>>().into_iter().map(|name| {
        let (api, whole) = (api.clone(), looked_into.contains(&name));
        async move {
            let fetched = if whole {
                api.get_opt(&name).await
            } else {
                let metadata = api.get_metadata_opt(&name).await;
                metadata.map(|known| known.map(only_metadata))
            };
            match fetched {
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

fn only_metadata(known: PartialObjectMeta<Secret>) -> Secret {
    Secret {
        metadata: known.metadata,
        ..Secret::default()
    }
}

/// Names of the Secrets that pods mount as they are: without one of them, no pod would start.
fn mounted(etcd: &Etcd) -> BTreeSet<String> {
    let backup = &etcd.spec.backup;
    let stores = stores(etcd).filter_map(StoreSpec::secret_name);
    let signing = backup.signing.as_ref().and_then(|signing| signing.secret_name());
    stores.chain(signing).map(str::to_owned).collect()
}

fn stores(etcd: &Etcd) -> impl Iterator<Item = &StoreSpec> {
    let backup = &etcd.spec.backup;
    let secondary = backup.secondary.as_ref().map(|secondary| &secondary.store);
    backup.store.iter().chain(secondary)
}

/// Names of the Secrets whose content is copied or looked into. The store's credentials are not,
/// except for provider Local, whose Secret only names a folder.
fn looked_into(etcd: &Etcd) -> BTreeSet<String> {
    let (spec, mut names) = (&etcd.spec, BTreeSet::new());
    let mut add = |name: Option<&String>| names.extend(name.cloned());
    let of = |reference: &SecretReference| reference.name.clone();
    if let Some(tls) = &spec.etcd.client_url_tls {
        add(tls.tls_ca_secret_ref.name.as_ref());
        add(of(&tls.server_tls_secret_ref).as_ref());
        add(tls.client_tls_secret_ref.as_ref().and_then(of).as_ref());
    }
    if let Some(tls) = &spec.backup.tls {
        add(tls.tls_ca_secret_ref.name.as_ref());
        add(of(&tls.server_tls_secret_ref).as_ref());
    }
    add(spec.etcd.auth_secret_ref.as_ref().and_then(of).as_ref());
    if let Some(tls) = &spec.etcd.peer_url_tls {
        add(tls.tls_ca_secret_ref.name.as_ref());
        add(of(&tls.server_tls_secret_ref).as_ref());
    }
    for store in stores(etcd) {
        if matches!(store.provider(), Ok(Some(StoreProvider::Local))) {
            add(store.secret_ref.as_ref().and_then(of).as_ref());
        }
    }
    names
}
