//! Condition types and their reasons: the words that people and alerts match on.
//!
//! Each module below is a condition type; `TYPE` is its name, the other constants are its reasons.
//! A condition says how things are now; what happened is told by Events.

/// `Ready` of an Etcd: enough members serve to have a quorum.
pub mod ready {
    pub const TYPE: &str = "Ready";
    /// True: a majority of the members serves.
    pub const QUORATE: &str = "Quorate";
    /// False: fewer members serve than a majority.
    pub const QUORUM_LOST: &str = "QuorumLost";
    /// Unknown: no member has reported yet.
    pub const NO_MEMBERS: &str = "NoMembersInStatus";
    /// Unknown: what the members last reported is too old to judge by.
    pub const STALE: &str = "MemberStatusStale";
    /// False: members serve clients with TLS where the spec wants none, or the other way round, and can't follow.
    pub const CLIENT_TLS_MISMATCH: &str = "ClientTLSMismatch";
}

/// `AllMembersReady` of an Etcd: every wanted member is there and serves.
pub mod all_members_ready {
    pub const TYPE: &str = "AllMembersReady";
    pub const ALL_READY: &str = "AllMembersReady";
    pub const NOT_ALL_READY: &str = "NotAllMembersReady";
    pub const NO_MEMBERS: &str = "NoMembersInStatus";
}

/// `AllMembersUpdated` of an Etcd: every member runs the wanted template and configuration.
pub mod all_members_updated {
    pub const TYPE: &str = "AllMembersUpdated";
    pub const ALL_UPDATED: &str = "AllMembersUpdated";
    pub const NOT_ALL_UPDATED: &str = "NotAllMembersUpdated";
    pub const STATEFUL_SET_NOT_FOUND: &str = "StatefulSetNotFound";
    pub const STATEFUL_SET_UNREADABLE: &str = "UnableToFetchStatefulSet";
    /// False: a newer operator wants another template, which waits for a change of the spec or a window.
    pub const UPDATE_PENDING: &str = "UpdatePending";
}

/// `BackupReady` of an Etcd: what should be in the object store is there. Absent without a store.
pub mod backup_ready {
    pub const TYPE: &str = "BackupReady";
    /// The part about full snapshots.
    pub const FULL_TYPE: &str = "FullBackupReady";
    /// The part about delta snapshots.
    pub const DELTA_TYPE: &str = "DeltaBackupReady";
    pub const SUCCEEDED: &str = "BackupSucceeded";
    pub const FAILED: &str = "BackupFailed";
    /// Unknown: too early to tell; the message says when the next one is due.
    pub const PENDING: &str = "BackupPending";
    /// False: the newest snapshot is older than the schedule allows.
    pub const OVERDUE: &str = "BackupOverdue";
    /// False: a snapshot compaction failed, so the stored chain may not restore.
    pub const COMPACTION_FAILED: &str = "CompactionFailed";
    /// Unknown: the evidence couldn't be read.
    pub const UNKNOWN: &str = "Unknown";
}

/// `DataVolumesReady` of an Etcd: all claims are bound and none has warnings.
pub mod data_volumes_ready {
    pub const TYPE: &str = "DataVolumesReady";
    pub const NO_WARNINGS: &str = "NoWarningsFoundForDataVolumes";
    pub const WARNINGS: &str = "FoundWarningsForDataVolumes";
    pub const STATEFUL_SET_NOT_FOUND: &str = "StatefulSetNotFound";
    pub const STATEFUL_SET_UNREADABLE: &str = "UnableToFetchStatefulSet";
    pub const WARNINGS_UNREADABLE: &str = "UnableToFetchWarningEventsForDataVolumes";
}

/// `ClusterIDMismatch` of an Etcd: members belong to different clusters. True is bad.
pub mod cluster_id_mismatch {
    pub const TYPE: &str = "ClusterIDMismatch";
    pub const MULTIPLE: &str = "MultipleClusterIDsDetected";
    pub const NONE: &str = "NoClusterIDMismatchDetected";
    pub const NO_CLUSTER_ID: &str = "NoClusterIDDetected";
    pub const LEASE_UNREADABLE: &str = "UnableToFetchLease";
    pub const LEASE_UNPARSABLE: &str = "UnableToParseLeaseHolderIdentity";
}

/// `BootstrappedWithExistingCluster` of an Etcd: it has joined the cluster that its spec names. Absent if unused.
pub mod bootstrapped_with_existing_cluster {
    pub const TYPE: &str = "BootstrappedWithExistingCluster";
    pub const SUCCEEDED: &str = "BootstrapSucceeded";
    pub const IN_PROGRESS: &str = "BootstrapInProgress";
}

/// `LastSnapshotCompactionSucceeded` of an Etcd, written by the compaction-controller.
pub mod compaction {
    pub const TYPE: &str = "LastSnapshotCompactionSucceeded";
    /// True: a Job compacted the snapshots.
    pub const NONE: &str = "None";
    /// True: a full snapshot was taken in place of a compaction.
    pub const FULL_SNAPSHOT_TAKEN: &str = "FullSnapshotTakenSuccessfully";
    pub const FULL_SNAPSHOT_FAILED: &str = "ErrorTriggeringFullSnapshot";
    pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
    pub const PREEMPTED: &str = "PreemptionByScheduler";
    pub const DELETED_BY_TAINT: &str = "DeletionByTaintManager";
    pub const EVICTED: &str = "EvictionByEvictionAPI";
    pub const TERMINATED_BY_KUBELET: &str = "TerminationByKubelet";
    pub const PROCESS_FAILURE: &str = "ProcessFailure";
    /// False: a resource quota refuses the Job's pod.
    pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
    pub const UNKNOWN: &str = "Unknown";
}

/// `TLSReady` of an Etcd: every certificate that it needs is there, fits and isn't about to expire.
pub mod tls_ready {
    pub const TYPE: &str = "TLSReady";
    pub const READY: &str = "CertificatesReady";
    pub const SECRET_NOT_FOUND: &str = "SecretNotFound";
    pub const SECRET_INVALID: &str = "SecretInvalid";
    pub const NAME_MISSING: &str = "SubjectAltNameMissing";
    pub const EXPIRING: &str = "CertificateExpiring";
    pub const EXPIRED: &str = "CertificateExpired";
}

/// Reasons that several condition types of an Etcd share.
pub mod shared {
    /// Unknown or as before: the Etcd is scaled to zero.
    pub const NOT_CHECKED: &str = "NotChecked";
}

/// Conditions of an EtcdMember.
pub mod member {
    /// True: the member's etcd answers.
    pub const READY: &str = "Ready";
    /// False while the member waits for something before etcd can start; the reason says for what.
    pub const INITIALIZED: &str = "Initialized";
    /// True: the newest chain of snapshots has been read back and is whole. Only on the backup owner.
    pub const BACKUP_VERIFIED: &str = "BackupVerified";
    /// False: the newest full snapshot has lost most of the keys that the one before it had, and no delta says so. What was
    /// before it is kept. Only on the backup owner.
    pub const BACKUP_PLAUSIBLE: &str = "BackupPlausible";
    /// True: the newest snapshots are stored. Only on the backup owner.
    pub const BACKUP_READY: &str = "BackupReady";
    /// True: the second store had all backups when it was last compared. Only on the backup owner.
    pub const SECONDARY_BACKUP_READY: &str = "SecondaryBackupReady";

    /// True while the member restarts its etcd for a new configuration; False while it waits for its turn, which the message
    /// explains. Not there otherwise.
    pub const RESTARTING: &str = "Restarting";

    /// True: at the last comparison all members that answered had the same data. Only on the leader.
    pub const DATA_CONSISTENT: &str = "DataConsistent";

    /// Those that only the leader's member has, which owns the backups too.
    pub const OF_LEADER: [&str; 5] = [
        BACKUP_READY,
        BACKUP_VERIFIED,
        BACKUP_PLAUSIBLE,
        SECONDARY_BACKUP_READY,
        DATA_CONSISTENT,
    ];

    pub const MEMBERS_AGREE: &str = "MembersAgree";
    pub const MEMBER_DIFFERS: &str = "MemberDiffers";
    pub const CONFIGURATION_CHANGED: &str = "ConfigurationChanged";
    pub const WAITING_FOR_TURN: &str = "WaitingForTurn";
    /// Of `Initialized` and `Restarting`, False: the configuration has the peers speak TLS where the cluster has recorded that
    /// they don't, or the other way round. etcd isn't started with it.
    pub const PEER_TLS_MISMATCH: &str = "PeerTLSMismatch";
    pub const SERVING: &str = "Serving";
    pub const NOT_SERVING: &str = "NotServing";
    pub const QUORUM_MISSING: &str = "QuorumMissing";
    /// Of `Ready`, False: etcd answers, and completes no linearizable read.
    pub const NO_QUORUM: &str = "NoQuorum";
    pub const LEARNER: &str = "LearnerCatchingUp";
    pub const DONE: &str = "Done";
    pub const STORE_UNREACHABLE: &str = "StoreUnreachable";
    pub const STORE_ACCESS_DENIED: &str = "StoreAccessDenied";
    pub const PEERS_UNREACHABLE: &str = "PeersUnreachable";
    pub const WRONG_VOLUME: &str = "WrongVolume";
    /// Of a restoration: no member of a cluster that had formed had data left.
    pub const ALL_DATA_LOST: &str = "AllDataLost";
    pub const DATA_DIR_LOCKED: &str = "DataDirLocked";
    pub const VALIDATING: &str = "Validating";
    pub const RESTORING: &str = "Restoring";
    pub const WAITING_TO_JOIN: &str = "WaitingToJoin";
    pub const CHAIN_DAMAGED: &str = "ChainDamaged";
    pub const CHAIN_UNREADABLE: &str = "ChainUnreadable";
    pub const VERIFIED: &str = "Verified";
    pub const KEYS_ACCOUNTED_FOR: &str = "KeysAccountedFor";
    pub const KEYS_COLLAPSED: &str = "KeysCollapsed";
}

/// Reasons of a member in an Etcd's status, besides those that the member's own conditions give.
pub mod member_summary {
    /// NotReady: the member's pod isn't there.
    pub const POD_MISSING: &str = "PodMissing";
    /// NotReady: the member's pod is being deleted.
    pub const POD_TERMINATING: &str = "PodTerminating";
    /// NotReady: a container of the member's pod isn't ready.
    pub const CONTAINERS_NOT_READY: &str = "ContainersNotReady";
    /// NotReady: the member hasn't told anything yet.
    pub const NOT_REPORTED: &str = "NotReported";
    /// NotReady: there was no heartbeat for so long that the member must be taken for dead.
    pub const GRACE_PERIOD_EXCEEDED: &str = "UnknownGracePeriodExceeded";
    /// Unknown: the last heartbeat is too old.
    pub const LEASE_EXPIRED: &str = "LeaseExpired";
    /// Unknown: the member says that it serves, and has sent no heartbeat yet.
    pub const NO_HEARTBEAT: &str = "NoHeartbeat";
    /// Unknown: the EtcdMember holds something that this version can't read.
    pub const UNREADABLE: &str = "EtcdMemberUnreadable";
    /// Ready: the heartbeats come; there is no EtcdMember that tells more.
    pub const LEASE_SUCCEEDED: &str = "LeaseSucceeded";
}

/// Conditions of EtcdOpsTask and EtcdCopyBackupsTask.
pub mod task {
    /// True: all preconditions were met. False: the message lists every one that wasn't.
    pub const ADMITTED: &str = "Admitted";
    /// True while the task runs.
    pub const PROGRESSING: &str = "Progressing";
    /// True or False once the task has ended.
    pub const SUCCEEDED: &str = "Succeeded";
    /// True once an EtcdCopyBackupsTask has failed.
    pub const FAILED: &str = "Failed";

    pub const PRECONDITIONS_MET: &str = "PreconditionsMet";
    pub const PRECONDITIONS_UNMET: &str = "PreconditionsUnmet";
    pub const WAITING_FOR_TASK: &str = "WaitingForOtherTask";
    pub const RUNNING: &str = "Running";
    pub const FINISHED: &str = "Finished";
    pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
    pub const CANCELLED: &str = "Cancelled";
    pub const EXECUTION_FAILED: &str = "ExecutionFailed";
    pub const UNSUPPORTED: &str = "Unsupported";
}
