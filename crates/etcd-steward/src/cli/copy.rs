//! `copy`: backups go from one store to another.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use indicatif::HumanBytes;
use jiff::SignedDuration;
use serde::Serialize;
use snapstore::{
    Class,
    copy::{self, Copied, CopyEvent, CopyOptions, OnExpiry, WaitForFinal},
};

use super::{
    Exit, duration,
    error::CliError,
    output::{Output, Report},
    progress::Bar,
    store::{SourceArgs, StoreArgs},
};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    target: StoreArgs,
    #[command(flatten)]
    pub(super) output: Output,
    /// Copy no more than so many full snapshots, the newest ones, each with its deltas.
    #[arg(long, value_name = "N")]
    max_backups_to_copy: Option<usize>,
    /// Copy no full snapshots that are older than so many days.
    #[arg(long, value_name = "DAYS")]
    max_backup_age: Option<u32>,
    /// Begin when the source has a final snapshot.
    #[arg(long)]
    wait_for_final_snapshot: bool,
    /// How long to wait for it, for example 10m. 0 is for ever.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = duration)]
    wait_for_final_snapshot_timeout: Duration,
    /// What to do when none came in that time.
    #[arg(long, value_enum, default_value_t = Expired::Fail)]
    on_expiry: Expired,
    /// Keep .final in the names of copied snapshots.
    #[arg(long)]
    keep_final: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Expired {
    /// Fail.
    Fail,
    /// Copy what is there.
    Copy,
}

impl Args {
    fn options(&self) -> CopyOptions {
        let timeout = self.wait_for_final_snapshot_timeout;
        let wait = WaitForFinal {
            timeout: (!timeout.is_zero()).then_some(timeout),
            on_expiry: match self.on_expiry {
                Expired::Fail => OnExpiry::Fail,
                Expired::Copy => OnExpiry::CopyAnyway,
            },
            ..WaitForFinal::default()
        };
        CopyOptions {
            policy: None,
            max_backups: self.max_backups_to_copy,
            max_age: self
                .max_backup_age
                .map(|days| SignedDuration::from_hours(24 * i64::from(days))),
            wait_for_final: self.wait_for_final_snapshot.then_some(wait),
            keep_final: self.keep_final,
            ..CopyOptions::default()
        }
    }
}

pub(super) async fn run(args: Args) -> Result<Exit, CliError> {
    let (source, target) = (args.source.open(&args.target)?, args.target.open()?);
    let bar = Bar::new(0, "copying");
    let observed = bar.clone();
    let observer = Arc::new(move |event: CopyEvent<'_>| match event {
        CopyEvent::Waiting => observed.say("waiting for the final snapshot".to_owned()),
        CopyEvent::Planned { bytes, .. } => observed.resize(bytes),
        CopyEvent::Sent(bytes) => observed.add(bytes),
        CopyEvent::Copied(name) => observed.say(format!("copied {name}")),
        CopyEvent::Failed(name, _) => observed.say(format!("failed {name}")),
    });
    let copied = copy::copy(source.as_ref(), target.as_ref(), &args.options(), observer).await;
    drop(bar);
    let Copied {
        snapshots,
        bytes,
        present,
        unusable,
        mut failed,
    } = copied?;
    failed.extend(unusable.into_iter().map(|name| {
        let action = format!("copy {name}");
        let error = snapstore::Error::new(
            Class::Corrupt,
            action,
            "it is too short to hold data and its SHA-256",
        );
        (name, error)
    }));
    if !failed.is_empty() {
        let total = snapshots + present + failed.len();
        return Err(CliError::Copy { failed, total });
    }
    args.output.print(&Done {
        source: source.location().to_owned(),
        target: target.location().to_owned(),
        copied: snapshots,
        bytes,
        present,
    })?;
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Done {
    source: String,
    target: String,
    /// Snapshots.
    copied: usize,
    bytes: u64,
    /// Snapshots that the target had before.
    present: usize,
}

impl Report for Done {
    fn table(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self {
            source,
            target,
            copied,
            bytes,
            present,
        } = self;
        let size = HumanBytes(*bytes);
        writeln!(
            out,
            "copied {copied} snapshots ({size}) from {source} to {target}; {present} were there"
        )
    }
}
