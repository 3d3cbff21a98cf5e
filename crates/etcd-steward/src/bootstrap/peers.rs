//! Asks the other members for the cluster that runs. An address may lead anywhere: whoever answers is believed only if it
//! is in the cluster that was recorded, or is one of this Etcd's members by its own peer URLs.

use std::{collections::BTreeSet, time::Duration};

use api::steward::ClusterConfig;
use etcd_client::{Client, Member};
use etcd_storage::{cluster::Id, validate::DataDir};
use futures::future::join_all;
use tokio::time::timeout;
use tracing::debug;

use super::evidence::Scene;
use crate::etcd::{Consistency, EtcdError, hex_id, host_port, list_members};

/// The running cluster, as one of its members tells it.
pub struct Cluster {
    /// A connection to that member.
    pub client: Client,
    /// All members that it lists.
    pub members: Vec<Member>,
    /// The cluster's ID.
    pub id: u64,
    /// The URL that was asked.
    url: String,
    /// ID of the member that answered.
    asked: u64,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("id", &self.id)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// What it is called in messages.
    pub fn display(&self) -> String {
        format!("cluster {} of {} members", hex_id(self.id), self.members.len())
    }

    fn answer(&self) -> Answer {
        let asked = self.members.iter().find(|member| member.id() == self.asked);
        Answer {
            cluster: hex_id(self.id),
            url: self.url.clone(),
            peer_urls: asked
                .map(|member| member.peer_urls().to_vec())
                .unwrap_or_default(),
        }
    }
}

/// Asks all others at once; only those at whose address something listens.
pub(super) async fn ask(scene: &Scene, patience: Duration) -> Vec<Cluster> {
    let others = scene
        .cluster
        .members
        .iter()
        .filter(|member| member.name != scene.member.name);
    let asked = others
        .filter_map(|member| member.client_urls.first())
        .map(|url| async move {
            if !scene.connector.answers(url).await {
                return None;
            }
            match timeout(patience, ask_one(scene, url)).await {
                Ok(Ok(cluster)) => Some(cluster),
                Ok(Err(error)) => {
                    let error = operator::reconcile::chain(&error);
                    debug!(url, error, "no answer from a member");
                    None
                }
                Err(_) => {
                    debug!(url, ?patience, "no answer from a member in time");
                    None
                }
            }
        });
    join_all(asked).await.into_iter().flatten().collect()
}

async fn ask_one(scene: &Scene, url: &String) -> Result<Cluster, EtcdError> {
    let mut client = scene.connector.remote(&[url]).await?;
    let mut answer = list_members(&mut client, Consistency::Quorum).await?;
    let header = answer.take_header();
    Ok(Cluster {
        client,
        members: answer.members().to_vec(),
        id: header.as_ref().map_or(0, etcd_client::ResponseHeader::cluster_id),
        url: url.clone(),
        asked: header.as_ref().map_or(0, etcd_client::ResponseHeader::member_id),
    })
}

/// Who answered, as far as it matters for whether to believe it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    cluster: String,
    url: String,
    /// Its own, as its cluster lists them.
    peer_urls: Vec<String>,
}

/// Whom to believe.
#[derive(Debug)]
pub(super) enum Answers {
    /// Nobody answered.
    Nobody,
    /// This is the cluster.
    Ours(Box<Cluster>),
    /// They answered, and aren't it; the text says who they are.
    Strangers(String),
}

/// Chooses among the answers.
pub(super) fn choose(
    mut answers: Vec<Cluster>,
    wanted: &ClusterConfig,
    recorded: &BTreeSet<String>,
) -> Answers {
    if answers.is_empty() {
        return Answers::Nobody;
    }
    let known: Vec<_> = answers.iter().map(Cluster::answer).collect();
    match ours(&known, wanted, recorded) {
        Some(index) => Answers::Ours(Box::new(answers.swap_remove(index))),
        None => Answers::Strangers(strangers(&known, recorded)),
    }
}

/// The recorded cluster, or else the only one that this Etcd's members are in. Of two that are recorded none is chosen.
fn ours(answers: &[Answer], wanted: &ClusterConfig, recorded: &BTreeSet<String>) -> Option<usize> {
    match recorded_among(answers, recorded).as_slice() {
        [] => {}
        [one] => return answers.iter().position(|answer| answer.cluster == *one),
        _ => return None,
    }
    let addresses: BTreeSet<_> = wanted
        .members
        .iter()
        .flat_map(|member| &member.peer_urls)
        .filter_map(|url| host_port(url))
        .collect();
    let is_member = |answer: &Answer| {
        let mut own = answer.peer_urls.iter().filter_map(|url| host_port(url));
        own.any(|address| addresses.contains(&address))
    };
    let clusters: BTreeSet<_> = answers
        .iter()
        .filter(|answer| is_member(answer))
        .map(|answer| &answer.cluster)
        .collect();
    if clusters.len() == 1 {
        answers.iter().position(is_member)
    } else {
        None
    }
}

/// The recorded clusters that answer.
fn recorded_among<'a>(answers: &'a [Answer], recorded: &BTreeSet<String>) -> Vec<&'a str> {
    let clusters: BTreeSet<_> = answers.iter().map(|answer| answer.cluster.as_str()).collect();
    let known = clusters.into_iter().filter(|cluster| recorded.contains(*cluster));
    known.collect()
}

fn strangers(answers: &[Answer], recorded: &BTreeSet<String>) -> String {
    let mut said: Vec<_> = answers
        .iter()
        .map(|answer| format!("{} is in cluster {}", answer.url, answer.cluster))
        .collect();
    said.push(if recorded.is_empty() {
        "no cluster of this Etcd is recorded".to_owned()
    } else {
        let recorded: Vec<_> = recorded.iter().map(String::as_str).collect();
        format!("this Etcd's cluster is {}", recorded.join(" or "))
    });
    if recorded_among(answers, recorded).len() > 1 {
        said.push(
            "its members are in more than one cluster, and which one to join is for a person to say"
                .to_owned(),
        );
    }
    said.join(", ")
}

/// The cluster of a data directory, and whether it lists the directory's member.
pub(super) enum ClusterOfData {
    /// A majority of it answers, and nobody there lists the member any more.
    Removed(Cluster),
    /// It lists the member.
    Lists(Cluster),
}

/// Finds the cluster of a data directory among the answers; `None` if too few of it answer.
pub(super) fn cluster_of(answers: Vec<Cluster>, found: &DataDir) -> Option<ClusterOfData> {
    let (Some(Id(cluster)), Some(Id(member))) = (found.cluster_id, found.member_id) else {
        return None;
    };
    let mut same: Vec<_> = answers
        .into_iter()
        .filter(|answer| answer.id == cluster)
        .collect();
    let voters = |answer: &Cluster| {
        answer
            .members
            .iter()
            .filter(|member| !member.is_learner())
            .count()
    };
    let majority = same.iter().map(voters).max().unwrap_or(0) / 2 + 1;
    let lists_it = |answer: &Cluster| answer.members.iter().any(|listed| listed.id() == member);
    if let Some(index) = same.iter().position(lists_it) {
        return Some(ClusterOfData::Lists(same.swap_remove(index)));
    }
    if same.len() < majority {
        return None;
    }
    same.pop().map(ClusterOfData::Removed)
}

#[cfg(test)]
mod tests {
    use api::steward::ClusterMember;

    use super::*;

    fn answer(cluster: &str, peer_url: &str) -> Answer {
        Answer {
            cluster: cluster.into(),
            url: format!("http://{cluster}:2379"),
            peer_urls: vec![peer_url.into()],
        }
    }

    /// An address that leads to another cluster must not make this member a part of that one.
    #[test]
    fn only_this_etcds_cluster_is_believed() {
        let wanted = ClusterConfig {
            members: vec![ClusterMember {
                peer_urls: vec!["https://t1-0.lab:2380".into()],
                ..ClusterMember::default()
            }],
            ..ClusterConfig::default()
        };
        let (a, b) = (
            answer("a", "https://t1-0.lab:2380"),
            answer("b", "http://other:2380"),
        );
        // TLS may just be switched on.
        let plain = answer("a", "http://t1-0.lab:2380");
        let split = answer("c", "https://t1-0.lab:2380");
        for (answers, recorded, expected) in [
            (vec![a.clone()], "", Some(0)),
            (vec![plain], "", Some(0)),
            (vec![b.clone()], "", None),
            (vec![b.clone(), a.clone()], "", Some(1)),
            // Members of this Etcd in two clusters: neither is taken for the right one, unless it is recorded.
            (vec![a.clone(), split.clone()], "", None),
            (vec![a.clone(), split.clone()], "c", Some(1)),
            // Both are recorded.
            (vec![a.clone(), split.clone()], "a c", None),
            (vec![a.clone(), a.clone()], "a c", Some(0)),
            (vec![b.clone(), split], "a c", Some(1)),
            // A restore made another cluster of its members.
            (vec![a], "before", Some(0)),
            (vec![b.clone()], "before", None),
            (vec![b], "b", Some(0)),
        ] {
            let recorded: BTreeSet<_> = recorded.split_whitespace().map(str::to_owned).collect();
            assert_eq!(
                ours(&answers, &wanted, &recorded),
                expected,
                "{answers:?} {recorded:?}"
            );
        }
    }

    #[test]
    fn strangers_are_named_with_both_clusters() {
        let recorded = BTreeSet::from(["abc".to_owned()]);
        let text = strangers(&[answer("def", "http://x:1")], &recorded);
        assert!(text.contains("def") && text.contains("abc"), "{text}");
        assert!(!text.contains("more than one"), "{text}");
        let both = BTreeSet::from(["abc".to_owned(), "def".to_owned()]);
        let text = strangers(&[answer("def", "http://x:1"), answer("abc", "http://y:1")], &both);
        assert!(text.contains("in more than one cluster"), "{text}");
    }
}
