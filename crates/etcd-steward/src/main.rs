//! `etcd-steward`: looks after one member of an etcd cluster.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use etcd_steward::{cli, config, install, launch, serve};
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
    #[command(flatten)]
    Backups(cli::Command),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // The first provider wins; nothing else installs one before this line.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    run(cli.command).unwrap_or_else(|error| fail(&error))
}

/// How long the end may take of what can't be broken off.
const LAST: Duration = Duration::from_secs(1);

/// A check of the data directory may read for minutes, and nothing is lost when the process ends meanwhile.
fn run(command: Command) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    let outcome = runtime.block_on(work(command));
    runtime.shutdown_timeout(LAST);
    outcome
}

async fn work(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Install(args) => install::run(&args)?,
        Command::Own(args) => install::own(&args)?,
        Command::Launch(args) => {
            let _telemetry = telemetry::init("etcd-launcher", &Telemetry::default())?;
            launch::run(args).await?;
        }
        Command::Serve(args) => serve::run(*args).await?,
        Command::Backups(command) => return Ok(cli::run(command).await),
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stderr, reason = "the log may not have been set up")]
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("etcd-steward: {}", chain(error.as_ref()));
    ExitCode::FAILURE
}
