//! Joins a running cluster as a learner, and has a lost predecessor of this member removed first.

use std::time::Instant;

use etcd_client::{Member, MemberAddOptions};
use tracing::{info, warn};

use super::{config, decision::Decision, evidence::Scene, peers::Cluster};
use crate::{
    etcd::{CALL_TIMEOUT, EtcdError, call, hex_id},
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
    /// Removing this member would leave the others without a quorum.
    #[error(
        "not removing the lost member from {cluster}: {down} of the others don't answer, and a quorum would be lost"
    )]
    OthersDown {
        /// The cluster.
        cluster: String,
        /// How many.
        down: usize,
    },
    /// The old data can't be moved away.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// Makes the cluster list this member as a learner, and moves old data aside. Returns the members to start with.
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
        require_others(scene, cluster, lost.id()).await?;
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
    let listed = call("list members", CALL_TIMEOUT, client.member_list())
        .await
        .map_err(failed)?;
    let ours = &scene.member.peer_urls;
    let is_ours = |member: &&Member| member.peer_urls().iter().any(|url| ours.contains(url));
    if let Some(own) = listed.members().iter().find(is_ours) {
        scene.status.update(|status| {
            status.id = Some(hex_id(own.id()));
            status.cluster_id = Some(hex_id(cluster.id));
        });
    }
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

/// All other voters must answer before one is taken away.
async fn require_others(scene: &Scene, cluster: &Cluster, lost: u64) -> Result<(), MembershipError> {
    let voters = cluster
        .members
        .iter()
        .filter(|member| member.id() != lost && !member.is_learner());
    let mut down = 0;
    for voter in voters {
        let answers = match scene.connector.remote(voter.client_urls()).await {
            Ok(mut client) => call("status", CALL_TIMEOUT, client.status()).await.is_ok(),
            Err(_) => false,
        };
        down += usize::from(!answers);
    }
    if down == 0 {
        Ok(())
    } else {
        Err(MembershipError::OthersDown {
            cluster: cluster.display(),
            down,
        })
    }
}
