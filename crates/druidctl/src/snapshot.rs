//! `druidctl snapshot`: an EtcdOpsTask that takes a snapshot, followed to its end if wanted.

use std::pin::pin;

use api::v1alpha1::{EtcdOpsTask, EtcdOpsTaskSpec, OnDemandSnapshotConfig, SnapshotType, TaskState};
use futures::TryStreamExt as _;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ObjectMeta, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};

use crate::{CtlError, Verdict, cluster::Connection, output, status::named};

/// Flags of `snapshot`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The Etcd.
    pub name: String,
    /// Everything. The default.
    #[arg(long, conflicts_with = "delta")]
    pub full: bool,
    /// The changes since the last snapshot.
    #[arg(long)]
    pub delta: bool,
    /// Mark a full snapshot as the last one before the cluster moves or goes away.
    #[arg(long = "final", conflicts_with = "delta")]
    pub is_final: bool,
    /// Let a full snapshot take the place of the backups before it, however few keys it has.
    #[arg(long, conflicts_with = "delta")]
    pub accept_fewer_keys: bool,
    /// Longest time that the snapshot may take, in seconds: at least 10 for a delta, 120 for everything.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i32).range(10..))]
    pub timeout: Option<i32>,
    /// Wait for its end.
    #[arg(long)]
    pub wait: bool,
}

/// Creates the task; well if it succeeded, or if its end isn't waited for.
pub async fn run(connection: &Connection, args: &Args) -> Result<Verdict, CtlError> {
    let (client, namespace) = connection.open().await?;
    named(client.clone(), &namespace, &args.name).await?;
    let api = Api::<EtcdOpsTask>::namespaced(client.clone(), &namespace);
    let created = api.create(&PostParams::default(), &task(args)?).await;
    let created = created.map_err(|source| CtlError::Request {
        action: format!("create an EtcdOpsTask for Etcd {}", args.name),
        source: Box::new(source),
    })?;
    output::print(&format!("etcdopstask/{} created\n", created.name_any()))?;
    if args.wait {
        follow(client, &namespace, &created.name_any()).await
    } else {
        Ok(Verdict::Well)
    }
}

/// The task that is asked for.
fn task(args: &Args) -> Result<EtcdOpsTask, CtlError> {
    let type_ = if args.delta {
        SnapshotType::Delta
    } else {
        SnapshotType::Full
    };
    let mut config = serde_json::json!({"type": type_});
    if args.is_final {
        config["isFinal"] = true.into();
    }
    if args.accept_fewer_keys {
        config["acceptFewerKeys"] = true.into();
    }
    if let Some(seconds) = args.timeout {
        let field = if args.delta {
            "timeoutSecondsDelta"
        } else {
            "timeoutSecondsFull"
        };
        config[field] = seconds.into();
    }
    // Read back, so that the API's own defaults fill the rest.
    let config: OnDemandSnapshotConfig =
        serde_json::from_value(config).map_err(|error| CtlError::Output(Box::new(error)))?;
    let spec: EtcdOpsTaskSpec = serde_json::from_value(serde_json::json!({
        "etcdName": args.name,
        "config": {"onDemandSnapshot": config},
    }))
    .map_err(|error| CtlError::Output(Box::new(error)))?;
    Ok(EtcdOpsTask {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-{type_}-", args.name)),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    })
}

/// Tells each change of a task until its end.
async fn follow(client: Client, namespace: &str, name: &str) -> Result<Verdict, CtlError> {
    let api = Api::<EtcdOpsTask>::namespaced(client, namespace);
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = pin!(watcher(api, only).default_backoff());
    let mut told = String::new();
    let broken = |source| CtlError::Watch {
        what: format!("EtcdOpsTask {name}"),
        source: Box::new(source),
    };
    let gone = || CtlError::Refused(format!("EtcdOpsTask {name} was deleted before its end"));
    let mut seen = false;
    while let Some(event) = events.try_next().await.map_err(broken)? {
        let task = match event {
            watcher::Event::Apply(task) | watcher::Event::InitApply(task) => task,
            watcher::Event::InitDone if !seen => return Err(gone()),
            watcher::Event::Delete(_) => return Err(gone()),
            watcher::Event::Init | watcher::Event::InitDone => continue,
        };
        seen = true;
        let line = line(&task);
        if line != told {
            output::note(&line);
            told = line;
        }
        if let Some(verdict) = verdict(&task) {
            return Ok(verdict);
        }
    }
    Err(gone())
}

/// How a task stands, in a line.
fn line(task: &EtcdOpsTask) -> String {
    let Some(status) = &task.status else {
        return "waiting for the opstask-controller".to_owned();
    };
    let state = status.state.as_ref().map_or("Pending", TaskState::as_str);
    let progress = status.progress.as_deref().filter(|text| !text.is_empty());
    let last = status
        .last_operation
        .as_ref()
        .map(|last| last.description.as_str());
    let over = status.state.as_ref().is_some_and(TaskState::is_terminal);
    let what = if over { last } else { progress.or(last) };
    what.map_or_else(|| state.to_owned(), |what| format!("{state}: {what}"))
}

/// Whether a task that has ended did so well.
fn verdict(task: &EtcdOpsTask) -> Option<Verdict> {
    match task.status.as_ref()?.state.as_ref()? {
        TaskState::Succeeded => Some(Verdict::Well),
        TaskState::Failed | TaskState::Rejected => Some(Verdict::Unwell),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn args() -> Args {
        Args {
            name: "main".to_owned(),
            full: false,
            delta: false,
            is_final: false,
            accept_fewer_keys: false,
            timeout: None,
            wait: false,
        }
    }

    fn config(args: &Args) -> Value {
        let task = serde_json::to_value(task(args).unwrap()).unwrap();
        task["spec"]["config"]["onDemandSnapshot"].clone()
    }

    #[test]
    fn flags_become_the_task() {
        let created = task(&args()).unwrap();
        assert_eq!(created.metadata.generate_name.as_deref(), Some("main-full-"));
        assert_eq!(created.spec.etcd_name.as_deref(), Some("main"));
        let full = json!({"type": "full", "timeoutSecondsDelta": 60, "timeoutSecondsFull": 900});
        assert_eq!(config(&args()), full);
        let last = Args {
            is_final: true,
            timeout: Some(1200),
            ..args()
        };
        assert_eq!(
            config(&last),
            json!({"type": "full", "isFinal": true, "timeoutSecondsDelta": 60, "timeoutSecondsFull": 1200})
        );
        let accepting = Args {
            accept_fewer_keys: true,
            ..args()
        };
        assert_eq!(
            config(&accepting),
            json!({"type": "full", "acceptFewerKeys": true, "timeoutSecondsDelta": 60, "timeoutSecondsFull": 900})
        );
        let delta = Args {
            delta: true,
            timeout: Some(10),
            ..args()
        };
        assert_eq!(
            config(&delta),
            json!({"type": "delta", "timeoutSecondsDelta": 10, "timeoutSecondsFull": 900})
        );
    }

    #[test]
    fn a_line_tells_how_a_task_stands() {
        for (status, want, end) in [
            (Value::Null, "waiting for the opstask-controller", None),
            (
                json!({"state": "Pending", "progress": "waits for task a"}),
                "Pending: waits for task a",
                None,
            ),
            (
                json!({"state": "InProgress", "progress": "40%", "lastOperation": {
                    "type": "Execution", "state": "InProgress", "description": "under way"}}),
                "InProgress: 40%",
                None,
            ),
            (
                json!({"state": "Succeeded", "progress": "100%", "lastOperation": {
                    "type": "Execution", "state": "Completed", "description": "stored x"}}),
                "Succeeded: stored x",
                Some(Verdict::Well),
            ),
            (json!({"state": "Rejected"}), "Rejected", Some(Verdict::Unwell)),
            (json!({"state": "Failed"}), "Failed", Some(Verdict::Unwell)),
        ] {
            let mut task = task(&args()).unwrap();
            task.status = serde_json::from_value(status).unwrap();
            assert_eq!((line(&task).as_str(), verdict(&task)), (want, end));
        }
    }
}
