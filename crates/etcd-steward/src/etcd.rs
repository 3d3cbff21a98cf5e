//! Connections to etcd. Certificates are read anew for every connection, so that rotated ones are used.

use std::{path::PathBuf, time::Duration};

use api::steward::tls;
use etcd_client::{Client, ConnectOptions, TlsOptions};
use tokio::{fs, net::TcpStream, time::timeout};
use tonic::transport::{Certificate, Identity};

/// How long one short call may take.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A peer that is there accepts at once; one that isn't must not hold up a start.
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);

/// Why etcd couldn't be asked, or what it answered.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// A certificate isn't there or can't be read.
    #[error("read {path}")]
    Certificate {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The call failed.
    #[error("{call}: {source}")]
    Call {
        /// What was asked.
        call: &'static str,
        /// Why.
        #[source]
        source: Box<etcd_client::Error>,
    },
    /// No answer in time.
    #[error("{call}: no answer within {after:?}")]
    Timeout {
        /// What was asked.
        call: &'static str,
        /// How long was waited.
        after: Duration,
    },
}

impl EtcdError {
    /// The gRPC message, for errors that only differ by it.
    pub fn message(&self) -> &str {
        match self {
            Self::Call { source, .. } => match source.as_ref() {
                etcd_client::Error::GRpcStatus(status) => status.message(),
                _ => "",
            },
            _ => "",
        }
    }
}

/// Makes connections to the members of one cluster.
#[derive(Debug, Clone)]
pub struct Connector {
    /// Folder of the certificates, when clients need TLS.
    pub tls: Option<PathBuf>,
    /// Name in the server certificate for connections to the member beside us.
    pub local_name: String,
    /// URL of the member beside us.
    pub local_url: String,
}

impl Connector {
    /// Connects to the member beside us.
    pub async fn local(&self) -> Result<Client, EtcdError> {
        self.connect(&[&self.local_url], Some(&self.local_name)).await
    }

    /// Connects to a member by the URLs that it advertises.
    pub async fn remote(&self, urls: &[impl AsRef<str>]) -> Result<Client, EtcdError> {
        let urls: Vec<&str> = urls.iter().map(AsRef::as_ref).collect();
        self.connect(&urls, None).await
    }

    /// Whether something listens at a URL.
    pub async fn answers(&self, url: &str) -> bool {
        let Some(address) = host_port(url) else {
            return false;
        };
        matches!(
            timeout(DIAL_TIMEOUT, TcpStream::connect(address)).await,
            Ok(Ok(_))
        )
    }

    async fn connect(&self, urls: &[&str], name: Option<&str>) -> Result<Client, EtcdError> {
        let mut options = options();
        if let Some(folder) = &self.tls {
            let read = |file: &'static str| async move {
                let path = folder.join(file);
                fs::read(&path)
                    .await
                    .map_err(|source| EtcdError::Certificate { path, source })
            };
            let mut tls = TlsOptions::new()
                .ca_certificate(Certificate::from_pem(read(tls::CLIENT_CA).await?))
                .identity(Identity::from_pem(
                    read(tls::CLIENT_CERT).await?,
                    read(tls::CLIENT_KEY).await?,
                ));
            if let Some(name) = name {
                tls = tls.domain_name(name);
            }
            options = options.with_tls(tls);
        }
        connect(urls, options).await
    }
}

/// What all connections have in common.
pub fn options() -> ConnectOptions {
    ConnectOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_keep_alive(Duration::from_secs(10), Duration::from_secs(5))
}

/// Connects to any of the URLs.
pub async fn connect(urls: &[impl AsRef<str>], options: ConnectOptions) -> Result<Client, EtcdError> {
    let connecting = Client::connect(urls, Some(options));
    call("connect to etcd", CALL_TIMEOUT, connecting).await
}

/// Runs one call with a deadline.
pub async fn call<T>(
    name: &'static str,
    deadline: Duration,
    future: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, EtcdError> {
    match timeout(deadline, future).await {
        Ok(result) => result.map_err(|source| EtcdError::Call {
            call: name,
            source: Box::new(source),
        }),
        Err(_) => Err(EtcdError::Timeout {
            call: name,
            after: deadline,
        }),
    }
}

/// `host:port` of a URL.
pub fn host_port(url: &str) -> Option<String> {
    let uri: http::Uri = url.parse().ok()?;
    Some(format!("{}:{}", uri.host()?, uri.port_u16()?))
}

/// IDs as etcdctl prints them.
pub fn hex_id(id: u64) -> String {
    format!("{id:x}")
}
