//! The Job that compacts the snapshots of an Etcd, and what is remembered on it. Pure.

use std::{collections::BTreeMap, time::Duration};

use api::{
    labels, names,
    v1alpha1::{Etcd, StoreProvider, StoreSpec, UnknownStoreProvider},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        batch::v1::{Job, JobSpec},
        core::v1::{
            Affinity, Capabilities, Container, EmptyDirVolumeSource, PodAffinity, PodAffinityTerm,
            PodSecurityContext, PodSpec, PodTemplateSpec, ResourceRequirements, SeccompProfile,
            SecurityContext, Volume, VolumeMount, WeightedPodAffinityTerm,
        },
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::LabelSelector},
};
use kube::{Resource as _, ResourceExt as _, api::ObjectMeta};
use operator::{
    pod::few_heaps,
    store::{Role, access, signing},
};

use crate::decision::{Backlog, LastRun};

/// The user that the steward's image runs as.
const USER: i64 = 65532;
const SCRATCH: &str = "/var/etcd/data";
const TEMP: &str = "/var/etcd/data/compaction";

/// How many tries there were in a row, this one included.
const ATTEMPT: &str = "druid.gardener.cloud/compaction-attempt";
/// Last revision in a delta when the Job was made.
const COVERED: &str = "druid.gardener.cloud/compaction-covers";
/// The reason of the Job's end, once it is told in the Etcd's condition, in events and metrics.
pub const RECORDED: &str = "druid.gardener.cloud/compaction-recorded";
/// When the Job ended.
pub const ENDED: &str = "druid.gardener.cloud/compaction-ended";

/// What a Job is made of.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    /// The Etcd.
    pub etcd: &'a Etcd,
    /// Its store.
    pub store: &'a StoreSpec,
    /// What the Secret of a Local store says about the folder on the node.
    pub host_path: Option<&'a str>,
    /// The steward's image, where the Etcd names none.
    pub image: &'a str,
    /// How long the Job may take.
    pub deadline: Duration,
    /// Which try this is.
    pub attempt: u32,
    /// What is compacted.
    pub backlog: Backlog,
}

/// The Job.
pub fn job(order: &Order<'_>) -> Result<Job, UnknownStoreProvider> {
    let etcd = order.etcd;
    let (name, owner) = (names::compaction_job(&etcd.name_any()), etcd.name_any());
    let deadline = i64::try_from(order.deadline.as_secs()).unwrap_or(i64::MAX);
    let component = labels::component::COMPACTION_JOB;
    Ok(Job {
        metadata: ObjectMeta {
            labels: Some(labels::of_component(&owner, component, &name)),
            annotations: Some(BTreeMap::from([
                (ATTEMPT.to_owned(), order.attempt.to_string()),
                (COVERED.to_owned(), order.backlog.last.to_string()),
            ])),
            namespace: etcd.namespace(),
            owner_references: Some(etcd.controller_owner_ref(&()).into_iter().collect()),
            name: Some(name.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            active_deadline_seconds: Some(deadline),
            backoff_limit: Some(0),
            completions: Some(1),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(pod_labels(&owner, &name)),
                    annotations: Some(pod_annotations(etcd)),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(order)?),
            },
            ..JobSpec::default()
        }),
        status: None,
    })
}

/// Without `managed-by`: selectors that etcd-druid made would take the pod for a member.
fn pod_labels(etcd: &str, job: &str) -> BTreeMap<String, String> {
    let mut all = labels::of_component(etcd, labels::component::COMPACTION_JOB, job);
    all.remove(labels::MANAGED_BY);
    all.extend(
        labels::NETWORK_ALLOWED
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned())),
    );
    all
}

fn pod_annotations(etcd: &Etcd) -> BTreeMap<String, String> {
    let mut annotations = etcd.spec.annotations.clone();
    annotations.remove(labels::annotation::SAFE_TO_EVICT);
    annotations
}

fn pod(order: &Order<'_>) -> Result<PodSpec, UnknownStoreProvider> {
    let etcd = order.etcd;
    let store = StoreSpec {
        container: order.store.container().map(str::to_owned),
        ..order.store.clone()
    };
    let signed = etcd.spec.backup.signing.as_ref().map(signing).unwrap_or_default();
    let access = access(&store, Role::Primary, order.host_path)?.and(signed);
    let mut volumes = access.volumes.clone();
    volumes.push(Volume {
        name: "scratch".to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    });
    let root = etcd.spec.runs_as_root();
    let user = if root { 0 } else { USER };
    let mut container = container(order, &store, root)?;
    container.env = Some([few_heaps()].into_iter().chain(access.env).collect());
    container
        .volume_mounts
        .get_or_insert_default()
        .extend(access.mounts);
    Ok(PodSpec {
        containers: vec![container],
        volumes: Some(volumes),
        affinity: near_local_store(etcd, &store)?,
        restart_policy: Some("Never".to_owned()),
        // What the members' pods get at the store by, the Job does too: a cloud may know them by their ServiceAccount.
        service_account_name: Some(names::service_account(&etcd.name_any())),
        automount_service_account_token: Some(false),
        termination_grace_period_seconds: Some(60),
        security_context: Some(PodSecurityContext {
            run_as_user: Some(user),
            run_as_group: Some(user),
            fs_group: Some(user),
            run_as_non_root: Some(!root),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                localhost_profile: None,
            }),
            ..PodSecurityContext::default()
        }),
        ..PodSpec::default()
    })
}

fn container(order: &Order<'_>, store: &StoreSpec, root: bool) -> Result<Container, UnknownStoreProvider> {
    let backup = &order.etcd.spec.backup;
    let image = backup.image.as_deref().filter(|image| !image.is_empty());
    Ok(Container {
        name: "compact".to_owned(),
        image: Some(image.unwrap_or(order.image).to_owned()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        args: Some(args(order.etcd, store)?),
        volume_mounts: Some(vec![VolumeMount {
            name: "scratch".to_owned(),
            mount_path: SCRATCH.to_owned(),
            ..VolumeMount::default()
        }]),
        resources: Some(resources(order.etcd)),
        // The last lines of the log are the reason of a failure.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(!root),
            capabilities: Some(Capabilities {
                // Root must read what an unprivileged user wrote.
                add: root.then(|| vec!["DAC_OVERRIDE".to_owned()]),
                drop: Some(vec!["ALL".to_owned()]),
            }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    })
}

fn args(etcd: &Etcd, store: &StoreSpec) -> Result<Vec<String>, UnknownStoreProvider> {
    let mut args = vec!["compact".to_owned()];
    let mut flag = |name: &str, value: &str| args.push(format!("--{name}={value}"));
    if let Some(provider) = store.provider()? {
        flag("store-provider", provider.as_str());
    }
    if let Some(container) = store.container() {
        flag("store-container", container);
    }
    flag("store-prefix", &store.prefix);
    if let Some(endpoint) = &store.endpoint_override {
        flag("store-endpoint", endpoint);
    }
    // Others may store their backups in the same place.
    if let Some(uid) = etcd.uid() {
        flag("etcd-uid", &uid);
    }
    flag("temp-dir", TEMP);
    if store.is_plain_http() {
        args.push("--allow-http".to_owned());
    }
    Ok(args)
}

fn resources(etcd: &Etcd) -> ResourceRequirements {
    let own = etcd
        .spec
        .backup
        .snapshot_compaction
        .as_ref()
        .and_then(|own| own.resources.clone());
    own.unwrap_or_else(|| ResourceRequirements {
        requests: Some(BTreeMap::from([
            ("cpu".to_owned(), Quantity("600m".to_owned())),
            ("memory".to_owned(), Quantity("3Gi".to_owned())),
        ])),
        ..ResourceRequirements::default()
    })
}

/// A folder of a node is found where a member is, or was.
fn near_local_store(etcd: &Etcd, store: &StoreSpec) -> Result<Option<Affinity>, UnknownStoreProvider> {
    if store.provider()? != Some(StoreProvider::Local) {
        return Ok(None);
    }
    let mut members = labels::of_etcd(&etcd.name_any());
    members.insert(
        labels::COMPONENT.to_owned(),
        labels::component::STATEFUL_SET.to_owned(),
    );
    Ok(Some(Affinity {
        pod_affinity: Some(PodAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
                weight: 100,
                pod_affinity_term: PodAffinityTerm {
                    label_selector: Some(LabelSelector {
                        match_labels: Some(members),
                        ..LabelSelector::default()
                    }),
                    topology_key: "kubernetes.io/hostname".to_owned(),
                    ..PodAffinityTerm::default()
                },
            }]),
            ..PodAffinity::default()
        }),
        ..Affinity::default()
    }))
}

/// What a Job that has ended, and whose end is told, says about itself.
pub fn last_run(job: &Job) -> Option<LastRun> {
    let annotations = job.annotations();
    let reason = annotations.get(RECORDED)?.clone();
    let ended: Timestamp = annotations.get(ENDED)?.parse().ok()?;
    let number = |key| annotations.get(key).and_then(|text| text.parse::<i64>().ok());
    Some(LastRun {
        attempt: number(ATTEMPT).and_then(|n| u32::try_from(n).ok()).unwrap_or(1),
        succeeded: reason == api::conditions::compaction::NONE,
        reason,
        ended,
        covered: number(COVERED).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn etcd(backup: &Value) -> Etcd {
        serde_json::from_value(json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd",
            "metadata": {"name": "main", "namespace": "ns", "uid": "u1"},
            "spec": {
                "replicas": 3, "backup": backup,
                "annotations": {"team": "x", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
            },
        }))
        .unwrap()
    }

    fn build(backup: &Value) -> Job {
        let etcd = etcd(backup);
        let order = Order {
            etcd: &etcd,
            store: etcd.spec.backup.store.as_ref().unwrap(),
            host_path: None,
            image: "steward:1",
            deadline: Duration::from_hours(3),
            attempt: 2,
            backlog: Backlog {
                full: 10,
                last: 130,
                events: 120,
                bytes: None,
            },
        };
        job(&order).unwrap()
    }

    fn s3() -> Value {
        json!({"store": {
            "provider": "aws", "container": "bkp", "prefix": "p", "endpointOverride": "http://s3:9000",
            "secretRef": {"name": "keys"},
        }})
    }

    fn spec(job: &Job) -> PodSpec {
        job.spec.clone().unwrap().template.spec.unwrap()
    }

    #[test]
    fn the_command_is_the_stewards() {
        let container = spec(&build(&s3())).containers.remove(0);
        assert_eq!(container.image.as_deref(), Some("steward:1"));
        assert_eq!(
            container.args.unwrap(),
            [
                "compact",
                "--store-provider=S3",
                "--store-container=bkp",
                "--store-prefix=p",
                "--store-endpoint=http://s3:9000",
                "--etcd-uid=u1",
                "--temp-dir=/var/etcd/data/compaction",
                "--allow-http",
            ]
        );
        let mounts = container.volume_mounts.unwrap();
        let paths: Vec<_> = mounts.iter().map(|mount| mount.mount_path.as_str()).collect();
        assert_eq!(paths, ["/var/etcd/data", "/var/etcd-backup"]);
    }

    /// A disruption budget or a Service that takes the pod for a member counts or routes wrongly.
    #[test]
    fn the_pod_is_no_member() {
        let job = build(&s3());
        let template = job.spec.as_ref().unwrap().template.metadata.clone().unwrap();
        let pod = template.labels.unwrap();
        let druids = labels::of_etcd("main");
        assert!(druids.iter().any(|(key, value)| pod.get(key) != Some(value)));
        assert_eq!(pod[labels::COMPONENT], "etcd-snapshot-compaction-job");
        assert_eq!(
            template.annotations.unwrap(),
            BTreeMap::from([("team".to_owned(), "x".to_owned())])
        );
        assert!(
            druids
                .iter()
                .all(|(key, value)| job.labels().get(key) == Some(value))
        );
        assert_eq!(job.owner_references()[0].controller, Some(true));
    }

    /// As the restricted level of the Pod Security Standards wants it, and without the token of the members' account.
    #[test]
    fn the_pod_has_no_rights() {
        let pod = spec(&build(&s3()));
        assert_eq!(pod.automount_service_account_token, Some(false));
        let pod_security = pod.security_context.unwrap();
        assert_eq!(pod_security.run_as_non_root, Some(true));
        assert_eq!(pod_security.seccomp_profile.unwrap().type_, "RuntimeDefault");
        let container = pod.containers[0].security_context.clone().unwrap();
        assert_eq!(container.allow_privilege_escalation, Some(false));
        assert_eq!(container.capabilities.unwrap().drop.unwrap(), ["ALL"]);
    }

    /// Without a Secret a store is used by the identity of the pod's account.
    #[test]
    fn the_pod_has_the_members_identity() {
        let pod = spec(&build(&s3()));
        assert_eq!(pod.service_account_name.as_deref(), Some("main"));
        let env = pod.containers[0].env.clone().unwrap();
        assert!(env.contains(&few_heaps()), "{env:?}");
    }

    /// The Job alone tells what was compacted last, and how often it failed: while its Etcd sleeps nobody else does.
    #[test]
    fn only_the_controller_ends_the_memory_of_a_run() {
        assert_eq!(build(&s3()).spec.unwrap().ttl_seconds_after_finished, None);
    }

    #[test]
    fn what_the_spec_says_wins() {
        let mut backup = s3();
        backup["image"] = json!("mine:2");
        backup["snapshotCompaction"] = json!({"resources": {"limits": {"memory": "1Gi"}}});
        let container = spec(&build(&backup)).containers.remove(0);
        assert_eq!(container.image.as_deref(), Some("mine:2"));
        let resources = container.resources.unwrap();
        assert_eq!(resources.requests, None);
        assert_eq!(resources.limits.unwrap()["memory"].0, "1Gi");
    }

    /// What isn't signed wouldn't be taken from the Job either.
    #[test]
    fn the_keys_that_snapshots_are_signed_with_are_there() {
        let mut backup = s3();
        backup["signing"] = json!({"secretRef": {"name": "signing"}});
        let pod = spec(&build(&backup));
        let volumes = pod.volumes.unwrap();
        let secrets: Vec<_> = volumes
            .iter()
            .filter_map(|volume| volume.secret.as_ref())
            .collect();
        assert!(
            secrets
                .iter()
                .any(|secret| secret.secret_name.as_deref() == Some("signing"))
        );
        let env = pod.containers[0].env.clone().unwrap();
        assert!(
            env.iter()
                .any(|variable| variable.name == "SNAPSHOT_SIGNING_KEYS")
        );
    }

    #[test]
    fn a_local_store_is_sought_where_members_run() {
        let pod = spec(&build(&json!({"store": {"provider": "Local", "prefix": "p"}})));
        assert!(pod.affinity.is_some());
        let mounts = pod.containers[0].volume_mounts.clone().unwrap();
        assert!(
            mounts
                .iter()
                .any(|mount| mount.mount_path == "/home/nonroot/default.bkp")
        );
        assert!(spec(&build(&s3())).affinity.is_none());
    }

    /// The next decision rests on it, also after a restart of the controller.
    #[test]
    fn an_ended_job_tells_about_itself() {
        let mut job = build(&s3());
        assert_eq!(last_run(&job), None);
        let ended: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let annotations = job.annotations_mut();
        annotations.insert(RECORDED.to_owned(), "ProcessFailure".to_owned());
        annotations.insert(ENDED.to_owned(), ended.to_string());
        let run = last_run(&job).unwrap();
        assert_eq!(
            run,
            LastRun {
                attempt: 2,
                succeeded: false,
                reason: "ProcessFailure".to_owned(),
                ended,
                covered: 130,
            }
        );
    }
}
