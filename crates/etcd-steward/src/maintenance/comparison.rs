//! Whether all members have the same data: their hashes of one revision are compared, and the majority decides. etcd's own
//! checks are off unless they are asked for, and blame the member that isn't the leader.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;

use super::{Maintenance, MaintenanceError};
use crate::{
    backup,
    etcd::{CALL_TIMEOUT, call},
};

/// A member reads its whole database for its hash.
const HASH_DEADLINE: Duration = Duration::from_mins(5);

/// What a member has: the revision up to which its history is compacted, and the hash of what is left of it.
type Hash = (i64, u32);

impl Maintenance {
    /// Compares the members' data at one revision. Returns the names of those that differ from the majority; `None` when
    /// there is no majority, or too few answer.
    pub(super) async fn differing_members(&self) -> Result<Option<Vec<String>>, MaintenanceError> {
        let mut client = self.connector.local().await?;
        let revision = backup::revision(&mut client).await?;
        let listed = call("list members", CALL_TIMEOUT, client.member_list()).await?;
        let hashes = listed.members().iter().map(|member| async move {
            let mut client = self.connector.remote(member.client_urls()).await.ok()?;
            let hashed = call("hash the data", HASH_DEADLINE, client.hash_kv(revision))
                .await
                .ok()?;
            Some((
                member.name().to_owned(),
                (hashed.compact_version(), hashed.hash()),
            ))
        });
        let hashes: Vec<_> = join_all(hashes).await.into_iter().flatten().collect();
        Ok(minority(&hashes, listed.members().len()))
    }
}

/// Those that differ from what more than half of all members have. Hashes are those of the history too, so they only
/// compare after the same compaction: a member that compacts a moment later is none of those.
fn minority(hashes: &[(String, Hash)], members: usize) -> Option<Vec<String>> {
    let mut counts = BTreeMap::new();
    for (_, hash) in hashes {
        *counts.entry(hash).or_insert(0_usize) += 1;
    }
    let (majority, _) = counts.into_iter().find(|(_, count)| *count > members / 2)?;
    let differs = |hash: &Hash| hash.0 == majority.0 && hash.1 != majority.1;
    let differing = hashes.iter().filter(|(_, hash)| differs(hash));
    Some(differing.map(|(name, _)| name.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only a majority of all members, not of those that answer, says who is wrong.
    #[test]
    fn the_majority_tells_who_differs() {
        let found = |list: &[(&str, i64, u32)], members| {
            let hashes: Vec<_> = list
                .iter()
                .map(|(name, compacted, hash)| ((*name).to_owned(), (*compacted, *hash)))
                .collect();
            minority(&hashes, members)
        };
        let b = Some(vec!["b".to_owned()]);
        assert_eq!(found(&[("a", 5, 1), ("b", 5, 2), ("c", 5, 1)], 3), b);
        assert_eq!(found(&[("a", 5, 1), ("b", 5, 1), ("c", 5, 1)], 3), Some(vec![]));
        // A compaction later.
        assert_eq!(found(&[("a", 5, 1), ("b", 4, 2), ("c", 5, 1)], 3), Some(vec![]));
        assert_eq!(found(&[("a", 5, 1), ("b", 5, 2)], 3), None);
        assert_eq!(found(&[("a", 5, 1)], 3), None);
        assert_eq!(found(&[("a", 5, 1), ("b", 5, 2), ("c", 5, 3)], 3), None);
    }
}
