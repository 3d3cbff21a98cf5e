//! Conditions, as in `metav1.Condition`, with the extra update time that older objects carry.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{open_enum::open_enum, tolerant::null_as_default};

open_enum! {
    /// Whether a condition holds.
    pub enum ConditionStatus {
        /// It holds.
        True = "True",
        /// It doesn't hold.
        False = "False",
        /// It can't be told; never to be read as either of the others.
        Unknown = "Unknown",
    }
}

/// One aspect of an object's state.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What the condition is about, in CamelCase; unique in its list.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: ConditionStatus,
    /// The generation of the object that the condition was worked out for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When `status` last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// When the condition was last worked out. Objects written by etcd-druid have it; Druid leaves it out, since a
    /// status that didn't change isn't written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// Why, as one CamelCase word.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// Why, as a sentence for people, with the next step where one is needed.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(length(max = 32768))]
    pub message: String,
}

impl Condition {
    pub fn new(
        type_: impl Into<String>,
        status: ConditionStatus,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            type_: type_.into(),
            status,
            observed_generation: None,
            last_transition_time: None,
            last_update_time: None,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Names the generation that the condition was worked out for.
    pub fn observed(mut self, generation: Option<i64>) -> Self {
        self.observed_generation = generation;
        self
    }

    /// Dates the condition: its transition time stays that of the condition of the same type in `previous` unless
    /// the status differs, in which case it is `now`.
    pub fn since(mut self, previous: &[Self], now: Timestamp) -> Self {
        let unchanged = find(previous, &self.type_).filter(|old| old.status == self.status);
        self.last_transition_time = unchanged
            .and_then(|old| old.last_transition_time.clone())
            .or(Some(Time(now)));
        self
    }

    pub fn is_true(&self) -> bool {
        self.status == ConditionStatus::True
    }

    pub fn is_false(&self) -> bool {
        self.status == ConditionStatus::False
    }
}

/// The condition of a type, if the list has one.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// The transition time tells since when, so another reason or message must not move it.
    #[test]
    fn transition_time_follows_the_status_only() {
        let ready = |status, reason: &str| Condition::new("Ready", status, reason, "");
        let first = ready(ConditionStatus::True, "Quorate").since(&[], at(1));
        assert_eq!(first.last_transition_time, Some(Time(at(1))));
        let other = Condition::new("Other", ConditionStatus::False, "Quorate", "").since(&[], at(0));
        let previous = [other, first];
        let same = ready(ConditionStatus::True, "Again").since(&previous, at(2));
        assert_eq!(same.last_transition_time, Some(Time(at(1))));
        let changed = ready(ConditionStatus::False, "QuorumLost").since(&previous, at(3));
        assert_eq!(changed.last_transition_time, Some(Time(at(3))));
    }

    #[test]
    fn conditions_without_a_time_get_one() {
        let old = Condition::new("Ready", ConditionStatus::True, "Quorate", "");
        let new = old.clone().since(&[old], at(5));
        assert_eq!(new.last_transition_time, Some(Time(at(5))));
    }
}
