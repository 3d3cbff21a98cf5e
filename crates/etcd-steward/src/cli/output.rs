//! What commands print: a table for people, or one JSON document for programs.

use std::{
    borrow::Cow,
    fmt,
    io::{self, Write},
};

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
        let mut text = Vec::new();
        let printed = match self.format {
            Format::Table => report.table(&mut text),
            Format::Json => document(&mut text, report),
        };
        let text = printable(&String::from_utf8_lossy(&text)).into_owned();
        let mut out = io::stdout().lock();
        printed
            .and_then(|()| out.write_all(text.as_bytes()))
            .and_then(|()| out.flush())
            .map_err(CliError::io("print the result"))
    }
}

fn document(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

/// The text with its control characters made visible, line ends apart: names in a store are anybody's, and a terminal obeys
/// what is in them. What comes out is valid in JSON too.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    let is_harmless = |c: char| c == '\n' || !c.is_control() && !is_direction(c);
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmless(c) {
            shown.push(c);
        } else {
            // Writing to a text doesn't fail.
            let _ = fmt::Write::write_fmt(&mut shown, format_args!("\\u{:04x}", u32::from(c)));
        }
    }
    Cow::Owned(shown)
}

/// Marks that turn the direction of what follows, so that it is read as something else.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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
    eprintln!("etcd-steward: {}", printable(&message));
    if let CliError::Copy { failed, .. } = error {
        for (name, error) in failed {
            eprintln!("  {name}: {}", printable(&causes(error)));
        }
    }
    if format == Format::Json {
        let error = Detail {
            reason: error.reason(),
            message,
            damage: error.damage().map(DamageView::new),
        };
        let mut text = Vec::new();
        let written = document(&mut text, &Failure { error });
        let text = printable(&String::from_utf8_lossy(&text)).into_owned();
        // Nobody may be reading; the exit code stays.
        let _ = written.and_then(|()| io::stdout().lock().write_all(text.as_bytes()));
    }
    error.exit()
}
