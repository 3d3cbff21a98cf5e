//! How far the others are. What the member knows itself isn't enough: a learner that has just joined knows of no entry
//! that it hasn't got, and answers nobody before it has most of them.

use std::time::Duration;

use api::steward::{ClusterConfig, ClusterMember};
use etcd_client::Client;
use futures::future::join_all;
use tokio::time::{Instant, timeout};

use crate::etcd::{Connector, EtcdError, call};

/// How often the others are asked: a learner's lag is worth a look every second; that of others is most often none.
pub(super) const LEARNER: Duration = Duration::from_secs(1);
pub(super) const FOLLOWER: Duration = Duration::from_secs(10);
/// The others are asked on the side: what takes longer says nothing in time.
const PATIENCE: Duration = Duration::from_millis(500);
/// Fewer entries are the normal state of a busy cluster.
const NOTHING: u64 = 1000;

/// What the others have told of.
#[derive(Debug, Clone)]
pub(super) struct Lag {
    connector: Connector,
    others: Vec<Other>,
    newest: Newest,
    looked: Option<Instant>,
}

/// The most that a member has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Newest {
    /// Index of its newest entry.
    pub(super) index: u64,
    /// Size of its database in bytes.
    pub(super) db_size: u64,
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
            newest: Newest::default(),
            looked: None,
        }
    }

    /// Asks the others, if they weren't asked within a period.
    pub(super) async fn look(&mut self, period: Duration) {
        if self.looked.is_some_and(|at| at.elapsed() < period) {
            return;
        }
        self.looked = Some(Instant::now());
        let connector = &self.connector;
        let asked = self.others.iter_mut().map(|other| other.newest(connector));
        let told: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
        self.newest = Newest {
            index: told.iter().map(|newest| newest.index).max().unwrap_or(0),
            db_size: told.iter().map(|newest| newest.db_size).max().unwrap_or(0),
        };
    }

    /// What they have told.
    pub(super) fn newest(&self) -> Newest {
        self.newest
    }

    /// Entries between what the member has applied and the newest one that is known of.
    pub(super) fn of(&self, own_index: u64, applied: u64) -> u64 {
        own_index.max(self.newest.index).saturating_sub(applied)
    }
}

impl Other {
    async fn newest(&mut self, connector: &Connector) -> Option<Newest> {
        let asked = timeout(PATIENCE, self.ask(connector)).await;
        let newest = asked.ok().and_then(Result::ok);
        if newest.is_none() {
            self.client = None;
        }
        newest
    }

    async fn ask(&mut self, connector: &Connector) -> Result<Newest, EtcdError> {
        let client = match &mut self.client {
            Some(client) => client,
            None => self.client.insert(connector.remote(&self.urls).await?),
        };
        let status = call("status of another member", PATIENCE, client.status()).await?;
        Ok(Newest {
            index: status.raft_index(),
            db_size: u64::try_from(status.db_size()).unwrap_or(0),
        })
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
        lag.newest.index = 5010;
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
