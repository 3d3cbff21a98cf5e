//! How far this member is behind the others. What the member knows itself isn't enough: a learner that has just joined
//! knows of no entry that it hasn't got.

use std::time::Duration;

use api::steward::{ClusterConfig, ClusterMember};
use etcd_client::{Client, StatusResponse};
use futures::future::join_all;
use tokio::time::{Instant, timeout};

use crate::etcd::{Connector, EtcdError, call};

/// A learner's lag is worth a look every second; that of others is most often none.
const LEARNER: Duration = Duration::from_secs(1);
const FOLLOWER: Duration = Duration::from_secs(10);
/// The others are asked on the side: what takes longer says nothing in time.
const PATIENCE: Duration = Duration::from_millis(500);
/// Fewer entries are the normal state of a busy cluster.
const NOTHING: u64 = 1000;

/// The newest entry that the others have told of.
#[derive(Debug, Clone)]
pub(super) struct Lag {
    connector: Connector,
    others: Vec<Other>,
    newest: u64,
    looked: Option<Instant>,
}

#[derive(Clone)]
struct Other {
    urls: Vec<String>,
    client: Option<Client>,
}

impl std::fmt::Debug for Other {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Other")
            .field("urls", &self.urls)
            .finish_non_exhaustive()
    }
}

impl Lag {
    pub(super) fn new(connector: Connector, cluster: &ClusterConfig, own: &ClusterMember) -> Self {
        let others = cluster.members.iter().filter(|member| member.name != own.name);
        Self {
            connector,
            others: others
                .map(|member| Other {
                    urls: member.client_urls.clone(),
                    client: None,
                })
                .collect(),
            newest: 0,
            looked: None,
        }
    }

    /// Asks the others, if it is time to. The leader knows best itself.
    pub(super) async fn look(&mut self, own: &StatusResponse) {
        let leads = own
            .header()
            .is_some_and(|header| header.member_id() == own.leader());
        let period = if own.is_learner() { LEARNER } else { FOLLOWER };
        if leads || self.looked.is_some_and(|at| at.elapsed() < period) {
            return;
        }
        self.looked = Some(Instant::now());
        let connector = &self.connector;
        let asked = self.others.iter_mut().map(|other| other.index(connector));
        self.newest = join_all(asked).await.into_iter().flatten().max().unwrap_or(0);
    }

    /// Entries between what the member has applied and the newest one that is known of.
    pub(super) fn of(&self, own_index: u64, applied: u64) -> u64 {
        own_index.max(self.newest).saturating_sub(applied)
    }
}

impl Other {
    async fn index(&mut self, connector: &Connector) -> Option<u64> {
        let asked = timeout(PATIENCE, self.ask(connector)).await;
        let index = asked.ok().and_then(Result::ok);
        if index.is_none() {
            self.client = None;
        }
        index
    }

    async fn ask(&mut self, connector: &Connector) -> Result<u64, EtcdError> {
        let client = match &mut self.client {
            Some(client) => client,
            None => self.client.insert(connector.remote(&self.urls).await?),
        };
        let status = call("status of another member", PATIENCE, client.status()).await?;
        Ok(status.raft_index())
    }
}

/// Coarse enough not to change all the time.
pub(super) fn rounded(behind: u64) -> u64 {
    if behind < NOTHING {
        return 0;
    }
    let step = behind.next_power_of_two() / 8;
    behind - behind % step
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A learner that has nothing yet knows of nothing that it lacks; the others do.
    #[test]
    fn the_others_tell_how_far_it_is() {
        let mut lag = Lag::new(
            Connector::plain("http://127.0.0.1:1"),
            &ClusterConfig::default(),
            &ClusterMember::default(),
        );
        assert_eq!(lag.of(10, 10), 0);
        lag.newest = 5010;
        assert_eq!(lag.of(10, 10), 5000);
        // What was told is older than what the member knows by now.
        assert_eq!(lag.of(6000, 6000), 0);
    }

    #[test]
    fn small_and_moving_lags_are_not_worth_a_write() {
        assert_eq!([0, 999].map(rounded), [0, 0]);
        assert_eq!(rounded(1000), rounded(1020));
        assert_eq!(rounded(1_000_000), 917_504);
        for behind in [1000, 4096, 5000, 123_456_789] {
            let shown = rounded(behind);
            assert!(shown <= behind && shown > behind / 2, "{behind}: {shown}");
        }
    }
}
