//! Druid on the command line: how etcd clusters are, and what is done to them by hand.
//!
//! Exit codes: 0 all is well, 1 something isn't (an Etcd is unhealthy, a task failed), 2 it couldn't be told or done
//! (wrong usage, the API server isn't reached, no such Etcd).

pub mod annotate;
pub mod cluster;
pub mod output;
pub mod report;
pub mod snapshot;
pub mod status;

use std::{error::Error, io::Write as _, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::{cluster::Connection, output::Format};

/// Looks after etcd clusters that Druid runs.
#[derive(Debug, Parser)]
#[command(name = "druidctl", version, propagate_version = true, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 all is well, 1 something isn't (an Etcd is unhealthy, a task failed), \
                          2 it couldn't be told or done.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Tell how Etcds are: quorum, members, database sizes, backups, and what isn't as it should be.
    Status(status::Args),
    /// Have a snapshot taken now.
    Snapshot(snapshot::Args),
    /// Have the spec of an Etcd carried out once more, now.
    Reconcile(annotate::Args),
    /// Leave an Etcd's spec alone until it is resumed.
    Suspend(annotate::Args),
    /// Carry out an Etcd's spec again.
    Resume(annotate::Args),
    /// Print the version.
    Version(VersionArgs),
}

#[derive(Debug, clap::Args)]
struct VersionArgs {
    /// How to print it.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Whether all is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Well,
    /// Something isn't.
    Unwell,
}

/// Why something couldn't be told or done.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// There is no usable kubeconfig.
    #[error("find the Kubernetes API server: {0}")]
    Connection(#[source] Box<dyn Error + Send + Sync>),
    /// The API server refused, or couldn't be reached.
    #[error("{action}: {source}")]
    Request {
        /// What was tried.
        action: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// A watch broke off.
    #[error("watch {what}: {source}")]
    Watch {
        /// What was watched.
        what: String,
        /// Why.
        #[source]
        source: Box<kube::runtime::watcher::Error>,
    },
    /// There is no such object.
    #[error("there is no {kind} {name} in namespace {namespace}")]
    NotFound {
        /// The kind.
        kind: &'static str,
        /// The name.
        name: String,
        /// The namespace.
        namespace: String,
    },
    /// The object is in a state that forbids it.
    #[error("{0}")]
    Refused(String),
    /// The answer can't be written.
    #[error("write the answer: {0}")]
    Output(#[source] Box<dyn Error + Send + Sync>),
}

/// Runs a command, and tells on standard error what went wrong.
pub async fn run(cli: Cli) -> ExitCode {
    match dispatch(cli).await {
        Ok(Verdict::Well) => ExitCode::SUCCESS,
        Ok(Verdict::Unwell) => ExitCode::from(1),
        Err(error) => {
            // Nobody is left to tell when standard error is closed.
            let _ = writeln!(std::io::stderr(), "druidctl: {error}");
            ExitCode::from(2)
        }
    }
}

async fn dispatch(cli: Cli) -> Result<Verdict, CtlError> {
    let connection = &cli.connection;
    match cli.command {
        Command::Status(args) => status::run(connection, &args).await,
        Command::Snapshot(args) => snapshot::run(connection, &args).await,
        Command::Reconcile(args) => annotate::reconcile(connection, &args).await,
        Command::Suspend(args) => annotate::suspend(connection, &args).await,
        Command::Resume(args) => annotate::resume(connection, &args).await,
        Command::Version(args) => version(&args),
    }
}

fn version(args: &VersionArgs) -> Result<Verdict, CtlError> {
    let version = env!("CARGO_PKG_VERSION");
    match args.output {
        Format::Table => output::print(&format!("druidctl {version}\n"))?,
        format => output::print(&format.encode(&serde_json::json!({"version": version}))?)?,
    }
    Ok(Verdict::Well)
}
