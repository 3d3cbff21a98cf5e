//! Removes learners that never came: they have never started, and nothing answers at their addresses. etcd takes no more
//! than one learner at a time, so one that was given up half-way would keep all others from joining. The steward beside
//! the leader does it; a wanted member that was removed joins anew when it is there.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use api::v1alpha1::{EtcdMemberStatus, MemberRole};
use etcd_client::Member;
use futures::future::join_all;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{Status, kubernetes::Kubernetes};
use crate::etcd::{CALL_TIMEOUT, Connector, Consistency, EtcdError, call, hex_id, list_members};

/// Time enough to bring up a pod on another node.
pub const TIMEOUT: Duration = Duration::from_mins(5);
/// etcd has no watch for its members.
const LONGEST_PERIOD: Duration = Duration::from_secs(15);
const SHORTEST_PERIOD: Duration = Duration::from_millis(500);

/// Looks after learners while the member beside us leads.
#[derive(Debug)]
pub struct Learners {
    /// What the member tells.
    pub status: Status,
    /// Connections to etcd.
    pub connector: Connector,
    /// For Events.
    pub kubernetes: Option<Kubernetes>,
    /// How long a learner may take to show up.
    pub timeout: Duration,
}

/// Since when learners have been missing, by ID.
type Missing = HashMap<u64, Instant>;

impl Learners {
    /// Works until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        tokio::select! {
            () = self.work() => {}
            () = shutdown.cancelled() => {}
        }
    }

    async fn work(&self) {
        let leads = |status: &EtcdMemberStatus| status.role == Some(MemberRole::Leader);
        let period = (self.timeout / 4).clamp(SHORTEST_PERIOD, LONGEST_PERIOD);
        let mut changes = self.status.subscribe();
        loop {
            if changes.wait_for(leads).await.is_err() {
                return;
            }
            // A new leader counts from its own beginning.
            let mut missing = Missing::new();
            while self.status.read(leads) {
                if let Err(error) = self.look(&mut missing).await {
                    debug!(%error, "failed to look after learners");
                }
                sleep(period).await;
            }
        }
    }

    async fn look(&self, missing: &mut Missing) -> Result<(), EtcdError> {
        let mut client = self.connector.local().await?;
        let listed = list_members(&mut client, Consistency::Quorum).await?;
        let unstarted = listed.members().iter().filter(|member| is_unstarted(member));
        let absent = join_all(unstarted.map(|member| self.is_absent(member))).await;
        let absent: Vec<&Member> = absent.into_iter().flatten().collect();
        let ids = absent.iter().map(|member| member.id()).collect();
        let overdue = overdue(missing, &ids, Instant::now(), self.timeout);
        for learner in absent.iter().filter(|member| overdue.contains(&member.id())) {
            let removing = client.member_remove(learner.id());
            call("remove a learner that never came", CALL_TIMEOUT, removing).await?;
            missing.remove(&learner.id());
            self.tell(learner).await;
        }
        Ok(())
    }

    /// The learner, if nothing listens at any of its addresses.
    async fn is_absent<'a>(&self, learner: &'a Member) -> Option<&'a Member> {
        let answers = learner.peer_urls().iter().map(|url| self.connector.answers(url));
        (!join_all(answers).await.contains(&true)).then_some(learner)
    }

    async fn tell(&self, learner: &Member) {
        let note = format!(
            "learner {} at {} never started, and nothing answered there for {:?}: removed, so that others can join",
            hex_id(learner.id()),
            learner.peer_urls().join(", "),
            self.timeout
        );
        warn!(
            id = hex_id(learner.id()),
            peer_urls = ?learner.peer_urls(),
            timeout = ?self.timeout,
            "removed a learner that never started"
        );
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes.warn("RemoveLearner", "LearnerTimedOut", &note).await;
        }
    }
}

fn is_unstarted(member: &Member) -> bool {
    member.is_learner() && member.client_urls().is_empty()
}

/// Notes who is absent now, forgets who isn't any more, and returns those who have been for too long.
fn overdue(missing: &mut Missing, absent: &HashSet<u64>, now: Instant, timeout: Duration) -> HashSet<u64> {
    missing.retain(|id, _| absent.contains(id));
    for id in absent {
        missing.entry(*id).or_insert_with(|| {
            info!(
                id = hex_id(*id),
                ?timeout,
                "a learner hasn't started yet, and nothing answers at its address"
            );
            now
        });
    }
    let late = missing
        .iter()
        .filter(|(_, since)| now.duration_since(**since) >= timeout);
    late.map(|(id, _)| *id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that shows up, if only for a moment, gets all of its time again.
    #[test]
    fn only_an_unbroken_absence_counts() {
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let mut missing = Missing::new();
        let mut look = |at: u32, absent: &[u64]| {
            let absent = absent.iter().copied().collect();
            let mut late: Vec<_> = overdue(&mut missing, &absent, begin + second * at, second * 10)
                .into_iter()
                .collect();
            late.sort_unstable();
            late
        };
        let none: [u64; 0] = [];
        assert_eq!(look(0, &[1, 2]), none);
        assert_eq!(look(9, &[2]), none);
        assert_eq!(look(10, &[1, 2]), [2]);
        assert_eq!(look(19, &[1]), none);
        assert_eq!(look(20, &[1]), [1]);
    }
}
