//! How far the member's Raft log is known to reach, kept where its volume isn't: with the heartbeat Lease, which is written
//! anyway. A volume that holds less was put back to an earlier state, and has lost what the member acknowledged since.

use std::{fmt, str::FromStr};

use api::v1alpha1::EtcdMemberStatus;
use etcd_storage::validate::DataDir;

use crate::etcd::hex_id;

/// An index that a member of a cluster has stored in its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredIndex {
    /// The member's ID.
    member: String,
    /// The cluster's ID.
    cluster: String,
    /// The index.
    pub index: u64,
}

impl StoredIndex {
    /// The newest index that etcd tells of. Whether it is stored yet isn't said.
    fn told(status: &EtcdMemberStatus) -> Option<Self> {
        Some(Self {
            member: status.id.clone()?,
            cluster: status.cluster_id.clone()?,
            index: u64::try_from(status.raft_index?).ok()?,
        })
    }

    fn is_of_same(&self, other: &Self) -> bool {
        (&self.member, &self.cluster) == (&other.member, &other.cluster)
    }

    /// Whether a data directory is that member's.
    pub(crate) fn is_of(&self, found: &DataDir) -> bool {
        let (member, cluster) = (found.member_id, found.cluster_id);
        member.is_some_and(|id| hex_id(id.0) == self.member)
            && cluster.is_some_and(|id| hex_id(id.0) == self.cluster)
    }
}

impl fmt::Display for StoredIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.member, self.cluster, self.index)
    }
}

impl FromStr for StoredIndex {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split(':');
        let (Some(member), Some(cluster), Some(index), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(());
        };
        Ok(Self {
            member: member.to_owned(),
            cluster: cluster.to_owned(),
            index: index.parse().map_err(|_| ())?,
        })
    }
}

/// Follows what etcd tells, and knows what of it is stored for sure.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    last: Option<StoredIndex>,
    stored: Option<StoredIndex>,
}

impl Tracker {
    /// etcd tells of an index that is committed a moment before it has stored the entries, and of a greater one only after
    /// that. So the one before is stored.
    pub(super) fn see(&mut self, status: &EtcdMemberStatus) -> Option<&StoredIndex> {
        let now = StoredIndex::told(status)?;
        match self.last.take() {
            Some(last) if last.is_of_same(&now) && now.index == last.index => {}
            Some(last) if last.is_of_same(&now) && now.index > last.index => self.stored = Some(last),
            // Other data, such as a restored one.
            _ => self.stored = None,
        }
        self.last = Some(now);
        self.stored.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use etcd_storage::cluster::Id;

    use super::*;

    fn status(id: &str, index: i64) -> EtcdMemberStatus {
        EtcdMemberStatus {
            id: Some(id.to_owned()),
            cluster_id: Some("c".to_owned()),
            raft_index: Some(index),
            ..EtcdMemberStatus::default()
        }
    }

    #[test]
    fn only_what_was_exceeded_is_stored_for_sure() {
        let mut tracker = Tracker::default();
        let mut see = |id, index| tracker.see(&status(id, index)).map(ToString::to_string);
        assert_eq!(see("a", 5), None);
        assert_eq!(see("a", 5), None);
        assert_eq!(see("a", 9).as_deref(), Some("a:c:5"));
        assert_eq!(see("a", 9).as_deref(), Some("a:c:5"));
        assert_eq!(see("b", 12), None, "it is another member");
        assert_eq!(see("b", 13).as_deref(), Some("b:c:12"));
        assert_eq!(see("b", 3), None, "it was restored");
        assert_eq!(see("b", 4).as_deref(), Some("b:c:3"));
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let stored: StoredIndex = "1f:c0:7".parse().unwrap();
        assert_eq!((stored.to_string().as_str(), stored.index), ("1f:c0:7", 7));
        for text in ["", "1f:c0", "1f:c0:x", "1f:c0:7:8", "1f:c0:-1"] {
            assert!(text.parse::<StoredIndex>().is_err(), "{text}");
        }
        let found = |member, cluster| DataDir {
            member_id: Some(Id(member)),
            cluster_id: Some(Id(cluster)),
            ..DataDir::default()
        };
        assert!(stored.is_of(&found(0x1f, 0xc0)));
        assert!(!stored.is_of(&found(0x1e, 0xc0)) && !stored.is_of(&found(0x1f, 0xc1)));
        assert!(!stored.is_of(&DataDir::default()));
    }
}
