//! `serve`: puts the parts of the steward together and runs them until it is told to stop.

use std::{
    os::unix::fs::PermissionsExt as _,
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use api::{
    duration::GoDuration,
    schedule::Schedule,
    steward::{ClusterMember, StewardConfig, etcd_file},
    v1alpha1::{EtcdConfig, EtcdMemberStatus},
};
use futures::FutureExt as _;
use operator::{
    metrics::Metrics as Registry,
    reconcile::chain,
    server::{self as health, Readiness},
    telemetry,
};
use snapstore::{SnapStore, StoreConfig};
use steward_proto::v1::bootstrap_service_server::BootstrapServiceServer;
use tokio::{
    net::UnixListener,
    signal::unix::{SignalKind, signal},
    time::sleep,
};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, info, warn};

use crate::{
    backup::{Backups, Owner, Settings},
    bootstrap::{Bootstrap, config as etcd_config, evidence::Scene, session::Sessions},
    config::{self, Args},
    etcd::{Connector, host_port},
    maintenance::{Caretaker, Maintenance},
    member::{Status, kubernetes::Kubernetes, monitor::Monitor, promotion::Promotion},
    metrics::Metrics,
    rollout::Rollout,
    server::{self, Api, Security, operations::Operations, tls::Certificates},
};

/// How long the parts may take to end.
const DRAIN: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(2);
/// Each comparison reads all databases.
const COMPARISON_PERIOD: Duration = Duration::from_hours(1);

/// Runs the steward.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let _telemetry = telemetry::init("etcd-steward", &args.telemetry())?;
    let (config, member) = args.read()?;
    info!(
        etcd = config.cluster.name,
        namespace = config.cluster.namespace,
        member = member.name,
        "starting"
    );
    let parts = Parts {
        shutdown: stop_on_signal_or_change(&args)?,
        ..Parts::default()
    };
    let steward = Steward {
        args,
        config,
        member,
        parts: parts.clone(),
    };
    steward.start().await?;
    parts.ended().await
}

/// What runs, until one of the parts fails or all are told to stop.
#[derive(Debug, Clone, Default)]
struct Parts {
    shutdown: CancellationToken,
    tasks: TaskTracker,
    failure: Arc<OnceLock<anyhow::Error>>,
}

impl Parts {
    /// Runs a part of the steward. One that fails or panics takes all down: half a steward would be trusted like a whole
    /// one.
    fn run(&self, name: &'static str, work: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        let parts = self.clone();
        self.tasks.spawn(async move {
            let ended = AssertUnwindSafe(work).catch_unwind().await;
            let failure = match ended {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.context(name),
                Err(_) => anyhow!("{name}: a panic, see above"),
            };
            error!("a part of the steward failed, stopping: {failure:#}");
            let _ = parts.failure.set(failure);
            parts.shutdown.cancel();
        });
    }

    /// Waits for the end, and for the parts to end in order. An error if one of them was the cause.
    async fn ended(self) -> anyhow::Result<()> {
        self.shutdown.cancelled().await;
        self.tasks.close();
        if tokio::time::timeout(DRAIN, self.tasks.wait()).await.is_err() {
            warn!("some parts didn't end within {DRAIN:?}");
        }
        match self.failure.get() {
            Some(failure) => bail!("{failure:#}"),
            None => Ok(()),
        }
    }
}

/// What most parts work with.
#[derive(Clone)]
struct Shared {
    connector: Connector,
    status: Status,
    kubernetes: Option<Kubernetes>,
    metrics: Metrics,
}

struct Steward {
    args: Args,
    config: StewardConfig,
    member: ClusterMember,
    parts: Parts,
}

impl Steward {
    /// Runs a part that ends only when it is told to.
    fn part(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.parts.run(name, work.map(Ok));
    }

    async fn start(self) -> anyhow::Result<()> {
        let registry = Registry::default();
        let metrics = Metrics::new(&registry);
        metrics.set_cluster_size(self.config.cluster.members.len());
        let address = operator::config::Server {
            bind_address: self.args.listen_health.ip().to_string(),
            port: self.args.listen_health.port(),
        };
        health::serve(
            &address,
            Readiness::default(),
            registry,
            self.parts.shutdown.clone(),
        )
        .await?;

        let (kubernetes, known) = self.kubernetes().await?;
        let shared = Shared {
            connector: self.connector()?,
            status: self.status(known),
            kubernetes,
            metrics,
        };
        let store = self.store()?;
        let sessions = self.look_after_member(&shared, store.clone())?;
        let api = self.look_after_cluster(shared, store)?;
        self.serve_launcher(sessions)?;
        self.serve_api(api);
        Ok(())
    }

    /// Goes on from what was told before; what only holds for a running process has to show anew.
    fn status(&self, known: EtcdMemberStatus) -> Status {
        let status = Status::new(known);
        status.update(|status| {
            status.member_name = Some(self.member.name.clone());
            status.role = None;
            status.backup_owner = status.backup_owner.map(|_| false);
        });
        status
    }

    /// Starts what has to do with the member beside us.
    fn look_after_member(
        &self,
        shared: &Shared,
        store: Option<Arc<dyn SnapStore>>,
    ) -> anyhow::Result<Sessions> {
        let Shared {
            connector,
            status,
            kubernetes,
            metrics,
        } = shared.clone();
        let sessions = Sessions::new(Bootstrap {
            scene: Scene {
                cluster: Arc::new(self.config.cluster.clone()),
                member: self.member.clone(),
                volume: self.args.volume.clone(),
                data_dir: self.args.data_dir.clone(),
                temp: self.args.temp.clone(),
                connector: connector.clone(),
                kubernetes: kubernetes.clone(),
                store,
                status: status.clone(),
                metrics: metrics.clone(),
            },
            config_file: self.args.config.join(etcd_file(&self.member.name)),
        });
        let monitor = Monitor::new(
            connector.clone(),
            status.clone(),
            (&self.config.cluster, &self.member),
            metrics.clone(),
            sessions.running(),
        );
        if let Some(kubernetes) = &kubernetes {
            self.publish(kubernetes, &status, &monitor)?;
        }
        self.part("monitor", monitor.run(self.parts.shutdown.clone()));
        let promotion = Promotion {
            status,
            connector,
            cluster: self.config.cluster.clone(),
            own: self.member.name.clone(),
            kubernetes,
            metrics,
        };
        self.part("promotion", promotion.run(self.parts.shutdown.clone()));
        self.roll_out(&sessions, shared)?;
        Ok(sessions)
    }

    fn roll_out(&self, sessions: &Sessions, shared: &Shared) -> anyhow::Result<()> {
        let rollout = Rollout {
            sessions: sessions.clone(),
            connector: shared.connector.clone(),
            cluster: self.config.cluster.clone(),
            own: self.member.name.clone(),
            config: self.args.config.clone(),
            kubernetes: shared.kubernetes.clone(),
            status: shared.status.clone(),
        };
        let changes = config::follow(&[&self.args.config, &self.args.etcd_tls])?;
        self.part("rollout", rollout.run(changes, self.parts.shutdown.clone()));
        Ok(())
    }

    /// Starts what is done for the whole cluster while its leader is beside us.
    fn look_after_cluster(&self, shared: Shared, store: Option<Arc<dyn SnapStore>>) -> anyhow::Result<Api> {
        let backups = match store {
            Some(store) => Some(self.own_backups(store, &shared)?),
            None => None,
        };
        let operations = Operations::default();
        let maintenance = self.maintenance(&shared)?;
        let caretaker = Caretaker {
            maintenance: maintenance.clone(),
            schedule: self.defragmentation_schedule()?,
            comparison_period: self.comparison_period()?,
            operations: operations.clone(),
            status: shared.status.clone(),
            backups: backups.clone(),
            kubernetes: shared.kubernetes,
        };
        self.part("caretaker", caretaker.run(self.parts.shutdown.clone()));
        Ok(Api {
            cluster: Arc::new(self.config.cluster.clone()),
            member: self.member.name.clone(),
            status: shared.status,
            connector: shared.connector,
            backups,
            maintenance,
            operations,
        })
    }

    /// The Kubernetes API, and what was published there before.
    async fn kubernetes(&self) -> anyhow::Result<(Option<Kubernetes>, EtcdMemberStatus)> {
        if self.args.no_kubernetes {
            return Ok((None, EtcdMemberStatus::default()));
        }
        let client = kube::Client::try_default()
            .await
            .context("make a Kubernetes client")?;
        let cluster = &self.config.cluster;
        let kubernetes = Kubernetes::new(client, cluster, &self.member.name, &self.args.pod_name);
        loop {
            match kubernetes.own().await {
                Ok(own) => {
                    return Ok((
                        Some(kubernetes),
                        own.and_then(|own| own.status).unwrap_or_default(),
                    ));
                }
                Err(error) => warn!(
                    error = chain(&error),
                    "failed to read this member's EtcdMember, trying again"
                ),
            }
            tokio::select! {
                () = sleep(RETRY) => {}
                () = self.parts.shutdown.cancelled() => bail!("told to stop before the Kubernetes API answered"),
            }
        }
    }

    fn connector(&self) -> anyhow::Result<Connector> {
        let cluster = &self.config.cluster;
        let url = self
            .member
            .client_urls
            .first()
            .context("the member has no client URL")?;
        let port = host_port(url).and_then(|address| address.rsplit(':').next().map(str::to_owned));
        let port = port.with_context(|| format!("no port in client URL {url}"))?;
        let scheme = if cluster.client_tls { "https" } else { "http" };
        Ok(Connector {
            tls: self.args.etcd_tls.clone(),
            auth: Some(self.args.steward_tls.clone()),
            local_name: api::names::local_host(&cluster.name),
            local_url: format!("{scheme}://127.0.0.1:{port}"),
            running: Some(self.args.run_folder().join(etcd_config::RUNNING)),
        })
    }

    fn store(&self) -> anyhow::Result<Option<Arc<dyn SnapStore>>> {
        let Some(spec) = &self.config.backup.store else {
            return Ok(None);
        };
        let Some(provider) = spec.provider()? else {
            return Ok(None);
        };
        let container = spec.container().unwrap_or_default();
        let mut config = StoreConfig::new(provider.as_str().parse()?, container, spec.prefix.clone());
        config.endpoint.clone_from(&spec.endpoint_override);
        config.allow_http = spec.is_plain_http();
        if config.allow_http {
            warn!(
                endpoint = config.endpoint,
                "backups travel unencrypted: the store's endpoint is plain http"
            );
        }
        Ok(Some(config.open()?))
    }

    fn publish(&self, kubernetes: &Kubernetes, status: &Status, monitor: &Monitor) -> anyhow::Result<()> {
        let every = match &self.config.heartbeat {
            Some(heartbeat) => heartbeat.parse()?,
            None => Duration::from_secs(10),
        };
        let (kubernetes, status, alive) = (kubernetes.clone(), status.clone(), monitor.alive());
        let shutdown = self.parts.shutdown.clone();
        self.part("publisher", async move {
            tokio::select! {
                () = kubernetes.heartbeat(every, alive, status.clone()) => {}
                () = kubernetes.publish(status, shutdown.clone()) => {}
                () = shutdown.cancelled() => {}
            }
        });
        Ok(())
    }

    fn own_backups(&self, store: Arc<dyn SnapStore>, shared: &Shared) -> anyhow::Result<Backups> {
        let settings = Settings::new(&self.config.backup, self.args.temp.clone())?;
        let shared = shared.clone();
        let (owner, backups) = Owner::new(
            store,
            settings,
            shared.connector,
            shared.status,
            shared.kubernetes,
            shared.metrics,
        );
        self.part("backups", owner.run(self.parts.shutdown.clone()));
        Ok(backups)
    }

    /// Serves the launcher on a socket that only this pod's containers reach.
    fn serve_launcher(&self, sessions: Sessions) -> anyhow::Result<()> {
        // A socket that an earlier process left would refuse everyone.
        if std::path::Path::new(&self.args.socket).exists() {
            std::fs::remove_file(&self.args.socket).context("remove the old socket")?;
        }
        let listener = UnixListener::bind(&self.args.socket)
            .with_context(|| format!("listen on {} for the launcher", self.args.socket))?;
        std::fs::set_permissions(&self.args.socket, std::fs::Permissions::from_mode(0o600))?;
        let shutdown = self.parts.shutdown.clone();
        self.parts.run("service for the launcher", async move {
            let served = tonic::transport::Server::builder()
                .add_service(BootstrapServiceServer::new(sessions))
                .serve_with_incoming_shutdown(
                    UnixListenerStream::new(listener),
                    shutdown.clone().cancelled_owned(),
                );
            tokio::select! {
                result = served => Ok(result?),
                // The launcher holds its session open for ever: it must not hold up the end.
                () = async { shutdown.cancelled().await; sleep(Duration::from_millis(100)).await } => Ok(()),
            }
        });
        Ok(())
    }

    fn maintenance(&self, shared: &Shared) -> anyhow::Result<Maintenance> {
        let deadline = self.config.defragmentation_timeout.as_ref();
        let deadline = deadline.map(GoDuration::parse).transpose();
        Ok(Maintenance::new(
            shared.connector.clone(),
            deadline.context("spec.etcd.etcdDefragTimeout")?,
            self.args.run_folder().join(etcd_config::RUNNING),
            shared.metrics.clone(),
        ))
    }

    fn defragmentation_schedule(&self) -> anyhow::Result<Schedule> {
        let etcd = EtcdConfig {
            defragmentation_schedule: self.config.defragmentation_schedule.clone(),
            ..EtcdConfig::default()
        };
        etcd.defragmentation_schedule()
            .context("spec.etcd.defragmentationSchedule")
    }

    fn comparison_period(&self) -> anyhow::Result<Option<Duration>> {
        let told = self.config.comparison_period.as_ref().map(GoDuration::parse);
        let period = told
            .transpose()
            .context("comparisonPeriod")?
            .unwrap_or(COMPARISON_PERIOD);
        Ok((!period.is_zero()).then_some(period))
    }

    fn serve_api(&self, api: Api) {
        let cluster = &self.config.cluster;
        let port = u16::try_from(self.config.backup.port()).unwrap_or_default();
        let address = self.args.listen.unwrap_or_else(|| ([0, 0, 0, 0], port).into());
        let security = if self.args.insecure_api {
            Security::Loopback
        } else {
            let folder = self.args.steward_tls.clone();
            Security::MutualTls(Arc::new(Certificates::new(
                folder,
                &cluster.namespace,
                &cluster.name,
            )))
        };
        let shutdown = self.parts.shutdown.clone();
        self.parts.run("API", async move {
            server::serve(address, api, security, shutdown)
                .await
                .with_context(|| format!("serve on {address}"))
        });
    }
}

/// Ends the steward on a signal, and when its configuration changes: it is started anew, and etcd goes on meanwhile.
fn stop_on_signal_or_change(args: &Args) -> anyhow::Result<CancellationToken> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let token = CancellationToken::new();
    let folder = args.config.clone();
    // A thread of its own: it blocks until the end of the process, which must not wait for it.
    let (sender, change) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || sender.send(config::changed(&folder)));
    tokio::spawn({
        let token = token.clone();
        async move {
            tokio::select! {
                _ = term.recv() => info!("SIGTERM: stopping"),
                _ = int.recv() => info!("SIGINT: stopping"),
                Ok(watched) = change => match watched {
                    Ok(()) => info!("the configuration has changed: stopping, to be started with the new one"),
                    Err(error) => {
                        warn!(%error, "the configuration can't be watched: changes need a restart");
                        term.recv().await;
                    }
                },
            }
            token.cancel();
        }
    });
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever runs the steward must see that it failed, not that it was done.
    #[tokio::test(start_paused = true)]
    async fn the_failure_of_a_part_is_that_of_all() {
        let failing = Parts::default();
        let bystander = failing.shutdown.clone();
        failing.run("bystander", async move {
            bystander.cancelled().await;
            Ok(())
        });
        failing.run("API", async { bail!("address in use") });
        assert_eq!(
            failing.ended().await.unwrap_err().to_string(),
            "API: address in use"
        );

        let panicking = Parts::default();
        panicking.run("monitor", async { panic!("bug") });
        assert!(panicking.ended().await.is_err());

        let told = Parts::default();
        told.run("API", async { Ok(()) });
        told.shutdown.cancel();
        assert!(told.ended().await.is_ok());
    }
}
