//! `dump`: the records of a database, one a line.

use std::{
    fs::{File, TryLockError},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use etcd_storage::{bolt::Db, dump, mvcc::KeyValue};

use super::{Exit, error::CliError, output::Format};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    database: Database,
    /// One JSON object a line, or columns.
    #[arg(short = 'o', long = "output", value_enum, default_value_t = Format::Json)]
    format: Format,
}

/// Where the database is.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Database {
    /// A data directory whose etcd doesn't run.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// A database, or an uncompressed full snapshot.
    #[arg(long, value_name = "FILE")]
    db: Option<PathBuf>,
}

impl Database {
    fn path(self) -> PathBuf {
        let in_dir = self.data_dir.map(|dir| dir.join("member/snap/db"));
        in_dir.or(self.db).unwrap_or_default()
    }
}

pub(super) fn run(args: Args) -> Result<Exit, CliError> {
    let path = args.database.path();
    let db = open(&path)?;
    let out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let dumped = match args.format {
        Format::Json => dump::dump(&db, out),
        Format::Table => table(&db, out),
    };
    dumped.map_err(|source| CliError::Database { path, source })?;
    Ok(Exit::Done)
}

/// Opens the database as one that nobody writes to. The lock goes with the file.
fn open(path: &Path) -> Result<Db, CliError> {
    let opened = || CliError::io(format!("open {}", path.display()));
    let file = File::open(path).map_err(opened())?;
    match file.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(CliError::Locked(path.to_owned())),
        Err(TryLockError::Error(error)) => return Err(opened()(error)),
    }
    Db::from_file(file).map_err(|source| CliError::Database {
        path: path.to_owned(),
        source: source.into(),
    })
}

/// A table can't be laid out by what is in it: it may be longer than memory.
fn table(db: &Db, mut out: impl Write) -> Result<(), dump::Error> {
    writeln!(
        out,
        "{:>12} {:>6} {:>12} {:>8} {:>16} {:>9}  KEY",
        "REVISION", "SUB", "CREATED", "VERSION", "LEASE", "BYTES"
    )?;
    dump::each_record(db, |at, value| {
        let no_record = || dump::Error::NoRecord(at.bytes().as_ref().to_vec());
        let record = KeyValue::parse(value).ok_or_else(no_record)?;
        let (main, sub, key) = (at.revision.main, at.revision.sub, record.key.escape_ascii());
        if at.tombstone {
            writeln!(out, "{main:>12} {sub:>6} {:>49}  {key}", "deleted")?;
            return Ok(());
        }
        let KeyValue {
            create_revision,
            version,
            lease,
            value,
            ..
        } = record;
        let bytes = value.len();
        writeln!(
            out,
            "{main:>12} {sub:>6} {create_revision:>12} {version:>8} {lease:>16x} {bytes:>9}  {key}"
        )?;
        Ok(())
    })?;
    Ok(out.flush()?)
}
