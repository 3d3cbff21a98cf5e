//! Which objects of a store may go. One pure function decides for every object, by which rule and until when; the
//! collector and `explain` both show its answer.
//!
//! The unit is the chain. What is needed to restore the newest proven state is never touched, and no part of a chain
//! goes before what can't be restored without it.

mod collect;
mod fulls;
mod rule;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

pub use self::{
    collect::{Collected, Failed, collect},
    rule::Rule,
};
use crate::{
    chain::{self, Chain},
    listing::{Listing, Object, StoredSnapshot, Unparsable},
    name::{Kind, NameError, SnapshotName},
};

/// What to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub fulls: KeepFulls,
    /// How long the deltas of chains other than the newest are kept, counted from the last one of the chain. As long
    /// as they are, so is their full snapshot.
    pub delta_retention: SignedDuration,
    /// When what an upload left that never finished may be cleared away.
    pub leftovers_after: SignedDuration,
    /// What was created before is of an earlier cluster with the same prefix and isn't touched.
    pub history_start: Option<Timestamp>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            fulls: KeepFulls::Exponential,
            delta_retention: SignedDuration::ZERO,
            leftovers_after: SignedDuration::from_hours(24),
            history_start: None,
        }
    }
}

/// Which full snapshots are kept besides the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepFulls {
    /// All of the current hour, the last of each hour of today, the last of each of the 7 days before, the last of
    /// each calendar week in the 28 days before these. Hours, days and weeks (from Monday) are those of UTC.
    Exponential,
    /// So many, the newest included.
    LimitBased { max_backups: u32 },
}

/// What is to be done with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    Keep,
    Delete,
    /// To be deleted as soon as the store lets it.
    Locked,
}

/// What becomes of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision<'a> {
    pub object: &'a Object,
    /// None if it is no snapshot.
    pub name: Option<&'a SnapshotName>,
    /// What describes the snapshot: it goes when the snapshot is gone.
    pub manifest: Option<&'a Object>,
    pub action: Action,
    pub rule: Rule,
    /// Of what is kept or locked: when it may go, as things are now. None: unknown, or not by time.
    pub until: Option<Timestamp>,
}

/// Decides for all objects of a store: snapshots chain by chain, then what is none. `proven` says whether a full
/// snapshot may be relied on; without such knowledge say yes: that it is there, not empty and not excluded is seen
/// to here.
///
/// Deletions are meant to be done from the end, so that what is left of a chain can always be restored.
pub fn plan<'a>(
    listing: &'a Listing,
    policy: &Policy,
    proven: impl Fn(&StoredSnapshot) -> bool,
    now: Timestamp,
) -> Vec<Decision<'a>> {
    let judge = Judge { policy, now };
    let mut decisions = judge.snapshots(listing, proven);
    for orphan in &listing.orphans {
        decisions.push(judge.leftover(&orphan.object).on(&orphan.object));
    }
    for chunk in &listing.chunks {
        decisions.push(judge.leftover(&chunk.object).on(&chunk.object));
    }
    for unknown in &listing.unparsable {
        decisions.push(Verdict::keep(Rule::NotUnderstood, None).on(&unknown.object));
    }
    decisions
}

/// Leaves only the snapshots in a listing that the policy keeps. `proven`: see [`plan`].
pub(crate) fn leave_kept(
    listing: &mut Listing,
    policy: &Policy,
    proven: impl Fn(&StoredSnapshot) -> bool,
    now: Timestamp,
) {
    let decisions = plan(listing, policy, proven, now);
    let kept = decisions
        .iter()
        .filter(|decision| decision.action == Action::Keep);
    let kept: HashSet<_> = kept.filter_map(|decision| decision.name.cloned()).collect();
    listing.snapshots.retain(|stored| kept.contains(&stored.name));
}

/// A decision before it is bound to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Verdict {
    action: Action,
    rule: Rule,
    until: Option<Timestamp>,
}

impl Verdict {
    const fn keep(rule: Rule, until: Option<Timestamp>) -> Self {
        Self {
            action: Action::Keep,
            rule,
            until,
        }
    }

    const fn delete(rule: Rule) -> Self {
        Self {
            action: Action::Delete,
            rule,
            until: None,
        }
    }

    fn on(self, object: &Object) -> Decision<'_> {
        let Self { action, rule, until } = self;
        Decision {
            object,
            name: None,
            manifest: None,
            action,
            rule,
            until,
        }
    }

    fn on_snapshot(self, stored: &StoredSnapshot) -> Decision<'_> {
        Decision {
            name: Some(&stored.name),
            manifest: stored.manifest.as_ref(),
            ..self.on(&stored.object)
        }
    }
}

/// The newest proven fulls. In one history both are of the same one; once a new cluster has begun to count from 1 in
/// the same place they aren't, and what follows either is kept.
struct Newest<'a> {
    by_revision: &'a SnapshotName,
    created_on: Timestamp,
}

impl Newest<'_> {
    fn covers(&self, name: &SnapshotName) -> bool {
        name >= self.by_revision || name.created_on >= self.created_on
    }
}

struct Judge<'p> {
    policy: &'p Policy,
    now: Timestamp,
}

impl Judge<'_> {
    fn snapshots<'a>(
        &self,
        listing: &'a Listing,
        proven: impl Fn(&StoredSnapshot) -> bool,
    ) -> Vec<Decision<'a>> {
        let is_base = |s: &StoredSnapshot| s.is_usable() && !self.is_earlier(&s.name);
        let (chains, others) = chain::group(&listing.snapshots, is_base);
        let newest = || {
            chains
                .iter()
                .filter_map(|chain| chain.base)
                .filter(|base| proven(base))
                .map(|b| &b.name)
        };
        let newest = newest()
            .next_back()
            .zip(newest().map(|name| name.created_on).max());
        let newest = newest.map(|(by_revision, created_on)| Newest {
            by_revision,
            created_on,
        });
        let fulls = self.fulls(&chains);
        let orphan = if has_unknown_full(listing) {
            Verdict::keep(Rule::AfterUnknownFull, None)
        } else {
            Verdict::delete(Rule::NoFullBefore)
        };
        let mut decisions = Vec::new();
        for (chain, full) in chains.iter().zip(fulls) {
            let delta = chain
                .base
                .map_or(orphan, |_| Verdict::delete(Rule::DeltaRetentionOver));
            decisions.extend(self.chain(chain, full, delta, newest.as_ref()));
        }
        for other in others {
            let verdict = self
                .protect(&other.name, newest.as_ref())
                .unwrap_or(Verdict::delete(Rule::Unusable));
            decisions.push(self.unless_locked(verdict, &other.object).on_snapshot(other));
        }
        decisions
    }

    /// What the policy says of each chain's full snapshot; nothing of importance for deltas without one.
    fn fulls(&self, chains: &[Chain<'_>]) -> Vec<Verdict> {
        let created = |at: usize| chains[at].base.map(|base| base.name.created_on);
        let mut by_age: Vec<_> = (0..chains.len())
            .filter(|at| chains[*at].base.is_some())
            .collect();
        by_age.sort_by_key(|at| created(*at));
        let times: Vec<_> = by_age.iter().copied().filter_map(created).collect();
        let mut verdicts = vec![Verdict::delete(Rule::NoFullBefore); chains.len()];
        for (at, verdict) in by_age
            .into_iter()
            .zip(fulls::verdicts(&times, self.policy.fulls, self.now))
        {
            verdicts[at] = verdict;
        }
        verdicts
    }

    /// Decides for the parts of one chain, given what its full and its deltas are worth by themselves.
    fn chain<'a>(
        &self,
        chain: &Chain<'a>,
        full: Verdict,
        delta: Verdict,
        newest: Option<&Newest<'_>>,
    ) -> Vec<Decision<'a>> {
        let last_delta = chain.deltas.iter().map(|delta| delta.name.created_on).max();
        let retained = last_delta
            .and_then(|created| created.checked_add(self.policy.delta_retention).ok())
            .filter(|until| *until > self.now)
            .map(|until| Verdict::keep(Rule::WithinDeltaRetention, Some(until)));
        // Set when a later part stays: until when.
        let mut needed = None;
        let mut decisions = Vec::new();
        for part in chain.parts().rev() {
            let own = match part.name.kind {
                Kind::Full if full.action == Action::Keep => full,
                Kind::Full => retained.unwrap_or(full),
                Kind::Delta => retained.unwrap_or(delta),
            };
            let verdict = self.protect(&part.name, newest).unwrap_or(own);
            let verdict = match needed {
                Some(until) if verdict.action == Action::Delete => Verdict::keep(Rule::NeededByLater, until),
                _ => self.unless_locked(verdict, &part.object),
            };
            if verdict.action != Action::Delete {
                needed = Some(verdict.until);
            }
            decisions.push(verdict.on_snapshot(part));
        }
        decisions.reverse();
        decisions
    }

    /// What no policy may touch.
    fn protect(&self, name: &SnapshotName, newest: Option<&Newest<'_>>) -> Option<Verdict> {
        match newest {
            _ if self.is_earlier(name) => Some(Verdict::keep(Rule::EarlierHistory, None)),
            None => Some(Verdict::keep(Rule::NoProvenChain, None)),
            Some(newest) if newest.covers(name) => Some(Verdict::keep(Rule::NewestChain, None)),
            Some(_) => None,
        }
    }

    fn is_earlier(&self, name: &SnapshotName) -> bool {
        self.policy
            .history_start
            .is_some_and(|start| name.created_on < start)
    }

    fn leftover(&self, object: &Object) -> Verdict {
        let until = object
            .last_modified
            .and_then(|t| t.checked_add(self.policy.leftovers_after).ok());
        match until {
            Some(passed) if passed <= self.now => self.unless_locked(Verdict::delete(Rule::Leftover), object),
            _ => Verdict::keep(Rule::UploadInProgress, until),
        }
    }

    fn unless_locked(&self, verdict: Verdict, object: &Object) -> Verdict {
        match object.immutable_until.filter(|until| *until > self.now) {
            Some(until) if verdict.action == Action::Delete => Verdict {
                action: Action::Locked,
                until: Some(until),
                ..verdict
            },
            _ => verdict,
        }
    }
}

/// A full snapshot of a form that is unknown here may be what deltas depend on.
fn has_unknown_full(listing: &Listing) -> bool {
    let is_snapshot = |unknown: &Unparsable| matches!(unknown.reason, NameError::Compression(_));
    listing.unparsable.iter().any(is_snapshot)
}
