//! `serve`: puts the parts of the steward together and runs them until it is told to stop.

mod parts;
mod stores;

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use api::{
    duration::GoDuration,
    schedule::Schedule,
    steward::{ClusterMember, StewardConfig, etcd_file},
    v1alpha1::{EtcdConfig, EtcdMemberStatus},
};
use futures::FutureExt as _;
use nix::sys::stat::{Mode, umask};
use operator::{
    metrics::Metrics as Registry,
    reconcile::chain,
    server::{self as health, Readiness},
    telemetry,
};
use snapstore::SnapStore;
use steward_proto::v1::bootstrap_service_server::BootstrapServiceServer;
use tokio::{
    net::UnixListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::parts::Parts;
use crate::{
    backup::{Backups, Owner, Settings},
    bootstrap::{
        Bootstrap, config as etcd_config,
        evidence::Scene,
        session::Sessions,
        volumes::{Contents, OwnContents},
    },
    config::{self, Args},
    etcd::{Connector, host_port},
    maintenance::{Caretaker, Maintenance},
    member::{
        Status,
        kubernetes::Kubernetes,
        learners::{self, Learners},
        monitor::Monitor,
        peer_urls::PeerUrls,
        promotion::Promotion,
        stored_voters::StoredVoters,
    },
    metrics::Metrics,
    rollout::Rollout,
    running::RunningConfig,
    server::{self, Api, Security, operations::Operations, tls::Certificates},
    volume,
};

const RETRY: Duration = Duration::from_secs(2);
/// How long the API server may take to tell what was published before.
const RECORD_PATIENCE: Duration = Duration::from_secs(15);
/// Each comparison reads all databases.
const COMPARISON_PERIOD: Duration = Duration::from_hours(1);

/// Runs the steward.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let _telemetry = telemetry::init("etcd-steward", &args.telemetry())?;
    let text = args.read()?;
    let (config, member) = args.parse(&text)?;
    info!(
        etcd = config.cluster.name,
        namespace = config.cluster.namespace,
        member = member.name,
        "starting"
    );
    let parts = Parts::new(stop_on_signal_or_change(&args, text)?);
    let steward = Steward {
        running_config: RunningConfig::new(&args.run_folder().join(etcd_config::RUNNING)),
        args,
        config,
        member,
        parts: parts.clone(),
    };
    steward.start().await?;
    parts.ended().await
}

/// What most parts work with.
#[derive(Clone)]
struct Shared {
    connector: Connector,
    status: Status,
    contents: OwnContents,
    kubernetes: Option<Kubernetes>,
    metrics: Metrics,
}

struct Steward {
    args: Args,
    config: StewardConfig,
    member: ClusterMember,
    /// What the launcher started etcd with.
    running_config: RunningConfig,
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
            registry.clone(),
            self.parts.shutdown.clone(),
        )
        .await?;

        let (kubernetes, known) = self.kubernetes().await?;
        let status = Status::new(known);
        status.update(|status| status.member_name = Some(self.member.name.clone()));
        let shared = Shared {
            connector: self.connector()?,
            status,
            contents: OwnContents::default(),
            kubernetes,
            metrics,
        };
        let store = stores::primary(&self.config.backup)?;
        let sessions = self.look_after_member(&shared, store.clone())?;
        let api = self.look_after_cluster(shared, store, registry)?;
        self.serve_launcher(sessions)?;
        self.serve_api(api);
        Ok(())
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
            contents,
            kubernetes,
            metrics,
        } = shared.clone();
        let scene = Scene {
            cluster: Arc::new(self.config.cluster.clone()),
            member: self.member.clone(),
            volume: self.args.volume.clone(),
            data_dir: self.args.data_dir.clone(),
            temp: self.args.temp.clone(),
            connector: connector.clone(),
            kubernetes: kubernetes.clone(),
            store,
            store_endpoint: self
                .config
                .backup
                .store
                .as_ref()
                .and_then(|store| store.endpoint_override.clone()),
            raises_revision: self.config.backup.raises_revision(),
            status: status.clone(),
            contents: contents.clone(),
            steward_tls: self.args.steward_tls.clone(),
            stored_voters: StoredVoters::default(),
            metrics: metrics.clone(),
        };
        let sessions = Sessions::new(
            Bootstrap {
                scene: scene.clone(),
                config_file: self.args.config.join(etcd_file(&self.member.name)),
            },
            self.running_config.clone(),
        );
        let monitor = Monitor::new(
            connector.clone(),
            status.clone(),
            (&self.config.cluster, &self.member),
            metrics.clone(),
            sessions.running(),
            self.args.data_dir.clone(),
            scene.stored_voters.clone(),
        );
        if let Some(kubernetes) = &kubernetes {
            self.publish(kubernetes, &status, &monitor)?;
        }
        self.record_cluster(&scene, monitor.alive());
        self.part("monitor", monitor.run(self.parts.shutdown.clone()));
        let promotion = Promotion {
            status,
            connector,
            cluster: self.config.cluster.clone(),
            own: self.member.name.clone(),
            data_dir: self.args.data_dir.clone(),
            kubernetes,
            metrics,
        };
        self.part("promotion", promotion.run(self.parts.shutdown.clone()));
        self.look_after_membership(shared, &sessions)?;
        self.roll_out(&sessions, shared)?;
        Ok(sessions)
    }

    /// Notes on the volume which cluster the member is in, whenever etcd begins to answer.
    fn record_cluster(&self, scene: &Scene, mut alive: watch::Receiver<bool>) {
        let (identity, volume, status) = (scene.identity(), scene.volume.clone(), scene.status.clone());
        let (contents, shutdown) = (scene.contents.clone(), self.parts.shutdown.clone());
        self.part("identity", async move {
            let record = async {
                loop {
                    if *alive.borrow_and_update() {
                        let cluster = status.read(|status| status.cluster_id.clone());
                        let cluster = cluster.unwrap_or_default();
                        contents.set(Contents::Running(cluster.clone()));
                        if let Err(error) = identity.record_cluster(&volume, &cluster) {
                            warn!(%error, "failed to note the cluster on the volume");
                        }
                    }
                    if alive.changed().await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = record => {}
                () = shutdown.cancelled() => {}
            }
        });
    }

    /// Starts what keeps the cluster's list of members in order.
    fn look_after_membership(&self, shared: &Shared, sessions: &Sessions) -> anyhow::Result<()> {
        let timeout = self.config.learner_timeout.as_ref().map(GoDuration::parse);
        let learners = Learners {
            status: shared.status.clone(),
            connector: shared.connector.clone(),
            kubernetes: shared.kubernetes.clone(),
            timeout: timeout
                .transpose()
                .context("learnerTimeout")?
                .unwrap_or(learners::TIMEOUT),
        };
        self.part("learners", learners.run(self.parts.shutdown.clone()));
        let peer_urls = PeerUrls {
            status: shared.status.clone(),
            connector: shared.connector.clone(),
            cluster: self.config.cluster.clone(),
            member: self.member.clone(),
            config_file: self.args.config.join(etcd_file(&self.member.name)),
            running: sessions.running(),
            version: sessions.version(),
            kubernetes: shared.kubernetes.clone(),
        };
        self.part("peer URLs", peer_urls.run(self.parts.shutdown.clone()));
        Ok(())
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
    fn look_after_cluster(
        &self,
        shared: Shared,
        store: Option<Arc<dyn SnapStore>>,
        registry: Registry,
    ) -> anyhow::Result<Api> {
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
            contents: shared.contents,
            connector: shared.connector,
            backups,
            maintenance,
            operations,
            running_config: self.running_config.clone(),
            registry,
        })
    }

    /// The Kubernetes API, and what was published there before. An API server that is down keeps nobody from starting on
    /// good data: it may even be this etcd's own.
    async fn kubernetes(&self) -> anyhow::Result<(Option<Kubernetes>, EtcdMemberStatus)> {
        if self.args.no_kubernetes {
            return Ok((None, EtcdMemberStatus::default()));
        }
        let kubernetes = Kubernetes::connect(&self.config.cluster, &self.member.name, &self.args.pod_name)
            .await
            .context("make a Kubernetes client")?;
        let known = tokio::select! {
            known = timeout(RECORD_PATIENCE, published(&kubernetes)) => known,
            () = self.parts.shutdown.cancelled() => bail!("told to stop before the Kubernetes API answered"),
        };
        let known = known.unwrap_or_else(|_| {
            warn!("this member's EtcdMember can't be read: going on without, and publishing nothing before it can");
            EtcdMemberStatus::default()
        });
        Ok((Some(kubernetes), known))
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
            client_tls: self.args.client_tls.clone(),
            auth: Some(self.args.steward_tls.clone()),
            local_name: api::names::local_host(&cluster.name),
            local_url: format!("{scheme}://127.0.0.1:{port}"),
            running: Some(self.running_config.clone()),
        })
    }

    fn publish(&self, kubernetes: &Kubernetes, status: &Status, monitor: &Monitor) -> anyhow::Result<()> {
        let every = match &self.config.heartbeat {
            // One that was stored before there was a rule against it.
            Some(heartbeat) => heartbeat.parse()?.max(Duration::from_secs(1)),
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
        let uid = self.config.cluster.uid.clone();
        let settings = Settings {
            etcd_uid: Some(uid).filter(|uid| !uid.is_empty()),
            ..Settings::new(&self.config.backup, self.args.temp.clone())?
        };
        let shared = shared.clone();
        let (owner, backups) = Owner::new(
            store,
            stores::secondary(&self.config.backup)?,
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
        volume::remove(Path::new(&self.args.socket))?;
        // Not set afterwards by its name, which whoever shares the folder can lead elsewhere meanwhile.
        let before = umask(Mode::from_bits_truncate(0o177));
        let listener = UnixListener::bind(&self.args.socket)
            .with_context(|| format!("listen on {} for the launcher", self.args.socket));
        umask(before);
        let listener = listener?;
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
            self.running_config.clone(),
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

/// What was published before, as soon as it can be read.
async fn published(kubernetes: &Kubernetes) -> EtcdMemberStatus {
    loop {
        match kubernetes.before().await {
            Ok(known) => return known,
            Err(error) => warn!(
                error = chain(&error),
                "failed to read this member's EtcdMember, trying again"
            ),
        }
        sleep(RETRY).await;
    }
}

/// Ends the steward on a signal, and when its configuration changes: it is started anew, and etcd goes on meanwhile.
fn stop_on_signal_or_change(args: &Args, text: String) -> anyhow::Result<CancellationToken> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let token = CancellationToken::new();
    let folder = args.config.clone();
    // A thread of its own: it blocks until the end of the process, which must not wait for it.
    let (sender, change) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || sender.send(config::changed(&folder, &text)));
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
