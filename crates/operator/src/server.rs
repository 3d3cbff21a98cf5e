//! Liveness, readiness and metrics over plain HTTP.

use std::{
    collections::BTreeSet,
    net::{SocketAddr, ToSocketAddrs as _},
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{config::Server, metrics::Metrics};

/// Things that must come about before the process is ready, by name. A standby replica is ready.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    pending: watch::Sender<BTreeSet<String>>,
}

impl Readiness {
    /// Holds readiness back until [`Readiness::done`] is called with the same name.
    pub fn wait_for(&self, what: impl Into<String>) {
        self.pending.send_modify(|pending| {
            pending.insert(what.into());
        });
    }

    /// `what` has come about.
    pub fn done(&self, what: &str) {
        self.pending.send_modify(|pending| {
            pending.remove(what);
        });
    }

    /// What is still missing.
    pub fn pending(&self) -> Vec<String> {
        self.pending.borrow().iter().cloned().collect()
    }

    /// Waits until nothing is missing; any number may wait.
    pub async fn settled(&self) {
        // Fails only without a sender, and `self` is one.
        let _ = self.pending.subscribe().wait_for(BTreeSet::is_empty).await;
    }
}

/// Why the endpoint can't be served.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address} for health and metrics")]
pub struct ServeError {
    address: String,
    source: std::io::Error,
}

#[derive(Debug, Clone)]
struct Shared {
    readiness: Readiness,
    metrics: Metrics,
}

/// Binds the endpoint at once, and serves it in the background until `shutdown`.
pub async fn serve(
    config: &Server,
    readiness: Readiness,
    metrics: Metrics,
    shutdown: CancellationToken,
) -> Result<SocketAddr, ServeError> {
    let address = format!("{}:{}", config.bind_address, config.port);
    let failed = |source| ServeError {
        address: address.clone(),
        source,
    };
    let resolved: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
    let listener = TcpListener::bind(&resolved[..]).await.map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    info!(address = %local, "serving health and metrics");
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .with_state(Shared { readiness, metrics });
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router)
            .with_graceful_shutdown(shutdown.cancelled_owned())
            .await
        {
            tracing::error!(%error, "health and metrics endpoint failed");
        }
    });
    Ok(local)
}

async fn ready(State(shared): State<Shared>) -> Response {
    let pending = shared.readiness.pending();
    if pending.is_empty() {
        "ok\n".into_response()
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("waiting for {}\n", pending.join(", ")),
        )
            .into_response()
    }
}

async fn scrape(State(shared): State<Shared>) -> Response {
    metrics(&shared.metrics)
}

/// The answer to a scrape.
pub fn metrics(metrics: &Metrics) -> Response {
    const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
