//! Whether all members have the same data, looked after while this member leads: who differs is told of and replaced, and
//! the alarm about it is cleared when all have the same data again.

use std::{mem, time::Duration};

use api::{conditions::member as condition, v1alpha1::ConditionStatus};
use operator::reconcile::chain;
use snapstore::Kind;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::{
    MaintenanceError,
    caretaker::{Caretaker, Term},
    comparison::{Comparison, Named, names},
    replacement::Replacement,
};
use crate::backup::Marks;

/// What differs must do so again after this time before anybody is blamed.
const CONFIRM: Duration = Duration::from_secs(2);

impl Caretaker {
    pub(super) async fn look_at_data(&self, term: &mut Term) {
        let found = self.compare_twice().await;
        let well = matches!(&found, Ok(Some(found)) if found.all_agree);
        term.compared(self.comparison_period, well);
        if mem::take(&mut term.accused) {
            self.tell_of_corruption(&found).await;
        }
        if self.comparison_period.is_none() {
            return;
        }
        match found {
            Ok(Some(found)) => {
                self.tell_of_differences(&found.differing).await;
                if found.all_agree {
                    term.told = None;
                    // One that is alone agrees with itself, which proves nothing.
                    if found.members > 1 {
                        self.clear_corrupt().await;
                    }
                } else if !found.differing.is_empty() && term.may_replace() {
                    self.replace(&found.differing, term).await;
                }
            }
            Ok(None) => warn!("no majority of the members has the same data, or too few of them answer"),
            Err(error) => debug!(%error, "the members' data can't be compared"),
        }
    }

    async fn compare_twice(&self) -> Result<Option<Comparison>, MaintenanceError> {
        let Some(first) = self.maintenance.compare().await? else {
            return Ok(None);
        };
        if first.differing.is_empty() {
            return Ok(Some(first));
        }
        sleep(CONFIRM).await;
        let second = self.maintenance.compare().await?;
        Ok(second.map(|mut second| {
            second.differing.retain(|named| first.differing.contains(named));
            second
        }))
    }

    /// One member at a time; whatever else differs is found at the next comparison.
    async fn replace(&self, differing: &[Named], term: &mut Term) {
        let outcome = self.maintenance.replace(differing).await;
        let is_removed = matches!(outcome, Ok(Some(Replacement::Removed(_))));
        let (reason, note) = match outcome {
            Ok(None) => return,
            Ok(Some(Replacement::HandedOver)) => {
                let note =
                    "this member's data differs from that of the majority: it leads no more".to_owned();
                ("LeadershipMoved", note)
            }
            Ok(Some(Replacement::Removed(member))) => {
                term.replaced = Some(Instant::now());
                let note = format!(
                    "{member} was removed and joins anew; its old data is on its volume, moved aside. Backups that were taken \
                     while it led may hold that data; a full snapshot follows"
                );
                ("MemberReplaced", note)
            }
            Err(error) => {
                let note = format!("a member that differs can't be replaced now: {}", chain(&error));
                ("MemberNotReplaced", note)
            }
        };
        if term.told.replace(note.clone()).as_ref() != Some(&note) {
            warn!(reason, note, "members differ");
            if let Some(kubernetes) = &self.kubernetes {
                kubernetes.warn("Maintain", reason, &note).await;
            }
        }
        if is_removed {
            self.begin_new_chain().await;
        }
    }

    /// The newest backups may have been taken from the member that was replaced.
    async fn begin_new_chain(&self) {
        let Some(backups) = &self.backups else { return };
        if let Err(error) = backups.take(Kind::Full, Marks::default()).await {
            warn!(%error, "no full snapshot was taken after the replacement of a member");
        }
    }

    async fn clear_corrupt(&self) {
        match self.maintenance.clear_corrupt().await {
            Ok(false) => {}
            Ok(true) => {
                let note = "all members have the same data: writes are accepted again";
                if let Some(kubernetes) = &self.kubernetes {
                    kubernetes.tell("Maintain", "CorruptCleared", note).await;
                }
            }
            Err(error) => warn!(%error, "the alarm CORRUPT isn't cleared"),
        }
    }

    async fn tell_of_differences(&self, differing: &[Named]) {
        let known = self.maintenance.metrics.set_differing(differing.len());
        if differing.is_empty() {
            let message = "all members that answer have the same data";
            self.status.condition(
                condition::DATA_CONSISTENT,
                ConditionStatus::True,
                condition::MEMBERS_AGREE,
                message,
            );
            return;
        }
        let message = format!(
            "the data of {} differs from that of the majority: one after the other is removed and joins anew, as long as \
             the others have a quorum without it",
            names(differing)
        );
        self.status.condition(
            condition::DATA_CONSISTENT,
            ConditionStatus::False,
            condition::MEMBER_DIFFERS,
            &message,
        );
        if known == differing.len() {
            return;
        }
        warn!(reason = condition::MEMBER_DIFFERS, message, "members differ");
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes
                .warn("Maintain", condition::MEMBER_DIFFERS, &message)
                .await;
        }
    }

    async fn tell_of_corruption(&self, found: &Result<Option<Comparison>, MaintenanceError>) {
        let message = match found {
            Ok(Some(found)) if found.differing.is_empty() => {
                "alarm CORRUPT; at the newest revision all members that answer have the same data".to_owned()
            }
            Ok(Some(found)) => format!(
                "alarm CORRUPT; the data of {} differs from that of the majority",
                names(&found.differing)
            ),
            Ok(None) => "alarm CORRUPT; no majority of the members has the same data".to_owned(),
            Err(error) => format!("alarm CORRUPT; the members' data can't be compared: {error}"),
        };
        warn!(message, "data is corrupt");
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes.warn("Maintain", "Corrupt", &message).await;
        }
    }
}
