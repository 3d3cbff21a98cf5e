//! Connections to etcd. Certificates and passwords are read anew for every connection, so that rotated ones are used.

use std::{path::PathBuf, time::Duration};

use api::steward::{ClusterMember, auth, tls};
use etcd_client::{Client, ConnectOptions, GetOptions, MemberListResponse, TlsOptions};
use tokio::{fs, net::TcpStream, time::timeout};
use tonic::transport::{Certificate, Identity};

use crate::running::RunningConfig;

/// How long one short call may take.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A peer that is there accepts at once; one that isn't must not hold up a start.
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);

/// Why etcd couldn't be asked, or what it answered.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// A certificate or the password isn't there or can't be read.
    #[error("read {path}")]
    Credentials {
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

    /// Whether a read was refused by what the cluster has agreed on, and thus after the quorum was asked.
    fn is_of_agreed_state(&self) -> bool {
        ["etcdserver: permission denied", "etcdserver: corrupt cluster"].contains(&self.message())
    }

    /// Whether it only says that a leader is being elected, or has just changed: messages of etcd's `rpctypes`, and of its
    /// Raft library, whose errors etcd passes on as they are.
    pub fn is_election(&self) -> bool {
        let words = [
            "no leader",
            "leader changed",
            "not leader",
            "leader transfer",
            "raft proposal dropped",
            // Also the one "possibly due to previous leader failure".
            "request timed out",
        ];
        let is_asked_of_quorum = |call: &str| matches!(call, "ask for a quorum" | "list alarms");
        matches!(self, Self::Timeout { call, .. } if is_asked_of_quorum(call))
            || words.iter().any(|words| self.message().contains(words))
    }

    /// Whether the history that was asked for is compacted.
    pub fn is_compacted(&self) -> bool {
        self.message().contains("required revision has been compacted")
    }
}

/// What a list of members is to be worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// It holds all changes that a quorum has agreed on: for whatever a decision rests on.
    Quorum,
    /// It is what the member that is asked knows itself, with or without a quorum: to be shown, or to be compared with
    /// others.
    Local,
}

/// Makes connections to the members of one cluster. Whether TLS is spoken is told by a URL's scheme.
#[derive(Debug, Clone)]
pub struct Connector {
    /// Folder of the certificates.
    pub tls: PathBuf,
    /// Folder of the certificate that is shown to etcd.
    pub client_tls: PathBuf,
    /// Folder of the user name and the password, where etcd asks for one.
    pub auth: Option<PathBuf>,
    /// Name in the server certificate for connections to the member beside us.
    pub local_name: String,
    /// URL of the member beside us, once its etcd runs with the newest configuration.
    pub local_url: String,
    /// The configuration that its etcd really runs with.
    pub running: Option<RunningConfig>,
}

impl Connector {
    /// Without TLS, without a password.
    #[cfg(test)]
    pub(crate) fn plain(url: &str) -> Self {
        Self {
            tls: PathBuf::new(),
            client_tls: PathBuf::new(),
            auth: None,
            local_name: String::new(),
            local_url: url.to_owned(),
            running: None,
        }
    }

    /// Connects to the member beside us.
    pub async fn local(&self) -> Result<Client, EtcdError> {
        self.connect(&[&self.running_url()], Some(&self.local_name)).await
    }

    /// Connects to a member by the URLs that it advertises.
    pub async fn remote(&self, urls: &[impl AsRef<str>]) -> Result<Client, EtcdError> {
        let urls: Vec<&str> = urls.iter().map(AsRef::as_ref).collect();
        self.connect(&urls, None).await
    }

    /// The members as the first of `others` lists them whose cluster is ours, as `is_ours` tells, and a connection to it:
    /// another cluster may answer there. For a member that lists none itself, such as a learner; `None`: no other one does.
    pub async fn listed_by_others(
        &self,
        others: impl Iterator<Item = &ClusterMember>,
        consistency: Consistency,
        is_ours: impl Fn(&MemberListResponse) -> bool,
    ) -> Result<Option<(Client, MemberListResponse)>, EtcdError> {
        let mut found = Ok(None);
        for other in others {
            let asked = async {
                let mut client = self.remote(&other.client_urls).await?;
                let listed = list_members(&mut client, consistency).await?;
                Ok((client, listed))
            };
            match asked.await {
                Ok((client, listed)) if is_ours(&listed) => return Ok(Some((client, listed))),
                Ok(_) => {}
                Err(error) => found = Err(error),
            }
        }
        found
    }

    /// Keys at a revision. The answer comes from etcd's index, without a look at the data.
    pub async fn count_keys(&self, revision: i64) -> Result<i64, EtcdError> {
        let options = GetOptions::new()
            .with_all_keys()
            .with_count_only()
            .with_revision(revision);
        let mut client = self.local().await?;
        let answer = call("count the keys", CALL_TIMEOUT, client.get("", Some(options))).await?;
        Ok(answer.count())
    }

    /// Whether there is a user name and a password to be used.
    pub fn authenticates(&self) -> bool {
        let user = self.auth.as_ref().map(|folder| folder.join(auth::USERNAME));
        user.is_some_and(|user| user.exists())
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

    /// TLS may just have been switched on or off, and etcd not restarted yet.
    fn running_url(&self) -> String {
        let scheme = self.running.as_ref().and_then(running_scheme);
        match (scheme, self.local_url.split_once("://")) {
            (Some(scheme), Some((_, rest))) => format!("{scheme}://{rest}"),
            _ => self.local_url.clone(),
        }
    }

    async fn connect(&self, urls: &[&str], name: Option<&str>) -> Result<Client, EtcdError> {
        let mut options = options();
        if urls.iter().any(|url| url.starts_with("https://")) {
            options = options.with_tls(self.tls_options(name).await?);
        }
        let Some((user, password)) = self.credentials().await? else {
            return connect(urls, options).await;
        };
        let known = options
            .clone()
            .with_user(user, password)
            .with_auto_token_refresh(true);
        match connect(urls, known).await {
            // The password is there before authentication is switched on.
            Err(error) if error.message().contains("authentication is not enabled") => {
                connect(urls, options).await
            }
            connected => connected,
        }
    }

    async fn tls_options(&self, name: Option<&str>) -> Result<TlsOptions, EtcdError> {
        let own = |file: &str| read(self.client_tls.join(file));
        let identity = Identity::from_pem(own(tls::CLIENT_CERT).await?, own(tls::CLIENT_KEY).await?);
        let authority = read(self.tls.join(tls::CLIENT_CA)).await?;
        let options = TlsOptions::new()
            .ca_certificate(Certificate::from_pem(authority))
            .identity(identity);
        Ok(match name {
            Some(name) => options.domain_name(name),
            None => options,
        })
    }

    async fn credentials(&self) -> Result<Option<(String, String)>, EtcdError> {
        let Some(folder) = &self.auth else {
            return Ok(None);
        };
        let user = folder.join(auth::USERNAME);
        if !user.exists() {
            return Ok(None);
        }
        let text = |bytes: Vec<u8>| {
            String::from_utf8_lossy(&bytes)
                .trim_end_matches(['\r', '\n'])
                .to_owned()
        };
        let password = read(folder.join(auth::PASSWORD)).await?;
        Ok(Some((text(read(user).await?), text(password))))
    }
}

async fn read(path: PathBuf) -> Result<Vec<u8>, EtcdError> {
    fs::read(&path)
        .await
        .map_err(|source| EtcdError::Credentials { path, source })
}

/// By what a running etcd serves its clients; `None` when that can't be told.
fn running_scheme(running: &RunningConfig) -> Option<&'static str> {
    let urls = running.option("listen-client-urls")?;
    Some(if urls.as_str()?.starts_with("https://") {
        "https"
    } else {
        "http"
    })
}

/// The members as the one that the client is connected to lists them. The client library asks for a list without a quorum,
/// always: a linearizable read of the same member before it makes up for that, as in etcd itself. A learner, or a member
/// without a quorum, doesn't answer such a read.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that says what it is worth"
)]
pub async fn list_members(
    client: &mut Client,
    consistency: Consistency,
) -> Result<MemberListResponse, EtcdError> {
    if consistency == Consistency::Quorum {
        let nothing = GetOptions::new().with_count_only();
        let read = call(
            "ask for a quorum",
            CALL_TIMEOUT,
            client.get([0_u8], Some(nothing)),
        )
        .await;
        if let Err(error) = read
            && !error.is_of_agreed_state()
        {
            return Err(error);
        }
    }
    call("list members", CALL_TIMEOUT, client.member_list()).await
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

#[cfg(test)]
mod tests {
    use super::*;

    /// While TLS is being switched on, the new configuration says https, and etcd still speaks http.
    #[tokio::test]
    async fn the_running_etcd_tells_its_scheme() {
        let dir = tempfile::tempdir().unwrap();
        let running = dir.path().join("etcd.conf.yaml");
        let connector = Connector {
            running: Some(RunningConfig::new(&running)),
            ..Connector::plain("https://127.0.0.1:2379")
        };
        assert_eq!(connector.running_url(), "https://127.0.0.1:2379");
        std::fs::write(&running, "listen-client-urls: http://0.0.0.0:2379\n").unwrap();
        assert_eq!(connector.running_url(), "http://127.0.0.1:2379");
        std::fs::write(&running, "listen-client-urls: https://0.0.0.0:2379\n").unwrap();
        assert_eq!(connector.running_url(), "https://127.0.0.1:2379");
    }

    #[tokio::test]
    async fn credentials_come_from_files_without_their_line_end() {
        let dir = tempfile::tempdir().unwrap();
        let connector = Connector {
            auth: Some(dir.path().to_owned()),
            ..Connector::plain("http://127.0.0.1:1")
        };
        assert_eq!(connector.credentials().await.unwrap(), None);
        std::fs::write(dir.path().join(auth::USERNAME), "root").unwrap();
        let missing = connector.credentials().await.unwrap_err();
        assert!(missing.to_string().contains(auth::PASSWORD));
        std::fs::write(dir.path().join(auth::PASSWORD), "a b\n").unwrap();
        let known = Some(("root".to_owned(), "a b".to_owned()));
        assert_eq!(connector.credentials().await.unwrap(), known);
    }
}
