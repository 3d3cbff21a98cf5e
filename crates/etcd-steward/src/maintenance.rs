//! Keeps databases small: history compaction, and defragmentation of all members one at a time, the leader last and
//! after it has handed over, so that writes stall for no longer than an election.

mod alarms;
pub mod caretaker;
mod comparison;
mod consistency;
mod defragmentation;
mod replacement;

use std::{sync::Arc, time::Duration};

use etcd_client::CompactionOptions;
use operator::reconcile::{Reason, Retry};
use steward_proto::v1::CompactResult;
use tokio::sync::Mutex;
use tracing::info;

pub use self::{caretaker::Caretaker, defragmentation::Threshold};
use crate::{
    backup,
    etcd::{Connector, EtcdError, call},
    metrics::Metrics,
    quorum::Voters,
    running::RunningConfig,
};

/// Physical compaction takes its time on a long history.
const COMPACTION_DEADLINE: Duration = Duration::from_mins(10);

/// Why maintenance failed.
#[derive(Debug, thiserror::Error)]
pub enum MaintenanceError {
    /// A member refused, or couldn't be asked.
    #[error("member {member}: {source}")]
    Member {
        /// The member.
        member: String,
        /// Why.
        #[source]
        source: EtcdError,
    },
    /// The cluster refused, or couldn't be asked.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// History can't be dropped that hasn't happened.
    #[error("the cluster hasn't come to revision {0}")]
    FutureRevision(i64),
    /// Not all members are there.
    #[error("member {0} has never started: maintenance waits until all members serve")]
    NotStarted(String),
    /// One of them has yet to catch up.
    #[error("member {0} is a learner: maintenance waits until all members vote")]
    Learner(String),
    /// One of them has no leader.
    #[error("member {0} knows no leader: maintenance waits until all members serve")]
    NoLeader(String),
    /// A member doesn't catch up.
    #[error("member {0} didn't catch up within {after:?}; the others were left alone", after = defragmentation::SETTLE)]
    NotSettled(String),
    /// The others would be too few without it.
    #[error("member {member} can't be removed: without it, {others}")]
    NoQuorumWithout {
        /// The member.
        member: String,
        /// The other voters.
        others: Voters,
    },
    /// They don't all run the same version.
    #[error("the members run etcd {0}: hashes are only compared for sure among members of one version")]
    MixedVersions(String),
    /// One of them is busy with an earlier call.
    #[error(
        "member {member} has not read its database for {after:?}: a defragmentation is still running at the server. It is \
         not asked again, and the others are left alone, until it is done"
    )]
    StillRunning {
        /// The member.
        member: String,
        /// How long was waited.
        after: Duration,
    },
}

impl Reason for MaintenanceError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Member { .. } | Self::Etcd(_) => "EtcdUnreachable",
            Self::FutureRevision(_) => "FutureRevision",
            Self::NotStarted(_) => "MemberNotStarted",
            Self::Learner(_) => "MemberLearning",
            Self::NoLeader(_) => "NoLeader",
            Self::NotSettled(_) => "MemberBehind",
            Self::NoQuorumWithout { .. } => "NoQuorum",
            Self::MixedVersions(_) => "MixedVersions",
            Self::StillRunning { .. } => "StillRunning",
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Self::FutureRevision(_) => Retry::OnChange,
            _ => Retry::Backoff,
        }
    }
}

/// Works on the cluster through its members' own API. One work at a time: clones share the turn.
#[derive(Debug, Clone)]
pub struct Maintenance {
    connector: Connector,
    /// How long the defragmentation of one member may take; `None`: as its size asks for.
    deadline: Option<Duration>,
    /// The configuration that the member beside us runs with.
    running: RunningConfig,
    metrics: Metrics,
    turn: Arc<Mutex<()>>,
}

impl Maintenance {
    /// Maintenance of the cluster that `connector` leads to, whose etcd was started with `running`.
    pub fn new(
        connector: Connector,
        deadline: Option<Duration>,
        running: RunningConfig,
        metrics: Metrics,
    ) -> Self {
        Self {
            connector,
            deadline,
            running,
            metrics,
            turn: Arc::default(),
        }
    }

    /// Drops history before `revision`; 0 means the current one.
    pub async fn compact(&self, revision: i64) -> Result<CompactResult, MaintenanceError> {
        let mut client = self.connector.local().await?;
        let revision = if revision == 0 {
            backup::revision(&mut client).await?
        } else {
            revision
        };
        let options = Some(CompactionOptions::new().with_physical());
        let compacting = client.compact(revision, options);
        match call("compact the history", COMPACTION_DEADLINE, compacting).await {
            Ok(_) => info!(revision, "compacted the history"),
            // It is as was asked for: by an earlier call, or by etcd itself.
            Err(error) if error.is_compacted() => {
                info!(revision, "the history was compacted before");
            }
            Err(error) if error.message().contains("required revision is a future revision") => {
                return Err(MaintenanceError::FutureRevision(revision));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(CompactResult { revision })
    }
}
