//! `restore`: backups become a new data directory.

mod flags;
mod report;

use std::sync::Arc;

use etcd_storage::restore::{Options, Restored};
use snapstore::SnapStore;
use tokio::runtime::Handle;

pub(super) use self::flags::Args;
use self::report::Done;
use super::{Exit, error::CliError, progress::Bar, signal::Stop};
use crate::chain::{self, Catalog, Rescue, Route};

pub(super) async fn run(args: Args) -> Result<Exit, CliError> {
    let (wanted, founded) = (args.wanted.wanted(), args.cluster.found()?);
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
        let options = Options {
            data_dir: args.data_dir.clone(),
            cluster: founded.cluster.clone(),
            member: args.cluster.name.clone(),
            target: route.target,
            minor: args.etcd_version,
            bump_revision: args.bump_revision,
            unknown_lease_ttl: args.unknown_lease_ttl,
        };
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
