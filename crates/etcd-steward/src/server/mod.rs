//! The steward's API for controllers, people and scripts: gRPC and HTTP on one port, with mTLS.

mod actions;
mod grpc;
mod http;
mod members;
pub mod operations;
mod rights;
pub mod tls;

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use api::steward::{ClusterConfig, ClusterMember};
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::Response,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use operator::metrics::Metrics as Registry;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::Status;
use tower::ServiceExt as _;
use tracing::{debug, info, warn};

use self::{
    operations::Operations,
    tls::{Caller, Certificates},
};
use crate::{
    backup::Backups,
    bootstrap::volumes::OwnContents,
    etcd::{Connector, Consistency, list_members},
    maintenance::Maintenance,
    member,
    running::RunningConfig,
};

const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a connection may be silent: then it is asked whether it is still there, or ends.
const SILENCE: Duration = Duration::from_secs(30);
/// How many there may be at once. They are free to open, and backups must not go short of memory for them.
const CONNECTIONS: usize = 256;
/// How long running calls may go on when the process is told to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// What the API works with.
#[derive(Debug, Clone)]
pub struct Api {
    /// The cluster and its wanted members.
    pub cluster: Arc<ClusterConfig>,
    /// Name of this member.
    pub member: String,
    /// What the steward tells of it.
    pub status: member::Status,
    /// What was found on its volume.
    pub contents: OwnContents,
    /// Connections to etcd.
    pub connector: Connector,
    /// The backups, where a store is configured.
    pub backups: Option<Backups>,
    /// Works on the members' databases.
    pub maintenance: Maintenance,
    /// Long-running operations.
    pub operations: Operations,
    /// The configuration that the running etcd was started with.
    pub running_config: RunningConfig,
    /// What is measured.
    pub registry: Registry,
}

/// How callers are recognised.
#[derive(Debug, Clone)]
pub enum Security {
    /// By their certificates.
    MutualTls(Arc<Certificates>),
    /// Not at all. For tests on the loopback address, which is enforced.
    Loopback,
}

/// Serves the API until `shutdown`.
pub async fn serve(
    address: SocketAddr,
    api: Api,
    security: Security,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    if matches!(security, Security::Loopback) && !address.ip().is_loopback() {
        anyhow::bail!("without TLS the API is served on a loopback address only, not on {address}");
    }
    let listener = TcpListener::bind(address).await?;
    info!(address = %listener.local_addr()?, ?security, "serving the API");
    let routers = Routers::new(api);
    let (connections, places) = (TaskTracker::new(), Arc::new(Semaphore::new(CONNECTIONS)));
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            () = shutdown.cancelled() => break,
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            warn!(%peer, CONNECTIONS, "closed a connection: there are too many");
            continue;
        };
        let (routers, security, shutdown) = (routers.clone(), security.clone(), shutdown.clone());
        connections.spawn(async move {
            let _place = place;
            if let Err(error) = connection(stream, routers, security, shutdown).await {
                debug!(%peer, "connection: {error:#}");
            }
        });
    }
    connections.close();
    let _ = tokio::time::timeout(DRAIN, connections.wait()).await;
    Ok(())
}

/// The two faces of the API; both on one port, told apart by what a request carries.
#[derive(Debug, Clone)]
struct Routers {
    grpc: Router,
    http: Router,
}

impl Routers {
    fn new(api: Api) -> Self {
        let guarded = |router: Router| router.layer(middleware::from_fn(authorize));
        Self {
            grpc: guarded(grpc::routes(&api).into_axum_router()),
            http: guarded(http::routes(api)),
        }
    }

    fn of(&self, headers: &HeaderMap) -> Router {
        if is_grpc(headers) {
            self.grpc.clone()
        } else {
            self.http.clone()
        }
    }
}

async fn connection(
    stream: TcpStream,
    routers: Routers,
    security: Security,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    match security {
        Security::Loopback => {
            let caller = Caller::Owner("loopback".to_owned());
            requests(TokioIo::new(stream), routers, caller, shutdown).await
        }
        Security::MutualTls(certificates) => {
            let loaded = certificates.load()?;
            let acceptor = TlsAcceptor::from(Arc::clone(&loaded.server));
            let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await??;
            let caller = certificates.caller(&loaded, stream.get_ref().1.peer_certificates());
            requests(TokioIo::new(stream), routers, caller, shutdown).await
        }
    }
}

async fn requests<I>(
    io: I,
    routers: Routers,
    caller: Caller,
    shutdown: CancellationToken,
) -> anyhow::Result<()>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let service = tower::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(caller.clone());
        let router = routers.of(request.headers());
        async move {
            let response: Result<Response, Infallible> = router.oneshot(request).await;
            response
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(SILENCE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(SILENCE)
        .keep_alive_timeout(HANDSHAKE);
    let connection = builder.serve_connection_with_upgrades(io, TowerToHyperService::new(service));
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended.map_err(|error| anyhow::anyhow!("{error}")),
        () = shutdown.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await.map_err(|error| anyhow::anyhow!("{error}"))
}

/// Lets those pass who have the right that the call needs.
async fn authorize(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let Some(right) = rights::needed(request.method(), path) else {
        return next.run(request).await;
    };
    let caller = request.extensions().get::<Caller>().unwrap_or(&Caller::Anonymous);
    if rights::of(caller).contains(&right) {
        return next.run(request).await;
    }
    warn!(path, ?caller, ?right, "refused a call");
    let grpc = is_grpc(request.headers());
    if *caller == Caller::Anonymous {
        let message =
            "a client certificate is needed that names this Etcd: use the Secret <etcd>-steward-client";
        return if grpc {
            Status::unauthenticated(message).into_http()
        } else {
            http::problem(StatusCode::UNAUTHORIZED, "Unauthenticated", message)
        };
    }
    let message =
        "this caller has no right to make this call: see the table of rights in docs/reference/steward.md";
    if grpc {
        Status::permission_denied(message).into_http()
    } else {
        http::problem(StatusCode::FORBIDDEN, "PermissionDenied", message)
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

impl Api {
    /// The member whose steward owns the backups: the leader.
    pub async fn owner(&self) -> Option<&ClusterMember> {
        let mut client = self.connector.local().await.ok()?;
        let leader = client.status().await.ok()?.leader();
        let listed = list_members(&mut client, Consistency::Local).await.ok()?;
        let leader = listed.members().iter().find(|member| member.id() == leader)?;
        self.cluster
            .members
            .iter()
            .find(|member| member.name == leader.name())
    }
}
