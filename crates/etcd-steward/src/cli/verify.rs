//! `verify`: are the backups what they claim to be?

mod report;

use std::{collections::HashMap, sync::Arc};

use futures::{StreamExt as _, stream};
use snapstore::{SnapStore, SnapshotName, StoredSnapshot, chain as chains};
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
    let mut judged = Judged::default();
    for (at, stored, verdict) in check_all(&store, parts).await? {
        judged.note(&mut catalog, &stored, &verdict);
        verified[at].snapshots.push(Checked::new(&stored, verdict));
    }
    // The way to the newest state may go around what is damaged: then what it takes instead is read as well.
    let route = loop {
        let route = match catalog.route(&Wanted::Latest, false) {
            Err(error @ (chain::Error::OutOfReach(_) | chain::Error::TooEarly(_))) => {
                return Err(CliError::Route(error));
            }
            Err(error) => break Err(error),
            Ok(route) => route,
        };
        let unread = catalog
            .snapshots(&route.plan)
            .filter(|stored| !judged.has(stored));
        let unread: Vec<_> = unread.map(|stored| (0, stored.clone())).collect();
        if unread.is_empty() {
            break Ok(route);
        }
        let mut more = Chain::default();
        for (_, stored, verdict) in check_all(&store, unread).await? {
            judged.note(&mut catalog, &stored, &verdict);
            more.snapshots.push(Checked::new(&stored, verdict));
        }
        verified.insert(0, more);
    };
    let newest = Newest::new(&route, |plan| judged.revision(catalog.snapshots(plan)));
    let report = Verified {
        store: store.location().to_owned(),
        chains: verified,
        newest,
    };
    args.output.print(&report)?;
    Ok(report.exit())
}

/// What was read so far: the revision that is in each snapshot, or none if it isn't sound.
#[derive(Debug, Default)]
struct Judged(HashMap<SnapshotName, Option<i64>>);

impl Judged {
    fn note(&mut self, catalog: &mut Catalog, stored: &StoredSnapshot, verdict: &Verdict) {
        if let Verdict::Damaged { reason } = verdict {
            catalog.condemn(&stored.name.to_string(), reason);
        }
        let revision = match verdict {
            Verdict::Sound { revision, .. } => Some(*revision),
            Verdict::Damaged { .. } | Verdict::Unknown { .. } => None,
        };
        self.0.insert(stored.name.clone(), revision);
    }

    fn has(&self, stored: &StoredSnapshot) -> bool {
        self.0.contains_key(&stored.name)
    }

    /// The last revision that is in some snapshots; `None` if one of them couldn't be read.
    fn revision<'a>(&self, snapshots: impl Iterator<Item = &'a StoredSnapshot>) -> Option<i64> {
        let revisions: Option<Vec<i64>> = snapshots
            .map(|stored| self.0.get(&stored.name).copied().flatten())
            .collect();
        revisions?.into_iter().max()
    }
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
