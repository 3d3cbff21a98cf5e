//! The etcd-controller's part of an Etcd's status. Times move only when something else does.

use std::{hash::Hash, sync::Arc};

use api::{
    conditions::member as says,
    labels, names,
    v1alpha1::{
        Condition, Etcd, EtcdMember, EtcdMemberStatus, LastError, LastOperation, LastOperationState,
        LastOperationType,
    },
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use operator::reconcile::Guarded;
use serde_json::{Value, json};

/// Fields of the status that this controller owns.
pub const OURS: &[&str] = &[
    "observedGeneration",
    "selector",
    "etcd",
    "memberRefs",
    "lastOperation",
    "lastErrors",
];

/// Code of an error: a member can't run with what is wanted.
const MEMBER_CANNOT_FOLLOW: &str = "MemberCannotFollow";

/// How a reconcile ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is as it should be.
    Done,
    /// The Etcd goes: its pods are waited for.
    Deleting,
    /// All objects are as they should be, but a member says that it can't follow.
    Behind {
        /// Which one, and why.
        description: String,
    },
    /// Something failed.
    Failed {
        /// The error's reason.
        code: &'static str,
        /// What failed, where, and what to do.
        description: String,
    },
}

impl Outcome {
    /// Code and description of what is wrong, if anything is.
    pub fn error(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::Done | Self::Deleting => None,
            Self::Behind { description } => Some((MEMBER_CANNOT_FOLLOW, description)),
            Self::Failed { code, description } => Some((code, description)),
        }
    }
}

/// What this controller acts upon of what a member reports.
pub fn what_matters(member: &Guarded<EtcdMember>) -> impl Hash + use<> {
    let status = member.0.as_ref().ok().and_then(|member| member.status.as_ref());
    let readable = member.0.is_ok();
    let recorded = status.map(|status| (status.cluster_id.is_some(), status.peer_tls_enabled));
    let refusal = status
        .and_then(refusal)
        .map(|condition| condition.message.clone());
    (readable, recorded, refusal)
}

/// The condition by which a member says that it can't run with its newest configuration.
fn refusal(status: &EtcdMemberStatus) -> Option<&Condition> {
    let mut conditions = status.conditions.iter();
    conditions.find(|condition| condition.reason == says::PEER_TLS_MISMATCH && !condition.is_true())
}

/// The members that can't run with their newest configuration, each with why.
pub fn cannot_follow(members: &[Arc<EtcdMember>]) -> Option<String> {
    let refusals = members.iter().filter_map(|member| {
        let condition = refusal(member.status.as_ref()?)?;
        Some(format!("{}: {}", member.name_any(), condition.message))
    });
    let mut refusals: Vec<_> = refusals.collect();
    refusals.sort();
    (!refusals.is_empty()).then(|| refusals.join("; "))
}

/// Our part of the status.
pub fn status(etcd: &Etcd, members: impl IntoIterator<Item = String>, outcome: &Outcome) -> Value {
    let known = etcd.status.clone().unwrap_or_default();
    let mut refs: Vec<String> = members.into_iter().collect();
    refs.sort();
    let first = known.observed_generation.is_none();
    let type_ = match outcome {
        Outcome::Deleting => LastOperationType::Delete,
        _ if first => LastOperationType::Create,
        _ => LastOperationType::Reconcile,
    };
    let (state, description, generation, errors) = match outcome {
        Outcome::Done => {
            let description = "all objects are as the spec wants them".to_owned();
            (
                LastOperationState::Succeeded,
                description,
                etcd.metadata.generation,
                Vec::new(),
            )
        }
        // Server-side apply takes away what isn't repeated.
        Outcome::Deleting => (
            LastOperationState::Processing,
            "waits for the pods to end".to_owned(),
            known.observed_generation,
            known.last_errors.clone(),
        ),
        Outcome::Behind { description } => {
            let errors = vec![error(&known.last_errors, MEMBER_CANNOT_FOLLOW, description)];
            (
                LastOperationState::Error,
                description.clone(),
                etcd.metadata.generation,
                errors,
            )
        }
        Outcome::Failed { code, description } => {
            let errors = vec![error(&known.last_errors, code, description)];
            (
                LastOperationState::Error,
                description.clone(),
                known.observed_generation,
                errors,
            )
        }
    };
    // Once done, an operation of the same generation stays as it was told.
    let settled = known.last_operation.as_ref().filter(|last| {
        known.observed_generation == etcd.metadata.generation
            && last.state == LastOperationState::Succeeded
            && state == LastOperationState::Succeeded
    });
    let operation = settled
        .cloned()
        .unwrap_or_else(|| operation(known.last_operation.as_ref(), type_, state, description));
    let mut status = json!({
        "selector": labels::selector(&selector(&etcd.name_any())),
        "etcd": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": names::stateful_set(&etcd.name_any())},
        "memberRefs": refs.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
        "lastOperation": operation,
        "lastErrors": errors,
    });
    // The API server takes no null for it.
    if let Some(generation) = generation {
        status["observedGeneration"] = json!(generation);
    }
    status
}

/// What the scale subresource selects by: members' pods only.
fn selector(etcd: &str) -> std::collections::BTreeMap<String, String> {
    let mut selector = labels::of_etcd(etcd);
    selector.insert(
        labels::COMPONENT.to_owned(),
        labels::component::STATEFUL_SET.to_owned(),
    );
    selector
}

fn operation(
    known: Option<&LastOperation>,
    type_: LastOperationType,
    state: LastOperationState,
    description: String,
) -> LastOperation {
    let new = LastOperation {
        type_,
        state,
        description,
        run_id: operator::reconcile::run_id(),
        last_update_time: Some(now()),
    };
    match known {
        Some(known)
            if (&known.type_, &known.state, &known.description)
                == (&new.type_, &new.state, &new.description) =>
        {
            known.clone()
        }
        _ => new,
    }
}

fn error(known: &[LastError], code: &str, description: &str) -> LastError {
    let same = known
        .iter()
        .find(|error| error.code == code && error.description == description);
    same.cloned().unwrap_or_else(|| LastError {
        code: code.to_owned(),
        description: description.to_owned(),
        observed_at: Some(now()),
    })
}

fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etcd(status: &Value) -> Etcd {
        let manifest = json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd",
            "metadata": {"name": "t1", "namespace": "lab", "generation": 2},
            "spec": {"labels": {}, "etcd": {}, "backup": {}, "replicas": 3},
            "status": status,
        });
        serde_json::from_value(manifest).unwrap()
    }

    /// A reconcile that changes nothing must not change the status either, or every pass would be a write.
    #[test]
    fn nothing_new_is_no_change() {
        for outcome in [
            Outcome::Done,
            Outcome::Failed {
                code: "X",
                description: "it failed".to_owned(),
            },
        ] {
            let first = status(&etcd(&json!({"observedGeneration": 1})), [], &outcome);
            let mut again = status(&etcd(&first), [], &outcome);
            if outcome == Outcome::Done {
                again = status(&etcd(&again), [], &outcome);
            }
            assert_eq!(first, again, "{outcome:?}");
        }
    }

    /// The first failure of a new Etcd is the one that people wait for.
    #[test]
    fn a_failure_before_the_first_success_can_be_told() {
        let outcome = Outcome::Failed {
            code: "SecretNotFound",
            description: "it failed".to_owned(),
        };
        let told = status(&etcd(&json!({})), [], &outcome);
        assert_eq!(told["lastErrors"][0]["code"], "SecretNotFound");
        let fields = told.as_object().unwrap();
        assert!(fields.values().all(|value| !value.is_null()), "{told}");
    }

    #[test]
    fn a_failure_keeps_the_observed_generation_and_success_clears_the_errors() {
        let failed = status(
            &etcd(&json!({"observedGeneration": 1})),
            [],
            &Outcome::Failed {
                code: "X",
                description: "it failed".to_owned(),
            },
        );
        assert_eq!(
            (&failed["observedGeneration"], &failed["lastOperation"]["state"]),
            (&json!(1), &json!("Error"))
        );
        let done = status(&etcd(&failed), [], &Outcome::Done);
        assert_eq!(
            (&done["observedGeneration"], &done["lastErrors"]),
            (&json!(2), &json!([]))
        );
    }
}
