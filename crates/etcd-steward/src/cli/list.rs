//! `list`: what a store holds.

use std::io::{self, Write};

use indicatif::HumanBytes;
use serde::Serialize;
use snapstore::Object;

use super::{
    Exit,
    error::CliError,
    output::{Output, Report, Snapshot, columns, write_table},
    store::StoreArgs,
};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    pub(super) output: Output,
}

#[derive(Serialize)]
struct Listed {
    store: String,
    /// By last revision.
    snapshots: Vec<Snapshot>,
    /// Pieces that uploads have left.
    chunks: Vec<Other>,
    /// Manifests whose snapshot isn't there.
    orphans: Vec<Other>,
    /// What has no known name.
    unknown: Vec<Unknown>,
}

#[derive(Serialize)]
struct Other {
    key: String,
    size: u64,
}

impl Other {
    fn new(object: Object) -> Self {
        Self {
            key: object.key,
            size: object.size,
        }
    }
}

#[derive(Serialize)]
struct Unknown {
    key: String,
    size: u64,
    reason: String,
}

pub(super) async fn run(args: Args) -> Result<Exit, CliError> {
    let store = args.store.open()?;
    let listing = store.list().await?;
    let chunks = listing.chunks.into_iter().map(|chunk| Other::new(chunk.object));
    let orphans = listing
        .orphans
        .into_iter()
        .map(|orphan| Other::new(orphan.object));
    let unknown = listing.unparsable.into_iter().map(|unknown| Unknown {
        key: unknown.object.key,
        size: unknown.object.size,
        reason: unknown.reason.to_string(),
    });
    args.output.print(&Listed {
        store: store.location().to_owned(),
        snapshots: listing.snapshots.iter().map(Snapshot::new).collect(),
        chunks: chunks.collect(),
        orphans: orphans.collect(),
        unknown: unknown.collect(),
    })?;
    Ok(Exit::Done)
}

impl Report for Listed {
    fn table(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = columns(&["NAME", "REVISIONS", "CREATED", "SIZE", "REMARKS"]);
        for snapshot in &self.snapshots {
            table.add_row([
                snapshot.name.clone(),
                format!("{}-{}", snapshot.start_revision, snapshot.last_revision),
                snapshot.created.to_string(),
                HumanBytes(snapshot.size).to_string(),
                remarks(snapshot).join(", "),
            ]);
        }
        write_table(&table, out)?;
        for Unknown { key, reason, .. } in &self.unknown {
            writeln!(out, "unknown: {key}: {reason}")?;
        }
        for Other { key, .. } in &self.orphans {
            writeln!(out, "manifest without its snapshot: {key}")?;
        }
        if !self.chunks.is_empty() {
            writeln!(out, "{} chunks of unfinished uploads", self.chunks.len())?;
        }
        Ok(())
    }
}

fn remarks(snapshot: &Snapshot) -> Vec<String> {
    let mut remarks = Vec::new();
    for (holds, remark) in [
        (snapshot.r#final, "final"),
        (snapshot.excluded, "excluded"),
        (snapshot.layout == "v1", "v1"),
    ] {
        remarks.extend(holds.then(|| remark.to_owned()));
    }
    remarks.extend(
        snapshot
            .immutable_until
            .map(|until| format!("locked until {until}")),
    );
    remarks
}
