//! The way to a wanted state: straight if all is well, else around what is damaged, or as far as it goes.

use etcd_storage::{
    chain::{self, Kind, Link, Plan},
    object::Target,
};
use jiff::Timestamp;

use super::{Catalog, Cause, Damage, Fault, Rescue, Revisions};
use crate::restore::RAISE;

/// The state to be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The newest.
    Latest,
    /// That after a revision.
    Revision(i64),
    /// That at a time.
    Time(Timestamp),
    /// That at the end of a snapshot.
    Snapshot(String),
}

/// Why there is no way to the wanted state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Snapshots are missing or can't be used.
    #[error("{0}")]
    Damaged(Box<Damage>),
    /// The snapshots don't reach that state, though nothing is wrong with them.
    #[error(transparent)]
    OutOfReach(chain::Error),
    /// All full snapshots are newer.
    #[error("no full snapshot was taken before {0}")]
    TooEarly(Timestamp),
    /// There is no such snapshot.
    #[error("the store has no snapshot {0:?}")]
    NoSuchSnapshot(String),
}

/// A way to the wanted state.
#[derive(Debug, Clone)]
pub struct Route {
    /// The snapshots.
    pub plan: Plan,
    /// Where to stop in them.
    pub target: Target,
    /// Snapshots that belong on the way, but can't be used.
    pub left_out: Vec<Fault>,
    /// Revisions that are lost by that, or by holes.
    pub lost: Option<Revisions>,
}

impl Route {
    fn straight(plan: Plan, target: Target) -> Self {
        Self {
            plan,
            target,
            left_out: Vec::new(),
            lost: None,
        }
    }
}

impl Catalog {
    /// Finds the way to the wanted state. It goes around what is damaged when no revision is lost by that, and says so.
    /// With `fallback` it may also end before it; but a revision that was asked for is reached, or there is no way.
    pub fn route(&self, wanted: &Wanted, fallback: bool) -> Result<Route, Error> {
        let (links, target) = self.candidates(wanted)?;
        let bound = match target {
            Target::Revision(revision) => Some(revision),
            Target::Latest | Target::Time(_) => None,
        };
        let cause = match plan(&links, bound) {
            Ok(plan) => match self.first_fault(&plan) {
                None => return Ok(Route::straight(plan, target)),
                Some(fault) => Cause::Bad(fault),
            },
            Err(chain::Error::Gap(gap)) => match self.first_fault(&gap.reachable) {
                None => self.hole(&gap.before, &gap.behind),
                Some(fault) => Cause::Bad(fault),
            },
            Err(chain::Error::NoFull { .. }) => Cause::NoFull,
            Err(other) => return Err(Error::OutOfReach(other)),
        };
        let detour = self.detour(&links, bound);
        match detour.plan {
            Some(plan) if fallback || detour.lost.is_none() => Ok(Route {
                left_out: self.left_out(&links, &plan),
                lost: detour.lost,
                plan,
                target,
            }),
            plan => Err(Error::Damaged(Box::new(Damage {
                cause,
                missing: detour.missing,
                rescue: plan.map(|plan| Rescue {
                    revision: bound.unwrap_or(plan.end),
                    lost: detour.lost,
                }),
            }))),
        }
    }

    /// What may be on the way, and where the engine has to stop.
    fn candidates(&self, wanted: &Wanted) -> Result<(Vec<Link>, Target), Error> {
        let links = || {
            self.0
                .iter()
                .filter(|entry| !entry.is_left_out)
                .map(|entry| entry.link)
        };
        match wanted {
            Wanted::Latest => Ok((links().collect(), Target::Latest)),
            Wanted::Revision(revision) => Ok((links().collect(), Target::Revision(*revision))),
            Wanted::Time(time) => Ok((until(links(), *time)?, Target::Time(*time))),
            Wanted::Snapshot(name) => {
                let found = self.0.iter().find(|entry| entry.name == *name);
                let link = found.ok_or_else(|| Error::NoSuchSnapshot(name.clone()))?.link;
                Ok(match link.kind {
                    Kind::Full => (vec![link], Target::Latest),
                    Kind::Delta => (links().collect(), Target::Revision(link.last)),
                })
            }
        }
    }

    /// What can be had from the snapshots that nothing is known against.
    fn detour(&self, links: &[Link], bound: Option<i64>) -> Detour {
        let sound = |link: &&Link| self.0[link.index].fault.is_none();
        let usable: Vec<Link> = links.iter().filter(sound).copied().collect();
        let end = links.iter().map(|link| link.last).max().unwrap_or(0);
        // Short of a revision that was asked for nothing is of use.
        let lost = |reached: i64| match bound {
            None => Revisions::between(reached.saturating_add(1), end),
            Some(_) => None,
        };
        match plan(&usable, bound) {
            Ok(plan) => Detour {
                missing: lost(plan.end),
                lost: lost(plan.end),
                plan: Some(plan),
            },
            Err(chain::Error::Gap(gap)) => Detour {
                missing: Revisions::between(gap.from, gap.to),
                lost: lost(gap.reachable.end),
                plan: bound.is_none().then_some(gap.reachable),
            },
            Err(chain::Error::NoFull { first }) => Detour {
                missing: Revisions::between(1, first.saturating_sub(1)),
                ..Detour::default()
            },
            Err(_) => Detour::default(),
        }
    }

    fn first_fault(&self, plan: &Plan) -> Option<Fault> {
        let mut links = std::iter::once(&plan.base).chain(&plan.deltas);
        links.find_map(|link| self.fault(link))
    }

    fn fault(&self, link: &Link) -> Option<Fault> {
        let entry = &self.0[link.index];
        Some(Fault {
            object: entry.name.clone(),
            reason: entry.fault.clone()?,
        })
    }

    /// The bad snapshots that lie on the way of the plan or behind its end.
    fn left_out(&self, links: &[Link], plan: &Plan) -> Vec<Fault> {
        let on_the_way = |link: &&Link| match link.kind {
            Kind::Full => link.last >= plan.base.last,
            Kind::Delta => link.last > plan.base.last,
        };
        links
            .iter()
            .filter(on_the_way)
            .filter_map(|link| self.fault(link))
            .collect()
    }

    fn hole(&self, before: &Link, behind: &Link) -> Cause {
        let name = |link: &Link| self.0[link.index].name.clone();
        Cause::Hole {
            before: name(before),
            behind: name(behind),
        }
    }
}

/// Where the history begins that follows a restore after that time: the first full snapshot behind a jump which is
/// wider than any delta. Its deltas follow no snapshot from before, and nothing is missing between them.
fn raised_after(links: &[Link], time: Timestamp) -> Option<i64> {
    let begins = |full: &&Link| {
        let before = links
            .iter()
            .filter(|link| link.last < full.last)
            .map(|link| link.last);
        full.kind == Kind::Full
            && full.created_on > time.as_second()
            && before.max().is_some_and(|before| full.last - before >= RAISE)
    };
    links.iter().filter(begins).map(|full| full.last).min()
}

#[derive(Default)]
struct Detour {
    plan: Option<Plan>,
    missing: Option<Revisions>,
    lost: Option<Revisions>,
}

/// Plans by the names. A revision that the names don't reach may still be in the history of a newer full snapshot; the
/// engine sees whether it is.
fn plan(links: &[Link], bound: Option<i64>) -> Result<Plan, chain::Error> {
    let planned = chain::plan(links, bound);
    let (Some(bound), Err(chain::Error::TargetTooOld { .. } | chain::Error::TargetTooNew { .. })) =
        (bound, &planned)
    else {
        return planned;
    };
    let newer = links
        .iter()
        .filter(|link| link.kind == Kind::Full && link.last >= bound);
    match newer.min_by_key(|full| (full.last, full.created_on)) {
        Some(base) => Ok(Plan {
            base: *base,
            deltas: Vec::new(),
            end: bound,
        }),
        None => planned,
    }
}

/// The snapshots that were made until a time, and the deltas in which it may lie.
fn until(links: impl Iterator<Item = Link>, time: Timestamp) -> Result<Vec<Link>, Error> {
    let links: Vec<_> = links.collect();
    let raised = raised_after(&links, time);
    let links = links
        .into_iter()
        .filter(|link| raised.is_none_or(|raised| link.last < raised));
    // Times in names are cut to seconds: of that second it isn't known on which side they lie.
    let (mut before, after): (Vec<_>, Vec<_>) = links.partition(|link| link.created_on < time.as_second());
    if before.iter().all(|link| link.kind == Kind::Delta) {
        return Err(Error::TooEarly(time));
    }
    let mut deltas: Vec<_> = after
        .into_iter()
        .filter(|link| link.kind == Kind::Delta)
        .collect();
    // What was stored within that second didn't see its end; the first one of a later second did.
    let later = deltas.iter().filter(|delta| delta.created_on > time.as_second());
    let edge = later.map(|delta| delta.start).min();
    deltas.retain(|delta| edge.is_none_or(|edge| delta.start <= edge));
    before.append(&mut deltas);
    Ok(before)
}
