//! `EtcdMember`: what one member tells about itself. It has no spec, and its steward alone writes its status.

use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, SnapshotInfo};
use crate::{
    open_enum::open_enum,
    tolerant::{is_default, null_as_default},
};

/// An EtcdMember has no wanted state of its own.
#[derive(Clone, CustomResource, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "druid.gardener.cloud",
    version = "v1alpha1",
    kind = "EtcdMember",
    plural = "etcdmembers",
    shortname = "etcdm",
    category = "druid",
    namespaced,
    no_spec,
    status = "EtcdMemberStatus",
    derive = "PartialEq",
    doc = "A member of an etcd cluster, as it tells about itself. Made by the etcd-controller, one per replica; has \
           no spec, and only the member's own steward writes its status.",
    printcolumn(name = "Role", type_ = "string", json_path = ".status.role"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        description = "why it is ready or isn't: what a member waits for"
    ),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.etcdVersion"),
    printcolumn(
        name = "DB",
        type_ = "string",
        json_path = ".status.dbSize",
        description = "size of the database on disk"
    ),
    printcolumn(
        name = "In use",
        type_ = "string",
        json_path = ".status.dbSizeInUse",
        description = "part of the database that holds data"
    ),
    printcolumn(
        name = "Behind",
        type_ = "integer",
        json_path = ".status.behind",
        description = "raft entries that the leader is ahead"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Sub-state",
        type_ = "string",
        json_path = ".status.subState",
        priority = 1
    ),
    printcolumn(name = "ID", type_ = "string", json_path = ".status.id", priority = 1),
    printcolumn(
        name = "Cluster ID",
        type_ = "string",
        json_path = ".status.clusterID",
        priority = 1
    ),
    printcolumn(name = "Alarms", type_ = "string", json_path = ".status.alarms", priority = 1)
)]
pub struct EtcdMemberSpec {}

/// What a member tells about itself.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdMemberStatus {
    /// ID of the member in etcd, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub id: Option<String>,
    /// ID of the etcd cluster that the member belongs to, in hexadecimal.
    #[serde(rename = "clusterID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub cluster_id: Option<String>,
    /// Name of the member in etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub member_name: Option<String>,
    /// `Leader`, `Follower` or `Learner`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<MemberRole>,
    /// Where the member is in its life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<MemberState>,
    /// The step within `state`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_state: Option<MemberSubState>,
    /// Version of etcd that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub etcd_version: Option<String>,
    /// Raft term that the member is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raft_term: Option<i64>,
    /// Index of the newest Raft entry that is known to be committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raft_index: Option<i64>,
    /// Index of the newest Raft entry that the member has applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raft_applied_index: Option<i64>,
    /// Raft entries that the newest entry of all members that answer is ahead of what this member has applied, rounded
    /// down, below 1000 to 0; how far a learner still has to go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<i64>,
    /// Whether the member's etcd serves its peers with TLS, or did when it ran last.
    #[serde(rename = "peerTLSEnabled", default, skip_serializing_if = "Option::is_none")]
    pub peer_tls_enabled: Option<bool>,
    /// Whether the member's etcd serves clients with TLS, or did when it ran last.
    #[serde(rename = "clientTLSEnabled", default, skip_serializing_if = "Option::is_none")]
    pub client_tls_enabled: Option<bool>,
    /// Size of the database on disk, rounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub db_size: Option<Quantity>,
    /// Part of the database that holds data, rounded; the rest would be won by defragmentation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub db_size_in_use: Option<Quantity>,
    /// Alarms that etcd has raised for this member.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = 8))]
    pub alarms: Vec<Alarm>,
    /// Hash of the configuration that etcd runs with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub observed_config_hash: Option<String>,
    /// Hash of the certificates that etcd runs with.
    #[serde(rename = "observedTLSHash", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub observed_tls_hash: Option<String>,
    /// Whether this member's steward takes the cluster's backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_owner: Option<bool>,
    /// What the member decided when it was started for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<MemberBootstrap>,
    /// How far the preparation of the data directory is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<Initialization>,
    /// Snapshots in the store, as the backup owner knows them.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "is_default"
    )]
    pub snapshots: MemberSnapshots,
    /// The last time that the data directory was filled from a snapshot or from the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_restoration: Option<Restoration>,
    /// The last defragmentation of this member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_defragmentation: Option<Defragmentation>,
    /// Volumes of other members that were mounted here by mistake.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(
        length(max = 10),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["volumeID"])
    )]
    pub volume_mismatches: Vec<VolumeMismatch>,
    /// The newest changes of `state` and `subState`, oldest first.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = MAX_TRANSITIONS))]
    pub transitions: Vec<MemberTransition>,
    /// What is so at the moment, one entry per type.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
}

/// How many transitions an EtcdMember keeps.
pub const MAX_TRANSITIONS: usize = 50;

impl EtcdMemberStatus {
    /// Records a change of state, forgetting the oldest one beyond [`MAX_TRANSITIONS`].
    pub fn transition(&mut self, transition: MemberTransition) {
        self.state = Some(transition.state.clone());
        self.sub_state.clone_from(&transition.sub_state);
        self.transitions.push(transition);
        let surplus = self.transitions.len().saturating_sub(MAX_TRANSITIONS);
        self.transitions.drain(..surplus);
    }
}

open_enum! {
    /// What a member is in its cluster.
    pub enum MemberRole {
        /// Votes and leads.
        Leader = "Leader",
        /// Votes.
        Follower = "Follower",
        /// Catches up, without a vote.
        Learner = "Learner",
        /// Votes and doesn't lead; older name of `Follower`, in objects written by etcd-druid.
        Member = "Member",
    }
}

open_enum! {
    /// Where a member is in its life.
    pub enum MemberState {
        /// Made, not yet begun.
        New = "New",
        /// Its data directory is checked or filled.
        Initializing = "Initializing",
        /// It joins the cluster as a learner.
        Starting = "Starting",
        /// It votes.
        Started = "Started",
    }
}

open_enum! {
    /// A step within a member's state.
    pub enum MemberSubState {
        /// Initializing: quick check after a clean exit.
        DbValidationSanity = "DBValidationSanity",
        /// Initializing: complete check after an unclean exit.
        DbValidationFull = "DBValidationFull",
        /// Initializing: the data directory is filled from backups.
        Restoration = "Restoration",
        /// Starting: waits to be added as a learner.
        PendingLearner = "PendingLearner",
        /// Starting: catches up with the leader.
        Learner = "Learner",
        /// Started: votes.
        Follower = "Follower",
        /// Started: votes and leads.
        Leader = "Leader",
    }
}

/// Reasons of a [`MemberTransition`]. The list is open.
pub mod transition_reason {
    pub const CLUSTER_SCALED_UP: &str = "ClusterScaledUp";
    pub const NEW_SINGLE_NODE_CLUSTER_CREATED: &str = "NewSingleNodeClusterCreated";
    /// etcd runs for the first time, with the other founding members.
    pub const CLUSTER_FORMED: &str = "ClusterFormed";
    pub const NEW_MULTI_NODE_CLUSTER_CREATED: &str = "NewMultiNodeClusterCreated";
    pub const DETECTED_PREVIOUS_CLEAN_EXIT: &str = "DetectedPreviousCleanExit";
    pub const DETECTED_PREVIOUS_UNCLEAN_EXIT: &str = "DetectedPreviousUncleanExit";
    pub const DATA_BEHIND: &str = "DataBehind";
    pub const DB_VALIDATION_FAILED: &str = "DBValidationFailed";
    pub const DB_VALIDATION_SUCCEEDED: &str = "DBValidationSucceeded";
    pub const RESTORATION_SUCCEEDED: &str = "RestorationSucceeded";
    pub const RESTORATION_FAILED: &str = "RestorationFailed";
    pub const WAITING_TO_JOIN_AS_LEARNER: &str = "WaitingToJoinAsLearner";
    pub const JOINED_AS_LEARNER: &str = "JoinedAsLearner";
    pub const PROMOTED_AS_VOTING_MEMBER: &str = "PromotedAsVotingMember";
    pub const GAINED_CLUSTER_LEADERSHIP: &str = "GainedClusterLeadership";
    pub const LOST_CLUSTER_LEADERSHIP: &str = "LostClusterLeadership";
}

open_enum! {
    /// An alarm of etcd.
    pub enum Alarm {
        /// The database has reached its quota; writes are refused.
        NoSpace = "NOSPACE",
        /// The member's data differs from the other members'.
        Corrupt = "CORRUPT",
    }
}

/// What a member decided when it was started for the first time. Recorded before etcd is launched, so that a member
/// that has begun is never taken for one that hasn't.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberBootstrap {
    /// What was decided.
    pub decision: BootstrapDecision,
    /// When it was decided.
    pub decided_at: Time,
    /// Why, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

open_enum! {
    /// How a member comes to its data.
    pub enum BootstrapDecision {
        /// Forms a new cluster with empty data.
        NewCluster = "NewCluster",
        /// Fills its data directory from backups and forms a new cluster.
        Restore = "Restore",
        /// Joins a running cluster as a learner.
        JoinAsLearner = "JoinAsLearner",
        /// Starts with the data that is there.
        ExistingData = "ExistingData",
    }
}

/// How far the preparation of a data directory is.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Initialization {
    /// Part that is done, in percent.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(range(min = 0, max = 100))]
    pub progress_percent: i32,
    /// What is done or waited for.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(length(max = 4096))]
    pub message: String,
}

/// Snapshots in the store, as the backup owner knows them.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberSnapshots {
    /// The newest full snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_full: Option<SnapshotInfo>,
    /// The newest delta snapshot since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_delta: Option<SnapshotInfo>,
    /// Size of all delta snapshots since the newest full one, before compression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accumulated_delta_size: Option<Quantity>,
    /// Revisions that no snapshot holds yet; 0 when backups are current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncovered_revisions: Option<i64>,
    /// When backups were last seen to hold everything up to then, whether or not there was anything to save.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub covered_until: Option<Time>,
}

/// A filling of the data directory.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Restoration {
    /// `FromSnapshot` or `FromLeader`.
    #[serde(rename = "type")]
    pub type_: RestorationType,
    /// `InProgress`, `Success` or `Failed`.
    pub status: RestorationStatus,
    /// Why, as one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
    /// Why, in a sentence; on success, from what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
    /// ID of the etcd cluster that it made, in hexadecimal: the members of the one before it aren't in it.
    #[serde(rename = "clusterID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub cluster_id: Option<String>,
    /// The full snapshot that it began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub snapshot: Option<String>,
    /// SHA-256 of that snapshot's object, as its manifest says and as it was read.
    #[serde(rename = "snapshotSHA256", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub snapshot_sha256: Option<String>,
    /// How many delta snapshots followed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deltas: Option<i32>,
    /// When the last of them was taken. What was written later is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub covered_until: Option<Time>,
    /// The revision of the state that was restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// The revision that the restored etcd began with, if it was raised: all before it is compacted, so that clients notice.
    /// Until this restore succeeds, that of the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raised_to: Option<i64>,
    /// Keys at that revision, as the restored etcd counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<i64>,
}

open_enum! {
    /// What a data directory is filled from.
    pub enum RestorationType {
        /// The object store.
        FromSnapshot = "FromSnapshot",
        /// The leader of the running cluster.
        FromLeader = "FromLeader",
    }
}

open_enum! {
    /// How a restoration stands.
    pub enum RestorationStatus {
        /// It is under way.
        InProgress = "InProgress",
        /// It succeeded.
        Success = "Success",
        /// It failed.
        Failed = "Failed",
    }
}

/// A defragmentation of one member.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Defragmentation {
    /// `Succeeded` or `Failed`.
    pub status: DefragmentationStatus,
    /// Why it was done or failed, as one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
    /// Why it was done or failed, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
    /// Size of the database before.
    #[serde(rename = "initialDBSize", default, skip_serializing_if = "Option::is_none")]
    pub initial_db_size: Option<Quantity>,
    /// Size of the database after.
    #[serde(rename = "finalDBSize", default, skip_serializing_if = "Option::is_none")]
    pub final_db_size: Option<Quantity>,
}

open_enum! {
    /// How a defragmentation ended.
    pub enum DefragmentationStatus {
        /// It succeeded.
        Succeeded = "Succeeded",
        /// It failed.
        Failed = "Failed",
    }
}

/// A volume of another member that was mounted here by mistake.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMismatch {
    /// Identity of the volume.
    #[serde(rename = "volumeID")]
    #[schemars(length(min = 1, max = 253))]
    pub volume_id: String,
    /// When it was first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identified_at: Option<Time>,
    /// When the right volume was back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_at: Option<Time>,
    /// How often the member was restarted with it.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(range(min = 0))]
    pub num_restarts: i32,
}

/// A change of a member's state.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberTransition {
    /// The state that the member came into.
    pub state: MemberState,
    /// The step within that state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_state: Option<MemberSubState>,
    /// Why, as one word: see the list of transition reasons.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transition_time: Option<Time>,
    /// Why, in a sentence.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(length(max = 4096))]
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member that elections shake for months must not outgrow its object.
    #[test]
    fn only_the_newest_transitions_stay() {
        let mut status = EtcdMemberStatus::default();
        for n in 0..=MAX_TRANSITIONS {
            status.transition(MemberTransition {
                state: MemberState::Started,
                sub_state: Some(if n % 2 == 0 {
                    MemberSubState::Leader
                } else {
                    MemberSubState::Follower
                }),
                reason: n.to_string(),
                transition_time: None,
                message: String::new(),
            });
        }
        assert_eq!(status.transitions.len(), MAX_TRANSITIONS);
        assert_eq!(
            (status.transitions[0].reason.as_str(), status.state),
            ("1", Some(MemberState::Started))
        );
        assert_eq!(status.sub_state, Some(MemberSubState::Leader));
    }
}
