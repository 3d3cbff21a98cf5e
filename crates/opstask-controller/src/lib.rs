//! The opstask-controller: carries out EtcdOpsTasks, each once, in the order of their creation for one Etcd.

pub mod controller;
pub mod follow;
pub mod handler;
pub mod lifecycle;
pub mod metrics;
pub mod on_demand_snapshot;
pub mod preconditions;
pub mod steward;
pub mod turn;

use std::sync::Arc;

use api::{
    labels, names,
    v1alpha1::{EtcdMember, EtcdOpsTask},
};
use futures::TryStreamExt as _;
use kube::{
    Api, Resource as _, ResourceExt as _,
    runtime::{Controller, PredicateConfig, WatchStreamExt as _, predicates, reflector::Store},
};
use operator::{
    Context, cache, owner,
    reconcile::{self, Guarded},
    steward::Stewards,
};
use serde::{Deserialize, Serialize};

use crate::{
    controller::TaskController,
    follow::{Follower, TaskRef, Wake, key},
    handler::Handlers,
    metrics::TaskMetrics,
    steward::Steward,
};

/// What only this controller has: nothing yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {}

/// Runs the controller until the process is told to stop.
pub async fn run(context: Context, Config {}: Config) -> anyhow::Result<()> {
    let client = context.client.clone();
    let identity = names::controller_client_secret("opstask-controller");
    let stewards = Stewards::new(client.clone(), &context.namespace, &identity);
    let stewards: Arc<dyn Steward> = Arc::new(stewards);
    let (wake, woken) = Wake::new();
    let (members, controller) = watches(&context, &wake);
    let reconciler = TaskController {
        handlers: Handlers::new(&stewards),
        members,
        follower: Follower::new(stewards, wake),
        metrics: TaskMetrics::new(&context.metrics),
        admission: tokio::sync::Mutex::default(),
        context: context.clone(),
    };
    reconcile::run(controller.reconcile_on(woken), reconciler, &context).await;
    Ok(())
}

/// Tasks, and members: a change of the backups' owner wakes the running tasks of its Etcd, the end of a task the waiting
/// ones.
fn watches(context: &Context, wake: &Wake) -> (Store<Guarded<EtcdMember>>, Controller<Guarded<EtcdOpsTask>>) {
    let (client, readiness) = (&context.client, &context.readiness);
    let (tasks, stream) =
        cache::watch::<EtcdOpsTask>(Api::all(client.clone()), cache::everything(), readiness);
    let stream = stream
        .inspect_ok({
            let (tasks, wake) = (tasks.clone(), wake.clone());
            move |task| {
                if let Ok(task) = &task.0
                    && (lifecycle::is_over(task) || task.metadata.deletion_timestamp.is_some())
                {
                    let etcd = task.spec.etcd_name.as_ref();
                    for waiting in of_etcd(
                        &tasks,
                        task.metadata.namespace.as_deref(),
                        etcd,
                        lifecycle::is_waiting,
                    ) {
                        wake.wake(waiting);
                    }
                }
            }
        })
        // Status is written by this controller alone: what it has just recorded is no reason to look again.
        .predicate_filter(predicates::generation, PredicateConfig::default());
    let selector = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_VALUE);
    let (members, changes) =
        cache::watch::<EtcdMember>(Api::all(client.clone()), cache::selected(&selector), readiness);
    let part = |member: &Guarded<EtcdMember>| owner::part_in_backups(member.0.as_ref().ok()?);
    let owners = changes.predicate_filter(part, PredicateConfig::default());
    let controller = Controller::for_stream(stream, tasks.clone()).watches_stream(owners, move |member| {
        let etcd = member.labels().get(labels::OWNED_BY);
        of_etcd(
            &tasks,
            member.meta().namespace.as_deref(),
            etcd,
            lifecycle::is_running,
        )
    });
    (members, controller)
}

/// The tasks of an Etcd that are so.
fn of_etcd(
    tasks: &Store<Guarded<EtcdOpsTask>>,
    namespace: Option<&str>,
    etcd: Option<&String>,
    so: fn(&EtcdOpsTask) -> bool,
) -> Vec<TaskRef> {
    let of_etcd = |task: &EtcdOpsTask| {
        etcd.is_some()
            && task.metadata.namespace.as_deref() == namespace
            && task.spec.etcd_name.as_ref() == etcd
            && so(task)
    };
    tasks
        .state_filter(|task| task.0.as_ref().is_ok_and(of_etcd))
        .iter()
        .filter_map(|task| task.0.as_ref().ok().map(key))
        .collect()
}
