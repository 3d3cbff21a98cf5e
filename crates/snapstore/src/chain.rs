//! Chains: a full snapshot and the deltas that follow it, up to the next full one.

use crate::{listing::StoredSnapshot, name::Kind};

/// A full snapshot and the deltas after it by revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain<'a> {
    /// None: the deltas have no full snapshot before them.
    pub base: Option<&'a StoredSnapshot>,
    /// Ascending; gaps, overlaps and excluded ones are possible.
    pub deltas: Vec<&'a StoredSnapshot>,
}

impl<'a> Chain<'a> {
    /// All parts in the order in which a restore needs them.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = &'a StoredSnapshot> + '_ {
        self.base.into_iter().chain(self.deltas.iter().copied())
    }
}

/// Groups snapshots (ascending, as in a listing) into chains, ascending. Fulls that `is_base` refuses begin no chain:
/// they are returned apart, and the deltas after them belong to the chain before.
pub fn group(
    snapshots: &[StoredSnapshot],
    is_base: impl Fn(&StoredSnapshot) -> bool,
) -> (Vec<Chain<'_>>, Vec<&StoredSnapshot>) {
    let (mut chains, mut others) = (Vec::<Chain<'_>>::new(), Vec::new());
    for snapshot in snapshots {
        match (snapshot.name.kind, chains.last_mut()) {
            (Kind::Full, _) if is_base(snapshot) => {
                chains.push(Chain {
                    base: Some(snapshot),
                    deltas: Vec::new(),
                });
            }
            (Kind::Full, _) => others.push(snapshot),
            (Kind::Delta, Some(chain)) => chain.deltas.push(snapshot),
            (Kind::Delta, None) => chains.push(Chain {
                base: None,
                deltas: vec![snapshot],
            }),
        }
    }
    (chains, others)
}
