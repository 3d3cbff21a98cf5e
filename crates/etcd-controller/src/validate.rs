//! From an Etcd and what it refers to, to a cluster that can be built: everything that can be wrong is found here.

use std::{collections::BTreeMap, sync::Arc};

use api::{
    names,
    v1alpha1::{
        BackupSpec, Etcd, EtcdMember, SecretKeyReference, SecretReference, StewardTlsConfig, StoreSpec,
    },
};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::ResourceExt as _;
use operator::{
    reconcile::{Reason, Retry},
    store::{self, Access, Role},
};

use crate::{Images, dereference::Referenced};

/// Why an Etcd can't be built.
#[derive(Debug, thiserror::Error)]
pub enum ValidateError {
    /// A Secret that the Etcd names isn't there.
    #[error(
        "{field}: Secret {secret} doesn't exist in namespace {namespace}: create it, or name another one"
    )]
    SecretNotFound {
        /// The field.
        field: &'static str,
        /// The Secret.
        secret: String,
        /// Its namespace.
        namespace: String,
    },
    /// A Secret lacks a key.
    #[error("{field}: Secret {secret} has no key {key:?}")]
    KeyMissing {
        /// The field.
        field: &'static str,
        /// The Secret.
        secret: String,
        /// The key.
        key: String,
    },
    /// A required reference is missing.
    #[error("{0}: name a Secret")]
    NoName(&'static str),
    /// The store's provider isn't known.
    #[error("spec.backup.store.provider: {0}")]
    Provider(#[from] api::v1alpha1::UnknownStoreProvider),
    /// A quantity can't be read.
    #[error("{field}: {source}")]
    Quantity {
        /// The field.
        field: &'static str,
        /// Why.
        source: api::quantity::InvalidQuantity,
    },
    /// A port is out of range.
    #[error("{0}: not a port number")]
    Port(&'static str),
    /// Starting a cluster of its own instead would split the data in two.
    #[error(
        "spec.etcd.bootstrapWithExistingCluster isn't supported by this version: remove it to create a new, empty \
         cluster"
    )]
    ExistingCluster,
    /// Fewer members are wanted than the cluster has.
    #[error(
        "spec.replicas: the cluster has formed with {formed} members, and {replicas} of them alone would never have a \
         majority: set replicas to {formed}"
    )]
    MembersLeftOut {
        /// Wanted members.
        replicas: i32,
        /// Members that the cluster has.
        formed: i64,
    },
    /// The members of a formed cluster reach each other by URLs that the cluster has recorded.
    #[error(
        "spec.etcd.peerUrlTls: the cluster has formed {} TLS between its peers, which can't be switched {} in a formed cluster: \
         {} it. Nothing of this change is carried out",
        if *on { "without" } else { "with" }, if *on { "on" } else { "off" }, if *on { "remove" } else { "put back" }
    )]
    PeerTlsSwitched {
        /// Whether it was to be switched on.
        on: bool,
    },
    /// No UID: the object wasn't read from an API server.
    #[error("the Etcd has no UID")]
    NoUid,
}

impl Reason for ValidateError {
    fn reason(&self) -> &'static str {
        match self {
            Self::SecretNotFound { .. } => "SecretNotFound",
            Self::KeyMissing { .. } => "SecretInvalid",
            _ => "InvalidSpec",
        }
    }

    fn retry(&self) -> Retry {
        match self {
            // Secrets are not watched.
            Self::SecretNotFound { .. } | Self::KeyMissing { .. } => Retry::Backoff,
            _ => Retry::OnChange,
        }
    }
}

/// Certificates of one surface of etcd, under the keys of [`api::steward::tls`].
pub type Keys = BTreeMap<String, ByteString>;

/// A cluster that can be built.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// The Etcd as it was read.
    pub etcd: Etcd,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// Wanted members.
    pub replicas: u32,
    /// Images to run.
    pub images: Images,
    /// Ports.
    pub ports: Ports,
    /// Certificates of etcd; empty without TLS.
    pub etcd_keys: Keys,
    /// What a user brought for the stewards: certificates under `brought-…` keys, etcd's user and password under those of
    /// [`api::steward::auth`].
    pub steward_keys: Keys,
    /// How pods get at the store.
    pub store: Access,
    /// Size of the volumes in bytes.
    pub storage: u64,
    /// Size at which etcd refuses writes.
    pub quota: u64,
}

/// Ports of a member's pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// etcd's clients.
    pub client: u16,
    /// etcd's peers.
    pub peer: u16,
    /// Probes of the launcher.
    pub launcher: u16,
    /// API of the steward.
    pub steward: u16,
}

impl Cluster {
    /// Whether etcd serves clients with TLS.
    pub fn client_tls(&self) -> bool {
        self.etcd.spec.etcd.client_url_tls.is_some()
    }

    /// Whether etcd serves its peers with TLS.
    pub fn peer_tls(&self) -> bool {
        self.etcd.spec.etcd.peer_url_tls.is_some()
    }

    /// Name of a member.
    pub fn member(&self, ordinal: u32) -> String {
        names::member(&self.name, self.etcd.spec.member_name_prefix.as_deref(), ordinal)
    }

    /// Whether backups are configured.
    pub fn has_store(&self) -> bool {
        !self.store.env.is_empty()
    }
}

/// Checks an Etcd and what it refers to.
pub fn validate(etcd: &Etcd, referenced: &Referenced, images: &Images) -> Result<Cluster, ValidateError> {
    let spec = &etcd.spec;
    if spec.etcd.bootstrap_with_existing_cluster.is_some() {
        return Err(ValidateError::ExistingCluster);
    }
    let quantity = |field| move |source| ValidateError::Quantity { field, source };
    let images = Images {
        etcd: spec.etcd.image.clone().unwrap_or_else(|| images.etcd.clone()),
        steward: spec
            .backup
            .image
            .clone()
            .unwrap_or_else(|| images.steward.clone()),
    };
    Ok(Cluster {
        name: etcd.name_any(),
        namespace: etcd.namespace().unwrap_or_default(),
        uid: etcd.uid().ok_or(ValidateError::NoUid)?,
        replicas: u32::try_from(spec.replicas).unwrap_or(0),
        images,
        ports: ports(etcd)?,
        etcd_keys: etcd_keys(etcd, referenced)?,
        steward_keys: steward_keys(etcd, referenced)?,
        store: store_access(&spec.backup, referenced)?,
        storage: spec
            .storage_capacity()
            .map_err(quantity("spec.storageCapacity"))?,
        quota: spec.etcd.quota().map_err(quantity("spec.etcd.quota"))?,
        etcd: etcd.clone(),
    })
}

/// Members that have formed a cluster can't be left out of it: those that are left would wait for a majority for ever.
pub fn keeps_all_members(etcd: &Etcd, formed: &[Arc<EtcdMember>]) -> Result<(), ValidateError> {
    let (name, prefix) = (etcd.name_any(), etcd.spec.member_name_prefix.as_deref());
    let ordinals = formed
        .iter()
        .filter_map(|member| names::ordinal(&name, prefix, &member.name_any()));
    let (replicas, formed) = (
        etcd.spec.replicas,
        ordinals.max().map_or(0, |highest| i64::from(highest) + 1),
    );
    if replicas > 0 && i64::from(replicas) < formed {
        return Err(ValidateError::MembersLeftOut { replicas, formed });
    }
    Ok(())
}

/// Access to the stores of the backups.
fn store_access(backup: &BackupSpec, referenced: &Referenced) -> Result<Access, ValidateError> {
    let access = |store: &StoreSpec, role, field| {
        let secret = match store.provider()?.and_then(|_| store.secret_name()) {
            Some(name) => Some(referenced.secret(field, name)?),
            None => None,
        };
        let host_path = secret.and_then(|secret| text(secret, "hostPath"));
        Ok::<_, ValidateError>(store::access(store, role, host_path.as_deref())?)
    };
    let Some(store) = &backup.store else {
        return Ok(Access::default());
    };
    let mut all = access(store, Role::Primary, "spec.backup.store.secretRef")?;
    if let Some(secondary) = &backup.secondary {
        let field = "spec.backup.secondary.store.secretRef";
        all = all.and(access(&secondary.store, Role::Secondary, field)?);
    }
    if let Some(signing) = &backup.signing {
        if let Some(name) = signing.secret_name() {
            referenced.secret("spec.backup.signing.secretRef", name)?;
        }
        all = all.and(store::signing(signing));
    }
    Ok(all)
}

fn ports(etcd: &Etcd) -> Result<Ports, ValidateError> {
    let (etcd, backup) = (&etcd.spec.etcd, &etcd.spec.backup);
    let port = |field, value: i32| u16::try_from(value).map_err(|_| ValidateError::Port(field));
    Ok(Ports {
        client: port("spec.etcd.clientPort", etcd.client_port())?,
        peer: port("spec.etcd.serverPort", etcd.server_port())?,
        launcher: port("spec.etcd.wrapperPort", etcd.wrapper_port())?,
        steward: port("spec.backup.port", backup.port())?,
    })
}

fn etcd_keys(etcd: &Etcd, referenced: &Referenced) -> Result<Keys, ValidateError> {
    use api::steward::tls;
    let mut keys = Keys::new();
    if let Some(config) = &etcd.spec.etcd.client_url_tls {
        const FIELD: &str = "spec.etcd.clientUrlTls";
        referenced.ca(&mut keys, FIELD, &config.tls_ca_secret_ref, tls::CLIENT_CA)?;
        let names = (tls::CLIENT_SERVER_CERT, tls::CLIENT_SERVER_KEY);
        referenced.pair(&mut keys, FIELD, &config.server_tls_secret_ref, names)?;
        // The steward is a client of etcd; without a certificate of its own it uses the server's.
        let client = config
            .client_tls_secret_ref
            .as_ref()
            .unwrap_or(&config.server_tls_secret_ref);
        referenced.pair(&mut keys, FIELD, client, (tls::CLIENT_CERT, tls::CLIENT_KEY))?;
    }
    if let Some(config) = &etcd.spec.etcd.peer_url_tls {
        const FIELD: &str = "spec.etcd.peerUrlTls";
        referenced.ca(&mut keys, FIELD, &config.tls_ca_secret_ref, tls::PEER_CA)?;
        referenced.pair(
            &mut keys,
            FIELD,
            &config.server_tls_secret_ref,
            (tls::PEER_CERT, tls::PEER_KEY),
        )?;
    }
    Ok(keys)
}

fn steward_keys(etcd: &Etcd, referenced: &Referenced) -> Result<Keys, ValidateError> {
    const FIELD: &str = "spec.backup.tls";
    let mut keys = Keys::new();
    if let Some(StewardTlsConfig {
        tls_ca_secret_ref,
        server_tls_secret_ref,
        ..
    }) = &etcd.spec.backup.tls
    {
        referenced.ca(&mut keys, FIELD, tls_ca_secret_ref, "brought-ca.crt")?;
        referenced.pair(
            &mut keys,
            FIELD,
            server_tls_secret_ref,
            ("brought-tls.crt", "brought-tls.key"),
        )?;
    }
    if let Some(reference) = &etcd.spec.etcd.auth_secret_ref {
        use api::steward::auth;
        const FIELD: &str = "spec.etcd.authSecretRef";
        let name = reference.name.as_deref().ok_or(ValidateError::NoName(FIELD))?;
        keys.insert(
            auth::USERNAME.to_owned(),
            referenced.key(FIELD, name, "username")?,
        );
        keys.insert(
            auth::PASSWORD.to_owned(),
            referenced.key(FIELD, name, "password")?,
        );
    }
    Ok(keys)
}

impl Referenced {
    fn ca(
        &self,
        keys: &mut Keys,
        field: &'static str,
        reference: &SecretKeyReference,
        key: &str,
    ) -> Result<(), ValidateError> {
        let name = reference.name.as_deref().ok_or(ValidateError::NoName(field))?;
        keys.insert(key.to_owned(), self.key(field, name, reference.data_key())?);
        Ok(())
    }

    fn pair(
        &self,
        keys: &mut Keys,
        field: &'static str,
        reference: &SecretReference,
        (certificate, key): (&str, &str),
    ) -> Result<(), ValidateError> {
        let name = reference.name.as_deref().ok_or(ValidateError::NoName(field))?;
        keys.insert(certificate.to_owned(), self.key(field, name, "tls.crt")?);
        keys.insert(key.to_owned(), self.key(field, name, "tls.key")?);
        Ok(())
    }

    fn secret(&self, field: &'static str, name: &str) -> Result<&Secret, ValidateError> {
        self.secrets
            .get(name)
            .ok_or_else(|| ValidateError::SecretNotFound {
                field,
                secret: name.to_owned(),
                namespace: self.namespace.clone(),
            })
    }

    fn key(&self, field: &'static str, name: &str, key: &str) -> Result<ByteString, ValidateError> {
        self.secret(field, name)?
            .data
            .as_ref()
            .and_then(|data| data.get(key))
            .cloned()
            .ok_or_else(|| ValidateError::KeyMissing {
                field,
                secret: name.to_owned(),
                key: key.to_owned(),
            })
    }
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    let bytes = &secret.data.as_ref()?.get(key)?.0;
    String::from_utf8(bytes.clone())
        .ok()
        .map(|text| text.trim().to_owned())
}
