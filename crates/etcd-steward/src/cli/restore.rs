//! `restore`: backups become a new data directory.

mod flags;
mod report;

use std::{
    fs::{File, TryLockError},
    path::Path,
    sync::Arc,
};

use etcd_storage::{
    cluster::NewCluster,
    compression::Compression,
    object::{Chain, Object, Target},
    restore::{Options, Restored},
};
use snapstore::SnapStore;
use tokio::runtime::Handle;

pub(super) use self::flags::Args;
use self::report::Done;
use super::{Exit, error::CliError, progress::Bar, signal::Stop};
use crate::chain::{self, Catalog, Rescue, Route};

pub(super) async fn run(args: Args) -> Result<Exit, CliError> {
    let (wanted, founded) = (args.wanted.wanted(), args.cluster.found()?);
    if let Some(path) = &args.db {
        let restored = from_file(path, options(&args, &founded.cluster, Target::Latest)).await?;
        let report = Done::of(&args, founded.token, vec![path.display().to_string()], restored);
        args.output.print(&report)?;
        return Ok(Exit::Done);
    }
    let store = args.store.open()?;
    let listing = store.list().await?;
    if let Some(young) = listing.unsettled.first() {
        return Err(CliError::Unsettled(young.name.clone()));
    }
    let mut catalog = Catalog::new(listing);
    if let Some(uid) = &args.etcd_uid {
        catalog.prefer(&store, uid).await?;
    }
    let stop = Stop::on_signal()?;
    loop {
        let found = catalog.find(&store, &wanted, args.fallback).await;
        let route = found.map_err(|error| CliError::of(error, advise))?;
        let options = options(&args, &founded.cluster, route.target);
        match restore(&store, &catalog, &route, options, stop.clone()).await {
            // The next way goes around it, or its refusal says what is missing without it.
            Err(CliError::Engine(error)) if catalog.condemn_for(&error) => {}
            restored => {
                let report = Done::new(&args, founded.token, &catalog, route, restored?);
                args.output.print(&report)?;
                return Ok(Exit::Done);
            }
        }
    }
}

fn options(args: &Args, cluster: &NewCluster, target: Target) -> Options {
    Options {
        data_dir: args.data_dir.clone(),
        cluster: cluster.clone(),
        member: args.cluster.name.clone(),
        target,
        minor: args.etcd_version,
        bump_revision: args.bump_revision,
        unknown_lease_ttl: args.unknown_lease_ttl,
        consent: args.consent(),
    }
}

/// Restores a database, or an uncompressed full snapshot, that nobody writes to. The lock goes with the file.
async fn from_file(path: &Path, options: Options) -> Result<Restored, CliError> {
    let opened = || CliError::io(format!("open {}", path.display()));
    let file = File::open(path).map_err(opened())?;
    match file.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(CliError::Locked(path.to_owned())),
        Err(TryLockError::Error(error)) => return Err(opened()(error)),
    }
    let name = path.to_owned();
    let base = Object {
        name: path.display().to_string(),
        compression: Compression::None,
        start: 0,
        last: 0,
        open: Box::new(move || Ok(Box::new(File::open(&name)?))),
    };
    let (base, deltas) = (base, Vec::new());
    let chain = Chain { base, deltas };
    let stop = Stop::on_signal()?;
    let work = tokio::task::spawn_blocking(move || {
        let restored = etcd_storage::restore::restore(&chain, &options, &mut |_| stop.go_on());
        drop(file);
        restored
    });
    Ok(work.await??)
}

/// Runs the engine on a thread that may block.
async fn restore(
    store: &Arc<dyn SnapStore>,
    catalog: &Catalog,
    route: &Route,
    options: Options,
    stop: Stop,
) -> Result<Restored, CliError> {
    let source = catalog.open(store, &route.plan, &Handle::current());
    let bar = Bar::new(source.size, "restoring");
    let work = tokio::task::spawn_blocking(move || {
        let mut tell = |progress| {
            bar.follow("restoring", progress, &source.fetched);
            stop.go_on()
        };
        etcd_storage::restore::restore(&source.chain, &options, &mut tell)
    });
    Ok(work.await??)
}

/// Says what can be done about a broken chain.
fn advise(error: chain::Error) -> CliError {
    let chain::Error::Damaged(damage) = error else {
        return CliError::Route(error);
    };
    let advice = match damage.rescue {
        None => "; there is no other way to that state".to_owned(),
        Some(Rescue { revision, lost: None }) => {
            format!("; --fallback restores revision {revision} from the other snapshots, nothing is lost")
        }
        Some(Rescue {
            revision,
            lost: Some(lost),
        }) => format!("; --fallback restores revision {revision}, and {lost} are lost"),
    };
    CliError::Damaged { damage, advice }
}
