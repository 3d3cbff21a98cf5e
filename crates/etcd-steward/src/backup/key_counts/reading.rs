//! Reads what the judgement needs: manifests of full snapshots, each once, and deltas only when they may explain something.

use std::collections::{HashMap, HashSet};

use operator::reconcile::chain as causes;
use snapstore::{Class, Kind, Listing, SnapshotName, StoredSnapshot, manifest::Facts};
use tracing::warn;

use super::{
    super::{BackupError, history, owner::Owner, prefix_watch, upload::store_error},
    judgement::{Changes, Counted, Span, Verdict, judge},
};
use crate::chain;

/// What was read before.
#[derive(Debug, Default)]
pub(super) struct Reader {
    fulls: HashMap<SnapshotName, Facts>,
    /// By how many keys there are more after the events of a delta that lie in a span.
    deltas: HashMap<(SnapshotName, Span), i64>,
}

impl Reader {
    /// Judges the full snapshots that retention may collect, the oldest first.
    pub(super) async fn judge(&mut self, owner: &Owner) -> Result<(Vec<Counted>, Vec<Verdict>), BackupError> {
        let failed = |source| store_error(owner, source);
        let listing = owner.store.list().await.map_err(failed)?;
        let listing = prefix_watch::collectable(owner, owner.store.as_ref(), listing).await;
        let mut listing = listing.map_err(failed)?;
        listing.snapshots.retain(StoredSnapshot::is_usable);
        self.forget_others(&listing);
        let fulls = self.count(owner, &listing).await?;
        let mut spans = HashMap::new();
        loop {
            match judge(&fulls, |span| spans.get(&span).copied()) {
                Ok(verdicts) => return Ok((fulls, verdicts)),
                Err(span) => {
                    let changes = self.changes(owner, &listing, span).await?;
                    spans.insert(span, changes);
                }
            }
        }
    }

    fn forget_others(&mut self, listing: &Listing) {
        let listed: HashSet<_> = listing.snapshots.iter().map(|stored| &stored.name).collect();
        self.fulls.retain(|name, _| listed.contains(name));
        self.deltas.retain(|(name, _), _| listed.contains(name));
    }

    async fn count(&mut self, owner: &Owner, listing: &Listing) -> Result<Vec<Counted>, BackupError> {
        let mut counted = Vec::new();
        for stored in listing
            .snapshots
            .iter()
            .filter(|stored| stored.name.kind == Kind::Full)
        {
            let facts = match self.fulls.get(&stored.name) {
                Some(facts) => facts.clone(),
                // One may still come.
                None if stored.manifest.is_none() => Facts::default(),
                None => {
                    // What a manifest says that isn't signed as it should be counts for nothing.
                    let described = history::describe(owner, stored).await?;
                    if let Ok(Some(facts)) = &described {
                        self.fulls.insert(stored.name.clone(), facts.clone());
                    }
                    described.ok().flatten().unwrap_or_default()
                }
            };
            counted.push(Counted {
                name: stored.name.clone(),
                keys: facts.keys,
                is_accepted: facts.fewer_keys_accepted,
            });
        }
        // A cluster that was restored may count from a lower revision.
        counted.sort_by_key(|full| full.name.created_on);
        Ok(counted)
    }

    async fn changes(
        &mut self,
        owner: &Owner,
        listing: &Listing,
        span: Span,
    ) -> Result<Changes, BackupError> {
        let deltas = listing.snapshots.iter().filter(|stored| {
            let name = &stored.name;
            name.kind == Kind::Delta && name.last_revision > span.after && name.start_revision <= span.to
        });
        let (mut net, mut end, mut seen) = (0, span.after, span.after);
        for delta in deltas {
            let name = &delta.name;
            // Another one of the same revisions.
            if name.last_revision <= seen {
                continue;
            }
            if name.start_revision <= end + 1 {
                end = name.last_revision;
            }
            let part = Span {
                after: seen.max(name.start_revision - 1),
                to: span.to.min(name.last_revision),
            };
            net += self.net(owner, delta, part).await?;
            seen = name.last_revision;
        }
        Ok(Changes { net, end })
    }

    async fn net(&mut self, owner: &Owner, delta: &StoredSnapshot, part: Span) -> Result<i64, BackupError> {
        let key = (delta.name.clone(), part);
        if let Some(net) = self.deltas.get(&key) {
            return Ok(*net);
        }
        let net = match chain::key_changes(&owner.store, delta, part.after, part.to).await {
            Ok(net) => net,
            Err(error) => {
                let class = chain::store_error(&error).unwrap_or(Class::Corrupt);
                let failed = snapstore::Error::new(class, format!("read {}", delta.name), causes(&error));
                if class != Class::Corrupt {
                    return Err(store_error(owner, failed));
                }
                warn!(name = %delta.name, error = causes(&error), "a delta can't explain anything");
                0
            }
        };
        self.deltas.insert(key, net);
        Ok(net)
    }
}
