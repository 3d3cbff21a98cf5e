//! Joins a running cluster as a learner, and has a lost predecessor of this member removed first.

use std::time::Instant;

use etcd_client::{Member, MemberAddOptions};
use futures::future::join_all;
use tracing::{info, warn};

use super::{config, decision::Decision, evidence::Scene, peers::Cluster};
use crate::{
    etcd::{CALL_TIMEOUT, Consistency, EtcdError, call, hex_id, list_members},
    metrics::Step,
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
    /// The old data can't be moved away.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// Makes the cluster list this member as a learner, and moves old data aside. Returns the members to start with. To rejoin,
/// nobody may be missing.
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

/// All other voters must answer before one is taken away, or a quorum would be lost. Says who is missing otherwise.
pub(super) async fn others_missing(scene: &Scene, cluster: &Cluster) -> Option<String> {
    let lost = scene.listed(cluster).map(Member::id);
    let voters = cluster
        .members
        .iter()
        .filter(|member| Some(member.id()) != lost && !member.is_learner());
    let asked = voters.map(|voter| async {
        let mut client = scene.connector.remote(voter.client_urls()).await?;
        call("status", CALL_TIMEOUT, client.status()).await
    });
    let down = join_all(asked)
        .await
        .iter()
        .filter(|answer| answer.is_err())
        .count();
    (down > 0).then(|| {
        format!(
            "not removing the lost member from {}: {down} of the others don't answer, and a quorum would be lost",
            cluster.display()
        )
    })
}
