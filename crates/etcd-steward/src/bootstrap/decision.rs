//! How a member comes to its data: the one decision that every start of etcd goes through. Pure: evidence in, decision
//! out. The rules behind the table:
//!
//! - *Unknown* is never *absent*: what can't be found out is waited for.
//! - A new cluster is formed only if this Etcd has never formed one.
//! - Data is never given up for something that isn't proven to be better or the only thing left.
//! - One member restores, the others join it.
//! - Data of another cluster than this Etcd's is never started: two clusters behind one Service would both take writes.
//! - When every member says that it has no data left, nothing can be lost any more, and the backups are restored.

use std::fmt;

/// What the data directory looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data {
    /// There is none.
    Missing,
    /// It passed the check, and nothing says that it is of another cluster than this Etcd's.
    Valid,
    /// It passed the check, and is of another cluster than this Etcd's.
    OtherCluster,
    /// It passed the check. Another member may hold data of another cluster, and either could serve without the other.
    Unconfirmed,
    /// It is damaged.
    Invalid,
    /// It is in order, and of a member that the running cluster has removed: etcd ends as soon as it learns of that.
    Removed,
    /// It is in order, and older than what its member has acknowledged; a quorum of the others serves without it.
    Behind,
    /// The same, and no quorum of the others is there.
    Stale,
    /// It is in order, and holds committed entries that a quorum of the others has lost.
    Ahead,
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

/// What the other wanted members say, in this start, of the data on their volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Others {
    /// Every one says that it has none.
    Empty,
    /// Every one says that it has none that could be used; that of at least one is damaged.
    Damaged,
    /// At least one has data that can be used, or runs on it.
    Data,
    /// Nobody says that it has data, and at least one hasn't answered.
    Unknown,
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
    /// The other members' volumes.
    pub others: Others,
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
    /// The other members to say whose data is this Etcd's.
    Unconfirmed,
    /// A quorum of this Etcd's cluster, which this data isn't of.
    OtherCluster,
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
    /// The only member's data is of another cluster than the one that was recorded.
    OtherCluster,
    /// The others have lost entries that this member holds.
    DataAhead,
    /// This member has lost entries that it had acknowledged, and no quorum of the others is there.
    DataStale,
    /// The data of all members is gone, and there is no backup.
    DataLost,
    /// No member has data that could be used, that of at least one is damaged, and there is no backup.
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
            Self::Unconfirmed => "DataUnconfirmed",
            Self::OtherCluster => "DataOfOtherCluster",
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
            Self::OtherCluster => "DataOfOtherCluster",
            Self::DataAhead => "DataAhead",
            Self::DataStale => "DataStale",
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
            Self::Unconfirmed => {
                "the data directory is in order, and could serve without the other members; waiting for them to say that \
                 they hold no data of another cluster"
            }
            Self::OtherCluster => {
                "the data directory is of another cluster than this Etcd's; it is left as it is, and a quorum of this \
                 Etcd's cluster is waited for, to join it"
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
            Self::OtherCluster => {
                "the data directory is of another cluster than the one that this Etcd has recorded; nothing was started on \
                 it. Mount the right volume; or, if this data is the right one, delete the EtcdMember of this pod and \
                 identity.json on the volume, which hold the record"
            }
            Self::DataAhead => {
                "this member holds committed entries that a quorum of the others doesn't have: their volumes were put back to \
                 an earlier state, and this may be the only copy of what was written since. Nothing was changed. Stop the \
                 others and give them their newest volumes; or, to go on with what they have, move this member's data \
                 directory away: it joins anew"
            }
            Self::DataStale => {
                "the volume was put back to an earlier state: this member has acknowledged more than it holds, and may have to \
                 vouch for it. Nothing was changed. Mount its newest volume; or start the others: as soon as they have a quorum \
                 it joins them anew. If all of that is lost, delete this member's Lease to go on with the older data"
            }
            Self::DataLost => {
                "this cluster has formed before, the data of all its members is gone, and there is no backup. Put a \
                 volume back; or to start empty delete the EtcdMembers of this Etcd, or, without Kubernetes, identity.json \
                 on the volumes"
            }
            Self::DataCorrupt => {
                "no member has data that could be used, at least one data directory is damaged, and there is no backup. \
                 Repair it; or to start empty move it away and delete the EtcdMembers of this Etcd, or, without \
                 Kubernetes, identity.json on the volumes"
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
        Data::Unconfirmed => Decision::Wait(Waiting::Unconfirmed),
        Data::OtherCluster => match evidence.place {
            Place::Only => Decision::Refuse(Refusal::OtherCluster),
            Place::First | Place::Other => of_other_cluster(evidence.live),
        },
        Data::Removed => removed_before(evidence.live),
        Data::Behind => Decision::Rejoin,
        Data::Stale => Decision::Refuse(Refusal::DataStale),
        // It may be the only copy left.
        Data::Ahead => Decision::Refuse(Refusal::DataAhead),
        Data::Invalid => match evidence.place {
            Place::Only => nothing_left(evidence),
            Place::First | Place::Other => one_of_several_damaged(evidence),
        },
        Data::Missing => without_data(evidence),
    }
}

/// No member has data that could be used: the backups decide, and one member restores them.
fn nothing_left(evidence: &Evidence) -> Decision {
    let lost = match (evidence.data, evidence.place, evidence.others) {
        (Data::Missing, Place::Only, _) | (Data::Missing, Place::First | Place::Other, Others::Empty) => {
            Refusal::DataLost
        }
        _ => Refusal::DataCorrupt,
    };
    match (evidence.place, evidence.backups) {
        (Place::Only | Place::First, Backups::Present) => Decision::Restore,
        (Place::Other, Backups::Present) => Decision::Wait(Waiting::FirstMemberRestoring),
        (Place::Only | Place::First | Place::Other, Backups::Absent | Backups::NoStore) => {
            Decision::Refuse(lost)
        }
        (Place::Only | Place::First | Place::Other, Backups::Unknown) => {
            Decision::Wait(Waiting::StoreUnreachable)
        }
    }
}

/// That it was removed is told by the running cluster itself, which may have taken it in again since: the volume is then of the
/// time before, and what the newer self has voted is lost.
fn removed_before(live: Live) -> Decision {
    match live {
        Live::Started | Live::Unstarted => Decision::Rejoin,
        Live::UnstartedLearner => Decision::StartAsLearner,
        Live::NotListed | Live::Unreachable | Live::OtherCluster => Decision::Join,
    }
}

/// A cluster that this Etcd's members run is joined, and the data moved aside.
fn of_other_cluster(live: Live) -> Decision {
    match live {
        Live::Started | Live::Unstarted => Decision::Rejoin,
        Live::NotListed => Decision::Join,
        Live::UnstartedLearner => Decision::StartAsLearner,
        Live::OtherCluster => Decision::Refuse(Refusal::WrongCluster),
        Live::Unreachable => Decision::Wait(Waiting::OtherCluster),
    }
}

fn one_of_several_damaged(evidence: &Evidence) -> Decision {
    match (evidence.live, evidence.others) {
        // The vote of one that has never started may be recorded nowhere but in the damaged data.
        (Live::Started | Live::Unstarted, _) => Decision::Rejoin,
        (Live::NotListed, _) => Decision::Join,
        (Live::UnstartedLearner, _) => Decision::StartAsLearner,
        (Live::OtherCluster, _) => Decision::Refuse(Refusal::WrongCluster),
        (Live::Unreachable, Others::Empty | Others::Damaged) => nothing_left(evidence),
        (Live::Unreachable, Others::Data | Others::Unknown) => Decision::Wait(Waiting::PeersUnreachable),
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
        (Live::Unreachable, true | false) => match evidence.place {
            Place::Only => without_anybody(evidence),
            Place::First | Place::Other => without_quorum(evidence),
        },
    }
}

/// No data, and no other member is wanted.
fn without_anybody(evidence: &Evidence) -> Decision {
    match (evidence.as_learner, evidence.formation) {
        (true, Formation::Never | Formation::Unproven | Formation::Formed | Formation::Unknown) => {
            Decision::Wait(Waiting::NoClusterToJoin)
        }
        (false, Formation::Unproven) => Decision::Wait(Waiting::MembersUnknown),
        (false, Formation::Unknown) => Decision::Wait(Waiting::RecordUnreadable),
        (false, Formation::Formed) => nothing_left(evidence),
        (false, Formation::Never) => never_formed(evidence),
    }
}

/// No data, and the others have no quorum: what counts is what they say of their volumes.
fn without_quorum(evidence: &Evidence) -> Decision {
    match (evidence.formation, evidence.others, evidence.place, evidence.as_learner) {
        // Whoever was to join has nobody to join any more, and the first member restores, however it was made.
        (Formation::Formed, Others::Empty | Others::Damaged, Place::First, true | false)
        | (Formation::Formed, Others::Empty | Others::Damaged, _, false)
        // What an earlier Etcd of this name has left is damaged.
        | (Formation::Never, Others::Damaged, _, false) => nothing_left(evidence),
        (_, _, _, true) => Decision::Wait(Waiting::NoClusterToJoin),
        (Formation::Unknown, _, _, false) => Decision::Wait(Waiting::RecordUnreadable),
        (Formation::Formed, Others::Data | Others::Unknown, _, false)
        | (Formation::Never | Formation::Unproven, Others::Data, _, false) => {
            Decision::Wait(Waiting::PeersUnreachable)
        }
        (Formation::Unproven, Others::Empty | Others::Damaged | Others::Unknown, _, false) => {
            Decision::Wait(Waiting::MembersUnknown)
        }
        (Formation::Never, Others::Empty | Others::Unknown, _, false) => never_formed(evidence),
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
