//! The flags of `restore`: which state, into which directory, as a member of which cluster.

use std::path::PathBuf;

use etcd_storage::{cluster::NewCluster, mvcc::MAX_START, restore::Consent, schema::Minor};
use jiff::Timestamp;

use crate::{
    chain::Wanted,
    cli::{error::CliError, output::Output, store::StoreArgs},
    restore::unique_token,
};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) store: StoreArgs,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
    /// A full snapshot in a file, uncompressed, instead of a store; or a database out of a data directory whose etcd doesn't
    /// run, with --skip-hash-check.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["provider", "WantedArgs", "fallback"])]
    pub(super) db: Option<PathBuf>,
    /// The data directory to make. It must be empty or not be there.
    #[arg(long, short = 'd')]
    pub(super) data_dir: PathBuf,
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
    #[command(flatten)]
    pub(super) wanted: WantedArgs,
    /// Where several Etcds have stored their backups in one place: the one whose backups are meant, by its UID. By default
    /// the newest state by revision.
    #[arg(long, value_name = "UID")]
    pub(super) etcd_uid: Option<String>,
    /// If snapshots are damaged or missing, restore what can be had without them.
    #[arg(long)]
    pub(super) fallback: bool,
    /// If the newest transaction of the full snapshot isn't whole, restore the state before it, if that is. What was written
    /// later is lost.
    #[arg(long)]
    pub(super) use_previous_meta: bool,
    /// Restore a full snapshot without a SHA-256, as a database that was copied out of a data directory, or with one that
    /// doesn't fit. Its tree is checked all the same, but not what is in values.
    #[arg(long)]
    pub(super) skip_hash_check: bool,
    /// Raise the revision by so much and mark all before it as compacted, so that watchers and caches notice. The revision
    /// must stay below 2^62.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=MAX_START))]
    pub(super) bump_revision: Option<i64>,
    /// Seconds to live of leases which keys hang on, but whose time to live no snapshot tells. Without it these leases
    /// aren't made, and their keys stay.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(1..))]
    pub(super) unknown_lease_ttl: Option<i64>,
    /// Minor version of the etcd that is to start: 3.5, 3.6 or 3.7. By default that of the etcd that was backed up.
    #[arg(long, value_name = "VERSION")]
    pub(super) etcd_version: Option<Minor>,
}

impl Args {
    pub(super) fn consent(&self) -> Consent {
        Consent {
            use_previous_meta: self.use_previous_meta,
            skip_hash_check: self.skip_hash_check,
        }
    }
}

/// The cluster that the directory is to be a member of; as etcd's own flags.
#[derive(Debug, clap::Args)]
pub(super) struct ClusterArgs {
    /// Name of the member.
    #[arg(long, default_value = "default")]
    pub(super) name: String,
    /// All members: NAME=URL,…; a member with several URLs is named several times. By default this member alone.
    #[arg(long, value_name = "MEMBERS")]
    initial_cluster: Option<String>,
    /// What the IDs of the cluster and its members are made from, beside the peer URLs. All members of one restore need the
    /// same one, which no other cluster has had: with the token, names and URLs of the cluster that was backed up, its old
    /// members and clients take the restored cluster for the old one. By default a new one; with several members it must be
    /// given.
    #[arg(long, value_name = "TOKEN", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    initial_cluster_token: Option<String>,
    /// Peer URLs of this member.
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://localhost:2380"
    )]
    initial_advertise_peer_urls: Vec<String>,
}

/// The state to restore; the newest if nothing is said.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub(super) struct WantedArgs {
    /// Restore the state after this revision.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    revision: Option<i64>,
    /// Restore the state at this time, for example 2026-05-01T08:00:00Z.
    #[arg(long)]
    time: Option<Timestamp>,
    /// Restore the state at the end of this snapshot.
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,
}

impl WantedArgs {
    pub(super) fn wanted(&self) -> Wanted {
        match (self.revision, self.time, &self.snapshot) {
            (Some(revision), ..) => Wanted::Revision(revision),
            (_, Some(time), _) => Wanted::Time(time),
            (.., Some(name)) => Wanted::Snapshot(name.clone()),
            (None, None, None) => Wanted::Latest,
        }
    }
}

/// The cluster that comes of a restore.
pub(super) struct Founded {
    pub(super) cluster: NewCluster,
    pub(super) token: String,
}

impl ClusterArgs {
    pub(super) fn found(&self) -> Result<Founded, CliError> {
        let own = (self.name.clone(), self.initial_advertise_peer_urls.clone());
        let members = match &self.initial_cluster {
            None => vec![own],
            Some(text) => members(text)?,
        };
        let token = self.token(members.len())?;
        let cluster = NewCluster::new(&token, members)
            .map_err(|error| CliError::Usage(format!("--initial-cluster: {error}")))?;
        if cluster.member(&self.name).is_none() {
            let name = &self.name;
            return Err(CliError::Usage(format!(
                "--initial-cluster has no member {name:?}"
            )));
        }
        Ok(Founded { cluster, token })
    }

    /// A restore can't see what those of the other members do: only a token that is given makes them one cluster.
    fn token(&self, members: usize) -> Result<String, CliError> {
        match &self.initial_cluster_token {
            Some(token) => Ok(token.clone()),
            None if members == 1 => Ok(unique_token()),
            None => Err(CliError::Usage(format!(
                "--initial-cluster names {members} members: restore each of them with the same --initial-cluster-token, \
                 which no other cluster has had, for example {}",
                unique_token()
            ))),
        }
    }
}

/// The members in the order in which they are named first, each with all its URLs.
fn members(text: &str) -> Result<Vec<(String, Vec<String>)>, CliError> {
    let mut members: Vec<(String, Vec<String>)> = Vec::new();
    for pair in text.split(',') {
        let (name, url) = pair
            .split_once('=')
            .ok_or_else(|| CliError::Usage(format!("--initial-cluster: {pair:?} is not NAME=URL")))?;
        match members.iter_mut().find(|(known, _)| known == name) {
            Some((_, urls)) => urls.push(url.to_owned()),
            None => members.push((name.to_owned(), vec![url.to_owned()])),
        }
    }
    Ok(members)
}
