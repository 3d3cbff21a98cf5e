//! Whose turn it is: tasks of one Etcd run one after the other, in the order of their creation. Pure.

use api::v1alpha1::EtcdOpsTask;
use kube::ResourceExt as _;

use crate::lifecycle::{is_over, is_running};

/// The name of the task that has to end before this one may begin; `None` when it is this one's turn. `others` are the
/// tasks of the same namespace.
pub fn comes_first<'a>(
    task: &EtcdOpsTask,
    others: impl IntoIterator<Item = &'a EtcdOpsTask>,
) -> Option<String> {
    task.spec.etcd_name.as_ref()?;
    let ahead = |other: &&EtcdOpsTask| {
        other.spec.etcd_name == task.spec.etcd_name
            && other.uid() != task.uid()
            && !is_over(other)
            // What runs already comes first even if its name sorts behind that of a task of the same second.
            && (is_running(other) || place(other) < place(task))
    };
    others
        .into_iter()
        .filter(ahead)
        .min_by_key(|other| (!is_running(other), place(other)))
        .map(kube::ResourceExt::name_any)
}

/// Creation times are whole seconds, so names settle a tie.
fn place(task: &EtcdOpsTask) -> (Option<jiff::Timestamp>, String) {
    let created = task.creation_timestamp().map(|time| time.0);
    (created, task.name_any())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn task(name: &str, etcd: Option<&str>, second: u8, state: &str) -> EtcdOpsTask {
        serde_json::from_value(json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdOpsTask",
            "metadata": {
                "name": name, "namespace": "ns", "uid": name,
                "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
            },
            "spec": {"etcdName": etcd, "config": {"onDemandSnapshot": {"type": "full"}}},
            "status": {"state": state},
        }))
        .unwrap()
    }

    #[test]
    fn tasks_run_in_the_order_of_their_creation() {
        let mine = || task("m", Some("main"), 5, "Pending");
        for (others, want) in [
            (vec![], None),
            (vec![mine()], None),
            (vec![task("a", Some("main"), 4, "Pending")], Some("a")),
            (vec![task("z", Some("main"), 4, "Pending")], Some("z")),
            (vec![task("a", Some("main"), 6, "Pending")], None),
            (vec![task("a", Some("main"), 5, "Pending")], Some("a")),
            (vec![task("z", Some("main"), 5, "Pending")], None),
            // Begun before this one was seen: never two at once.
            (vec![task("z", Some("main"), 5, "InProgress")], Some("z")),
            (
                vec![
                    task("a", Some("main"), 1, "Pending"),
                    task("b", Some("main"), 2, "InProgress"),
                ],
                Some("b"),
            ),
            (vec![task("a", Some("main"), 4, "Succeeded")], None),
            (vec![task("a", Some("main"), 4, "Rejected")], None),
            (vec![task("a", Some("other"), 4, "InProgress")], None),
            // A state of a newer version isn't known to be an end.
            (vec![task("a", Some("main"), 4, "Paused")], Some("a")),
        ] {
            let names: Vec<_> = others.iter().map(kube::ResourceExt::name_any).collect();
            assert_eq!(comes_first(&mine(), &others).as_deref(), want, "{names:?}");
        }
    }

    #[test]
    fn a_task_without_an_etcd_waits_for_nobody() {
        let mine = task("m", None, 5, "Pending");
        assert_eq!(comes_first(&mine, &[task("a", None, 4, "InProgress")]), None);
    }
}
