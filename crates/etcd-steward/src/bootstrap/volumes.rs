//! What the members' stewards say of the data on their volumes in this start. Members that start together have nobody else
//! to ask: no etcd runs yet, and what they have recorded earlier says nothing of the volume that is there now.

use std::time::Duration;

use api::steward::{ClusterMember, server_name};
use futures::future::join_all;
use steward_proto::v1::{GetVolumeRequest, Volume, VolumeData, members_service_client::MembersServiceClient};
use tokio::{sync::watch, time::timeout};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tracing::debug;

use super::{decision::Others, evidence::Scene};

/// The data on a volume, as its member's steward has found it since it was started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Contents {
    /// It hasn't answered, or hasn't looked, or can't tell.
    #[default]
    Unknown,
    /// There is none.
    Empty,
    /// etcd was started without any, and hasn't answered yet.
    Starting,
    /// It is damaged.
    Damaged,
    /// It is in order, and of this cluster.
    Intact(String),
    /// etcd runs on it, in this cluster.
    Running(String),
}

impl Contents {
    /// The cluster that the data is of.
    pub(super) fn cluster(&self) -> Option<&str> {
        match self {
            Self::Intact(cluster) | Self::Running(cluster) => Some(cluster),
            Self::Unknown | Self::Empty | Self::Starting | Self::Damaged => None,
        }
    }

    /// Whether there was no data when its member was last started.
    pub(super) fn is_none(&self) -> bool {
        matches!(self, Self::Empty | Self::Starting)
    }
}

impl std::fmt::Display for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown => f.write_str("doesn't say what is on its volume"),
            Self::Empty => f.write_str("has no data"),
            Self::Starting => f.write_str("was started without data, and doesn't answer yet"),
            Self::Damaged => f.write_str("has damaged data"),
            Self::Intact(cluster) => write!(f, "has data of cluster {cluster}"),
            Self::Running(cluster) => write!(f, "runs in cluster {cluster}"),
        }
    }
}

/// What the steward beside us has found: written by the bootstrap, read by the API.
#[derive(Debug, Clone)]
pub struct OwnContents(watch::Sender<Contents>);

impl Default for OwnContents {
    fn default() -> Self {
        Self(watch::Sender::new(Contents::Unknown))
    }
}

impl OwnContents {
    /// What the others are told.
    pub fn get(&self) -> Contents {
        self.0.borrow().clone()
    }

    /// Has the others told something else.
    pub fn set(&self, contents: Contents) {
        self.0.send_replace(contents);
    }
}

/// A wanted member and what its steward says.
pub(super) type Said = (String, Contents);

/// Asks the stewards of all others at once. Who doesn't answer in time has said nothing.
pub(super) async fn ask(scene: &Scene, patience: Duration) -> Vec<Said> {
    let others = scene.cluster.members.iter();
    let others = others.filter(|member| member.name != scene.member.name);
    let asked = others.map(|member| async move {
        let said = match timeout(patience, ask_one(scene, member)).await {
            Ok(Ok(volume)) => understood(&volume, &scene.cluster.uid, &member.name),
            Ok(Err(error)) => {
                debug!(
                    member = member.name,
                    error = format!("{error:#}"),
                    "its steward doesn't answer"
                );
                Contents::Unknown
            }
            Err(_) => {
                debug!(
                    member = member.name,
                    ?patience,
                    "its steward doesn't answer in time"
                );
                Contents::Unknown
            }
        };
        (member.name.clone(), said)
    });
    join_all(asked).await
}

async fn ask_one(scene: &Scene, member: &ClusterMember) -> anyhow::Result<Volume> {
    let channel = connect(scene, member).await?;
    let answer = MembersServiceClient::new(channel)
        .get_volume(GetVolumeRequest {})
        .await?;
    Ok(answer.into_inner().volume.unwrap_or_default())
}

/// With the steward's own certificate, which is a client's as well.
async fn connect(scene: &Scene, member: &ClusterMember) -> anyhow::Result<Channel> {
    let mut endpoint = Endpoint::from_shared(member.steward_url.clone())?;
    if member.steward_url.starts_with("https://") {
        let file = |name: &str| tokio::fs::read(scene.steward_tls.join(name));
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(file("ca.crt").await?))
            .identity(Identity::from_pem(file("tls.crt").await?, file("tls.key").await?))
            .domain_name(server_name(&scene.cluster.name, &scene.cluster.namespace));
        endpoint = endpoint.tls_config(tls)?;
    }
    Ok(endpoint.connect().await?)
}

/// An address may lead anywhere: only the steward of the very member is believed.
fn understood(volume: &Volume, uid: &str, member: &str) -> Contents {
    if volume.etcd_uid != uid || volume.member != member {
        return Contents::Unknown;
    }
    let cluster = || Some(volume.cluster_id.clone()).filter(|id| !id.is_empty());
    match volume.data() {
        VolumeData::Unspecified => Contents::Unknown,
        VolumeData::Empty => Contents::Empty,
        VolumeData::Starting => Contents::Starting,
        VolumeData::Damaged => Contents::Damaged,
        VolumeData::Intact => cluster().map_or(Contents::Unknown, Contents::Intact),
        VolumeData::Running => cluster().map_or(Contents::Unknown, Contents::Running),
    }
}

/// What all that was said comes to.
pub(super) fn summary(said: &[Said]) -> Others {
    let any = |is: fn(&Contents) -> bool| said.iter().any(|(_, contents)| is(contents));
    if any(|contents| contents.cluster().is_some()) {
        Others::Data
    } else if any(|contents| matches!(contents, Contents::Unknown | Contents::Starting)) {
        Others::Unknown
    } else if any(|contents| *contents == Contents::Damaged) {
        Others::Damaged
    } else {
        Others::Empty
    }
}

/// For whoever waits for the others.
pub(super) fn told(said: &[Said]) -> String {
    let said: Vec<_> = said
        .iter()
        .map(|(member, contents)| format!("{member} {contents}"))
        .collect();
    said.join(", ")
}

#[cfg(test)]
mod tests {
    use super::{
        Contents::{Damaged, Empty, Intact, Running, Starting, Unknown},
        *,
    };

    #[test]
    fn nobody_is_taken_to_have_no_data_who_has_not_said_so() {
        for (said, expected) in [
            (vec![], Others::Empty),
            (vec![Empty, Empty], Others::Empty),
            (vec![Empty, Damaged], Others::Damaged),
            (vec![Damaged, Unknown], Others::Unknown),
            (vec![Empty, Starting], Others::Unknown),
            (vec![Unknown, Intact("a".into())], Others::Data),
            (vec![Damaged, Running("a".into())], Others::Data),
        ] {
            let said: Vec<_> = said.into_iter().map(|one| (String::new(), one)).collect();
            assert_eq!(summary(&said), expected, "{said:?}");
        }
    }

    #[test]
    fn only_the_very_member_is_believed() {
        let volume = |uid: &str, member: &str, data: VolumeData, cluster: &str| Volume {
            etcd_uid: uid.into(),
            member: member.into(),
            data: data.into(),
            cluster_id: cluster.into(),
        };
        for (volume, expected) in [
            (volume("u", "m", VolumeData::Empty, ""), Empty),
            (volume("v", "m", VolumeData::Empty, ""), Unknown),
            (volume("u", "n", VolumeData::Empty, ""), Unknown),
            (volume("u", "m", VolumeData::Intact, "a"), Intact("a".into())),
            // Of which cluster the data is can't be told: it may be any.
            (volume("u", "m", VolumeData::Intact, ""), Unknown),
            (volume("", "", VolumeData::Unspecified, ""), Unknown),
        ] {
            assert_eq!(understood(&volume, "u", "m"), expected, "{volume:?}");
        }
    }
}
