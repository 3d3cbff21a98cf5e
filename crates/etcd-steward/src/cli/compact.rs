//! `compact`: a chain becomes one new full snapshot, without a running etcd.

mod job;

use std::{
    io::{self, Write},
    path::PathBuf,
};

use etcd_storage::compression::Compression;
use indicatif::HumanBytes;
use serde::Serialize;

use self::job::Job;
use super::{
    Exit,
    error::CliError,
    output::{Output, Report, Snapshot},
    signal::Stop,
    store::StoreArgs,
};
use crate::chain::{self, Catalog, Fault, Wanted};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    pub(super) output: Output,
    /// Where several Etcds have stored their backups in one place: the one whose backups are meant, by its UID.
    #[arg(long, value_name = "UID")]
    etcd_uid: Option<String>,
    /// Folder for a temporary file, which becomes as large as the uncompacted database.
    #[arg(long, value_name = "FOLDER")]
    temp_dir: PathBuf,
    /// Keep the history after this revision. By default all history goes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    revision: Option<i64>,
    /// none, gzip, zlib, lzw or zstd. By default as the newest snapshot of the chain.
    #[arg(long, value_name = "NAME")]
    compression: Option<Compression>,
}

pub(super) async fn run(args: Args) -> Result<Exit, CliError> {
    let store = args.store.open()?;
    let mut catalog = Catalog::new(store.list().await?);
    if let Some(uid) = &args.etcd_uid {
        catalog.prefer(&store, uid).await?;
    }
    let stop = Stop::on_signal()?;
    tokio::fs::create_dir_all(&args.temp_dir)
        .await
        .map_err(CliError::io(format!("make {}", args.temp_dir.display())))?;
    loop {
        let found = catalog.find(&store, &Wanted::Latest, false).await;
        let route = found.map_err(|error| CliError::of(error, refused))?;
        let facts = catalog.facts(&store, &route.plan).await;
        let job = Job::new(&args, &store, &catalog, &route, facts, stop.clone());
        match tokio::task::spawn_blocking(move || job.run()).await? {
            // The next way, which there isn't, says what is missing without it.
            Err(CliError::Engine(error)) if catalog.condemn_for(&error) => {}
            done => {
                let (made, stored) = done?;
                let snapshots = catalog.snapshots(&route.plan);
                let report = Done {
                    snapshot: Snapshot::new(&stored),
                    compact_revision: made.compact_revision,
                    records_kept: made.records_kept,
                    records_dropped: made.records_dropped,
                    db_size: made.db_size,
                    sha256: made.sha256.to_string(),
                    compacted: snapshots.map(|stored| stored.name.to_string()).collect(),
                    left_out: route.left_out.clone(),
                    warning: made.warnings.text(),
                };
                args.output.print(&report)?;
                return Ok(Exit::Done);
            }
        }
    }
}

fn refused(error: chain::Error) -> CliError {
    match error {
        chain::Error::Damaged(damage) => CliError::Damaged {
            damage,
            advice: "; a new full snapshot of the running cluster mends its backups".to_owned(),
        },
        other => CliError::Route(other),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Done {
    /// What was made.
    snapshot: Snapshot,
    /// Revision up to which the history is gone.
    compact_revision: i64,
    records_kept: u64,
    records_dropped: u64,
    /// Bytes of the database, uncompressed.
    db_size: u64,
    /// SHA-256 of the database.
    sha256: String,
    /// What it was made from.
    compacted: Vec<String>,
    /// Snapshots that could not be used, and that others make up for.
    left_out: Vec<Fault>,
    /// What wasn't as it should be in the full snapshot.
    warning: Option<String>,
}

impl Report for Done {
    fn table(&self, out: &mut dyn Write) -> io::Result<()> {
        let Snapshot { name, size, .. } = &self.snapshot;
        writeln!(
            out,
            "stored {name} ({}, database {}), compacted at revision {}",
            HumanBytes(*size),
            HumanBytes(self.db_size),
            self.compact_revision
        )?;
        let (from, kept, dropped) = (self.compacted.len(), self.records_kept, self.records_dropped);
        writeln!(
            out,
            "from {from} snapshots; {kept} records kept, {dropped} dropped"
        )?;
        for fault in &self.left_out {
            writeln!(out, "left out: {fault}")?;
        }
        if let Some(warning) = &self.warning {
            writeln!(
                out,
                "warning: {}: {warning}",
                self.compacted.first().map_or("", String::as_str)
            )?;
        }
        Ok(())
    }
}
