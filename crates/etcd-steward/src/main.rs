//! `etcd-steward`: looks after one member of an etcd cluster.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use etcd_steward::{config, install, launch, serve};
use operator::{config::Telemetry, reconcile::chain, telemetry};

/// Looks after one member of an etcd cluster: its data directory, membership, status, backups and maintenance.
#[derive(Debug, Parser)]
#[command(name = "etcd-steward", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Copy this binary to a folder that the etcd container shares.
    Install(install::Args),
    /// Give a folder to the user that the steward runs as.
    Own(install::OwnArgs),
    /// Run etcd as the steward beside it asks. The entry point of the etcd container.
    Launch(launch::Args),
    /// Look after the member. The sidecar.
    Serve(Box<config::Args>),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // The first provider wins; nothing else installs one before this line.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

#[tokio::main]
async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Install(args) => Ok(install::run(&args)?),
        Command::Own(args) => Ok(install::own(&args)?),
        Command::Launch(args) => {
            let _telemetry = telemetry::init("etcd-launcher", &Telemetry::default())?;
            launch::run(args).await
        }
        Command::Serve(args) => serve::run(*args).await,
    }
}

#[expect(clippy::print_stderr, reason = "the log may not have been set up")]
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("etcd-steward: {}", chain(error.as_ref()));
    ExitCode::FAILURE
}
