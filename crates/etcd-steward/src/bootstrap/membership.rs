//! Joins a running cluster as a learner, and has a lost predecessor of this member removed first.

use std::time::Instant;

use etcd_client::{Member, MemberAddOptions, StatusResponse};
use futures::future::join_all;
use operator::reconcile::chain;
use tracing::{info, warn};

use super::{config, decision::Decision, evidence::Scene, peers::Cluster};
use crate::{
    etcd::{CALL_TIMEOUT, Consistency, EtcdError, call, hex_id, list_members},
    metrics::Step,
    quorum::Voters,
    volume::{self, VolumeError},
};

/// Why the member isn't in the cluster yet.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// etcd refused, or couldn't be asked.
    #[error("join {cluster}: {source}")]
    Etcd {
        /// The cluster.
        cluster: String,
        /// Why.
        #[source]
        source: EtcdError,
    },
    /// Whoever has started or votes has data, and may have voted: it must not begin without.
    #[error(
        "{cluster} doesn't list this member as a learner that is yet to start, as it was asked to: looking again before \
         anything is started on no data"
    )]
    NotALearner {
        /// The cluster.
        cluster: String,
    },
    /// etcd takes nobody in while voters are down: since 3.5.35 and 3.6.16 at the latest more of them than it could do without,
    /// before that any.
    #[error(
        "join {cluster}: {source}: etcd takes no member, not even a learner, while a voter isn't connected to the others; newer \
         patch releases ask only for a quorum. Start the member that is down, or update etcd"
    )]
    Unhealthy {
        /// The cluster.
        cluster: String,
        /// What it answered.
        #[source]
        source: EtcdError,
    },
    /// The old data can't be moved away.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// Makes the cluster list this member as a learner, and moves old data aside. Returns the members to start with. To rejoin,
/// [`confirm_quorum`] comes first.
pub(super) async fn join(
    scene: &Scene,
    cluster: &Cluster,
    decision: Decision,
) -> Result<Vec<(String, String)>, MembershipError> {
    let failed = |source| MembershipError::Etcd {
        cluster: cluster.display(),
        source,
    };
    let mut client = cluster.client.clone();
    if decision == Decision::Rejoin
        && let Some(lost) = scene.listed(cluster)
    {
        info!(id = hex_id(lost.id()), "removing the lost member");
        let begun = Instant::now();
        let removing = client.member_remove(lost.id());
        let removed = call("remove the lost member", CALL_TIMEOUT, removing).await;
        scene
            .metrics
            .stepped(Step::Remove, removed.is_ok(), begun.elapsed());
        removed.map_err(failed)?;
    }
    volume::move_aside(&scene.data_dir)?;
    if decision != Decision::StartAsLearner {
        let learner = Some(MemberAddOptions::new().with_is_learner());
        let begun = Instant::now();
        let adding = client.member_add(scene.member.peer_urls.clone(), learner);
        let added = call("add a learner", CALL_TIMEOUT, adding).await;
        scene
            .metrics
            .stepped(Step::AddLearner, added.is_ok(), begun.elapsed());
        match added {
            Ok(_) => info!("added as a learner"),
            // An answer to an earlier try was lost.
            Err(error) if error.message().contains("Peer URLs already exists") => warn!("already added"),
            Err(source) if source.message().contains("unhealthy cluster") => {
                let cluster = cluster.display();
                return Err(MembershipError::Unhealthy { cluster, source });
            }
            Err(error) => return Err(failed(error)),
        }
    }
    let listed = list_members(&mut client, Consistency::Quorum)
        .await
        .map_err(failed)?;
    let ours = &scene.member.peer_urls;
    let is_ours = |member: &&Member| member.peer_urls().iter().any(|url| ours.contains(url));
    let own = listed.members().iter().find(is_ours);
    let own = own.filter(|own| is_unstarted_learner(own));
    let own = own.ok_or_else(|| MembershipError::NotALearner {
        cluster: cluster.display(),
    })?;
    // On the volume first: from here on its data is that cluster's.
    let id = hex_id(cluster.id);
    scene.identity().record_cluster(&scene.volume, &id)?;
    scene.status.update(|status| {
        status.id = Some(hex_id(own.id()));
        status.cluster_id = Some(id);
    });
    let others = listed.members().iter().filter(|member| !is_ours(member));
    let mut members: Vec<_> = others
        .flat_map(|member| {
            member
                .peer_urls()
                .iter()
                .map(|url| (member.name().to_owned(), url.clone()))
        })
        .collect();
    members.extend(config::pairs(&scene.member));
    Ok(members)
}

fn is_unstarted_learner(member: &Member) -> bool {
    member.is_learner() && member.client_urls().is_empty()
}

/// Makes sure that the voters which remain without this member have a quorum, and that `cluster` lists its members as that
/// quorum does. A voter that doesn't run is no part of the quorum, so that its removal takes nothing from the others, however
/// many of them are down; and etcd decides on one change of the members after the other. Says what is missing otherwise.
pub(super) async fn confirm_quorum(scene: &Scene, cluster: &mut Cluster) -> Result<(), String> {
    let listed = list_members(&mut cluster.client.clone(), Consistency::Quorum).await;
    if let Ok(listed) = &listed {
        cluster.members = listed.members().to_vec();
    }
    let others = Voters {
        total: other_voters(scene, cluster).count(),
        serving: statuses_of_others(scene, cluster).await.len(),
    };
    let name = cluster.display();
    match listed {
        Ok(_) if others.have_quorum() => Ok(()),
        Ok(_) => Err(format!("{name}, without this member: {others}")),
        Err(error) => Err(format!(
            "{name}, without this member: {others}; {}",
            chain(&error)
        )),
    }
}

/// What the voters of a cluster say that serve, without this member.
pub(super) async fn statuses_of_others(scene: &Scene, cluster: &Cluster) -> Vec<StatusResponse> {
    let asked = other_voters(scene, cluster).map(|voter| async {
        let mut client = scene.connector.remote(voter.client_urls()).await.ok()?;
        let status = call("status", CALL_TIMEOUT, client.status()).await.ok()?;
        let is_same = status
            .header()
            .is_some_and(|header| header.cluster_id() == cluster.id);
        (is_same && status.leader() != 0).then_some(status)
    });
    join_all(asked).await.into_iter().flatten().collect()
}

fn other_voters<'a>(scene: &Scene, cluster: &'a Cluster) -> impl Iterator<Item = &'a Member> {
    let own = scene.listed(cluster).map(Member::id);
    let members = cluster.members.iter();
    members.filter(move |member| Some(member.id()) != own && !member.is_learner())
}
