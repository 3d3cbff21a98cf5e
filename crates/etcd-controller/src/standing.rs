//! Whose an object is that stands where a child of an Etcd is to be. Server-side apply would make it the Etcd's, to be
//! deleted with it, whoever's it is. Pure.

use api::labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt as _};

/// An object is somebody else's.
#[derive(Debug, thiserror::Error)]
#[error(
    "{kind} {name} isn't this Etcd's: {whose}. Nothing of it is changed: delete it or rename it, or create the Etcd with \
     another name"
)]
pub struct NotOurs {
    kind: String,
    name: String,
    whose: String,
}

/// Whose an object is, if Druid may do something about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// This Etcd's, or one without an owner that was made for an Etcd of this name.
    Ours,
    /// Of an Etcd of the same name that is gone.
    Predecessors,
}

/// Whose `live` is, which has the name of `wanted`.
pub fn standing<K: Resource<DynamicType = ()>>(live: &K, wanted: &K) -> Result<Standing, NotOurs> {
    let not_ours = |whose: String| NotOurs {
        kind: K::kind(&()).into_owned(),
        name: wanted.name_any(),
        whose,
    };
    match (controller(live.meta()), controller(wanted.meta())) {
        (Some(owner), Some(etcd)) if owner.uid == etcd.uid => Ok(Standing::Ours),
        (Some(owner), Some(etcd)) if same_name(owner, etcd) => Ok(Standing::Predecessors),
        (Some(owner), _) => Err(not_ours(format!("it belongs to {} {}", owner.kind, owner.name))),
        (None, _) if made_for(live.meta(), wanted.meta()) => Ok(Standing::Ours),
        (None, _) => Err(not_ours(
            "it has no owner, and not the labels of this Etcd's objects".to_owned(),
        )),
    }
}

/// Whether two objects are controlled by the same one.
pub fn belong_together(one: &impl Resource, other: &impl Resource) -> bool {
    let uid = |meta| controller(meta).map(|owner| owner.uid.as_str());
    uid(one.meta()).is_some() && uid(one.meta()) == uid(other.meta())
}

fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}

fn same_name(one: &OwnerReference, other: &OwnerReference) -> bool {
    let group = |owner: &OwnerReference| owner.api_version.split('/').next().map(str::to_owned);
    (&one.kind, &one.name, group(one)) == (&other.kind, &other.name, group(other))
}

/// Owners get lost where objects are restored from a backup of the cluster.
fn made_for(live: &ObjectMeta, wanted: &ObjectMeta) -> bool {
    let label = |meta: &ObjectMeta, key| meta.labels.as_ref().and_then(|labels| labels.get(key)).cloned();
    [labels::MANAGED_BY, labels::PART_OF]
        .into_iter()
        .all(|key| label(wanted, key).is_some() && label(live, key) == label(wanted, key))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ServiceAccount;
    use serde_json::{Value, json};

    use super::*;

    fn account(owner: &Value, labels: &Value) -> ServiceAccount {
        serde_json::from_value(
            json!({"metadata": {"name": "main", "ownerReferences": owner, "labels": labels}}),
        )
        .unwrap()
    }

    fn owner(kind: &str, name: &str, uid: &str, controller: bool) -> Value {
        let group = if kind == "Etcd" {
            "druid.gardener.cloud/v1alpha1"
        } else {
            "apps/v1"
        };
        json!([{"apiVersion": group, "kind": kind, "name": name, "uid": uid, "controller": controller}])
    }

    #[test]
    fn who_owns_what() {
        let druids = json!({labels::MANAGED_BY: labels::MANAGED_BY_VALUE, labels::PART_OF: "main"});
        let wanted = account(&owner("Etcd", "main", "u2", true), &druids);
        for (owner, labels, want) in [
            (owner("Etcd", "main", "u2", true), json!({}), Some(Standing::Ours)),
            (
                owner("Etcd", "main", "u1", true),
                druids.clone(),
                Some(Standing::Predecessors),
            ),
            (json!([]), druids.clone(), Some(Standing::Ours)),
            (
                owner("Etcd", "main", "u1", false),
                druids.clone(),
                Some(Standing::Ours),
            ),
            (owner("Etcd", "other", "u1", true), druids.clone(), None),
            (owner("Deployment", "main", "u1", true), druids.clone(), None),
            // The ServiceAccount that each namespace has.
            (json!([]), json!({}), None),
            (
                json!([]),
                json!({labels::MANAGED_BY: labels::MANAGED_BY_VALUE, labels::PART_OF: "other"}),
                None,
            ),
            (
                json!([]),
                json!({labels::MANAGED_BY: "Helm", labels::PART_OF: "main"}),
                None,
            ),
        ] {
            let found = standing(&account(&owner, &labels), &wanted);
            assert_eq!(found.as_ref().ok().copied(), want, "{owner} {labels}");
            if let Err(error) = found {
                assert!(
                    error
                        .to_string()
                        .starts_with("ServiceAccount main isn't this Etcd's"),
                    "{error}"
                );
            }
        }
    }
}
