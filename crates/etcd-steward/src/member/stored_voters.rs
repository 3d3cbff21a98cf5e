//! What an etcd waits for that runs and has never answered since its start: a quorum of the voters in its own data. It says so
//! to nobody, for it serves nobody before it has a leader.

use std::{collections::BTreeSet, sync::Arc};

use api::steward::ClusterConfig;
use etcd_storage::{schema::StoredMember, validate::DataDir};
use futures::future::join_all;
use tokio::sync::watch;

use crate::{
    etcd::{Connector, hex_id},
    quorum::Voters,
};

/// The voters that the data of the member listed when its etcd was last started.
#[derive(Debug, Clone, Default)]
pub struct StoredVoters {
    known: Arc<watch::Sender<Stored>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Stored {
    own: u64,
    voters: Vec<StoredMember>,
}

impl StoredVoters {
    /// Takes over what the data says.
    pub(crate) fn set(&self, found: &DataDir) {
        let voters = found.members.iter().filter(|member| !member.is_learner);
        self.known.send_replace(Stored {
            own: found.member_id.map_or(0, |id| id.0),
            voters: voters.cloned().collect(),
        });
    }

    /// Says what is missing for a quorum, if it is known: members that aren't wanted, or at whose addresses nothing listens.
    pub(super) async fn missing(&self, connector: &Connector, wanted: &ClusterConfig) -> Option<String> {
        let stored = self.known.borrow().clone();
        if stored.voters.len() < 2 {
            return None;
        }
        if let Some(text) = unwanted(&stored, wanted) {
            return Some(text);
        }
        let others = stored.voters.iter().filter(|voter| voter.id != stored.own);
        let asked = others.map(|voter| async move {
            let answers = voter.peer_urls.iter().map(|url| connector.answers(url));
            let is_there = join_all(answers).await.contains(&true);
            (!is_there).then(|| name(voter))
        });
        let mut silent: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
        silent.sort();
        let voters = Voters {
            total: stored.voters.len(),
            serving: stored.voters.len() - silent.len(),
        };
        (!voters.have_quorum()).then(|| {
            format!(
                "etcd waits for a quorum: nothing listens for its peers at {}. Bring them back with their volumes",
                silent.join(", ")
            )
        })
    }
}

/// A quorum that can't come about, since too few of the voters are wanted.
fn unwanted(stored: &Stored, wanted: &ClusterConfig) -> Option<String> {
    let names: BTreeSet<_> = wanted.members.iter().map(|member| member.name.as_str()).collect();
    let total = stored.voters.len();
    let missing = stored
        .voters
        .iter()
        .filter(|voter| !names.contains(voter.name.as_str()));
    let mut missing: Vec<_> = missing.map(name).collect();
    missing.sort();
    let voters = Voters {
        total,
        serving: total - missing.len(),
    };
    (!voters.have_quorum()).then(|| {
        format!(
            "etcd waits for a quorum that can't come about: its data is that of a cluster of {total} voters, and {} are not among \
             the members that this Etcd wants. Set its replicas to {total} again, with the volumes of all; if those are lost, \
             make the cluster anew from its backups",
            missing.join(", ")
        )
    })
}

fn name(voter: &StoredMember) -> String {
    if voter.name.is_empty() {
        hex_id(voter.id)
    } else {
        voter.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use api::steward::ClusterMember;

    use super::*;

    fn stored(names: &[&str]) -> Stored {
        let voters = names.iter().zip(1..).map(|(name, id)| StoredMember {
            id,
            name: (*name).to_owned(),
            ..StoredMember::default()
        });
        Stored {
            own: 1,
            voters: voters.collect(),
        }
    }

    #[test]
    fn a_quorum_of_the_stored_voters_must_be_wanted() {
        for (voters, wanted, expected) in [
            (
                &["t1-0", "t1-1", "t1-2"][..],
                &["t1-0"][..],
                Some("t1-1, t1-2 are not"),
            ),
            (&["t1-0", "t1-1", "t1-2"], &["t1-0", "t1-2"], None),
            (&["t1-0", "t1-1"], &["t1-0"], Some("t1-1 are not")),
            (&["t1-0", "", "t1-2"], &["t1-0"], Some("2, t1-2 are not")),
            (&["t1-0"], &["t1-0", "t1-1", "t1-2"], None),
        ] {
            let members = wanted.iter().map(|name| ClusterMember {
                name: (*name).to_owned(),
                ..ClusterMember::default()
            });
            let wanted = ClusterConfig {
                members: members.collect(),
                ..ClusterConfig::default()
            };
            let text = unwanted(&stored(voters), &wanted);
            assert_eq!(text.is_some(), expected.is_some(), "{text:?}");
            let found = text.unwrap_or_default();
            assert!(found.contains(expected.unwrap_or_default()), "{found}");
        }
    }

    #[tokio::test]
    async fn voters_that_are_gone_are_named() {
        let known = StoredVoters::default();
        let connector = Connector::plain("http://127.0.0.1:1");
        let wanted = ClusterConfig {
            members: ["a", "b", "c"]
                .map(|name| ClusterMember {
                    name: name.to_owned(),
                    ..ClusterMember::default()
                })
                .to_vec(),
            ..ClusterConfig::default()
        };
        assert_eq!(known.missing(&connector, &wanted).await, None);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = format!("http://{}", listener.local_addr().unwrap());
        let gone = "http://127.0.0.1:1".to_owned();
        for (urls, expected) in [([&gone, &gone], Some("b, c")), ([&there, &gone], None)] {
            let mut stored = stored(&["a", "b", "c"]);
            for (voter, url) in stored.voters.iter_mut().skip(1).zip(urls) {
                voter.peer_urls = vec![url.clone()];
            }
            known.known.send_replace(stored);
            let text = known.missing(&connector, &wanted).await;
            assert_eq!(text.is_some(), expected.is_some(), "{text:?}");
            assert!(text.unwrap_or_default().contains(expected.unwrap_or_default()));
        }
    }
}
