//! What a verification tells.

use std::io::{self, Write};

use etcd_storage::chain::Plan;
use serde::Serialize;
use snapstore::{StoredSnapshot, chain as chains};

use crate::{
    chain::{Error, Fault, Revisions, Route, Verdict},
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
#[derive(Default, Serialize)]
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
    /// What isn't as it should be, though its data is whole.
    warning: Option<String>,
}

/// Whether the newest state can be restored.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Newest {
    /// True only if every snapshot on the way was read, and is whole; null if some couldn't be read.
    restorable: Option<bool>,
    /// The revision that a restore reaches.
    revision: Option<i64>,
    /// Snapshots that are damaged, and that others make up for.
    left_out: Vec<Fault>,
    damage: Option<DamageView>,
}

impl Chain {
    pub(super) fn new(chain: &chains::Chain<'_>) -> Self {
        let mut missing = Vec::new();
        let mut end = chain.base.map_or(0, |base| base.name.last_revision);
        let mut deltas: Vec<_> = chain.deltas.iter().filter(|delta| !delta.excluded).collect();
        deltas.sort_by_key(|delta| delta.name.start_revision);
        for delta in deltas {
            missing.extend(Revisions::between(
                end.saturating_add(1),
                delta.name.start_revision.saturating_sub(1),
            ));
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
        let (verdict, reason, revision, warning) = match verdict {
            Verdict::Sound { revision, warning } => ("sound", None, Some(revision), warning),
            Verdict::Damaged { reason } => ("damaged", Some(reason), None, None),
            Verdict::Unknown { reason } => ("unknown", Some(reason), None, None),
        };
        Self {
            snapshot: Snapshot::new(stored),
            verdict,
            reason,
            revision,
            warning,
        }
    }
}

impl Newest {
    /// `reached` tells the revision that is in a plan's snapshots; `None` if one of them couldn't be read.
    pub(super) fn new(route: &Result<Route, Error>, reached: impl Fn(&Plan) -> Option<i64>) -> Self {
        let damage = match route {
            Err(Error::Damaged(damage)) => Some(DamageView::new(damage)),
            _ => None,
        };
        let revision = route.as_ref().ok().and_then(|route| reached(&route.plan));
        Self {
            restorable: match route {
                Ok(_) => revision.map(|_| true),
                Err(_) => Some(false),
            },
            revision,
            left_out: route
                .as_ref()
                .map(|route| route.left_out.clone())
                .unwrap_or_default(),
            damage,
        }
    }

    fn told(&self) -> String {
        match (&self.damage, self.revision) {
            (Some(damage), _) => format!("the newest state can't be restored: {}", damage.message),
            (None, Some(revision)) if self.left_out.is_empty() => {
                format!("the newest state can be restored, revision {revision}")
            }
            (None, Some(revision)) => {
                let left_out: Vec<_> = self.left_out.iter().map(|fault| fault.object.as_str()).collect();
                let left_out = left_out.join(", ");
                format!("the newest state can be restored, revision {revision}, without {left_out}: no revision is lost")
            }
            (None, None) => {
                "whether the newest state can be restored isn't known: not every snapshot on the way could be read"
                    .to_owned()
            }
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
        if any("damaged") || holes || self.newest.restorable == Some(false) {
            Exit::Damaged
        } else if any("unknown") || self.newest.restorable.is_none() {
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
            let reason = checked
                .reason
                .as_deref()
                .or(checked.warning.as_deref())
                .unwrap_or_default();
            table.add_row([checked.snapshot.name.as_str(), checked.verdict, reason]);
        }
        write_table(&table, out)?;
        for missing in self.chains.iter().flat_map(|chain| &chain.missing) {
            writeln!(out, "{missing} are in no snapshot")?;
        }
        writeln!(out, "{}", self.newest.told())
    }
}
