//! The session with the launcher over the unix socket.

use std::{pin::Pin, sync::Arc, time::Duration};

use api::{conditions::member, v1alpha1::ConditionStatus};
use futures::Stream;
use steward_proto::v1::{
    Exited, Hello, RunRequest, RunResponse, Start, Stop, bootstrap_service_server::BootstrapService,
    run_request::Event, run_response::Command,
};
use tokio::{
    sync::{Mutex, mpsc, watch},
    time::{Instant, sleep},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::{info, warn};

use super::{Bootstrap, config::Version};
use crate::running::RunningConfig;

/// A run that lasted longer than this ends a series of crashes.
const STEADY: Duration = Duration::from_mins(1);
/// How a Go program ends that has panicked. What can't be used, such as an option, a port or a full disk, is another one.
const PANIC: i32 = 2;
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LAST_BACKOFF: Duration = Duration::from_mins(1);

/// Serves one launcher; a new session takes the place of an old one.
#[derive(Debug, Clone)]
pub struct Sessions {
    bootstrap: Bootstrap,
    config: RunningConfig,
    running: Arc<watch::Sender<Option<Version>>>,
    crashes: Arc<Mutex<Crashes>>,
    version: Arc<watch::Sender<String>>,
    /// Counts the wishes to have etcd stopped and started anew.
    restarts: Arc<watch::Sender<u64>>,
}

/// How often etcd has ended soon after its start.
#[derive(Debug, Default)]
struct Crashes {
    count: u32,
    /// How many of the last ones in a row were panics.
    panics: u32,
    started: Option<Instant>,
}

impl Crashes {
    /// How long to wait before the next start.
    fn backoff(&mut self, panicked: bool) -> Duration {
        let steady = self.started.take().is_some_and(|at| at.elapsed() > STEADY);
        if steady {
            (self.count, self.panics) = (0, 0);
        } else {
            self.count = self.count.saturating_add(1);
        }
        self.panics = if panicked {
            self.panics.saturating_add(1)
        } else {
            0
        };
        match self.count {
            0 | 1 => Duration::ZERO,
            n => FIRST_BACKOFF
                .saturating_mul(1 << (n - 2).min(6))
                .min(LAST_BACKOFF),
        }
    }
}

impl Sessions {
    /// Serves sessions that start etcd through `bootstrap`, and keep in `config` with what.
    pub fn new(bootstrap: Bootstrap, config: RunningConfig) -> Self {
        Self {
            bootstrap,
            config,
            running: Arc::new(watch::Sender::new(None)),
            crashes: Arc::default(),
            version: Arc::new(watch::Sender::new(String::new())),
            restarts: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Has etcd stopped in order, and started with the configuration as it is then: through the same decision as at every
    /// start.
    pub fn restart(&self) {
        self.restarts.send_modify(|count| *count += 1);
    }

    /// The version of the etcd that the launcher starts; empty until it has told.
    pub fn version(&self) -> watch::Receiver<String> {
        self.version.subscribe()
    }

    /// What the etcd that runs was started with, if one does.
    pub fn running(&self) -> watch::Receiver<Option<Version>> {
        self.running.subscribe()
    }

    async fn serve(self, hello: Hello, mut requests: Streaming<RunRequest>, commands: Commands) {
        let version = worded(&hello.etcd_version);
        info!(etcd_pid = hello.etcd_pid, version, "the launcher is here");
        self.version.send_replace(version.to_owned());
        let mut start_due = hello.etcd_pid == 0;
        let mut restarts = self.restarts.subscribe();
        self.running
            .send_replace((!start_due).then(|| Version::from(worded(&hello.config_hash))));
        loop {
            let request = if start_due {
                let panics = self.crashes.lock().await.panics;
                tokio::select! {
                    config = self.bootstrap.prepare(panics) => {
                        start_due = false;
                        restarts.mark_unchanged();
                        self.config.sent(&config.text);
                        let start = Start { config: config.text, config_hash: config.version.to_string() };
                        if !send(&commands, Command::Start(start)).await {
                            break;
                        }
                        continue;
                    }
                    request = requests.message() => request,
                }
            } else {
                tokio::select! {
                    Ok(()) = restarts.changed() => {
                        let reason = "a new configuration is to be used".to_owned();
                        if !send(&commands, Command::Stop(Stop { reason })).await {
                            break;
                        }
                        continue;
                    }
                    request = requests.message() => request,
                }
            };
            match request {
                Ok(Some(RunRequest {
                    event: Some(Event::Started(started)),
                })) => {
                    self.crashes.lock().await.started = Some(Instant::now());
                    let version = Version::from(worded(&started.config_hash));
                    self.running.send_replace(Some(version));
                }
                Ok(Some(RunRequest {
                    event: Some(Event::Exited(exited)),
                })) => {
                    self.exited(&exited).await;
                    start_due = true;
                }
                Ok(Some(RunRequest {
                    event: Some(Event::Hello(_)) | None,
                })) => {}
                Ok(None) => break,
                Err(status) => {
                    warn!(reason = status.message(), "the launcher is gone");
                    break;
                }
            }
        }
    }

    async fn exited(&self, exited: &Exited) {
        self.running.send_replace(None);
        if exited.clean {
            info!("etcd has stopped as it was asked to");
            return;
        }
        let (backoff, count, panics) = {
            let mut crashes = self.crashes.lock().await;
            let panicked = exited.signal == 0 && exited.exit_code == PANIC;
            (crashes.backoff(panicked), crashes.count, crashes.panics)
        };
        let (exit_code, signal) = (exited.exit_code, exited.signal);
        warn!(exit_code, signal, ?backoff, "etcd has ended");
        if count > 1 {
            let how = if signal == 0 {
                format!("exit code {exit_code}")
            } else {
                format!("signal {signal}")
            };
            let contradiction = if panics > 1 {
                ". It panicked: its data and the others' may contradict each other, as after a volume was put back"
            } else {
                ""
            };
            let why = format!(
                "etcd has ended soon after its start {count} times, the last time with {how}: see its log; started again after {backoff:?}{contradiction}"
            );
            self.bootstrap.scene.status.condition(
                member::READY,
                ConditionStatus::False,
                member::NOT_SERVING,
                &why,
            );
        }
        sleep(backoff).await;
    }
}

/// Versions and hashes are published. Whatever runs in etcd's container can send them, so anything else counts as none.
fn worded(text: &str) -> &str {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+');
    if text.len() <= 128 && text.bytes().all(is_part) {
        text
    } else {
        ""
    }
}

async fn send(commands: &Commands, command: Command) -> bool {
    let response = RunResponse {
        command: Some(command),
    };
    commands.send(Ok(response)).await.is_ok()
}

type Commands = mpsc::Sender<Result<RunResponse, Status>>;

#[tonic::async_trait]
impl BootstrapService for Sessions {
    type RunStream = Pin<Box<dyn Stream<Item = Result<RunResponse, Status>> + Send>>;

    async fn run(
        &self,
        request: Request<Streaming<RunRequest>>,
    ) -> Result<Response<Self::RunStream>, Status> {
        let mut requests = request.into_inner();
        let Some(RunRequest {
            event: Some(Event::Hello(hello)),
        }) = requests.message().await?
        else {
            return Err(Status::invalid_argument("the first message must be Hello"));
        };
        let (commands, stream) = mpsc::channel(4);
        tokio::spawn(self.clone().serve(hello, requests, commands));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_versions_and_hashes_are_taken_from_the_launcher() {
        for text in ["3.6.16", "3.7.0-rc.1+x", "0123abcd.4567ef89", ""] {
            assert_eq!(worded(text), text);
        }
        for text in ["3.6 16", "a\nb", "\u{1b}[31m", &"a".repeat(129)] {
            assert_eq!(worded(text), "");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn crash_loops_slow_down_and_a_steady_run_forgives() {
        let mut crashes = Crashes::default();
        let mut waits = Vec::new();
        for _ in 0..10 {
            crashes.started = Some(Instant::now());
            waits.push(crashes.backoff(true).as_secs());
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(crashes.panics, 10);
        crashes.started = Some(Instant::now());
        tokio::time::advance(Duration::from_mins(2)).await;
        assert_eq!(crashes.backoff(true), Duration::ZERO);
        assert_eq!(crashes.panics, 1, "what was before is another series");
        crashes.backoff(false);
        assert_eq!(crashes.panics, 0, "it ended in another way");
    }
}
