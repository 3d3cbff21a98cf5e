//! `verify`: are the backups what they claim to be?

mod report;

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use snapstore::{SnapStore, StoredSnapshot, chain as chains};
use tokio::runtime::Handle;

use self::report::{Chain, Checked, Newest, Verified};
use super::{Exit, error::CliError, output::Output, progress::Bar, store::StoreArgs};
use crate::chain::{self, Catalog, Verdict, Wanted};

/// Snapshots that are read at once.
const AT_ONCE: usize = 4;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    pub(super) output: Output,
    /// Verify all snapshots, not only the newest full one and its deltas.
    #[arg(long)]
    all: bool,
}

pub(super) async fn run(args: Args) -> Result<Exit, CliError> {
    let store = args.store.open()?;
    let listing = store.list().await?;
    let (mut chains, _) = chains::group(&listing.snapshots, |snapshot| !snapshot.excluded);
    if !args.all {
        chains = chains.split_off(chains.len().saturating_sub(1));
    }
    let of_chain = |(at, chain): (usize, &chains::Chain<'_>)| {
        let parts = chain.parts().filter(|part| !part.excluded);
        parts.map(|part| (at, part.clone())).collect::<Vec<_>>()
    };
    let parts: Vec<_> = chains.iter().enumerate().flat_map(of_chain).collect();
    let mut verified: Vec<Chain> = chains.iter().map(Chain::new).collect();
    let mut catalog = Catalog::new(listing.clone());
    for (at, stored, verdict) in check_all(&store, parts).await? {
        if let Verdict::Damaged { reason } = &verdict {
            catalog.condemn(&stored.name.to_string(), reason);
        }
        verified[at].snapshots.push(Checked::new(&stored, verdict));
    }
    let newest = match catalog.route(&Wanted::Latest, false) {
        Err(error @ (chain::Error::OutOfReach(_) | chain::Error::TooEarly(_))) => {
            return Err(CliError::Route(error));
        }
        route => Newest::new(&route),
    };
    let report = Verified {
        store: store.location().to_owned(),
        chains: verified,
        newest,
    };
    args.output.print(&report)?;
    Ok(report.exit())
}

/// Reads the snapshots, several at a time.
async fn check_all(
    store: &Arc<dyn SnapStore>,
    parts: Vec<(usize, StoredSnapshot)>,
) -> Result<Vec<(usize, StoredSnapshot, Verdict)>, CliError> {
    let bytes = parts.iter().map(|(_, stored)| stored.object.size).sum();
    let bar = Bar::new(bytes, "verifying");
    let runtime = Handle::current();
    let checks = parts.into_iter().map(|(at, stored)| {
        let (store, runtime, bar) = (Arc::clone(store), runtime.clone(), bar.clone());
        async move {
            let verdict = chain::read_back(&store, &stored, &runtime).await?;
            bar.add(stored.object.size);
            Ok((at, stored, verdict))
        }
    });
    let verdicts: Vec<Result<_, CliError>> = stream::iter(checks).buffered(AT_ONCE).collect().await;
    verdicts.into_iter().collect()
}
