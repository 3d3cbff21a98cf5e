//! The policies for full snapshots, as functions of their creation times.

use std::collections::BTreeMap;

use jiff::{Timestamp, ToSpan as _, Zoned, civil::Date, tz::TimeZone};

use super::{KeepFulls, Rule, Verdict};

/// Age in days (of the calendar) up to which the last snapshot of each day is kept.
const DAILY: i64 = 7;

/// Age in days up to which the last snapshot of each week is kept.
const WEEKLY: i64 = 35;

/// One verdict for each snapshot, given by its time of creation and ascending by age rank: the last one is the
/// newest.
pub(super) fn verdicts(created: &[Timestamp], keep: KeepFulls, now: Timestamp) -> Vec<Verdict> {
    match keep {
        KeepFulls::LimitBased { max_backups } => limit_based(created.len(), max_backups),
        KeepFulls::Exponential => exponential(created, now),
    }
}

fn limit_based(count: usize, max_backups: u32) -> Vec<Verdict> {
    let surplus = count.saturating_sub(usize::try_from(max_backups).unwrap_or(usize::MAX));
    let verdict = |rank| {
        if rank < surplus {
            Verdict::delete(Rule::OverLimit)
        } else {
            Verdict::keep(Rule::WithinLimit, None)
        }
    };
    (0..count).map(verdict).collect()
}

/// A stretch of time of which the last snapshot is kept. Bound to the calendar, not to the present: stretches that
/// move along with it would drop each snapshot as the next one moves in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Slot {
    Hour(Date, i8),
    Day(Date),
    /// By its Monday.
    Week(Date),
}

impl Slot {
    fn all_of(created: &Zoned) -> [Self; 3] {
        let day = created.date();
        let into_week = i64::from(day.weekday().to_monday_zero_offset());
        let monday = day.saturating_sub(into_week.days());
        [
            Self::Hour(day, created.hour()),
            Self::Day(day),
            Self::Week(monday),
        ]
    }
}

fn exponential(created: &[Timestamp], now: Timestamp) -> Vec<Verdict> {
    let utc = |time: Timestamp| time.to_zoned(TimeZone::UTC);
    let now = utc(now);
    let last: BTreeMap<Slot, usize> = created
        .iter()
        .enumerate()
        .flat_map(|(rank, time)| Slot::all_of(&utc(*time)).map(|slot| (slot, rank)))
        .collect();
    let verdict = |(rank, time): (usize, &Timestamp)| {
        let created = utc(*time);
        let is_last = Slot::all_of(&created).map(|slot| last.get(&slot) == Some(&rank));
        judge(&created, &now, is_last)
    };
    created.iter().enumerate().map(verdict).collect()
}

/// `is_last`: whether it is the last one of its hour, its day, its week.
fn judge(created: &Zoned, now: &Zoned, [of_hour, of_day, of_week]: [bool; 3]) -> Verdict {
    let midnight_after = |days: i64| {
        let day = created.date().saturating_add((days + 1).days());
        day.to_zoned(TimeZone::UTC).ok().map(|time| time.timestamp())
    };
    // Being the last of a week it is also that of its day: the longest term counts.
    let until = match (of_day, of_week) {
        (_, true) => midnight_after(WEEKLY),
        (true, false) => midnight_after(DAILY),
        (false, false) => midnight_after(0),
    };
    let age = now.date().duration_since(created.date()).as_hours() / 24;
    let this_hour = age <= 0 && created.hour() >= now.hour();
    let next_hour = || now.timestamp().as_second().div_euclid(3600) * 3600 + 3600;
    let (is_kept, kept, dropped) = match age {
        i64::MIN..=0 => (of_hour, Rule::LastOfHour, Rule::NewerInSameHour),
        1..=DAILY => (of_day, Rule::LastOfDay, Rule::NewerInSameDay),
        _ if age <= WEEKLY => (of_week, Rule::LastOfWeek, Rule::NewerInSameWeek),
        _ => (false, Rule::LastOfWeek, Rule::OlderThanFiveWeeks),
    };
    match is_kept {
        true => Verdict::keep(kept, until),
        false if this_hour => Verdict::keep(Rule::CurrentHour, Timestamp::from_second(next_hour()).ok()),
        false => Verdict::delete(dropped),
    }
}
