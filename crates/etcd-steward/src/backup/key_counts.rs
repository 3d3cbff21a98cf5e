//! Compares the number of keys in each full snapshot with that in the one before it. etcd can lose keys without a trace in
//! its history, and a good backup of what is left must not take the place of the chain that has them. One with far fewer
//! keys does so only if the deltas in between show that the keys were deleted, or if somebody has accepted it: until
//! then retention keeps the chain before it, and everything since.
//!
//! Nothing of this is stored beside the manifests: every owner comes to the same findings from them.

mod judgement;
mod reading;

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::{
    conditions::member as condition,
    v1alpha1::{ConditionStatus, find_condition},
};
use jiff::{SignedDuration, Timestamp};
use snapstore::SnapshotName;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use self::{
    judgement::{Collapse, Verdict},
    reading::Reader,
};
use super::owner::Owner;

/// How often the store is looked at while something may still explain a smaller number of keys, and otherwise.
const SOON: Duration = Duration::from_secs(10);
const OPEN: Duration = Duration::from_mins(1);
const SETTLED: Duration = Duration::from_hours(1);
/// Time beyond two delta periods in which the deltas up to a full snapshot are stored.
const DELTA_SLACK: SignedDuration = SignedDuration::from_mins(1);

const ACCOUNTED_FOR: &str = "the newest full snapshot has at least half of the keys that the one before it and the deltas in \
                             between let expect, or fewer were accepted";

/// What was found of the full snapshots, by names without `.final`. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyCounts(Arc<Mutex<Found>>);

#[derive(Debug, Clone, Default)]
struct Found {
    plausible: BTreeSet<SnapshotName>,
    doubtful: BTreeSet<SnapshotName>,
}

impl KeyCounts {
    /// Whether a full snapshot may take the place of the chains before it. One that wasn't judged may not.
    pub(super) fn is_plausible(&self, full: &SnapshotName) -> bool {
        self.lock().plausible.contains(&full.clone().with_final(false))
    }

    /// Full snapshots that are known not to take the place of anything.
    pub(super) fn doubtful(&self) -> BTreeSet<SnapshotName> {
        self.lock().doubtful.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Judges each new full snapshot, for as long as the term lasts.
pub(super) async fn run(owner: &Owner) -> Infallible {
    let mut known = owner.follow();
    let mut reader = Reader::default();
    loop {
        let full = known
            .borrow_and_update()
            .full
            .as_ref()
            .map(|full| full.name.clone());
        let pause = match look(owner, &mut reader).await {
            Ok(pause) => pause,
            Err(error) => {
                debug!(%error, "the numbers of keys can't be compared at the moment");
                OPEN
            }
        };
        let next = known.wait_for(|known| known.full.as_ref().map(|full| &full.name) != full.as_ref());
        // The owner lives as long as its terms.
        let _ = timeout(pause, next).await;
    }
}

/// Returns when to look again.
async fn look(owner: &Owner, reader: &mut Reader) -> Result<Duration, super::BackupError> {
    let (fulls, verdicts) = reader.judge(owner).await?;
    let mut found = Found::default();
    for (full, verdict) in fulls.iter().zip(&verdicts) {
        let name = full.name.clone().with_final(false);
        match verdict {
            Verdict::Plausible => found.plausible.insert(name),
            Verdict::Collapsed(_) | Verdict::Unknown => found.doubtful.insert(name),
        };
    }
    *owner.key_counts.lock() = found;
    let newest = fulls.last().zip(verdicts.last());
    owner
        .metrics
        .set_keys_collapsed(matches!(newest, Some((_, Verdict::Collapsed(_)))));
    Ok(match newest {
        Some((_, Verdict::Collapsed(collapse))) => {
            if may_be_explained(owner, collapse) {
                return Ok(SOON);
            }
            report(
                owner,
                ConditionStatus::False,
                condition::KEYS_COLLAPSED,
                &collapse.to_string(),
            )
            .await;
            OPEN
        }
        Some((full, Verdict::Plausible)) if full.keys.is_some() => {
            report(
                owner,
                ConditionStatus::True,
                condition::KEYS_ACCOUNTED_FOR,
                ACCOUNTED_FOR,
            )
            .await;
            SETTLED
        }
        Some((_, Verdict::Plausible)) => SETTLED,
        // Its manifest may still come.
        Some((_, Verdict::Unknown)) | None => OPEN,
    })
}

/// Whether deltas up to the full snapshot are on their way.
fn may_be_explained(owner: &Owner, collapse: &Collapse) -> bool {
    let Some(period) = owner.settings.delta_period else {
        return false;
    };
    let patience = SignedDuration::try_from(2 * period).unwrap_or(SignedDuration::MAX);
    let age = Timestamp::now().duration_since(collapse.full.created_on);
    !collapse.is_covered && age < patience.saturating_add(DELTA_SLACK)
}

/// Says it by the condition, and by log and Event when it is news.
async fn report(owner: &Owner, status: ConditionStatus, reason: &'static str, message: &str) {
    let before = owner.status.read(|member| {
        find_condition(&member.conditions, condition::BACKUP_PLAUSIBLE)
            .map(|known| (known.status.clone(), known.message.clone()))
    });
    owner
        .status
        .condition(condition::BACKUP_PLAUSIBLE, status.clone(), reason, message);
    let is_well = status == ConditionStatus::True;
    let was_well = before
        .as_ref()
        .is_none_or(|(known, _)| *known == ConditionStatus::True);
    if is_well && !was_well {
        info!(
            reason,
            message, "the keys of the newest full snapshot are accounted for"
        );
        if let Some(kubernetes) = &owner.kubernetes {
            kubernetes.tell("Verify", reason, message).await;
        }
    } else if !is_well && before.is_none_or(|(_, known)| known != message) {
        warn!(reason, message, "etcd may have lost keys");
        if let Some(kubernetes) = &owner.kubernetes {
            kubernetes.warn("Verify", reason, message).await;
        }
    }
}
