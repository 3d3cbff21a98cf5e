//! The two Services: one that gives each pod its name, one for clients.

use api::{labels::component, names};
use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};

use kube::api::ObjectMeta;

use super::{meta, pod_selector};
use crate::validate::Cluster;

/// Names for the pods, also for those that aren't ready: members find each other before there is a cluster.
pub fn peer(cluster: &Cluster) -> Service {
    Service {
        metadata: meta(
            cluster,
            component::PEER_SERVICE,
            names::peer_service(&cluster.name),
        ),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(pod_selector(cluster)),
            ports: Some(vec![port("peer", cluster.ports.peer)]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// One name for all members that serve.
pub fn client(cluster: &Cluster) -> Service {
    let own = meta(
        cluster,
        component::CLIENT_SERVICE,
        names::client_service(&cluster.name),
    );
    let config = cluster.etcd.spec.etcd.client_service.clone().unwrap_or_default();
    let mut labels = config.labels;
    labels.extend(own.labels.unwrap_or_default());
    Service {
        metadata: ObjectMeta {
            // Ours win: the Service is found by them.
            labels: Some(labels),
            annotations: Some(config.annotations),
            ..own
        },
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            session_affinity: Some("None".to_owned()),
            selector: Some(pod_selector(cluster)),
            ports: Some(vec![
                port("client", cluster.ports.client),
                port("backuprestore", cluster.ports.steward),
            ]),
            traffic_distribution: config
                .traffic_distribution
                .map(|distribution| distribution.to_string()),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn port(name: &str, port: u16) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: port.into(),
        target_port: Some(IntOrString::Int(port.into())),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    }
}
