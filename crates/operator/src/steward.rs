//! The client of the stewards: gRPC over mTLS with the identity that the etcd-controller issued to the controllers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt as _, watcher},
};
use steward_proto::v1::{
    operations_service_client::OperationsServiceClient, snapshots_service_client::SnapshotsServiceClient,
};
use tokio::sync::watch;
use tonic::{
    Code, Status,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};
use tonic_types::StatusExt as _;
use tracing::{info, warn};

use crate::reconcile::{Reason, Retry};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a steward couldn't be asked, or what it answered.
#[derive(Debug, thiserror::Error)]
pub enum StewardError {
    /// The controllers' certificate isn't there (yet).
    #[error(
        "secret {0} with the controllers' certificate is missing: is the etcd-controller running in this namespace?"
    )]
    NoIdentity(String),
    /// The address or the certificate can't be used.
    #[error("prepare the connection to steward {address}: {source}")]
    Connection {
        /// The steward's address.
        address: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// The steward refused, or couldn't be reached.
    #[error("steward {address}: {}", .status.message())]
    Call {
        /// The steward's address.
        address: String,
        /// The gRPC status.
        status: Box<Status>,
    },
}

impl StewardError {
    /// The reason that the steward gave in its error details, if any.
    pub fn given_reason(&self) -> Option<String> {
        match self {
            Self::Call { status, .. } => status.get_details_error_info().map(|info| info.reason),
            _ => None,
        }
    }
}

impl Reason for StewardError {
    fn reason(&self) -> &'static str {
        match self {
            Self::NoIdentity(_) => "StewardIdentityMissing",
            Self::Connection { .. } => "StewardConnection",
            Self::Call { status, .. } => match status.code() {
                Code::Unavailable | Code::DeadlineExceeded => "StewardUnreachable",
                Code::Unauthenticated | Code::PermissionDenied => "StewardRefused",
                Code::FailedPrecondition => "StewardPrecondition",
                Code::NotFound => "StewardNotFound",
                _ => "StewardFailed",
            },
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Self::Call { status, .. } if status.code() == Code::InvalidArgument => Retry::OnChange,
            _ => Retry::Backoff,
        }
    }
}

/// Where a steward listens, and under which name its certificate vouches for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// `host:port`.
    pub address: String,
    /// The name in the certificate that the etcd-controller issues to the stewards of one Etcd.
    pub server_name: String,
}

/// PEM texts of the controllers' identity.
#[derive(Clone, PartialEq, Eq)]
struct Keys {
    ca: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// Connections to stewards, reused, and renewed when the identity changes.
#[derive(Clone)]
pub struct Stewards {
    secret: String,
    keys: watch::Receiver<Option<Keys>>,
    channels: Arc<Mutex<HashMap<Target, (Keys, Channel)>>>,
}

impl std::fmt::Debug for Stewards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stewards")
            .field("secret", &self.secret)
            .finish_non_exhaustive()
    }
}

impl Stewards {
    /// Follows the identity in the Secret `namespace/secret`.
    pub fn new(client: Client, namespace: &str, secret: &str) -> Self {
        let (sender, keys) = watch::channel(None);
        let api = Api::<Secret>::namespaced(client, namespace);
        let config = watcher::Config::default().fields(&format!("metadata.name={secret}"));
        let name = format!("{namespace}/{secret}");
        tokio::spawn({
            let name = name.clone();
            async move {
                let mut events = watcher(api, config).default_backoff().touched_objects().boxed();
                while let Some(event) = events.next().await {
                    match event {
                        Ok(secret) => {
                            sender.send_if_modified(|known| {
                                let new = keys_of(&secret);
                                let changed = new.is_some() && *known != new;
                                if changed {
                                    info!(secret = name, "using the controllers' certificate");
                                    *known = new;
                                }
                                changed
                            });
                        }
                        Err(error) => {
                            warn!(secret = name, %error, "watch of the controllers' certificate failed, retrying");
                        }
                    }
                }
            }
        });
        Self {
            secret: name,
            keys,
            channels: Arc::default(),
        }
    }

    /// The steward's snapshot service.
    pub fn snapshots(&self, target: &Target) -> Result<SnapshotsServiceClient<Channel>, StewardError> {
        Ok(SnapshotsServiceClient::new(self.channel(target)?))
    }

    /// The steward's operation service.
    pub fn operations(&self, target: &Target) -> Result<OperationsServiceClient<Channel>, StewardError> {
        Ok(OperationsServiceClient::new(self.channel(target)?))
    }

    fn channel(&self, target: &Target) -> Result<Channel, StewardError> {
        let keys = self
            .keys
            .borrow()
            .clone()
            .ok_or_else(|| StewardError::NoIdentity(self.secret.clone()))?;
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, channel)) = channels.get(target)
            && *known == keys
        {
            return Ok(channel.clone());
        }
        let channel = connect(target, &keys).map_err(|source| StewardError::Connection {
            address: target.address.clone(),
            source,
        })?;
        channels.insert(target.clone(), (keys, channel.clone()));
        Ok(channel)
    }
}

fn keys_of(secret: &Secret) -> Option<Keys> {
    let data = secret.data.as_ref()?;
    let get = |key: &str| data.get(key).map(|bytes| bytes.0.clone());
    Some(Keys {
        ca: get("ca.crt")?,
        certificate: get("tls.crt")?,
        key: get("tls.key")?,
    })
}

fn connect(target: &Target, keys: &Keys) -> Result<Channel, tonic::transport::Error> {
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&keys.ca))
        .identity(Identity::from_pem(&keys.certificate, &keys.key))
        .domain_name(&target.server_name);
    Ok(Endpoint::from_shared(format!("https://{}", target.address))?
        .tls_config(tls)?
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(CALL_TIMEOUT)
        .connect_lazy())
}
