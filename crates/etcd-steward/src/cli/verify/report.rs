//! What a verification tells.

use std::io::{self, Write};

use serde::Serialize;
use snapstore::{StoredSnapshot, chain as chains};

use crate::{
    chain::{Error, Revisions, Route, Verdict},
    cli::{
        Exit,
        output::{DamageView, Report, Snapshot, columns, write_table},
    },
};

#[derive(Serialize)]
pub(super) struct Verified {
    pub(super) store: String,
    /// Ascending.
    pub(super) chains: Vec<Chain>,
    pub(super) newest: Newest,
}

/// A full snapshot and the deltas up to the next one.
#[derive(Serialize)]
pub(super) struct Chain {
    /// Ascending; the full snapshot first, unless there is none.
    pub(super) snapshots: Vec<Checked>,
    /// Revisions between its snapshots that none of them has.
    missing: Vec<Revisions>,
}

#[derive(Serialize)]
pub(super) struct Checked {
    #[serde(flatten)]
    snapshot: Snapshot,
    /// `sound`, `damaged` or `unknown`.
    verdict: &'static str,
    /// Why it isn't sound.
    reason: Option<String>,
    /// The last revision that is in it, if it is sound.
    revision: Option<i64>,
}

/// Whether the newest state can be restored.
#[derive(Serialize)]
pub(super) struct Newest {
    restorable: bool,
    /// The revision that a restore reaches.
    revision: Option<i64>,
    damage: Option<DamageView>,
}

impl Chain {
    pub(super) fn new(chain: &chains::Chain<'_>) -> Self {
        let mut missing = Vec::new();
        let mut end = chain.base.map_or(0, |base| base.name.last_revision);
        let mut deltas: Vec<_> = chain.deltas.iter().filter(|delta| !delta.excluded).collect();
        deltas.sort_by_key(|delta| delta.name.start_revision);
        for delta in deltas {
            missing.extend(Revisions::between(end + 1, delta.name.start_revision - 1));
            end = end.max(delta.name.last_revision);
        }
        Self {
            snapshots: Vec::new(),
            missing,
        }
    }
}

impl Checked {
    pub(super) fn new(stored: &StoredSnapshot, verdict: Verdict) -> Self {
        let (verdict, reason, revision) = match verdict {
            Verdict::Sound { revision } => ("sound", None, Some(revision)),
            Verdict::Damaged { reason } => ("damaged", Some(reason), None),
            Verdict::Unknown { reason } => ("unknown", Some(reason), None),
        };
        Self {
            snapshot: Snapshot::new(stored),
            verdict,
            reason,
            revision,
        }
    }
}

impl Newest {
    pub(super) fn new(route: &Result<Route, Error>) -> Self {
        let damage = match route {
            Err(Error::Damaged(damage)) => Some(DamageView::new(damage)),
            _ => None,
        };
        Self {
            restorable: route.is_ok(),
            revision: route.as_ref().ok().map(|route| route.plan.end),
            damage,
        }
    }
}

impl Verified {
    /// What couldn't be read isn't verified, but not damaged either.
    pub(super) fn exit(&self) -> Exit {
        let any = |verdict: &str| {
            let mut all = self.chains.iter().flat_map(|chain| &chain.snapshots);
            all.any(|checked| checked.verdict == verdict)
        };
        let holes = self.chains.iter().any(|chain| !chain.missing.is_empty());
        if any("damaged") || holes || !self.newest.restorable {
            Exit::Damaged
        } else if any("unknown") {
            Exit::Failed
        } else {
            Exit::Done
        }
    }
}

impl Report for Verified {
    fn table(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = columns(&["SNAPSHOT", "VERDICT", "REASON"]);
        for checked in self.chains.iter().flat_map(|chain| &chain.snapshots) {
            let reason = checked.reason.as_deref().unwrap_or_default();
            table.add_row([checked.snapshot.name.as_str(), checked.verdict, reason]);
        }
        write_table(&table, out)?;
        for missing in self.chains.iter().flat_map(|chain| &chain.missing) {
            writeln!(out, "{missing} are in no snapshot")?;
        }
        match (&self.newest.damage, self.newest.revision) {
            (Some(damage), _) => writeln!(out, "the newest state can't be restored: {}", damage.message),
            (None, Some(revision)) => writeln!(out, "the newest state can be restored, revision {revision}"),
            (None, None) => Ok(()),
        }
    }
}
