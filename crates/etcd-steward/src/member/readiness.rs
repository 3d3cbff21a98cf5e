//! Whether etcd completes linearizable reads. That it answers, and names a leader, isn't enough: a follower that has lost its
//! leader goes on naming it (etcd 3.5). etcd's own readiness endpoint makes such a read, without a user or a password.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use axum::http::StatusCode;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{bootstrap::config::Version, etcd::host_port, launch::health::ask, running::RunningConfig};

/// Pause between two reads.
const PERIOD: Duration = Duration::from_secs(2);
/// An answer that takes longer is none.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// An election holds up reads, and is no loss of the quorum.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks for readiness as long as etcd runs.
#[derive(Debug)]
pub(super) struct Readiness {
    running: watch::Receiver<Option<Version>>,
    /// The configuration that etcd runs with.
    config: Option<RunningConfig>,
    stalled: watch::Sender<bool>,
}

/// What one look has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Ready,
    NotReady,
    /// This etcd has no such endpoint.
    Unsupported,
}

impl Readiness {
    /// `running` tells what the etcd that runs was started with, `config` is that configuration.
    pub(super) fn new(running: watch::Receiver<Option<Version>>, config: Option<RunningConfig>) -> Self {
        Self {
            running,
            config,
            stalled: watch::Sender::new(false),
        }
    }

    /// Whether reads have failed for so long that a quorum must be missing.
    pub(super) fn stalled(&self) -> watch::Receiver<bool> {
        self.stalled.subscribe()
    }

    /// Works for ever.
    pub(super) async fn run(mut self) {
        loop {
            let runs = self.running.borrow_and_update().is_some();
            let address = self.address().filter(|_| runs);
            let mut running = self.running.clone();
            tokio::select! {
                () = self.follow(address) => {}
                changed = running.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn follow(&self, address: Option<SocketAddr>) {
        self.stall(false);
        let Some(address) = address else {
            return std::future::pending().await;
        };
        let mut last = Instant::now();
        loop {
            match look(address).await {
                Look::Ready => {
                    last = Instant::now();
                    self.stall(false);
                }
                Look::NotReady if last.elapsed() >= PATIENCE => self.stall(true),
                Look::NotReady => {}
                Look::Unsupported => return std::future::pending().await,
            }
            sleep(PERIOD).await;
        }
    }

    fn stall(&self, now: bool) {
        self.stalled
            .send_if_modified(|stalled| std::mem::replace(stalled, now) != now);
    }

    /// Where etcd serves its health in plain HTTP.
    fn address(&self) -> Option<SocketAddr> {
        let urls = self.config.as_ref()?.option("listen-metrics-urls")?;
        let urls = urls.as_str()?;
        let url = urls.split(',').find(|url| url.starts_with("http://"))?;
        let port = host_port(url)?.rsplit(':').next()?.parse().ok()?;
        Some((Ipv4Addr::LOCALHOST, port).into())
    }
}

async fn look(address: SocketAddr) -> Look {
    match timeout(READ_TIMEOUT, ask(address, "/readyz")).await {
        Ok(Ok(status)) if status.is_success() => Look::Ready,
        Ok(Ok(StatusCode::NOT_FOUND)) => Look::Unsupported,
        _ => Look::NotReady,
    }
}

#[cfg(test)]
mod tests {
    use axum::{Router, extract::State, routing::get};
    use tokio::net::TcpListener;

    use super::*;

    async fn etcd(answers: watch::Receiver<u16>) -> RunningConfig {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = |State(answers): State<watch::Receiver<u16>>| async move {
            StatusCode::from_u16(*answers.borrow()).unwrap()
        };
        let router = Router::new().route("/readyz", get(answer)).with_state(answers);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let config = RunningConfig::new(std::path::Path::new("/run/etcd.conf.yaml"));
        config.sent(&format!("listen-metrics-urls: http://0.0.0.0:{port}\n"));
        config
    }

    /// One read that fails is an election; one after the other is a lost quorum, for as long as it lasts.
    #[tokio::test]
    async fn reads_that_fail_for_long_are_told_until_one_succeeds() {
        let (answer, answers) = watch::channel(503);
        let config = etcd(answers).await;
        let (launcher, running) = watch::channel(Some(Version::from("abc")));
        let readiness = Readiness::new(running, Some(config));
        let mut stalled = readiness.stalled();
        tokio::spawn(readiness.run());
        let begun = Instant::now();
        stalled.wait_for(|stalled| *stalled).await.unwrap();
        let took = begun.elapsed();
        assert!(took >= PATIENCE && took < PATIENCE + 2 * PERIOD, "{took:?}");
        answer.send_replace(200);
        stalled.wait_for(|stalled| !*stalled).await.unwrap();
        // Of an etcd that has no such endpoint nothing is known.
        answer.send_replace(404);
        launcher.send_replace(Some(Version::from("def")));
        assert!(
            timeout(PATIENCE + 2 * PERIOD, stalled.wait_for(|stalled| *stalled))
                .await
                .is_err()
        );
    }
}
