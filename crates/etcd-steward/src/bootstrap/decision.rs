//! How a member comes to its data: the one decision that every start of etcd goes through. Pure: evidence in, decision
//! out. The rules behind the table:
//!
//! - *Unknown* is never *absent*: what can't be found out is waited for.
//! - A new cluster is formed only if this Etcd has never formed one.
//! - Data is never given up for something that isn't proven to be better or the only thing left.
//! - One member restores, the others join it.

use std::fmt;

/// What the data directory looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data {
    /// There is none.
    Missing,
    /// It passed the check.
    Valid,
    /// It is damaged.
    Invalid,
    /// It is in order, and of a member that the running cluster has removed: etcd ends as soon as it learns of that.
    Removed,
    /// Another process holds it.
    Locked,
    /// The volume is another member's.
    Foreign,
    /// It can't be told.
    Unknown,
}

/// Whether this Etcd has ever formed a cluster, by what its members have recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Formation {
    /// No member has ever recorded a cluster ID, and so many say that they have no data that the others are no quorum.
    Never,
    /// No member has ever recorded a cluster ID, but those that say nothing could be a quorum with data of their own.
    Unproven,
    /// At least one has.
    Formed,
    /// The records can't be read.
    Unknown,
}

impl Formation {
    /// What it is among so many members, none of which has recorded a cluster ID, one of which has no data, and others
    /// say so too.
    pub fn never(members: usize, others_without_data: usize) -> Self {
        let unknown = members.saturating_sub(1 + others_without_data);
        if unknown < members / 2 + 1 {
            Self::Never
        } else {
            Self::Unproven
        }
    }
}

/// What the running cluster says about this member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Live {
    /// No other member answers, or together they have no quorum.
    Unreachable,
    /// What answers at the others' addresses is another cluster, or more than one.
    OtherCluster,
    /// A cluster runs that this member isn't listed in.
    NotListed,
    /// It is listed as a voter that has never started.
    Unstarted,
    /// It is listed as a learner that has never started.
    UnstartedLearner,
    /// It is listed, and has run before.
    Started,
}

/// What the backup store holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backups {
    /// No store is configured.
    NoStore,
    /// The store holds no snapshot.
    Absent,
    /// The store holds snapshots.
    Present,
    /// The store can't be read.
    Unknown,
}

/// The member's place among those wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The only member.
    Only,
    /// Ordinal 0 of several: the one that restores.
    First,
    /// Another one of several.
    Other,
}

/// All that the decision rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence {
    /// The data directory.
    pub data: Data,
    /// The records of all members.
    pub formation: Formation,
    /// Whether this member has recorded that it began before.
    pub begun: bool,
    /// The running cluster.
    pub live: Live,
    /// The backup store.
    pub backups: Backups,
    /// The member's place.
    pub place: Place,
    /// Whether the member was made by a scale-out, and must not take part in forming a cluster.
    pub as_learner: bool,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    /// Start etcd on the data that is there.
    Start,
    /// Form a new cluster with all wanted members, on empty data.
    Form,
    /// Fill the data directory from the backups, and start it as a cluster of one.
    Restore,
    /// Start as the learner that the cluster already lists.
    StartAsLearner,
    /// Be added to the running cluster as a learner.
    Join,
    /// Have the old self removed from the running cluster, then join it.
    Rejoin,
    /// Look again later.
    Wait(Waiting),
    /// Don't start: a person must act.
    Refuse(Refusal),
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waiting {
    /// The process that holds the data directory.
    DataDirLocked,
    /// The data directory to become readable.
    DataDirUnreadable,
    /// The Kubernetes API: whether the cluster has formed isn't known.
    RecordUnreadable,
    /// The store: whether there are backups isn't known.
    StoreUnreachable,
    /// The other members.
    PeersUnreachable,
    /// The other members to say whether they have data.
    MembersUnknown,
    /// The first member to restore.
    FirstMemberRestoring,
    /// A running cluster to join.
    NoClusterToJoin,
}

/// Why the member must not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The volume belongs to another member or another Etcd.
    WrongVolume,
    /// The other members' addresses lead to another cluster.
    WrongCluster,
    /// The only member's data is gone, and there is no backup.
    DataLost,
    /// The only member's data is damaged, and there is no backup.
    DataCorrupt,
}

impl Waiting {
    /// What a member waits for only without data that it could start on.
    pub const WITHOUT_DATA: [Self; 6] = [
        Self::RecordUnreadable,
        Self::StoreUnreachable,
        Self::PeersUnreachable,
        Self::MembersUnknown,
        Self::FirstMemberRestoring,
        Self::NoClusterToJoin,
    ];

    /// The reason in the member's condition.
    pub fn reason(self) -> &'static str {
        match self {
            Self::DataDirLocked => "DataDirLocked",
            Self::DataDirUnreadable => "DataDirUnreadable",
            Self::RecordUnreadable => "RecordUnreadable",
            Self::StoreUnreachable => "StoreUnreachable",
            Self::PeersUnreachable => "PeersUnreachable",
            Self::MembersUnknown => "MembersUnknown",
            Self::FirstMemberRestoring => "FirstMemberRestoring",
            Self::NoClusterToJoin => "NoClusterToJoin",
        }
    }
}

impl Refusal {
    /// The reason in the member's condition.
    pub fn reason(self) -> &'static str {
        match self {
            Self::WrongVolume => "WrongVolume",
            Self::WrongCluster => "WrongCluster",
            Self::DataLost => "DataLost",
            Self::DataCorrupt => "DataCorrupt",
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DataDirLocked => "waiting for the process that holds the data directory to let go of it",
            Self::DataDirUnreadable => "the data directory can't be read; trying again",
            Self::RecordUnreadable => {
                "the Kubernetes API can't be asked whether this cluster has formed before; trying again"
            }
            Self::StoreUnreachable => "the backup store can't be asked for backups; trying again",
            Self::PeersUnreachable => "waiting for a quorum of the other members, to join them",
            Self::MembersUnknown => {
                "no member has recorded a cluster, and this one has no data; waiting for so many others to say the same \
                 that the rest can't be a cluster"
            }
            Self::FirstMemberRestoring => "waiting for the first member to restore the cluster, to join it",
            Self::NoClusterToJoin => "waiting for a running cluster to join as a learner",
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WrongVolume => "the volume belongs to another member; nothing was written to it. Mount the right volume",
            Self::WrongCluster => {
                "at the addresses of the other members answers a cluster that isn't this Etcd's; nothing was asked of it. \
                 Correct the addresses"
            }
            Self::DataLost => {
                "this cluster has formed before, its only data directory is gone, and there is no backup. To start \
                 empty, delete the EtcdMember of this pod, or, without Kubernetes, identity.json on the volume"
            }
            Self::DataCorrupt => {
                "the only data directory is damaged, and there is no backup. Repair it, or to start empty move it \
                 away and delete the EtcdMember of this pod, or, without Kubernetes, identity.json on the volume"
            }
        })
    }
}

/// Decides. Every combination is named; there is no default.
pub fn decide(evidence: &Evidence) -> Decision {
    match evidence.data {
        Data::Foreign => Decision::Refuse(Refusal::WrongVolume),
        Data::Locked => Decision::Wait(Waiting::DataDirLocked),
        Data::Unknown => Decision::Wait(Waiting::DataDirUnreadable),
        Data::Valid => Decision::Start,
        // That is told by the running cluster itself.
        Data::Removed => Decision::Join,
        Data::Invalid => match evidence.place {
            Place::Only => only_member_damaged(evidence.backups),
            Place::First | Place::Other => one_of_several_damaged(evidence.live),
        },
        Data::Missing => without_data(evidence),
    }
}

fn only_member_damaged(backups: Backups) -> Decision {
    match backups {
        Backups::Present => Decision::Restore,
        Backups::Absent | Backups::NoStore => Decision::Refuse(Refusal::DataCorrupt),
        Backups::Unknown => Decision::Wait(Waiting::StoreUnreachable),
    }
}

fn one_of_several_damaged(live: Live) -> Decision {
    match live {
        // The vote of one that has never started may be recorded nowhere but in the damaged data.
        Live::Started | Live::Unstarted => Decision::Rejoin,
        Live::NotListed => Decision::Join,
        Live::UnstartedLearner => Decision::StartAsLearner,
        Live::OtherCluster => Decision::Refuse(Refusal::WrongCluster),
        Live::Unreachable => Decision::Wait(Waiting::PeersUnreachable),
    }
}

fn without_data(evidence: &Evidence) -> Decision {
    match (evidence.live, evidence.begun) {
        (Live::OtherCluster, true | false) => Decision::Refuse(Refusal::WrongCluster),
        (Live::NotListed, true | false) => Decision::Join,
        (Live::UnstartedLearner, true | false) => Decision::StartAsLearner,
        // One that has begun may have voted, listed as started or not: it must not forget.
        (Live::Started, true | false) | (Live::Unstarted, true) => Decision::Rejoin,
        // A founding member whose first start is still to come.
        (Live::Unstarted, false) => Decision::Form,
        (Live::Unreachable, true | false) => without_anybody(evidence),
    }
}

/// No data, and nobody answers.
fn without_anybody(evidence: &Evidence) -> Decision {
    match (evidence.as_learner, evidence.formation) {
        (true, Formation::Never | Formation::Unproven | Formation::Formed | Formation::Unknown) => {
            Decision::Wait(Waiting::NoClusterToJoin)
        }
        (false, Formation::Unproven) => Decision::Wait(Waiting::MembersUnknown),
        (false, Formation::Unknown) => Decision::Wait(Waiting::RecordUnreadable),
        (false, Formation::Formed) => formed_and_alone(evidence),
        (false, Formation::Never) => never_formed(evidence),
    }
}

/// The cluster has formed, this member's data is gone, and nobody answers.
fn formed_and_alone(evidence: &Evidence) -> Decision {
    match (evidence.place, evidence.backups) {
        (Place::Only, Backups::Present) => Decision::Restore,
        (Place::Only, Backups::Absent | Backups::NoStore) => Decision::Refuse(Refusal::DataLost),
        (Place::Only, Backups::Unknown) => Decision::Wait(Waiting::StoreUnreachable),
        (
            Place::First | Place::Other,
            Backups::Present | Backups::Absent | Backups::NoStore | Backups::Unknown,
        ) => Decision::Wait(Waiting::PeersUnreachable),
    }
}

fn never_formed(evidence: &Evidence) -> Decision {
    match (evidence.place, evidence.backups) {
        (Place::Only | Place::First | Place::Other, Backups::Absent | Backups::NoStore) => Decision::Form,
        (Place::Only | Place::First | Place::Other, Backups::Unknown) => {
            Decision::Wait(Waiting::StoreUnreachable)
        }
        (Place::Only | Place::First, Backups::Present) => Decision::Restore,
        (Place::Other, Backups::Present) => Decision::Wait(Waiting::FirstMemberRestoring),
    }
}

#[cfg(test)]
mod tests;
