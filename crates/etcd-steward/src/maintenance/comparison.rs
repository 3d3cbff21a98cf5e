//! Whether all members have the same data: their hashes of one revision are compared, and the majority decides. etcd's own
//! checks are off unless they are asked for, and blame the member that isn't the leader.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;

use super::{Maintenance, MaintenanceError};
use crate::{
    backup,
    etcd::{Consistency, call, list_members},
};

/// A member reads its whole database for its hash.
const HASH_DEADLINE: Duration = Duration::from_mins(5);

/// What a member has: the revision up to which its history is compacted, and the hash of what is left of it.
type Hash = (i64, u32);

/// A member: its ID, for a name goes on to the next one, and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) id: u64,
    pub(super) name: String,
}

/// What a comparison has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Comparison {
    /// Those whose data differs from the majority's.
    pub(super) differing: Vec<Named>,
    /// Whether all members vote, have answered, and have the same data.
    pub(super) all_agree: bool,
    /// How many members there are.
    pub(super) members: usize,
}

/// The names, for people.
pub(super) fn names(members: &[Named]) -> String {
    let names: Vec<_> = members.iter().map(|member| member.name.as_str()).collect();
    names.join(", ")
}

impl Maintenance {
    /// Compares the members' data at one revision; `None` when there is no majority, or too few answer.
    pub(super) async fn compare(&self) -> Result<Option<Comparison>, MaintenanceError> {
        let mut client = self.connector.local().await?;
        let revision = backup::revision(&mut client).await?;
        let listed = list_members(&mut client, Consistency::Quorum).await?;
        let hashes = listed.members().iter().map(|member| async move {
            let mut client = self.connector.remote(member.client_urls()).await.ok()?;
            let hashed = call("hash the data", HASH_DEADLINE, client.hash_kv(revision))
                .await
                .ok()?;
            let named = Named {
                id: member.id(),
                name: member.name().to_owned(),
            };
            Some((named, (hashed.compact_version(), hashed.hash())))
        });
        let hashes: Vec<_> = join_all(hashes).await.into_iter().flatten().collect();
        let found = compared(&hashes, listed.members().len());
        let all_vote = !listed.members().iter().any(etcd_client::Member::is_learner);
        Ok(found.map(|found| Comparison {
            all_agree: found.all_agree && all_vote,
            ..found
        }))
    }
}

/// Those that differ from what more than half of all members have. Hashes are those of the history too, so they only
/// compare after the same compaction: a member that compacts a moment later is none of those.
fn compared(hashes: &[(Named, Hash)], members: usize) -> Option<Comparison> {
    let mut counts = BTreeMap::new();
    for (_, hash) in hashes {
        *counts.entry(hash).or_insert(0_usize) += 1;
    }
    let (majority, _) = counts.into_iter().find(|(_, count)| *count > members / 2)?;
    let differs = |hash: &Hash| hash.0 == majority.0 && hash.1 != majority.1;
    let differing = hashes.iter().filter(|(_, hash)| differs(hash));
    Some(Comparison {
        differing: differing.map(|(named, _)| named.clone()).collect(),
        all_agree: hashes.len() == members && hashes.iter().all(|(_, hash)| hash == majority),
        members,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only a majority of all members, not of those that answer, says who is wrong.
    #[test]
    fn the_majority_tells_who_differs() {
        let found = |list: &[(&str, i64, u32)], members| {
            let named = |name: &str| Named {
                id: 0,
                name: name.to_owned(),
            };
            let hashes: Vec<_> = list
                .iter()
                .map(|(name, compacted, hash)| (named(name), (*compacted, *hash)))
                .collect();
            let found = compared(&hashes, members)?;
            Some((names(&found.differing), found.all_agree))
        };
        let told = |names: &str, all_agree| Some((names.to_owned(), all_agree));
        assert_eq!(
            found(&[("a", 5, 1), ("b", 5, 2), ("c", 5, 1)], 3),
            told("b", false)
        );
        assert_eq!(found(&[("a", 5, 1), ("b", 5, 1), ("c", 5, 1)], 3), told("", true));
        // One doesn't answer.
        assert_eq!(found(&[("a", 5, 1), ("b", 5, 1)], 3), told("", false));
        // A compaction later.
        assert_eq!(
            found(&[("a", 5, 1), ("b", 4, 2), ("c", 5, 1)], 3),
            told("", false)
        );
        assert_eq!(found(&[("a", 5, 1), ("b", 5, 2)], 3), None);
        assert_eq!(found(&[("a", 5, 1)], 3), None);
        assert_eq!(found(&[("a", 5, 1), ("b", 5, 2), ("c", 5, 3)], 3), None);
    }
}
