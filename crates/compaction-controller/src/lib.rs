//! The compaction-controller: keeps chains of snapshots short, so that a restore is quick and is tried before it is
//! needed.

pub mod controller;
pub mod decision;
pub mod full_snapshot;
pub mod job;
pub mod metrics;
pub mod outcome;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use api::{
    labels, names,
    v1alpha1::{Etcd, EtcdMember},
};
use k8s_openapi::{api::batch::v1::Job, apimachinery::pkg::api::resource::Quantity};
use kube::{
    Api, ResourceExt as _,
    core::Duration,
    runtime::{Controller, PredicateConfig, WatchStreamExt as _, predicates, reflector::ObjectRef},
};
use operator::{
    Context, cache,
    reconcile::{self, Guarded},
    steward::Stewards,
};
use serde::{Deserialize, Serialize};

use crate::{controller::CompactionController, full_snapshot::FullSnapshots, metrics::CompactionMetrics};

/// What only this controller has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    /// Images of Jobs.
    pub images: Images,
    /// Compact from this many revisions in delta snapshots on, where an Etcd doesn't say.
    pub events_threshold: i64,
    /// Take a full snapshot instead from this many on, where an Etcd doesn't say.
    pub trigger_full_snapshot_threshold: i64,
    /// Compact from this size of delta snapshots on, before compression, where an Etcd doesn't say. Unset: never.
    pub delta_size_threshold: Option<Quantity>,
    /// How long a Job may take.
    pub active_deadline: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            images: Images::default(),
            events_threshold: 1_000_000,
            trigger_full_snapshot_threshold: 3_000_000,
            delta_size_threshold: None,
            active_deadline: std::time::Duration::from_hours(3).into(),
        }
    }
}

/// Images of Jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Images {
    /// The steward's, for Etcds that don't name their own.
    pub steward: String,
}

impl Default for Images {
    fn default() -> Self {
        let version = env!("CARGO_PKG_VERSION");
        Self {
            steward: format!("druid/etcd-steward:{version}"),
        }
    }
}

/// Runs the controller until the process is told to stop.
pub async fn run(context: Context, config: Config) -> anyhow::Result<()> {
    let (client, readiness) = (context.client.clone(), &context.readiness);
    let selector = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_VALUE);
    let (etcds, stream) = cache::watch::<Etcd>(Api::all(client.clone()), cache::everything(), readiness);
    let (members, member_stream) =
        cache::watch::<EtcdMember>(Api::all(client.clone()), cache::selected(&selector), readiness);
    let compactions = format!("{}={}", labels::COMPONENT, labels::component::COMPACTION_JOB);
    let (jobs, job_stream) =
        cache::watch::<Job>(Api::all(client.clone()), cache::selected(&compactions), readiness);

    let stream = stream.predicate_filter(predicates::generation, PredicateConfig::default());
    let member_stream = member_stream.predicate_filter(snapshots, PredicateConfig::default());
    let controller = Controller::for_stream(stream, etcds)
        .watches_stream(member_stream, etcd_of)
        .owns_stream(job_stream);
    let identity = names::controller_client_secret("compaction-controller");
    let stewards = Stewards::new(client, &context.namespace, &identity);
    let reconciler = CompactionController {
        config,
        members,
        jobs,
        full_snapshots: FullSnapshots::new(stewards),
        metrics: CompactionMetrics::new(&context.metrics),
        context: context.clone(),
    };
    reconcile::run(controller, reconciler, &context).await;
    Ok(())
}

/// A hash of what a member tells about snapshots: nothing else that it tells matters here.
fn snapshots(member: &Guarded<EtcdMember>) -> Option<u64> {
    let status = member.0.as_ref().ok()?.status.as_ref();
    let told = status.map(|status| (&status.backup_owner, &status.snapshots));
    let mut hasher = DefaultHasher::new();
    // What can't be written can't be compared: then every change counts.
    serde_json::to_string(&told).ok()?.hash(&mut hasher);
    Some(hasher.finish())
}

/// The Etcd of a member.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature that a controller maps watched objects by"
)]
fn etcd_of(member: Guarded<EtcdMember>) -> Option<ObjectRef<Guarded<Etcd>>> {
    let etcd = member.labels().get(labels::OWNED_BY)?;
    Some(ObjectRef::new(etcd).within(&member.namespace().unwrap_or_default()))
}
