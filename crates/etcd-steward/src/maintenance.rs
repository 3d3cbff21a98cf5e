//! Keeps databases small: history compaction, and defragmentation of all members one at a time, the leader last and
//! after it has handed over, so that writes stall for no longer than an election.

mod alarms;
pub mod caretaker;
mod compaction;
mod comparison;
mod consistency;
mod defragmentation;
mod replacement;

use std::{sync::Arc, time::Duration};

use operator::reconcile::{Reason, Retry};
use tokio::sync::Mutex;

pub use self::{caretaker::Caretaker, defragmentation::Threshold};
use crate::{
    etcd::{Connector, EtcdError},
    metrics::Metrics,
    quorum::Voters,
    running::RunningConfig,
};

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
    /// Each revision that comes into question would lose keys.
    #[error(
        "each of the revisions up to {0} deletes a key and puts it again in one transaction: etcd loses such a key when the \
         history is compacted at exactly that revision (etcd-io/etcd#22376), so it isn't"
    )]
    NoSafeRevision(i64),
    /// What is to be compacted couldn't be looked at.
    #[error("read the history that is to be compacted: {0}")]
    WatchEnded(String),
    /// The data of a member is in doubt.
    #[error(
        "alarm CORRUPT is raised for {0}: nothing is rewritten while it isn't known whose data is right. Maintenance goes on \
         when the alarm is cleared"
    )]
    Corrupt(String),
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
    /// The leadership can't be moved away.
    #[error(
        "member {0} leads again and again after it has handed over: it was left alone, the others are done"
    )]
    LeadsAgain(String),
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

impl MaintenanceError {
    /// Whether it only says that a leader is being elected.
    fn is_election(&self) -> bool {
        match self {
            Self::NoLeader(_) => true,
            Self::Member { source, .. } | Self::Etcd(source) => source.is_election(),
            _ => false,
        }
    }
}

impl Reason for MaintenanceError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Member { .. } | Self::Etcd(_) | Self::WatchEnded(_) => "EtcdUnreachable",
            Self::FutureRevision(_) => "FutureRevision",
            Self::NoSafeRevision(_) => "NoSafeRevision",
            Self::Corrupt(_) => "AlarmCorrupt",
            Self::NotStarted(_) => "MemberNotStarted",
            Self::Learner(_) => "MemberLearning",
            Self::NoLeader(_) => "NoLeader",
            Self::NotSettled(_) => "MemberBehind",
            Self::NoQuorumWithout { .. } => "NoQuorum",
            Self::LeadsAgain(_) => "MemberLeadsAgain",
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
}
