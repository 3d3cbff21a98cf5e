//! `snapshot --once`: a full snapshot of a running etcd goes into the store.

use std::{
    env,
    io::{self, Write},
    path::PathBuf,
};

use etcd_client::{Client, ConnectOptions, TlsOptions};
use etcd_storage::compression::Compression;
use indicatif::HumanBytes;
use jiff::Timestamp;
use serde::Serialize;
use snapstore::{Body, SnapshotName, manifest::Facts};
use tonic::transport::{Certificate, Identity};

use super::{
    Exit,
    error::CliError,
    output::{Output, Report, Snapshot},
    progress::Bar,
    store::StoreArgs,
};
use crate::{
    backup::{BackupError, full},
    etcd,
};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    pub(super) output: Output,
    /// Take one snapshot and exit. Snapshots on a schedule are the business of `serve`.
    #[arg(long, required = true)]
    once: bool,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// Folder for the compressed snapshot until it is stored.
    #[arg(long, value_name = "FOLDER", default_value_os_t = env::temp_dir())]
    temp_dir: PathBuf,
    /// none, gzip, zlib, lzw or zstd.
    #[arg(long, value_name = "NAME", default_value_t = Compression::Gzip)]
    compression: Compression,
    /// Mark it as the last one of its cluster.
    #[arg(long)]
    r#final: bool,
}

/// The etcd to ask; as etcdctl's flags. $ETCDCTL_USER and $ETCDCTL_PASSWORD are used when they are set.
#[derive(Debug, clap::Args)]
struct EtcdArgs {
    /// Client URLs.
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379"
    )]
    endpoints: Vec<String>,
    /// Certificate of the authority that etcd's certificate is from.
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Client certificate.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

impl EtcdArgs {
    async fn connect(&self) -> Result<Client, CliError> {
        let mut options = etcd::options();
        if let Some((user, password)) = user() {
            options = options.with_user(user, password);
        }
        let options = self.secure(options).await?;
        let client = etcd::connect(&self.endpoints, options).await;
        Ok(client.map_err(BackupError::Etcd)?)
    }

    async fn secure(&self, options: ConnectOptions) -> Result<ConnectOptions, CliError> {
        let Some(ca) = &self.cacert else {
            if self.cert.is_some() || self.endpoints.iter().any(|url| url.starts_with("https:")) {
                return Err(CliError::Usage("https needs --cacert".to_owned()));
            }
            return Ok(options);
        };
        let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca).await?));
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            tls = tls.identity(Identity::from_pem(read(cert).await?, read(key).await?));
        }
        Ok(options.with_tls(tls))
    }
}

/// As etcdctl takes them: the password may also stand behind the name and a colon.
fn user() -> Option<(String, String)> {
    let user = env::var("ETCDCTL_USER").ok()?;
    match env::var("ETCDCTL_PASSWORD") {
        Ok(password) => Some((user, password)),
        Err(_) => user
            .split_once(':')
            .map(|(user, password)| (user.to_owned(), password.to_owned())),
    }
}

async fn read(path: &PathBuf) -> Result<Vec<u8>, CliError> {
    let action = format!("read {}", path.display());
    tokio::fs::read(path).await.map_err(CliError::io(action))
}

pub(super) async fn run(args: Args) -> Result<Exit, CliError> {
    let store = args.store.open()?;
    let listing = store.list().await?;
    let client = args.etcd.connect().await?;
    let bar = Bar::spinner("reading the snapshot");
    let spooled = full::fetch_from(client, args.compression, &args.temp_dir).await?;
    let revision = spooled.summary.revision;
    // Behind newer snapshots of another history it would never be found again.
    let stored = listing.snapshots.iter().filter(|one| !one.excluded);
    let newest = stored.map(|one| one.name.last_revision).max().unwrap_or(0);
    if newest > revision {
        return Err(CliError::Snapshot(BackupError::StoreAhead {
            stored: newest,
            cluster: revision,
        }));
    }
    bar.say("storing the snapshot".to_owned());
    let name = SnapshotName::full(revision, Timestamp::now(), args.compression).with_final(args.r#final);
    let body = Body::from_file(spooled.file.path()).await;
    let facts = Facts {
        keys: spooled.summary.keys,
        database_sha256: Some(spooled.summary.sha256.to_string()),
        ..Facts::default()
    };
    let body = body
        .map_err(CliError::io("read the scratch space"))?
        .with_facts(move || facts);
    let stored = store.put(&name, body).await?;
    drop(bar);
    args.output.print(&Done {
        snapshot: Snapshot::new(&stored),
        db_size: spooled.summary.db_size,
        sha256: spooled.summary.sha256.to_string(),
    })?;
    Ok(Exit::Done)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Done {
    snapshot: Snapshot,
    /// Bytes of the database, uncompressed.
    db_size: u64,
    /// SHA-256 of the database.
    sha256: String,
}

impl Report for Done {
    fn table(&self, out: &mut dyn Write) -> io::Result<()> {
        let Snapshot { name, size, .. } = &self.snapshot;
        let (size, database) = (HumanBytes(*size), HumanBytes(self.db_size));
        writeln!(out, "stored {name} ({size}, database {database})")
    }
}
