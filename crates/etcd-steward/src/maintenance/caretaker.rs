//! Sees to the cluster's databases without being asked, while this member leads: defragmentation by schedule, and when a
//! database comes close to its quota with much of it free; alarms; whether all members have the same data.

use std::{convert::Infallible, future::pending, time::Duration};

use api::{conditions::member as condition, quantity, schedule::Schedule, v1alpha1::MemberRole};
use jiff::Timestamp;
use operator::cache::until;
use steward_proto::v1::{Operation, OperationState, operation};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    Maintenance, Threshold,
    alarms::{Alarms, Room},
};
use crate::{
    backup::Backups,
    member::{Status, kubernetes::Kubernetes},
    server::operations::{Failure, Operations, wait},
};

/// What makes a member worth its scheduled pause.
const WORTH: Threshold = Threshold {
    bytes: 4 << 20,
    percent: 10,
};
/// Between schedules: the database is this full, and this much of the quota would be won, in percent.
const PRESSING: u64 = 80;
const PRESSING_GAIN: u64 = 10;
/// Pause after a pass that the schedule didn't ask for.
const UNSCHEDULED_PAUSE: Duration = Duration::from_hours(1);
/// etcd has no watch for alarms.
const LOOK: Duration = Duration::from_secs(10);
/// Pause after room couldn't be made in a full database: somebody has to act.
const FULL_PAUSE: Duration = Duration::from_mins(10);
/// A pass that an earlier leader may have left unfinished is looked after so long after the change of leaders: that
/// leader defragments itself last, when it doesn't lead any more.
const UNFINISHED: Duration = Duration::from_mins(15);
/// The data is compared so long after a change of leaders.
const FIRST_COMPARISON: Duration = Duration::from_mins(2);
/// Pause after a member was replaced: one that differs again at once is more than a damaged disk.
const REPLACEMENT_PAUSE: Duration = Duration::from_hours(1);
const FIRST_RETRY: Duration = Duration::from_mins(1);
const LAST_RETRY: Duration = Duration::from_hours(1);

/// The caretaker of one cluster, in the steward of one member.
#[derive(Debug)]
pub struct Caretaker {
    /// What it works with.
    pub maintenance: Maintenance,
    /// When members are defragmented.
    pub schedule: Schedule,
    /// How often their data is compared; `None`: only after an alarm, to tell of it.
    pub comparison_period: Option<Duration>,
    /// Where its work is seen.
    pub operations: Operations,
    /// What the member tells.
    pub status: Status,
    /// The backups, which say how much history isn't needed any more.
    pub backups: Option<Backups>,
    /// For Events.
    pub kubernetes: Option<Kubernetes>,
}

impl Caretaker {
    /// Works whenever this member leads. A pass that has begun goes on when the leadership moves: it moves it itself.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut changes = self.status.subscribe();
        let mut replaced = None;
        loop {
            tokio::select! {
                leads = changes.wait_for(|status| status.role == Some(MemberRole::Leader)) => if leads.is_err() { return },
                () = shutdown.cancelled() => return,
            }
            tokio::select! {
                last = self.lead(replaced) => {
                    replaced = last;
                    self.status.no_condition(condition::DATA_CONSISTENT);
                    self.maintenance.metrics.set_differing(0);
                }
                () = shutdown.cancelled() => return,
            }
        }
    }

    fn leads(&self) -> bool {
        self.status.read(|status| status.role == Some(MemberRole::Leader))
    }

    /// Until the leadership is seen to be gone between two works. Takes and tells when a member was last replaced.
    async fn lead(&self, replaced: Option<Instant>) -> Option<Instant> {
        let mut term = Term {
            replaced,
            ..Term::new(&self.schedule, self.comparison_period)
        };
        while self.leads() {
            tokio::select! {
                () = sleep(LOOK) => {}
                () = at(term.due) => {}
                () = at(term.comparison) => {}
                () = self.led_no_more() => break,
            }
            if term.due.is_some_and(|due| due <= Timestamp::now()) {
                let ended = self.pass("by schedule", WORTH).await;
                term.passed(&self.schedule, ended.is_ok());
            } else if term.may_press() && self.is_pressing() {
                term.pressed = Some(Instant::now());
                // The next look comes soon enough.
                let _ = self.pass("close to the quota", WORTH).await;
            }
            self.look_at_alarms(&mut term).await;
            if term.comparison.is_some_and(|due| due <= Timestamp::now()) {
                self.look_at_data(&mut term).await;
            }
        }
        term.replaced
    }

    async fn led_no_more(&self) {
        let mut changes = self.status.subscribe();
        if changes
            .wait_for(|status| status.role != Some(MemberRole::Leader))
            .await
            .is_err()
        {
            pending::<Infallible>().await;
        }
    }

    /// Whether much of a database that is nearly full is free.
    fn is_pressing(&self) -> bool {
        let sizes = self
            .status
            .read(|status| (status.db_size.clone(), status.db_size_in_use.clone()));
        let bytes = |size: Option<_>| size.and_then(|size| quantity::bytes(&size).ok());
        match (bytes(sizes.0), bytes(sizes.1)) {
            (Some(size), Some(in_use)) => is_pressing(size, in_use, self.maintenance.quota()),
            _ => false,
        }
    }

    async fn pass(&self, why: &str, worth: Threshold) -> Result<(), ()> {
        info!(why, "defragmenting the members that are worth it");
        let maintenance = self.maintenance.clone();
        let operation = self.operations.start_own("Defragment", |run| async move {
            let result = maintenance.defragment(worth, &run).await;
            result
                .map(operation::Result::Defragment)
                .map_err(|error| Failure::from(&error))
        });
        self.outcome("DefragmentationFailed", &wait(operation, None).await)
            .await
    }

    async fn outcome(&self, reason: &'static str, ended: &Operation) -> Result<(), ()> {
        if ended.state() == OperationState::Succeeded {
            return Ok(());
        }
        let message = ended
            .error
            .as_ref()
            .map_or("it was cancelled", |error| error.message.as_str());
        warn!(reason, message, "maintenance isn't done, trying again later");
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes.warn("Maintain", reason, message).await;
        }
        Err(())
    }

    async fn look_at_alarms(&self, term: &mut Term) {
        let alarms = match self.maintenance.alarms().await {
            Ok(alarms) => alarms,
            Err(error) => return debug!(%error, "the alarms can't be listed"),
        };
        if !alarms.corrupt.is_empty() && alarms.corrupt != term.alarms.corrupt {
            // Whom to blame, and to replace, is found out now.
            term.accused = true;
            term.comparison = Some(Timestamp::now());
        }
        if !alarms.no_space.is_empty() && term.may_make_room() {
            term.full = Some(Instant::now());
            self.make_room(&alarms).await;
        }
        term.alarms = alarms;
    }

    async fn make_room(&self, alarms: &Alarms) {
        warn!(members = alarms.no_space.len(), "alarm NOSPACE: making room");
        let (maintenance, raised) = (self.maintenance.clone(), alarms.no_space.clone());
        // Backups must not lose history that they have yet to save. What isn't known of them isn't dropped.
        let revision = match &self.backups {
            None => Some(0),
            Some(backups) => Some(backups.known.borrow().covered).filter(|covered| *covered > 0),
        };
        let (sender, room) = tokio::sync::oneshot::channel();
        let operation = self.operations.start_own("MakeRoom", |run| async move {
            let room = maintenance.make_room(&raised, revision, &run).await;
            let room = room.map_err(|error| Failure::from(&error))?;
            let _ = sender.send(room);
            Ok(operation::Result::Compact(steward_proto::v1::CompactResult {
                revision: revision.unwrap_or(0),
            }))
        });
        let ended = wait(operation, None).await;
        if self.outcome("NoSpaceNotCleared", &ended).await.is_err() {
            return;
        }
        let Ok(room) = room.await else { return };
        self.tell_of_room(room, revision.is_some()).await;
    }

    async fn tell_of_room(&self, room: Room, compacted: bool) {
        let work = if compacted {
            "compaction and defragmentation"
        } else {
            "defragmentation (history isn't dropped while it isn't known what the backups hold)"
        };
        match room {
            Room::Made => {
                let note = format!("{work} made room: writes are accepted again");
                info!(note, "alarm NOSPACE is cleared");
                if let Some(kubernetes) = &self.kubernetes {
                    kubernetes.tell("Maintain", "NoSpaceCleared", &note).await;
                }
            }
            Room::None { size, quota } => {
                let note = format!(
                    "the database has {} MiB after {work}, its quota is {} MiB: raise spec.etcd.quota, or delete data; the \
                     alarm is cleared when there is room",
                    size >> 20,
                    quota >> 20
                );
                warn!(note, "no room could be made");
                if let Some(kubernetes) = &self.kubernetes {
                    kubernetes.warn("Maintain", "NoSpace", &note).await;
                }
            }
        }
    }
}

fn is_pressing(size: u64, in_use: u64, quota: u64) -> bool {
    let percent = |part: u64| part.saturating_mul(100) / quota.max(1);
    percent(size) >= PRESSING && percent(size.saturating_sub(in_use)) >= PRESSING_GAIN
}

async fn at(time: Option<Timestamp>) {
    match time {
        Some(time) => sleep(until(time)).await,
        None => pending().await,
    }
}

/// What one term of leadership remembers.
#[derive(Debug)]
pub(super) struct Term {
    due: Option<Timestamp>,
    retry: Duration,
    pressed: Option<Instant>,
    full: Option<Instant>,
    alarms: Alarms,
    comparison: Option<Timestamp>,
    comparison_retry: Duration,
    /// An alarm says that data is corrupt, and what is true of it isn't told yet.
    pub(super) accused: bool,
    /// When a member was last replaced.
    pub(super) replaced: Option<Instant>,
    /// What was last told of a replacement.
    pub(super) told: Option<String>,
}

impl Term {
    fn new(schedule: &Schedule, comparison_period: Option<Duration>) -> Self {
        let now = Timestamp::now();
        let recently = now.checked_sub(UNFINISHED * 4).unwrap_or(now);
        let unfinished = schedule.last_until(now).filter(|fired| *fired > recently);
        let again = unfinished.and_then(|_| now.checked_add(UNFINISHED).ok());
        Self {
            due: again.into_iter().chain(schedule.next_after(now)).min(),
            retry: FIRST_RETRY,
            pressed: None,
            full: None,
            alarms: Alarms::default(),
            // Leadership may never last for a whole period.
            comparison: comparison_period
                .and_then(|period| now.checked_add(period.min(FIRST_COMPARISON)).ok()),
            comparison_retry: FIRST_RETRY,
            accused: false,
            replaced: None,
            told: None,
        }
    }

    /// Unless all is well the next comparison comes before its time, but less and less so.
    pub(super) fn compared(&mut self, period: Option<Duration>, well: bool) {
        let retry = self.comparison_retry;
        self.comparison_retry = if well {
            FIRST_RETRY
        } else {
            (retry * 2).min(LAST_RETRY)
        };
        let wait = |period: Duration| if well { period } else { period.min(retry) };
        self.comparison = period.and_then(|period| Timestamp::now().checked_add(wait(period)).ok());
    }

    /// A pass that failed comes again before the schedule says so; members that are done are skipped then.
    fn passed(&mut self, schedule: &Schedule, well: bool) {
        let now = Timestamp::now();
        let scheduled = schedule.next_after(now);
        if well {
            (self.due, self.retry) = (scheduled, FIRST_RETRY);
            return;
        }
        let again = now.checked_add(self.retry).ok();
        self.retry = (self.retry * 2).min(LAST_RETRY);
        self.due = again.into_iter().chain(scheduled).min();
    }

    fn may_press(&self) -> bool {
        self.pressed.is_none_or(|at| at.elapsed() > UNSCHEDULED_PAUSE)
    }

    pub(super) fn may_replace(&self) -> bool {
        self.replaced.is_none_or(|at| at.elapsed() > REPLACEMENT_PAUSE)
    }

    fn may_make_room(&self) -> bool {
        self.full.is_none_or(|at| at.elapsed() > FULL_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use api::schedule::CronSchedule;

    use super::*;

    #[test]
    fn a_nearly_full_database_with_much_to_win_is_pressing() {
        for (size, in_use, expected) in [
            (79, 10, false),
            (80, 71, false),
            (80, 70, true),
            (100, 95, false),
            (120, 100, true),
        ] {
            assert_eq!(is_pressing(size, in_use, 100), expected, "{in_use} of {size}");
        }
    }

    /// A new leader neither forgets what the one before it may have left, nor lets that hold up the schedule.
    #[test]
    fn a_new_leader_looks_after_what_may_be_unfinished() {
        let wait = |schedule: &str| {
            let term = Term::new(&CronSchedule::new(schedule).parse().unwrap(), None);
            term.due.unwrap().duration_since(Timestamp::now()).as_secs()
        };
        assert!(wait("* * * * *") <= 60);
        // Some minute of the last hour.
        let minute = Timestamp::now().as_second() / 60 % 60;
        let passed = format!("{} * * * *", (minute + 40) % 60);
        assert!((14 * 60..=15 * 60).contains(&wait(&passed)), "{passed}");
    }

    #[test]
    fn a_failed_pass_comes_again_before_the_schedule() {
        // In a month in which nothing is due.
        let schedule = CronSchedule::new("0 0 1 1 *").parse().unwrap();
        let mut term = Term::new(&schedule, None);
        let scheduled = schedule.next_after(Timestamp::now());
        term.due = scheduled;
        for minutes in [1, 2, 4] {
            term.passed(&schedule, false);
            let wait = term.due.unwrap().duration_since(Timestamp::now()).as_secs();
            assert!((minutes * 60 - 5..=minutes * 60).contains(&wait), "{wait} s");
        }
        term.passed(&schedule, true);
        assert_eq!(term.due, scheduled);
        assert_eq!(term.retry, FIRST_RETRY);
    }
}
