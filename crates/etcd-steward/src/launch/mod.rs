//! `launch`: the entry point of the etcd container. It runs etcd as its child, as the steward beside it asks, and tells
//! the steward what becomes of it. When the steward is gone, etcd goes on.

mod child;
pub(crate) mod health;
mod reaper;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use child::Etcd;
use hyper_util::rt::TokioIo;
use steward_proto::v1::{
    Exited, Hello, RunRequest, RunResponse, Started, bootstrap_service_client::BootstrapServiceClient,
    run_request::Event, run_response::Command,
};
use tokio::{
    net::{TcpListener, UnixStream},
    process,
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    time::sleep,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Endpoint};
use tracing::{debug, info, warn};

use crate::{
    bootstrap::config::RUNNING,
    exit_record::{self, ExitRecord},
};

/// Pause between two tries to reach the steward; it is beside us, so it is there soon or being restarted.
const RECONNECT: Duration = Duration::from_millis(100);

/// Flags of `launch`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Socket of the steward.
    #[arg(long, default_value_t = format!("{}/steward.sock", api::steward::path::RUN))]
    socket: String,
    /// The etcd binary; looked up in PATH.
    #[arg(long, default_value = "etcd")]
    etcd: PathBuf,
    /// The data volume, for the exit record.
    #[arg(long, default_value = api::steward::path::DATA)]
    volume: PathBuf,
    /// Folder for etcd's configuration file.
    #[arg(long, default_value = api::steward::path::RUN)]
    run: PathBuf,
    /// Where to serve the probes.
    #[arg(long, default_value = "0.0.0.0:9095")]
    listen: SocketAddr,
    /// Where etcd serves health and metrics in plain HTTP.
    #[arg(long, default_value_t = SocketAddr::from(([127, 0, 0, 1], api::steward::port::ETCD_METRICS)))]
    etcd_health: SocketAddr,
    /// How long etcd may take to stop, in seconds. Less than the pod's grace period.
    #[arg(long, default_value_t = 25)]
    grace: u64,
}

/// Runs until a signal ends it. Ends with an error only when it can't do its work at all.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("listen on {} for probes", args.listen))?;
    let (running, receiver) = watch::channel(false);
    tokio::spawn(health::serve(
        listener,
        health::Probes {
            running: receiver,
            etcd: args.etcd_health,
        },
    ));

    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let version = etcd_version(&args.etcd).await?;
    let own = reaper::Own::default();
    reaper::start(Arc::clone(&own)).context("take in orphans")?;
    let mut launcher = Launcher {
        version,
        args,
        etcd: None,
        own,
        running,
    };
    tokio::select! {
        result = launcher.serve() => result?,
        _ = term.recv() => info!("SIGTERM: stopping"),
        _ = int.recv() => info!("SIGINT: stopping"),
    }
    launcher.stop().await?;
    Ok(())
}

/// The first line of `etcd --version`; an image without etcd shows here, not in a crash loop of etcd.
async fn etcd_version(binary: &Path) -> anyhow::Result<String> {
    let output = process::Command::new(binary)
        .arg("--version")
        .output()
        .await
        .with_context(|| {
            format!(
                "run {}: the etcd image must have etcd in its PATH",
                binary.display()
            )
        })?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("etcd Version:")
        .trim()
        .to_owned())
}

struct Launcher {
    args: Args,
    version: String,
    etcd: Option<Etcd>,
    /// Its process, which is no orphan.
    own: reaper::Own,
    running: watch::Sender<bool>,
}

/// Why a session with the steward ended.
#[derive(Debug)]
enum SessionEnd {
    StewardGone(tonic::Status),
}

impl Launcher {
    /// Session after session with the steward.
    async fn serve(&mut self) -> anyhow::Result<()> {
        loop {
            let (events, commands) = self.connect().await?;
            let SessionEnd::StewardGone(status) = self.session(events, commands).await?;
            warn!(
                reason = status.message(),
                running = self.etcd.is_some(),
                "the steward is gone, waiting for it"
            );
        }
    }

    /// Connects to the steward, for as long as it takes. An etcd that ends meanwhile is reported afterwards.
    async fn connect(&mut self) -> anyhow::Result<(mpsc::Sender<RunRequest>, Streaming<RunResponse>)> {
        loop {
            match self.try_connect().await {
                Ok(session) => return Ok(session),
                Err(error) => debug!("{error:#}"),
            }
            let Some(etcd) = &mut self.etcd else {
                sleep(RECONNECT).await;
                continue;
            };
            tokio::select! {
                () = sleep(RECONNECT) => {}
                ended = etcd.ended() => {
                    ended?;
                    self.forget();
                }
            }
        }
    }

    async fn try_connect(&self) -> anyhow::Result<(mpsc::Sender<RunRequest>, Streaming<RunResponse>)> {
        let socket = self.args.socket.clone();
        let connector = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        // The URI only fills the authority header; the connector decides where to go.
        let channel = Endpoint::from_static("http://steward")
            .connect_with_connector(connector)
            .await?;
        let (sender, receiver) = mpsc::channel(16);
        sender.send(event(Event::Hello(self.hello()))).await?;
        let commands = BootstrapServiceClient::new(channel)
            .run(ReceiverStream::new(receiver))
            .await?
            .into_inner();
        info!("connected to the steward");
        Ok((sender, commands))
    }

    fn hello(&self) -> Hello {
        Hello {
            etcd_pid: self.etcd.as_ref().map_or(0, Etcd::pid),
            config_hash: self
                .etcd
                .as_ref()
                .map(|etcd| etcd.config_hash.clone())
                .unwrap_or_default(),
            etcd_version: self.version.clone(),
        }
    }

    async fn session(
        &mut self,
        events: mpsc::Sender<RunRequest>,
        mut commands: Streaming<RunResponse>,
    ) -> anyhow::Result<SessionEnd> {
        loop {
            let ended = async {
                match &mut self.etcd {
                    Some(etcd) => etcd.ended().await,
                    None => std::future::pending().await,
                }
            };
            let report = tokio::select! {
                record = ended => {
                    let record = record?;
                    self.forget();
                    Some(exited(&record))
                }
                command = commands.message() => match command {
                    Ok(Some(RunResponse { command: Some(command) })) => self.obey(command).await?,
                    Ok(Some(RunResponse { command: None })) => None,
                    Ok(None) => return Ok(SessionEnd::StewardGone(tonic::Status::cancelled("it ended the session"))),
                    Err(status) => return Ok(SessionEnd::StewardGone(status)),
                },
            };
            // A session that is over shows in the commands.
            if let Some(report) = report {
                let _ = events.send(event(report)).await;
            }
        }
    }

    async fn obey(&mut self, command: Command) -> anyhow::Result<Option<Event>> {
        match command {
            Command::Start(_) if self.etcd.is_some() => Ok(None),
            Command::Start(start) => self.start(&start.config, &start.config_hash).map(Some),
            Command::Stop(stop) => {
                info!(reason = stop.reason, "stopping etcd");
                Ok(self.stop().await?.map(|record| exited(&record)))
            }
        }
    }

    fn start(&mut self, config: &str, config_hash: &str) -> anyhow::Result<Event> {
        exit_record::replace(&self.args.run, RUNNING, config.as_bytes())
            .context("write etcd's configuration")?;
        let file = self.args.run.join(RUNNING);
        let etcd = {
            let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            let etcd =
                Etcd::start(&self.args.etcd, &file, config_hash, &self.args.volume).context("start etcd")?;
            *own = Some(etcd.process());
            etcd
        };
        let started = Started {
            etcd_pid: etcd.pid(),
            config_hash: config_hash.to_owned(),
        };
        self.etcd = Some(etcd);
        self.running.send_replace(true);
        Ok(Event::Started(started))
    }

    async fn stop(&mut self) -> anyhow::Result<Option<ExitRecord>> {
        let Some(etcd) = &mut self.etcd else {
            return Ok(None);
        };
        let record = etcd
            .stop(Duration::from_secs(self.args.grace))
            .await
            .context("stop etcd")?;
        self.forget();
        Ok(Some(record))
    }

    fn forget(&mut self) {
        self.etcd = None;
        self.running.send_replace(false);
    }
}

fn event(event: Event) -> RunRequest {
    RunRequest { event: Some(event) }
}

fn exited(record: &ExitRecord) -> Event {
    Event::Exited(Exited {
        exit_code: record.exit_code.unwrap_or_default(),
        signal: record.signal.unwrap_or_default(),
        clean: record.is_clean(),
        time: Some(std::time::SystemTime::from(record.time).into()),
    })
}
