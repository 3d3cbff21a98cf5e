//! The life of a controller process: configuration, telemetry, health endpoint, election, controllers, graceful end.

use std::{fmt::Debug, future::Future, path::Path, process::ExitCode};

use anyhow::{Context as _, anyhow};
use clap::{Args as _, Command, FromArgMatches as _};
use kube::{Client, client::ClientBuilder};
use serde::{Serialize, de::DeserializeOwned};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::{
    apply::Applier,
    config::{self, Config, Flags},
    events::Events,
    fence::Fence,
    leader::Elector,
    metrics::Metrics,
    reconcile::chain,
    server::{self, Readiness},
    telemetry,
};

/// Reconciles that one controller runs at a time.
const CONCURRENCY: u16 = 10;

/// Where a pod finds the namespace that it runs in.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// What a controller works with.
#[derive(Clone)]
pub struct Context {
    /// Client whose writes are fenced by the leader lease.
    pub client: Client,
    /// Server-side apply in the name of this controller.
    pub applier: Applier,
    /// Events in the name of this controller.
    pub events: Events,
    /// Metrics of the process.
    pub metrics: Metrics,
    /// What readiness waits for.
    pub readiness: Readiness,
    /// Cancelled when the process is told to stop.
    pub shutdown: CancellationToken,
    /// The namespace that the controller itself runs in.
    pub namespace: String,
    /// Reconciles at a time.
    pub concurrency: u16,
}

impl Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// The context of a controller; `instance` is the pod.
    pub fn new(client: Client, component: &'static str, instance: &str, namespace: String) -> Self {
        Self {
            applier: Applier::new(client.clone(), component),
            events: Events::new(client.clone(), component, instance),
            metrics: Metrics::of_controller(),
            readiness: Readiness::default(),
            shutdown: CancellationToken::new(),
            namespace,
            concurrency: CONCURRENCY,
            client,
        }
    }
}

/// Runs a controller binary: `run` gets the context and the controller's own configuration once this replica leads.
pub fn main<T, F, Fut>(component: &'static str, version: &'static str, run: F) -> ExitCode
where
    T: DeserializeOwned + Serialize + Default + Debug,
    F: FnOnce(Context, T) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let command = Flags::augment_args(
        Command::new(component)
            .version(version)
            .about("A controller of Druid"),
    );
    let flags = match Flags::from_arg_matches(&command.get_matches()) {
        Ok(flags) => flags,
        Err(error) => error.exit(),
    };
    // The first provider wins; nothing else installs one before this line.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(component, &error.into()),
    };
    match runtime.block_on(start(component, version, &flags, run)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(component, &error),
    }
}

#[expect(clippy::print_stderr, reason = "the log may not have been set up")]
fn fail(component: &str, error: &anyhow::Error) -> ExitCode {
    eprintln!("{component}: {}", chain(error.as_ref()));
    ExitCode::FAILURE
}

async fn start<T, F, Fut>(
    component: &'static str,
    version: &'static str,
    flags: &Flags,
    run: F,
) -> anyhow::Result<()>
where
    T: DeserializeOwned + Serialize + Default + Debug,
    F: FnOnce(Context, T) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let config: Config<T> = config::load(flags)?;
    let _telemetry = telemetry::init(component, &config.telemetry)?;
    info!(component, config = config::redacted(&config), "starting");

    let fence = if config.leader_election.enabled {
        Fence::shut()
    } else {
        Fence::open()
    };
    let kubeconfig = kube::Config::infer()
        .await
        .context("find the Kubernetes API server")?;
    let bare = Client::try_from(kubeconfig.clone()).context("make a Kubernetes client")?;
    let client = ClientBuilder::try_from(kubeconfig)
        .context("make a Kubernetes client")?
        .with_layer(&fence)
        .build();
    let instance =
        std::env::var("POD_NAME").unwrap_or_else(|_| format!("{component}-{}", std::process::id()));
    let context = Context {
        shutdown: on_signal()?,
        ..Context::new(client, component, &instance, own_namespace(&bare))
    };
    context.metrics.build_info("etcddruid", component, version);
    // The endpoint outlives the controllers, so that their end can be watched.
    let server_end = CancellationToken::new();
    let _end = server_end.clone().drop_guard();
    server::serve(
        &config.server,
        context.readiness.clone(),
        context.metrics.clone(),
        server_end,
    )
    .await?;

    if !config.leader_election.enabled {
        context.metrics.set_leader(true);
        return run(context, config.controller).await;
    }
    let elector = Elector::new(
        bare,
        &context.namespace,
        component,
        &instance,
        &config.leader_election,
        fence,
    );
    elected(elector, context, config.controller, run).await
}

/// Waits to be elected, runs the controllers, and gives the lease back when they have ended.
async fn elected<T, F, Fut>(elector: Elector, context: Context, config: T, run: F) -> anyhow::Result<()>
where
    F: FnOnce(Context, T) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let mut leading = elector.leading();
    let give_back = CancellationToken::new();
    let mut election = tokio::spawn(elector.run(give_back.clone()));
    let work = async {
        tokio::select! {
            _ = leading.wait_for(|leading| *leading) => {}
            () = context.shutdown.cancelled() => return Ok(()),
        }
        context.metrics.set_leader(true);
        run(context, config).await
    };
    tokio::select! {
        ended = &mut election => match ended {
            Ok(Ok(())) => Err(anyhow!("the election ended by itself")),
            Ok(Err(lost)) => {
                error!("{lost}");
                Err(lost.into())
            }
            Err(error) => Err(error.into()),
        },
        result = work => {
            give_back.cancel();
            election.await??;
            result
        }
    }
}

fn on_signal() -> anyhow::Result<CancellationToken> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let token = CancellationToken::new();
    tokio::spawn({
        let token = token.clone();
        async move {
            tokio::select! {
                _ = term.recv() => info!("SIGTERM: stopping"),
                _ = int.recv() => info!("SIGINT: stopping"),
            }
            token.cancel();
        }
    });
    Ok(token)
}

fn own_namespace(client: &Client) -> String {
    std::env::var("POD_NAMESPACE")
        .ok()
        .or_else(|| std::fs::read_to_string(Path::new(NAMESPACE_FILE)).ok())
        .map_or_else(
            || client.default_namespace().to_owned(),
            |text| text.trim().to_owned(),
        )
}
