//! Keeps the certificates of Druid's own parts: the authority and the controllers' certificates in the controllers'
//! namespace, and those of each Etcd in its own.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use api::{labels, names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use operator::reconcile::Reason;
use tracing::info;

use crate::{
    build::secrets,
    pki::{Authority, Pair, PkiError, Wanted},
    standing::{NotOurs, Standing, standing},
    validate::Cluster,
};

const MANAGER: &str = "etcd-controller";
/// How long certificates that were found to be current are trusted to be still there.
const TRUST: Duration = Duration::from_hours(1);

/// Why a certificate isn't there.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// It couldn't be made.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// A Secret couldn't be read or written.
    #[error("{action} Secret {name}: {source}")]
    Secret {
        /// What was tried.
        action: &'static str,
        /// The Secret.
        name: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// Another object has its Secret's name.
    #[error(transparent)]
    NotOurs(#[from] NotOurs),
    /// The authority's Secret isn't what it should be.
    #[error("Secret {0} holds no certificate and key: delete it to have a new authority made")]
    BadAuthority(String),
}

impl Reason for CertificateError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Pki(_) => "CertificateNotMade",
            Self::Secret { .. } => "CertificateSecret",
            Self::NotOurs(_) => "NotOurs",
            Self::BadAuthority(_) => "AuthorityInvalid",
        }
    }
}

/// The keeper of the certificates.
#[derive(Clone)]
pub struct Certificates {
    client: Client,
    authority: Authority,
    checked: Arc<Mutex<HashMap<String, (Basis, Instant)>>>,
}

/// What an Etcd's certificates depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Basis {
    uid: String,
    keys: crate::validate::Keys,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

impl Certificates {
    /// Takes up the authority of this installation, or makes one, and sees to the controllers' own certificates.
    pub async fn begin(client: Client, namespace: &str) -> Result<Self, CertificateError> {
        let api = Api::<Secret>::namespaced(client.clone(), namespace);
        let authority = authority(&api).await?;
        let this = Self {
            client,
            authority,
            checked: Arc::default(),
        };
        this.controllers(namespace).await?;
        Ok(this)
    }

    /// The certificates of the controllers. Called now and then, so that they are renewed in time.
    pub async fn controllers(&self, namespace: &str) -> Result<(), CertificateError> {
        let api = Api::<Secret>::namespaced(self.client.clone(), namespace);
        for controller in names::STEWARD_CALLERS {
            let name = names::controller_client_secret(controller);
            let existing = self.existing(&api, &name).await?;
            let pair = self.current(existing.as_ref(), &Wanted::controller(controller))?;
            let secret = own_secret(&name, &self.authority.pair().certificate, &pair);
            if existing.and_then(|existing| existing.data) != secret.data {
                self.write(&api, &secret).await?;
            }
        }
        Ok(())
    }

    /// The certificates of an Etcd.
    pub async fn of_cluster(&self, cluster: &Cluster) -> Result<(), CertificateError> {
        let state = Basis {
            uid: cluster.uid.clone(),
            keys: cluster.steward_keys.clone(),
        };
        let key = format!("{}/{}", cluster.namespace, cluster.name);
        let trusted = |checked: &HashMap<String, (Basis, Instant)>| {
            checked
                .get(&key)
                .is_some_and(|(known, at)| *known == state && at.elapsed() < TRUST)
        };
        if trusted(&self.checked.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(());
        }
        let api = Api::<Secret>::namespaced(self.client.clone(), &cluster.namespace);
        let (name, namespace) = (cluster.name.as_str(), cluster.namespace.as_str());
        let wanted = Wanted::steward(name, namespace);
        let serves = |ca: &str, pair: &Pair| secrets::steward_tls(cluster, ca, pair);
        self.of_etcd(&api, &names::steward_tls_secret(name), &wanted, serves)
            .await?;
        let wanted = Wanted::client(name, namespace);
        let calls = |ca: &str, pair: &Pair| secrets::steward_client(cluster, ca, pair);
        self.of_etcd(&api, &names::steward_client_secret(name), &wanted, calls)
            .await?;
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        checked.insert(key, (state, Instant::now()));
        Ok(())
    }

    /// A Secret of an Etcd. One that a predecessor left is written anew even so: it would be deleted with its owner.
    async fn of_etcd(
        &self,
        api: &Api<Secret>,
        name: &str,
        wanted: &Wanted,
        make: impl FnOnce(&str, &Pair) -> Secret,
    ) -> Result<(), CertificateError> {
        let existing = self.existing(api, name).await?;
        let pair = self.current(existing.as_ref(), wanted)?;
        let secret = make(&self.authority.pair().certificate, &pair);
        let ours = match &existing {
            Some(existing) => standing(existing, &secret)? == Standing::Ours,
            None => false,
        };
        if !ours || existing.and_then(|existing| existing.data) != secret.data {
            self.write(api, &secret).await?;
        }
        Ok(())
    }

    /// Forgets an Etcd that is gone.
    pub fn forget(&self, namespace: &str, name: &str) {
        self.checked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&format!("{namespace}/{name}"));
    }

    /// The pair in a Secret, or a new one when it isn't current.
    fn current(&self, existing: Option<&Secret>, wanted: &Wanted) -> Result<Pair, CertificateError> {
        match existing.and_then(pair_of) {
            Some(pair) if self.is_current(&pair, wanted) => Ok(pair),
            _ => Ok(self.authority.issue(wanted)?),
        }
    }

    fn is_current(&self, pair: &Pair, wanted: &Wanted) -> bool {
        self.authority
            .is_current(&pair.certificate, wanted, Timestamp::now().as_second())
    }

    async fn existing(&self, api: &Api<Secret>, name: &str) -> Result<Option<Secret>, CertificateError> {
        api.get_opt(name)
            .await
            .map_err(|source| failed("read", name, source))
    }

    async fn write(&self, api: &Api<Secret>, secret: &Secret) -> Result<(), CertificateError> {
        let name = secret.name_any();
        info!(name, namespace = secret.namespace(), "writing a certificate");
        let params = PatchParams::apply(MANAGER).force();
        api.patch(&name, &params, &Patch::Apply(secret))
            .await
            .map_err(|source| failed("write", &name, source))?;
        Ok(())
    }
}

/// The authority that is there, or a new one. Of two that are made at once the first one stays.
async fn authority(api: &Api<Secret>) -> Result<Authority, CertificateError> {
    let name = names::DRUID_CA_SECRET;
    loop {
        if let Some(secret) = api
            .get_opt(name)
            .await
            .map_err(|source| failed("read", name, source))?
        {
            let pair = pair_of(&secret).ok_or_else(|| CertificateError::BadAuthority(name.to_owned()))?;
            return Authority::load(pair).map_err(|_| CertificateError::BadAuthority(name.to_owned()));
        }
        let authority = Authority::make()?;
        let secret = own_secret(name, &authority.pair().certificate, authority.pair());
        match api.create(&PostParams::default(), &secret).await {
            Ok(_) => {
                info!(name, "made the authority of this installation");
                return Ok(authority);
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(source) => return Err(failed("create", name, source)),
        }
    }
}

fn own_secret(name: &str, ca: &str, pair: &Pair) -> Secret {
    let managed = (labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_VALUE.to_owned());
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([managed].into()),
            ..ObjectMeta::default()
        },
        data: Some(secrets::keys(ca, pair)),
        ..Secret::default()
    }
}

fn pair_of(secret: &Secret) -> Option<Pair> {
    let text = |key: &str| String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok();
    Some(Pair {
        certificate: text("tls.crt")?,
        key: text("tls.key")?,
    })
}

fn failed(action: &'static str, name: &str, source: kube::Error) -> CertificateError {
    CertificateError::Secret {
        action,
        name: name.to_owned(),
        source: Box::new(source),
    }
}
