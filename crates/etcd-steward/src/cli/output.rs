//! What commands print: a table for people, or one JSON document for programs.

use std::io::{self, Write};

use comfy_table::{Table, presets};
use jiff::Timestamp;
use operator::reconcile::chain as causes;
use serde::Serialize;
use snapstore::{Layout, StoredSnapshot};

use super::{Exit, error::CliError};
use crate::chain::{Cause, Damage, Rescue, Revisions};

/// How results are printed.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Output {
    /// How to print the result.
    #[arg(short = 'o', long = "output", value_enum, default_value_t = Format::Table)]
    pub format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// For people.
    Table,
    /// One JSON document.
    Json,
}

/// A result that can be printed either way.
pub(super) trait Report: Serialize {
    fn table(&self, out: &mut dyn Write) -> io::Result<()>;
}

impl Output {
    pub(super) fn print(&self, report: &impl Report) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        let printed = match self.format {
            Format::Table => report.table(&mut out),
            Format::Json => document(&mut out, report),
        };
        printed
            .and_then(|()| out.flush())
            .map_err(CliError::io("print the result"))
    }
}

fn document(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

/// Columns without lines around them.
pub(super) fn columns(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

pub(super) fn write_table(table: &Table, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", table.trim_fmt())
}

/// A stored snapshot.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Snapshot {
    pub name: String,
    /// `Full` or `Incr`.
    pub kind: &'static str,
    pub start_revision: i64,
    pub last_revision: i64,
    pub created: Timestamp,
    pub compression: &'static str,
    pub r#final: bool,
    /// Bytes in the store.
    pub size: u64,
    /// `v1` or `v2`.
    pub layout: &'static str,
    pub excluded: bool,
    /// Whether a manifest lies beside it.
    pub manifest: bool,
    pub immutable_until: Option<Timestamp>,
}

impl Snapshot {
    pub(super) fn new(stored: &StoredSnapshot) -> Self {
        let name = &stored.name;
        Self {
            name: name.to_string(),
            kind: name.kind.as_str(),
            start_revision: name.start_revision,
            last_revision: name.last_revision,
            created: name.created_on,
            compression: name.compression.name(),
            r#final: name.is_final,
            size: stored.object.size,
            layout: match stored.layout {
                Layout::V1 { .. } => "v1",
                Layout::V2 => "v2",
            },
            excluded: stored.excluded,
            manifest: stored.manifest.is_some(),
            immutable_until: stored.object.immutable_until,
        }
    }
}

/// An error as a document.
#[derive(Serialize)]
struct Failure {
    error: Detail,
}

#[derive(Serialize)]
struct Detail {
    reason: &'static str,
    message: String,
    damage: Option<DamageView>,
}

/// What is wrong with a chain.
#[derive(Debug, Serialize)]
pub(super) struct DamageView {
    /// The bad object; null when one is missing.
    object: Option<String>,
    pub message: String,
    /// Revisions that no usable snapshot has.
    missing: Option<Revisions>,
    /// What `restore --fallback` gives.
    fallback: Option<Rescue>,
}

impl DamageView {
    pub(super) fn new(damage: &Damage) -> Self {
        let object = match &damage.cause {
            Cause::Bad(fault) => Some(fault.object.clone()),
            Cause::Hole { .. } | Cause::NoFull => None,
        };
        Self {
            object,
            message: damage.to_string(),
            missing: damage.missing,
            fallback: damage.rescue,
        }
    }
}

/// Says what went wrong: always on standard error, and as the document that a program waits for.
#[expect(clippy::print_stderr, reason = "that is where errors belong")]
pub(super) fn tell(error: &CliError, format: Format) -> Exit {
    let message = causes(error);
    eprintln!("etcd-steward: {message}");
    if let CliError::Copy { failed, .. } = error {
        for (name, error) in failed {
            eprintln!("  {name}: {}", causes(error));
        }
    }
    if format == Format::Json {
        let error = Detail {
            reason: error.reason(),
            message,
            damage: error.damage().map(DamageView::new),
        };
        // Nobody may be reading; the exit code stays.
        let _ = document(&mut io::stdout().lock(), &Failure { error });
    }
    error.exit()
}
