//! The fence around the backups: an upload becomes visible only if this member leads the cluster at that moment, in the
//! term in which the work was begun. Raft itself is the judge: a linearizable read succeeds only with a quorum, and the
//! member's status tells who leads in which term. Nothing is written into the user's keyspace for it.

use etcd_client::{Client, GetOptions};

use super::BackupError;
use crate::etcd::{CALL_TIMEOUT, Connector, EtcdError, call};

/// A term in which this member led.
#[derive(Clone)]
pub(super) struct Fence {
    client: Client,
    term: u64,
}

impl std::fmt::Debug for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fence")
            .field("term", &self.term)
            .finish_non_exhaustive()
    }
}

impl Fence {
    /// Finds out the term, if this member leads.
    pub(super) async fn begin(connector: &Connector) -> Result<Self, BackupError> {
        let mut client = connector.local().await?;
        let (term, _) = confirm(&mut client).await?;
        Ok(Self { client, term })
    }

    /// Fails unless this member still leads in the same term. Returns the cluster's revision.
    pub(super) async fn check(&self) -> Result<i64, BackupError> {
        let (term, revision) = confirm(&mut self.client.clone()).await?;
        if term == self.term {
            Ok(revision)
        } else {
            Err(BackupError::NotLeader)
        }
    }
}

async fn confirm(client: &mut Client) -> Result<(u64, i64), BackupError> {
    let revision = revision(client).await?;
    // After the read: a term that is old by now can't have got the quorum for it.
    let status = call("status of etcd", CALL_TIMEOUT, client.status()).await?;
    let own = status.header().map_or(0, etcd_client::ResponseHeader::member_id);
    if own != 0 && status.leader() == own {
        Ok((status.raft_term(), revision))
    } else {
        Err(BackupError::NotLeader)
    }
}

/// The cluster's revision, by a linearizable read.
pub async fn revision(client: &mut Client) -> Result<i64, EtcdError> {
    let options = GetOptions::new().with_count_only();
    let answer = call("read the revision", CALL_TIMEOUT, client.get("\0", Some(options))).await?;
    Ok(answer.header().map_or(0, etcd_client::ResponseHeader::revision))
}
