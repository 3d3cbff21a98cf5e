//! Configuration of etcd, one file for each member in etcd's own format, and of the stewards.

use std::collections::BTreeMap;

use api::{
    labels::component,
    names,
    steward::{
        ClusterConfig, ClusterMember, FILE, StewardConfig, etcd_config_hash, etcd_file, path, port, tls,
    },
};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Map, Value, json};

use super::meta;
use crate::validate::Cluster;

/// A configuration can't be written as YAML.
#[derive(Debug, thiserror::Error)]
#[error("write {file} as YAML: {source}")]
pub struct EncodeError {
    file: String,
    source: serde_saphyr::ser::Error,
}

/// All files.
pub fn config_map(cluster: &Cluster) -> Result<ConfigMap, EncodeError> {
    let mut data = BTreeMap::new();
    data.insert(FILE.to_owned(), yaml(FILE, &steward(cluster))?);
    for ordinal in 0..cluster.replicas {
        let file = etcd_file(&cluster.member(ordinal));
        let text = yaml(&file, &etcd(cluster, ordinal))?;
        data.insert(file, text);
    }
    Ok(ConfigMap {
        metadata: meta(cluster, component::CONFIG_MAP, names::config_map(&cluster.name)),
        data: Some(data),
        ..ConfigMap::default()
    })
}

/// Hash of a member's configuration, as its steward tells it of the etcd that runs.
pub fn hash(cluster: &Cluster, ordinal: u32) -> String {
    let config = etcd(cluster, ordinal);
    config.as_object().map(etcd_config_hash).unwrap_or_default()
}

fn yaml(file: &str, value: &impl serde::Serialize) -> Result<String, EncodeError> {
    serde_saphyr::to_string(value).map_err(|source| EncodeError {
        file: file.to_owned(),
        source,
    })
}

/// What the stewards need to know.
pub fn steward(cluster: &Cluster) -> StewardConfig {
    let spec = &cluster.etcd.spec;
    StewardConfig {
        cluster: ClusterConfig {
            name: cluster.name.clone(),
            namespace: cluster.namespace.clone(),
            uid: cluster.uid.clone(),
            token: cluster.uid.clone(),
            members: (0..cluster.replicas)
                .map(|ordinal| member(cluster, ordinal))
                .collect(),
            client_tls: cluster.client_tls(),
            peer_tls: cluster.peer_tls(),
        },
        backup: spec.backup.clone(),
        defragmentation_schedule: spec.etcd.defragmentation_schedule.clone(),
        defragmentation_timeout: spec.etcd.etcd_defrag_timeout.clone(),
        comparison_period: None,
        heartbeat: spec.etcd.heartbeat_duration.clone(),
        learner_timeout: None,
        freelist_type: spec.etcd.backend_bbolt_freelist_type.clone(),
    }
}

fn scheme(tls: bool) -> &'static str {
    if tls { "https" } else { "http" }
}

fn member(cluster: &Cluster, ordinal: u32) -> ClusterMember {
    let host = names::pod_host(&cluster.name, &cluster.namespace, ordinal);
    let name = cluster.member(ordinal);
    let mut peer_urls = vec![format!(
        "{}://{host}:{}",
        scheme(cluster.peer_tls()),
        cluster.ports.peer
    )];
    let additional = &cluster.etcd.spec.etcd.additional_advertise_peer_urls;
    peer_urls.extend(
        additional
            .iter()
            .filter(|extra| extra.member_name == name)
            .flat_map(|extra| extra.urls.iter().map(|url| url.as_str().to_owned())),
    );
    ClusterMember {
        pod: names::pod(&cluster.name, ordinal),
        client_urls: vec![format!(
            "{}://{host}:{}",
            scheme(cluster.client_tls()),
            cluster.ports.client
        )],
        steward_url: format!("https://{host}:{}", cluster.ports.steward),
        peer_urls,
        name,
    }
}

/// etcd's configuration file. The steward adds what only the moment of the start can tell.
fn etcd(cluster: &Cluster, ordinal: u32) -> Value {
    let spec = &cluster.etcd.spec;
    let this = member(cluster, ordinal);
    let founding = (0..cluster.replicas)
        .map(|ordinal| member(cluster, ordinal))
        .flat_map(|member| {
            member
                .peer_urls
                .into_iter()
                .map(move |url| format!("{}={url}", member.name))
        });
    let mut config = json!({
        "name": this.name,
        "data-dir": path::DATA_DIR,
        "metrics": spec.etcd.metrics().as_str(),
        "snapshot-count": spec.etcd.snapshot_count(),
        "enable-grpc-gateway": spec.etcd.enable_grpc_gateway(),
        "quota-backend-bytes": cluster.quota,
        "auto-compaction-mode": spec.auto_compaction_mode().as_str(),
        "auto-compaction-retention": spec.auto_compaction_retention(),
        "initial-cluster-token": cluster.uid,
        "initial-cluster": founding.collect::<Vec<_>>().join(","),
        "initial-advertise-peer-urls": this.peer_urls.join(","),
        "advertise-client-urls": this.client_urls.join(","),
        "listen-peer-urls": format!("{}://0.0.0.0:{}", scheme(cluster.peer_tls()), cluster.ports.peer),
        "listen-client-urls": format!("{}://0.0.0.0:{}", scheme(cluster.client_tls()), cluster.ports.client),
        "listen-metrics-urls": format!("http://0.0.0.0:{}", port::ETCD_METRICS),
    });
    if let Value::Object(config) = &mut config {
        security(cluster, config);
    }
    config
}

fn security(cluster: &Cluster, config: &mut Map<String, Value>) {
    let file = |key: &str| format!("{}/{key}", path::ETCD_TLS);
    if cluster.client_tls() {
        let section = json!({
            "cert-file": file(tls::CLIENT_SERVER_CERT),
            "key-file": file(tls::CLIENT_SERVER_KEY),
            "trusted-ca-file": file(tls::CLIENT_CA),
            "client-cert-auth": true,
            "auto-tls": false,
        });
        config.insert("client-transport-security".to_owned(), section);
    }
    if let Some(peer) = &cluster.etcd.spec.etcd.peer_url_tls {
        let mut section = json!({
            "cert-file": file(tls::PEER_CERT),
            "key-file": file(tls::PEER_KEY),
            "trusted-ca-file": file(tls::PEER_CA),
            "client-cert-auth": true,
            "auto-tls": false,
        });
        if peer.skip_client_san_verification == Some(true) {
            section["skip-client-san-verification"] = Value::from(true);
        }
        config.insert("peer-transport-security".to_owned(), section);
    }
}
