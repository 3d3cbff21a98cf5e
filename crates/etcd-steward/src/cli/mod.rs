//! The commands that work on backups without a running cluster: `list`, `verify`, `restore`, `compact`, `copy`, `explain`,
//! `dump`, and `snapshot`, which needs an etcd to ask.
//!
//! Results go to standard output, as a table or as one JSON document; progress, warnings and errors go to standard error.
//! Exit codes: see [`Exit`].

mod compact;
mod copy;
mod dump;
mod error;
mod explain;
mod list;
mod output;
mod progress;
mod restore;
mod signal;
mod snapshot;
mod store;
mod upload;
mod verify;

use std::{io::IsTerminal as _, process::ExitCode, time::Duration};

use api::duration::GoDuration;
use clap::Subcommand;
use tracing_subscriber::{EnvFilter, fmt};

use self::output::Format;

/// What a command ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It is done.
    Done = 0,
    /// It failed: a store, etcd or the disk refused, or what was asked for can't be had.
    Failed = 1,
    /// It was called wrongly.
    Usage = 2,
    /// Backups, or a database, are damaged or have holes.
    Damaged = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Commands for backups.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the snapshots of a store.
    List(list::Args),
    /// Check hash, structure and continuity of snapshots.
    Verify(verify::Args),
    /// Restore backups into a new data directory, without a running etcd.
    Restore(Box<restore::Args>),
    /// Put a chain together and store it as one new full snapshot, compacted.
    Compact(compact::Args),
    /// Copy backups from one store to another.
    Copy(Box<copy::Args>),
    /// Say for every object of a store whether retention keeps it, by which rule and until when.
    Explain(explain::Args),
    /// Print the records of a database.
    Dump(dump::Args),
    /// Take a full snapshot of a running etcd and store it.
    Snapshot(snapshot::Args),
}

impl Command {
    fn format(&self) -> Format {
        match self {
            Self::List(args) => args.output.format,
            Self::Verify(args) => args.output.format,
            Self::Restore(args) => args.output.format,
            Self::Compact(args) => args.output.format,
            Self::Copy(args) => args.output.format,
            Self::Explain(args) => args.output.format,
            // Its output is a stream of records, to which an error can't be added.
            Self::Dump(_) => Format::Table,
            Self::Snapshot(args) => args.output.format,
        }
    }
}

/// Runs a command and tells how it went.
pub async fn run(command: Command) -> ExitCode {
    log_to_stderr();
    let format = command.format();
    let outcome = match command {
        Command::List(args) => list::run(args).await,
        Command::Verify(args) => verify::run(args).await,
        Command::Restore(args) => restore::run(*args).await,
        Command::Compact(args) => compact::run(args).await,
        Command::Copy(args) => copy::run(*args).await,
        Command::Explain(args) => explain::run(args).await,
        Command::Dump(args) => dump::run(args),
        Command::Snapshot(args) => snapshot::run(args).await,
    };
    outcome
        .unwrap_or_else(|error| output::tell(&error, format))
        .into()
}

/// Durations as everywhere in etcd's world: `90s`, `1h30m`.
fn duration(text: &str) -> Result<Duration, String> {
    GoDuration::new(text).parse().map_err(|error| error.to_string())
}

/// Warnings only, unless `DRUID_LOG_FILTER` says something else.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("DRUID_LOG_FILTER").unwrap_or_else(|_| EnvFilter::new("warn"));
    let logs = fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .compact();
    // Another subscriber can only be that of a caller, who then has the say.
    let _ = logs.try_init();
}
