//! What this member tells about itself: one status that all parts of the steward write to, published in its EtcdMember.

mod adopt;
mod catch_up;
pub mod kubernetes;
mod lag;
pub mod learners;
pub mod monitor;
pub mod peer_urls;
pub mod promotion;
mod readiness;
mod restored;
pub mod stored_index;
pub mod stored_voters;

use std::sync::Arc;

use api::v1alpha1::{
    Condition, ConditionStatus, EtcdMemberStatus, Initialization, MemberState, MemberSubState,
    MemberTransition,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::watch;
use tracing::{info, warn};

/// The member's status, shared by all parts of the steward.
#[derive(Debug, Clone)]
pub struct Status {
    status: Arc<watch::Sender<EtcdMemberStatus>>,
}

impl Status {
    /// Goes on from what was published before.
    pub fn new(known: EtcdMemberStatus) -> Self {
        Self {
            status: Arc::new(watch::Sender::new(adopt::outlived(known))),
        }
    }

    /// Goes on from what was published before, now that it could be read. What is known since counts.
    pub fn adopt(&self, before: EtcdMemberStatus) {
        self.update(|now| {
            if let Err(error) = adopt::adopt(before, now) {
                warn!(%error, "what was published before isn't understood");
            }
        });
    }

    /// Follows the changes.
    pub fn subscribe(&self) -> watch::Receiver<EtcdMemberStatus> {
        self.status.subscribe()
    }

    /// Looks at the status.
    pub fn read<T>(&self, look: impl FnOnce(&EtcdMemberStatus) -> T) -> T {
        look(&self.status.borrow())
    }

    /// Changes the status; nobody is woken when nothing changed.
    pub fn update(&self, change: impl FnOnce(&mut EtcdMemberStatus)) {
        self.status.send_if_modified(|status| {
            let before = status.clone();
            change(status);
            *status != before
        });
    }

    /// Records a step in the member's life, unless it is already there.
    pub fn transition(
        &self,
        state: MemberState,
        sub_state: Option<MemberSubState>,
        reason: &str,
        message: &str,
    ) {
        self.update(|status| {
            if status.state.as_ref() != Some(&state) || status.sub_state != sub_state {
                step(status, state, sub_state, reason, message);
            }
        });
    }

    /// Records that a step didn't work out, after which the member stays where it is. Once for each reason.
    pub fn setback(&self, reason: &str, message: &str) {
        self.update(|status| {
            let known = status
                .transitions
                .last()
                .is_some_and(|last| last.reason == reason);
            if let (Some(state), false) = (status.state.clone(), known) {
                step(status, state, status.sub_state.clone(), reason, message);
            }
        });
    }

    /// Sets a condition; its transition time moves only when its status changes.
    pub fn condition(&self, type_: &str, condition_status: ConditionStatus, reason: &str, message: &str) {
        self.update(|status| {
            let condition = Condition::new(type_, condition_status, reason, message)
                .since(&status.conditions, whole_seconds(Timestamp::now()));
            match status.conditions.iter_mut().find(|known| known.type_ == type_) {
                Some(known) => *known = condition,
                None => status.conditions.push(condition),
            }
        });
    }

    /// Takes a condition away that has nothing to tell any more.
    pub fn no_condition(&self, type_: &str) {
        self.update(|status| status.conditions.retain(|known| known.type_ != type_));
    }

    /// Says how far the preparation of the data directory is.
    pub fn progress(&self, percent: i32, message: &str) {
        self.update(|status| {
            status.initialization = Some(Initialization {
                progress_percent: percent,
                message: message.to_owned(),
            });
        });
    }
}

fn step(
    status: &mut EtcdMemberStatus,
    state: MemberState,
    sub_state: Option<MemberSubState>,
    reason: &str,
    message: &str,
) {
    info!(%state, sub_state = sub_state.as_ref().map(tracing::field::display), reason, message, "transition");
    status.transition(MemberTransition {
        state,
        sub_state,
        reason: reason.to_owned(),
        transition_time: Some(Time(whole_seconds(Timestamp::now()))),
        message: message.to_owned(),
    });
}

/// Times in statuses have whole seconds.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same look at a damaged directory comes every few seconds: it is one setback, not hundreds.
    #[test]
    fn a_setback_is_recorded_once() {
        let status = Status::new(EtcdMemberStatus::default());
        let full = Some(MemberSubState::DbValidationFull);
        for _ in 0..3 {
            status.transition(
                MemberState::Initializing,
                full.clone(),
                "DetectedPreviousUncleanExit",
                "",
            );
            status.setback("DBValidationFailed", "page 7");
        }
        let reasons = status.read(|status| {
            let reasons = status.transitions.iter().map(|one| one.reason.clone());
            reasons.collect::<Vec<_>>()
        });
        assert_eq!(reasons, ["DetectedPreviousUncleanExit", "DBValidationFailed"]);
        assert_eq!(status.read(|status| status.sub_state.clone()), full);
    }
}
