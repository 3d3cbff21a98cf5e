//! What must be so before a task may begin, each in one function, for handlers to combine. Pure.

use api::{
    conditions::ready,
    v1alpha1::{ConditionStatus, Etcd, EtcdOpsTask, find_condition},
};
use kube::ResourceExt as _;

use crate::lifecycle::Problem;

/// The Etcd, or the problem that there is none.
pub fn exists<'a>(task: &EtcdOpsTask, etcd: Option<&'a Etcd>) -> Result<&'a Etcd, Problem> {
    etcd.ok_or_else(|| {
        let name = task.spec.etcd_name.as_deref().unwrap_or_default();
        unmet(
            "ERR_GET_ETCD",
            "EtcdNotFound",
            format!("there is no Etcd {name} in this namespace"),
        )
    })
}

/// Backups are on.
pub fn has_store(etcd: &Etcd) -> Option<Problem> {
    let message = match etcd.spec.backup_store() {
        Ok(Some(_)) => return None,
        Ok(None) => format!(
            "backups of Etcd {} are off: set spec.backup.store",
            etcd.name_any()
        ),
        Err(error) => format!("the backup store of Etcd {}: {error}", etcd.name_any()),
    };
    Some(unmet("ERR_BACKUP_NOT_ENABLED", "BackupNotEnabled", message))
}

/// A majority of the members serves.
pub fn is_quorate(etcd: &Etcd) -> Option<Problem> {
    let problem = |message| Some(unmet("ERR_ETCD_NOT_READY", "EtcdNotReady", message));
    let name = etcd.name_any();
    let status = etcd.status.as_ref();
    // Conditions aren't looked after while an Etcd sleeps, so they may still tell of the time before.
    if etcd.spec.replicas == 0 && status.is_some_and(|status| status.replicas == Some(0)) {
        return problem(format!("Etcd {name} is scaled to zero"));
    }
    let ready = status.and_then(|status| find_condition(&status.conditions, ready::TYPE));
    match ready {
        Some(ready) if ready.status == ConditionStatus::True => None,
        Some(ready) => problem(format!(
            "condition Ready of Etcd {name} is {}, it must be True ({}: {})",
            ready.status, ready.reason, ready.message
        )),
        None => problem(format!("Etcd {name} has no condition Ready yet, it must be True")),
    }
}

fn unmet(code: &'static str, reason: &str, message: String) -> Problem {
    Problem {
        code,
        reason: reason.to_owned(),
        message,
        retryable: false,
    }
}
