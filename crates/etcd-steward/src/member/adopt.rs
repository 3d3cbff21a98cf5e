//! What an earlier process of this member's steward has published, and what of it still holds.

use std::mem;

use api::{conditions::member as condition, v1alpha1::EtcdMemberStatus};
use serde_json::Value;

/// Takes away what only held for that process: it has to show anew.
pub(super) fn outlived(mut status: EtcdMemberStatus) -> EtcdMemberStatus {
    status.role = None;
    status.backup_owner = status.backup_owner.map(|_| false);
    // A pod that has died as the leader's may come back as another's.
    status
        .conditions
        .retain(|known| !condition::OF_LEADER.contains(&known.type_.as_str()));
    status
}

/// Lays what is known now over what was published before.
pub(super) fn adopt(before: EtcdMemberStatus, now: &mut EtcdMemberStatus) -> Result<(), serde_json::Error> {
    let before = serde_json::to_value(outlived(before))?;
    let (transitions, conditions) = (mem::take(&mut now.transitions), mem::take(&mut now.conditions));
    let mut merged: EtcdMemberStatus =
        serde_json::from_value(overlaid(before, serde_json::to_value(&*now)?))?;
    for transition in transitions {
        merged.transition(transition);
    }
    for known in conditions {
        merged.conditions.retain(|old| old.type_ != known.type_);
        merged.conditions.push(known);
    }
    *now = merged;
    Ok(())
}

fn overlaid(below: Value, above: Value) -> Value {
    match (below, above) {
        (Value::Object(mut below), Value::Object(above)) => {
            for (key, value) in above {
                let value = match below.remove(&key) {
                    Some(old) => overlaid(old, value),
                    None => value,
                };
                below.insert(key, value);
            }
            Value::Object(below)
        }
        (_, above) => above,
    }
}

#[cfg(test)]
mod tests {
    use api::v1alpha1::{Condition, ConditionStatus, MemberRole, MemberState, MemberTransition};

    use super::*;

    fn transition(state: MemberState, reason: &str) -> MemberTransition {
        MemberTransition {
            state,
            sub_state: None,
            reason: reason.to_owned(),
            transition_time: None,
            message: String::new(),
        }
    }

    fn condition(type_: &str, reason: &str) -> Condition {
        Condition::new(type_, ConditionStatus::True, reason, "")
    }

    /// A steward that couldn't read what it has published must not lose the member's history by publishing over it.
    #[test]
    fn the_history_is_kept_and_the_present_counts() {
        let before = EtcdMemberStatus {
            id: Some("a".into()),
            role: Some(MemberRole::Leader),
            backup_owner: Some(true),
            etcd_version: Some("3.5.24".into()),
            state: Some(MemberState::Started),
            transitions: vec![transition(MemberState::Started, "first")],
            conditions: vec![
                condition(condition::INITIALIZED, "old"),
                condition(condition::BACKUP_READY, "old"),
                condition("Other", "old"),
            ],
            ..EtcdMemberStatus::default()
        };
        let mut now = EtcdMemberStatus {
            etcd_version: Some("3.6.1".into()),
            transitions: vec![transition(MemberState::Initializing, "second")],
            conditions: vec![condition(condition::INITIALIZED, "new")],
            ..EtcdMemberStatus::default()
        };
        adopt(before, &mut now).unwrap();
        assert_eq!(now.id.as_deref(), Some("a"));
        assert_eq!((now.role, now.backup_owner), (None, Some(false)));
        assert_eq!(now.etcd_version.as_deref(), Some("3.6.1"));
        assert_eq!(now.state, Some(MemberState::Initializing));
        let reasons: Vec<_> = now.transitions.iter().map(|one| one.reason.as_str()).collect();
        assert_eq!(reasons, ["first", "second"]);
        let mut conditions: Vec<_> = now
            .conditions
            .iter()
            .map(|known| (known.type_.as_str(), known.reason.as_str()))
            .collect();
        conditions.sort_unstable();
        assert_eq!(conditions, [("Initialized", "new"), ("Other", "old")]);
    }
}
