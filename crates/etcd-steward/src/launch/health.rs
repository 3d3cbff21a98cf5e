//! Probes of the etcd container over plain HTTP: started, alive, ready.

use std::{net::SocketAddr, time::Duration};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use http::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};

const PROBE_TIMEOUT: Duration = Duration::from_secs(4);

/// What the probes look at.
#[derive(Debug, Clone)]
pub(super) struct Probes {
    /// Whether an etcd process runs.
    pub running: watch::Receiver<bool>,
    /// Where etcd answers `/readyz` in plain HTTP.
    pub etcd: SocketAddr,
}

/// The probes' endpoints.
pub(super) fn router(probes: Probes) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/startupz", get(started))
        .route("/readyz", get(ready))
        .with_state(probes)
}

/// Serves the probes for as long as the launcher lives.
pub(super) async fn serve(listener: TcpListener, probes: Probes) -> std::io::Result<()> {
    axum::serve(listener, router(probes)).await
}

async fn started(State(probes): State<Probes>) -> (StatusCode, &'static str) {
    if *probes.running.borrow() {
        (StatusCode::OK, "ok\n")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the data directory is being prepared\n",
        )
    }
}

/// etcd's own answer, which rests on a linearizable read.
async fn ready(State(probes): State<Probes>) -> (StatusCode, String) {
    if !*probes.running.borrow() {
        return (StatusCode::SERVICE_UNAVAILABLE, "etcd doesn't run\n".to_owned());
    }
    match timeout(PROBE_TIMEOUT, ask(probes.etcd, "/readyz")).await {
        Ok(Ok(status)) if status.is_success() => (StatusCode::OK, "ok\n".to_owned()),
        Ok(Ok(status)) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("etcd answers {status}\n"),
        ),
        Ok(Err(error)) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("etcd doesn't answer: {error}\n"),
        ),
        Err(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("etcd doesn't answer within {PROBE_TIMEOUT:?}\n"),
        ),
    }
}

/// The status of the answer to one request.
pub(crate) async fn ask(address: SocketAddr, path: &str) -> anyhow::Result<StatusCode> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let task = tokio::spawn(connection);
    let request = Request::get(path)
        .header("host", address.to_string())
        .body(axum::body::Body::empty())?;
    let status = sender.send_request(request).await?.status();
    task.abort();
    Ok(status)
}
