//! The pod of a member: etcd in its stock image, run by the launcher, and the steward as a native sidecar.
//!
//! Nothing here depends on TLS, etcd's options or the number of members: those arrive through volumes with fixed names, so
//! that changing them restarts no pod.

use api::{
    names,
    steward::{path, port, tls},
};
use k8s_openapi::{
    api::core::v1::{
        Capabilities, ConfigMapProjection, ConfigMapVolumeSource, Container, ContainerPort,
        DownwardAPIProjection, DownwardAPIVolumeFile, EmptyDirVolumeSource, EnvVar, EnvVarSource,
        HTTPGetAction, HostAlias, KeyToPath, ObjectFieldSelector, PodSecurityContext, PodSpec, Probe,
        ProjectedVolumeSource, ResourceRequirements, SeccompProfile, SecretVolumeSource, SecurityContext,
        ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
    },
    apimachinery::pkg::{api::resource::Quantity, util::intstr::IntOrString},
};
use operator::pod::few_heaps;

use crate::validate::Cluster;

/// User of all containers.
const USER: i64 = 65532;
const BINARY: &str = "etcd-steward";
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A day of looking once a second: the preparation of a data directory may take long, and is never cut short.
const STARTUP_FAILURES: i32 = 86_400;
/// Certificates and credentials: the owner reads and writes, the pod's group reads.
const PRIVATE: i32 = 0o640;

/// The pod's specification.
pub fn spec(cluster: &Cluster) -> PodSpec {
    let spec = &cluster.etcd.spec;
    let scheduling = spec.scheduling_constraints.clone().unwrap_or_default();
    let mut init = vec![install(cluster)];
    init.extend(own_local_store(cluster));
    init.push(steward(cluster));
    PodSpec {
        init_containers: Some(init),
        containers: vec![etcd(cluster)],
        volumes: Some(volumes(cluster)),
        service_account_name: Some(names::service_account(&cluster.name)),
        automount_service_account_token: Some(false),
        // A Service called `etcd` would set variables that etcd takes for its flags, and thousands don't fit.
        enable_service_links: Some(false),
        security_context: Some(pod_security(cluster)),
        host_aliases: Some(vec![HostAlias {
            ip: "127.0.0.1".to_owned(),
            hostnames: Some(vec![names::local_host(&cluster.name)]),
        }]),
        affinity: scheduling.affinity,
        topology_spread_constraints: Some(scheduling.topology_spread_constraints),
        priority_class_name: spec.priority_class_name.clone().filter(|class| !class.is_empty()),
        termination_grace_period_seconds: Some(30),
        ..PodSpec::default()
    }
}

/// Brings the launcher into the etcd container, whose image is not ours.
fn install(cluster: &Cluster) -> Container {
    Container {
        args: Some(vec!["install".to_owned(), path::BIN.to_owned()]),
        volume_mounts: Some(vec![mount("druid-bin", path::BIN, false)]),
        ..container(cluster, "install", &cluster.images.steward)
    }
}

/// Folders of the node belong to root when they are made. Only for stores of provider Local.
fn own_local_store(cluster: &Cluster) -> Option<Container> {
    let folders = &cluster.store.local_folders;
    if folders.is_empty() || cluster.etcd.spec.runs_as_root() {
        return None;
    }
    let mut args = vec!["own".to_owned()];
    args.extend(folders.iter().cloned());
    args.push(format!("--user={USER}"));
    Some(Container {
        args: Some(args),
        volume_mounts: Some(cluster.store.mounts.clone()),
        security_context: Some(SecurityContext {
            run_as_user: Some(0),
            run_as_non_root: Some(false),
            capabilities: Some(Capabilities {
                add: Some(vec!["CHOWN".to_owned(), "DAC_OVERRIDE".to_owned()]),
                drop: Some(vec!["ALL".to_owned()]),
            }),
            ..container_security()
        }),
        ..container(
            cluster,
            "change-backup-bucket-permissions",
            &cluster.images.steward,
        )
    })
}

/// The native sidecar: there before etcd, gone after it.
fn steward(cluster: &Cluster) -> Container {
    let mut mounts = vec![
        data_mount(cluster),
        mount("druid-config", path::CONFIG, true),
        mount("druid-etcd-tls", path::ETCD_TLS, true),
        mount("druid-client-tls", path::CLIENT_TLS, true),
        mount("druid-steward-tls", path::STEWARD_TLS, true),
        mount("druid-run", path::RUN, false),
        mount("druid-temp", path::TEMP, false),
        mount("druid-api-token", TOKEN, true),
    ];
    mounts.extend(cluster.store.mounts.clone());
    let mut env = vec![
        EnvVar {
            name: "POD_NAME".to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: "metadata.name".to_owned(),
                    ..ObjectFieldSelector::default()
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        },
        few_heaps(),
    ];
    env.extend(cluster.store.env.clone());
    Container {
        restart_policy: Some("Always".to_owned()),
        args: Some(vec!["serve".to_owned()]),
        env: Some(env),
        ports: Some(vec![
            container_port("steward", cluster.ports.steward),
            container_port("steward-health", port::STEWARD_HEALTH),
        ]),
        liveness_probe: Some(Probe {
            period_seconds: Some(10),
            timeout_seconds: Some(5),
            failure_threshold: Some(6),
            ..probe("/livez", port::STEWARD_HEALTH)
        }),
        resources: Some(
            cluster
                .etcd
                .spec
                .backup
                .resources
                .clone()
                .unwrap_or_else(default_resources),
        ),
        volume_mounts: Some(mounts),
        ..container(cluster, "etcd-steward", &cluster.images.steward)
    }
}

fn etcd(cluster: &Cluster) -> Container {
    Container {
        command: Some(vec![format!("{}/{BINARY}", path::BIN)]),
        args: Some(vec![
            "launch".to_owned(),
            format!("--listen=0.0.0.0:{}", cluster.ports.launcher),
        ]),
        ports: Some(vec![
            container_port("client", cluster.ports.client),
            container_port("peer", cluster.ports.peer),
            container_port("etcd-metrics", port::ETCD_METRICS),
        ]),
        startup_probe: Some(Probe {
            period_seconds: Some(1),
            failure_threshold: Some(STARTUP_FAILURES),
            ..probe("/startupz", cluster.ports.launcher)
        }),
        liveness_probe: Some(Probe {
            period_seconds: Some(10),
            timeout_seconds: Some(5),
            failure_threshold: Some(6),
            ..probe("/livez", cluster.ports.launcher)
        }),
        readiness_probe: Some(Probe {
            period_seconds: Some(2),
            timeout_seconds: Some(5),
            failure_threshold: Some(3),
            ..probe("/readyz", cluster.ports.launcher)
        }),
        resources: Some(
            cluster
                .etcd
                .spec
                .etcd
                .resources
                .clone()
                .unwrap_or_else(default_resources),
        ),
        volume_mounts: Some(vec![
            data_mount(cluster),
            mount("druid-etcd-tls", path::ETCD_TLS, true),
            mount("druid-bin", path::BIN, true),
            mount("druid-run", path::RUN, false),
        ]),
        ..container(cluster, "etcd", &cluster.images.etcd)
    }
}

fn container(cluster: &Cluster, name: &str, image: &str) -> Container {
    let root = cluster.etcd.spec.runs_as_root();
    Container {
        name: name.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        security_context: Some(SecurityContext {
            run_as_non_root: Some(!root),
            capabilities: Some(Capabilities {
                // Root must read what an unprivileged user wrote.
                add: root.then(|| vec!["DAC_OVERRIDE".to_owned()]),
                drop: Some(vec!["ALL".to_owned()]),
            }),
            ..container_security()
        }),
        ..Container::default()
    }
}

fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        ..SecurityContext::default()
    }
}

fn pod_security(cluster: &Cluster) -> PodSecurityContext {
    let root = cluster.etcd.spec.runs_as_root();
    let user = Some(if root { 0 } else { USER });
    PodSecurityContext {
        run_as_user: user,
        run_as_group: user,
        fs_group: user,
        run_as_non_root: Some(!root),
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    }
}

fn volumes(cluster: &Cluster) -> Vec<Volume> {
    let secret = |name: &str, secret: String, keys: Option<&[&str]>| Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret),
            default_mode: Some(PRIVATE),
            items: keys.map(|keys| keys.iter().map(|key| under_its_name(key)).collect()),
            // The keys too: those for TLS among peers or with clients may be missing.
            optional: Some(true),
        }),
        ..Volume::default()
    };
    let empty = |name: &str, medium: Option<&str>| Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: medium.map(str::to_owned),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    };
    let etcd_tls = names::etcd_tls_secret(&cluster.name);
    let mut volumes = vec![
        Volume {
            name: "druid-config".to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: names::config_map(&cluster.name),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        },
        // One Secret, but whoever breaks into etcd shall not find the key that opens all of its data to the steward.
        secret("druid-etcd-tls", etcd_tls.clone(), Some(&tls::OF_ETCD)),
        secret("druid-client-tls", etcd_tls, Some(&tls::OF_CLIENT)),
        secret(
            "druid-steward-tls",
            names::steward_tls_secret(&cluster.name),
            None,
        ),
        empty("druid-bin", None),
        empty("druid-run", Some("Memory")),
        empty("druid-temp", None),
        api_token(),
    ];
    volumes.extend(cluster.store.volumes.clone());
    volumes
}

/// The token for the steward alone; etcd's container has no business with the API server.
fn api_token() -> Volume {
    let sources = vec![
        VolumeProjection {
            service_account_token: Some(ServiceAccountTokenProjection {
                path: "token".to_owned(),
                expiration_seconds: Some(3607),
                ..ServiceAccountTokenProjection::default()
            }),
            ..VolumeProjection::default()
        },
        VolumeProjection {
            config_map: Some(ConfigMapProjection {
                name: "kube-root-ca.crt".to_owned(),
                items: Some(vec![under_its_name("ca.crt")]),
                ..ConfigMapProjection::default()
            }),
            ..VolumeProjection::default()
        },
        VolumeProjection {
            downward_api: Some(DownwardAPIProjection {
                items: Some(vec![DownwardAPIVolumeFile {
                    path: "namespace".to_owned(),
                    field_ref: Some(ObjectFieldSelector {
                        field_path: "metadata.namespace".to_owned(),
                        ..ObjectFieldSelector::default()
                    }),
                    ..DownwardAPIVolumeFile::default()
                }]),
            }),
            ..VolumeProjection::default()
        },
    ];
    Volume {
        name: "druid-api-token".to_owned(),
        projected: Some(ProjectedVolumeSource {
            sources: Some(sources),
            default_mode: Some(0o644),
        }),
        ..Volume::default()
    }
}

fn under_its_name(key: &str) -> KeyToPath {
    KeyToPath {
        key: key.to_owned(),
        path: key.to_owned(),
        mode: None,
    }
}

fn default_resources() -> ResourceRequirements {
    let request = |name: &str, amount: &str| (name.to_owned(), Quantity(amount.to_owned()));
    ResourceRequirements {
        requests: Some([request("cpu", "50m"), request("memory", "128Mi")].into()),
        ..ResourceRequirements::default()
    }
}

fn probe(path: &str, port: u16) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(port.into()),
            ..HTTPGetAction::default()
        }),
        ..Probe::default()
    }
}

fn container_port(name: &str, port: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: port.into(),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

/// The volume claim's name is the user's.
fn data_mount(cluster: &Cluster) -> VolumeMount {
    mount(cluster.etcd.volume_claim_template(), path::DATA, false)
}
