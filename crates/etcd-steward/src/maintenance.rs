//! Keeps databases small: history compaction, and defragmentation of all members one at a time, the leader last and
//! after it has handed over, so that writes stall for no longer than an election.

use std::time::{Duration, Instant};

use etcd_client::{Client, CompactionOptions, Member, StatusResponse};
use operator::reconcile::{Reason, Retry};
use steward_proto::v1::{CompactResult, DefragmentResult, MemberDefragmentation};
use tracing::info;

use crate::{
    backup,
    etcd::{CALL_TIMEOUT, Connector, EtcdError, call, hex_id},
    server::operations::Run,
};

/// Shortest deadline of one member's defragmentation; a disk rewrites at least this much a second.
const FIRST_DEADLINE: Duration = Duration::from_mins(1);
const BYTES_PER_SECOND: u64 = 8 << 20;
/// How long a member may take to catch up after its defragmentation.
const SETTLE: Duration = Duration::from_secs(30);
/// A member that is this close to the others' index has caught up.
const SETTLED: u64 = 1000;

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
    /// Not all members are there.
    #[error("member {0} has never started: defragmentation waits until all members serve")]
    NotStarted(String),
    /// A member doesn't catch up.
    #[error(
        "member {0} didn't catch up within {SETTLE:?} after its defragmentation; the others were left alone"
    )]
    NotSettled(String),
}

impl Reason for MaintenanceError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Member { .. } | Self::Etcd(_) => "EtcdUnreachable",
            Self::NotStarted(_) => "MemberNotStarted",
            Self::NotSettled(_) => "MemberBehind",
        }
    }

    fn retry(&self) -> Retry {
        Retry::Backoff
    }
}

/// Drops history before `revision`; 0 means the current one.
pub async fn compact(connector: &Connector, revision: i64) -> Result<CompactResult, MaintenanceError> {
    let mut client = connector.local().await?;
    let revision = if revision == 0 {
        backup::revision(&mut client).await?
    } else {
        revision
    };
    let options = Some(CompactionOptions::new().with_physical());
    // Physical compaction takes its time on a long history.
    call(
        "compact the history",
        Duration::from_mins(10),
        client.compact(revision, options),
    )
    .await?;
    info!(revision, "compacted the history");
    Ok(CompactResult { revision })
}

/// A member, with a connection to it alone.
struct Target {
    name: String,
    id: u64,
    client: Client,
    status: StatusResponse,
}

/// Defragments all members that would win at least `min_reclaimable` bytes.
pub async fn defragment(
    connector: &Connector,
    min_reclaimable: i64,
    run: &Run,
) -> Result<DefragmentResult, MaintenanceError> {
    let mut local = connector.local().await?;
    let listed = call("list members", CALL_TIMEOUT, local.member_list()).await?;
    let mut targets = Vec::new();
    for member in listed.members() {
        targets.push(target(connector, member).await?);
    }
    let leader = targets.first().map_or(0, |target| target.status.leader());
    targets.sort_by_key(|target| (target.id == leader, target.name.clone()));
    let total = i64::try_from(targets.len()).unwrap_or(i64::MAX);
    let successor = targets
        .first()
        .filter(|target| target.id != leader)
        .map(|target| target.id);
    let mut result = DefragmentResult::default();
    for (done, target) in targets.iter_mut().enumerate() {
        run.progress(
            &target.name,
            i64::try_from(done).unwrap_or(i64::MAX),
            total,
            "members",
        );
        let reclaimable = target
            .status
            .db_size()
            .saturating_sub(target.status.raft_used_db_size());
        if reclaimable < min_reclaimable {
            result.members.push(skipped(target));
            continue;
        }
        if target.id == leader
            && let Some(successor) = successor
        {
            info!(
                from = target.name,
                to = hex_id(successor),
                "moving the leadership"
            );
            let moved = call(
                "move the leadership",
                CALL_TIMEOUT,
                target.client.move_leader(successor),
            )
            .await;
            moved.map_err(|source| of_member(target, source))?;
        }
        result.members.push(one(target).await?);
    }
    run.progress("done", total, total, "members");
    Ok(result)
}

async fn target(connector: &Connector, member: &Member) -> Result<Target, MaintenanceError> {
    if member.client_urls().is_empty() {
        return Err(MaintenanceError::NotStarted(hex_id(member.id())));
    }
    let name = member.name().to_owned();
    let failed = |source| MaintenanceError::Member {
        member: name.clone(),
        source,
    };
    let mut client = connector.remote(member.client_urls()).await.map_err(failed)?;
    let status = call("status", CALL_TIMEOUT, client.status())
        .await
        .map_err(failed)?;
    Ok(Target {
        id: member.id(),
        client,
        status,
        name,
    })
}

async fn one(target: &mut Target) -> Result<MemberDefragmentation, MaintenanceError> {
    let before = target.status.db_size();
    let deadline =
        FIRST_DEADLINE + Duration::from_secs(u64::try_from(before).unwrap_or(0) / BYTES_PER_SECOND);
    let begun = Instant::now();
    let defragmented = call("defragment", deadline, target.client.defragment()).await;
    defragmented.map_err(|source| of_member(target, source))?;
    let duration = begun.elapsed();
    let after = settled(target).await?;
    info!(member = target.name, before, after, ?duration, "defragmented");
    Ok(MemberDefragmentation {
        member: target.name.clone(),
        db_size_before_bytes: before,
        db_size_after_bytes: after,
        duration: duration.try_into().ok(),
        skipped: false,
    })
}

/// Waits until the member has applied what came in meanwhile. Returns the size of its database.
async fn settled(target: &mut Target) -> Result<i64, MaintenanceError> {
    let begun = Instant::now();
    loop {
        let status = call("status", CALL_TIMEOUT, target.client.status()).await;
        let status = status.map_err(|source| of_member(target, source))?;
        if status.raft_index().saturating_sub(status.raft_applied_index()) < SETTLED && status.leader() != 0 {
            return Ok(status.db_size());
        }
        if begun.elapsed() > SETTLE {
            return Err(MaintenanceError::NotSettled(target.name.clone()));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn skipped(target: &Target) -> MemberDefragmentation {
    MemberDefragmentation {
        member: target.name.clone(),
        db_size_before_bytes: target.status.db_size(),
        db_size_after_bytes: target.status.db_size(),
        duration: None,
        skipped: true,
    }
}

fn of_member(target: &Target, source: EtcdError) -> MaintenanceError {
    MaintenanceError::Member {
        member: target.name.clone(),
        source,
    }
}
