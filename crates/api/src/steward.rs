//! The configuration that the etcd-controller writes for the stewards of an Etcd, one file for all members. Unknown
//! fields are ignored when it is read: during an update a steward may be older than the controller.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::{
    duration::GoDuration,
    schedule::CronSchedule,
    v1alpha1::{BackupSpec, FreelistType},
};

/// Name of the file in the ConfigMap.
pub const FILE: &str = "steward.yaml";

/// Name in every steward certificate of one Etcd by which clients inside Druid know it, whatever address they dial.
pub fn server_name(etcd: &str, namespace: &str) -> String {
    format!("{etcd}.{namespace}.steward.druid.gardener.cloud")
}

/// Paths inside the pod. They never depend on an Etcd's settings, so the pod template doesn't either.
pub mod path {
    /// The data volume.
    pub const DATA: &str = "/var/etcd/data";
    /// etcd's data directory.
    pub const DATA_DIR: &str = "/var/etcd/data/new.etcd";
    /// The ConfigMap.
    pub const CONFIG: &str = "/var/etcd/config";
    /// Certificates of etcd: see [`super::tls`].
    pub const ETCD_TLS: &str = "/var/etcd/tls";
    /// The certificate with which the steward calls etcd: see [`super::tls`]. Not for etcd's container.
    pub const CLIENT_TLS: &str = "/var/steward/client-tls";
    /// Certificates of the steward: `ca.crt`, `tls.crt`, `tls.key`, and where brought `brought-ca.crt` and so on.
    pub const STEWARD_TLS: &str = "/var/steward/tls";
    /// Where the steward's binary is copied to for the etcd container.
    pub const BIN: &str = "/var/druid/bin";
    /// Socket and files shared by the containers of the pod.
    pub const RUN: &str = "/var/druid/run";
    /// Scratch space of the steward.
    pub const TEMP: &str = "/var/steward/temp";
}

/// Keys of the Secret that the etcd-controller copies an Etcd's certificates into.
pub mod tls {
    pub const CLIENT_CA: &str = "client-ca.crt";
    pub const CLIENT_SERVER_CERT: &str = "client-server.crt";
    pub const CLIENT_SERVER_KEY: &str = "client-server.key";
    pub const CLIENT_CERT: &str = "client.crt";
    pub const CLIENT_KEY: &str = "client.key";
    pub const PEER_CA: &str = "peer-ca.crt";
    pub const PEER_CERT: &str = "peer.crt";
    pub const PEER_KEY: &str = "peer.key";

    /// What etcd itself needs of them.
    pub const OF_ETCD: [&str; 6] = [
        CLIENT_CA,
        CLIENT_SERVER_CERT,
        CLIENT_SERVER_KEY,
        PEER_CA,
        PEER_CERT,
        PEER_KEY,
    ];
    /// What the steward needs to call it.
    pub const OF_CLIENT: [&str; 2] = [CLIENT_CERT, CLIENT_KEY];
}

/// Keys of the Secret with the stewards' certificates under which the etcd-controller copies the user name and the password
/// of `spec.etcd.authSecretRef`. Only the steward's container mounts it.
pub mod auth {
    pub const USERNAME: &str = "etcd-username";
    pub const PASSWORD: &str = "etcd-password";
}

/// Ports that a user doesn't set.
pub mod port {
    /// The steward's health and metrics, plain HTTP.
    pub const STEWARD_HEALTH: u16 = 8081;
    /// etcd's own metrics and health, plain HTTP.
    pub const ETCD_METRICS: u16 = 2381;
}

/// Name of a member's etcd configuration file in the ConfigMap.
pub fn etcd_file(member: &str) -> String {
    format!("etcd-{member}.yaml")
}

/// Options of etcd that only an empty data directory heeds: scaling out changes them for every member, and asks none of them
/// to restart.
const FOUNDING: [&str; 4] = [
    "initial-advertise-peer-urls",
    "initial-cluster",
    "initial-cluster-state",
    "initial-cluster-token",
];

/// Hash of a member's etcd configuration as it stands in its file, as `status.observedConfigHash` of the EtcdMember tells it
/// of the etcd that runs.
pub fn etcd_config_hash(config: &Map<String, Value>) -> String {
    let options: BTreeMap<_, _> = config
        .iter()
        .filter(|(key, _)| !FOUNDING.contains(&key.as_str()))
        .collect();
    let mut hash = Sha256::new();
    for (key, value) in options {
        hash.update(format!("{key}={value}\n"));
    }
    hash.finalize()[..8]
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// What the stewards of one Etcd need to know.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StewardConfig {
    /// The cluster and its members.
    pub cluster: ClusterConfig,
    /// `spec.backup` of the Etcd.
    #[serde(default)]
    pub backup: BackupSpec,
    /// `spec.etcd.defragmentationSchedule`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defragmentation_schedule: Option<CronSchedule>,
    /// `spec.etcd.etcdDefragTimeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defragmentation_timeout: Option<GoDuration>,
    /// How often the leader's steward compares the members' data; 0 means never. Default: an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison_period: Option<GoDuration>,
    /// `spec.etcd.heartbeatDuration`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<GoDuration>,
    /// How long a learner that has never started, and that nothing answers for, is kept in the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learner_timeout: Option<GoDuration>,
    /// The freelist type, told to etcd only where its version knows the flag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freelist_type: Option<FreelistType>,
}

/// A cluster and its members.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfig {
    /// Name of the Etcd.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID: tells it from another Etcd of the same name.
    pub uid: String,
    /// etcd's cluster token.
    pub token: String,
    /// All wanted members by ordinal.
    pub members: Vec<ClusterMember>,
    /// Whether etcd serves clients with TLS.
    #[serde(default)]
    pub client_tls: bool,
    /// Whether etcd serves its peers with TLS.
    #[serde(default)]
    pub peer_tls: bool,
}

/// One wanted member.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterMember {
    /// Its name in etcd; also the name of its EtcdMember and Lease.
    pub name: String,
    /// Its pod.
    pub pod: String,
    /// URLs at which the other members reach it.
    pub peer_urls: Vec<String>,
    /// URLs at which clients reach it.
    pub client_urls: Vec<String>,
    /// `https://host:port` of its steward.
    pub steward_url: String,
}

impl ClusterConfig {
    /// The member that runs in a pod.
    pub fn member_of_pod(&self, pod: &str) -> Option<&ClusterMember> {
        self.members.iter().find(|member| member.pod == pod)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A restart for nothing is a leader election for nothing.
    #[test]
    fn only_options_of_a_running_etcd_count() {
        let hash = |change: &Value| {
            let mut config =
                json!({"name": "t1-0", "quota-backend-bytes": 1, "initial-cluster": "t1-0=http://a:1"});
            let changes = change.as_object().unwrap().clone();
            config.as_object_mut().unwrap().extend(changes);
            etcd_config_hash(config.as_object().unwrap())
        };
        let before = hash(&json!({}));
        assert_eq!(before.len(), 16);
        assert_eq!(
            before,
            hash(&json!({"initial-cluster": "t1-0=http://a:1,t1-1=http://b:1"}))
        );
        assert_ne!(before, hash(&json!({"quota-backend-bytes": 2})));
        assert_ne!(before, hash(&json!({"metrics": "extensive"})));
    }
}
