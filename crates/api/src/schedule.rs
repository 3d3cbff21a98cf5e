//! Five-field cron schedules, always in UTC.

use std::{borrow::Cow, fmt};

use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use jiff::{Timestamp, tz::TimeZone};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A schedule as the user wrote it: minute, hour, day of month, month and day of week, each `*`, a number, a range
/// `a-b`, a step `*/n`, `a-b/n` or `a/n`, or a comma list of these; months and days of the week also by name.
/// Sunday is `0` or `7`. Times are UTC.
///
/// The text is kept, so that what is read is written back unchanged; [`CronSchedule::parse`] checks it.
#[derive(Clone, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(transparent)]
pub struct CronSchedule(String);

/// A text that is no schedule, or a schedule that never comes due.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidSchedule {
    #[error("schedule {schedule:?} is malformed: {reason}")]
    Malformed { schedule: String, reason: String },
    #[error("schedule {0:?} never comes due: no month has such a day")]
    NeverDue(String),
}

/// A parsed schedule that comes due at some time.
#[derive(Clone, Debug)]
pub struct Schedule(Cron);

impl CronSchedule {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn parse(&self) -> Result<Schedule, InvalidSchedule> {
        let cron = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .sloppy_ranges(true)
            .build()
            .parse(&weekday_steps_end_on_saturday(&self.0))
            .map_err(|error| InvalidSchedule::Malformed {
                schedule: self.0.clone(),
                reason: error.to_string(),
            })?;
        let schedule = Schedule(cron);
        match schedule.next_after(Timestamp::UNIX_EPOCH) {
            Some(_) => Ok(schedule),
            None => Err(InvalidSchedule::NeverDue(self.0.clone())),
        }
    }
}

impl Schedule {
    /// The first time due after `time`, exclusively.
    pub fn next_after(&self, time: Timestamp) -> Option<Timestamp> {
        let zoned = time.to_zoned(TimeZone::UTC);
        self.0
            .find_next_occurrence(&zoned, false)
            .ok()
            .map(|due| due.timestamp())
    }

    /// The last time due at or before `time`.
    pub fn last_until(&self, time: Timestamp) -> Option<Timestamp> {
        let zoned = time.to_zoned(TimeZone::UTC);
        self.0
            .find_previous_occurrence(&zoned, true)
            .ok()
            .map(|due| due.timestamp())
    }
}

/// Writes `a/n` in the last field as `a-6/n`: the parser counts Sunday twice, as 0 and as 7, and would step onto it.
fn weekday_steps_end_on_saturday(schedule: &str) -> String {
    let Some((rest, weekdays)) = schedule.trim_end().rsplit_once(' ') else {
        return schedule.to_owned();
    };
    let item = |item: &str| match item.split_once('/') {
        Some((from, step)) if !from.contains(['*', '-', '7']) => format!("{from}-6/{step}"),
        _ => item.to_owned(),
    };
    format!(
        "{rest} {}",
        weekdays.split(',').map(item).collect::<Vec<_>>().join(",")
    )
}

impl fmt::Display for CronSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for CronSchedule {
    fn schema_name() -> Cow<'static, str> {
        "CronSchedule".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 128,
            "x-kubernetes-validations": [{
                "rule": format!("self.matches('{}')", schema_pattern()),
                "message": "must be five fields in UTC (minute, hour, day of month, month, day of week), like 0 3 * * 0 \
                            or */15 * * * *",
            }],
        })
    }
}

/// The pattern of five fields, each `*` or a comma list of values and ranges with optional steps.
fn schema_pattern() -> String {
    let months = "1[0-2]|0?[1-9]|(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)";
    let weekdays = "0?[0-7]|(?i:sun|mon|tue|wed|thu|fri|sat)";
    let values = [
        "[0-5]?[0-9]",
        "2[0-3]|[01]?[0-9]",
        "3[01]|[12][0-9]|0?[1-9]",
        months,
        weekdays,
    ];
    let field = |value: &str| {
        let item = format!("([*]/[1-9][0-9]?|({value})(-({value}))?(/[1-9][0-9]?)?)");
        format!("([*]|{item}(,{item})*)")
    };
    format!("^ *{} *$", values.map(field).join(" +"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// The next times due after the last moment of 2025, a Wednesday.
    fn next(schedule: &str, count: usize) -> Vec<String> {
        let schedule = CronSchedule::new(schedule).parse().unwrap();
        let due = std::iter::successors(schedule.next_after(time("2025-12-31T23:59:59Z")), |last| {
            schedule.next_after(*last)
        });
        due.take(count)
            .map(|due| due.to_string()[..16].to_owned())
            .collect()
    }

    #[test]
    fn comes_due_when_cron_says() {
        let table = [
            ("0 */1 * * *", ["2026-01-01T00:00", "2026-01-01T01:00"]),
            ("0 */24 * * *", ["2026-01-01T00:00", "2026-01-02T00:00"]),
            ("*/60 * * * *", ["2026-01-01T00:00", "2026-01-01T01:00"]),
            ("0 0 */3 * *", ["2026-01-01T00:00", "2026-01-04T00:00"]),
            ("5/25 12 * * *", ["2026-01-01T12:05", "2026-01-01T12:30"]),
            ("0,30 6-7 * * *", ["2026-01-01T06:00", "2026-01-01T06:30"]),
            ("15 3 * * 0", ["2026-01-04T03:15", "2026-01-11T03:15"]),
            ("15 3 * * 7", ["2026-01-04T03:15", "2026-01-11T03:15"]),
            ("15 3 * * sun", ["2026-01-04T03:15", "2026-01-11T03:15"]),
            ("0 0 1 MAR,jul *", ["2026-03-01T00:00", "2026-07-01T00:00"]),
            ("0 0 29 2 *", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ];
        for (schedule, expected) in table {
            assert_eq!(next(schedule, 2), expected, "{schedule}");
        }
    }

    /// Sunday is both 0 and 7, but a step from another day doesn't reach it as 7: 1/3 is Monday and Thursday.
    #[test]
    fn steps_over_weekdays_end_on_saturday() {
        assert_eq!(
            next("0 0 * * 1/3", 3),
            ["2026-01-01T00:00", "2026-01-05T00:00", "2026-01-08T00:00"]
        );
        assert_eq!(next("0 0 * * */7", 1), ["2026-01-04T00:00"]);
    }

    /// A restricted day of the month and a restricted weekday: either will do.
    #[test]
    fn days_add_up() {
        assert_eq!(
            next("0 0 13 * 5", 3),
            ["2026-01-02T00:00", "2026-01-09T00:00", "2026-01-13T00:00"]
        );
    }

    #[test]
    fn finds_the_last_time_due() {
        let schedule = CronSchedule::new("0 */6 * * *").parse().unwrap();
        let last = |at| schedule.last_until(time(at)).unwrap();
        assert_eq!(last("2026-01-01T11:59:59Z"), time("2026-01-01T06:00:00Z"));
        assert_eq!(last("2026-01-01T12:00:00Z"), time("2026-01-01T12:00:00Z"));
    }

    #[test]
    fn refuses_with_the_reason() {
        for text in [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "*/0 * * * *",
            "0 0 5-1 * *",
            "@every 5m",
            "a b c d e",
        ] {
            let error = CronSchedule::new(text).parse().unwrap_err();
            assert!(
                matches!(error, InvalidSchedule::Malformed { .. }),
                "{text:?}: {error}"
            );
        }
        let never = CronSchedule::new("0 0 31 2 *");
        assert_eq!(
            never.parse().unwrap_err(),
            InvalidSchedule::NeverDue("0 0 31 2 *".to_owned())
        );
    }

    /// A field as etcd-druid takes it (and more), of values between `low` and `high`.
    fn field(low: u32, high: u32) -> impl Strategy<Value = String> {
        let range = (low..=high, low..=high).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b)));
        let value = prop_oneof![(low..=high).prop_map(|n| n.to_string()), range];
        let stepped = |value: String| (1..=60_u32).prop_map(move |step| format!("{value}/{step}"));
        let item = prop_oneof![
            value.clone(),
            value.prop_flat_map(stepped),
            stepped("*".to_owned())
        ];
        let list = proptest::collection::vec(item, 1..3).prop_map(|items| items.join(","));
        prop_oneof![Just("*".to_owned()), list]
    }

    proptest! {
        /// The schema and the parser take the same schedules, up to those that never come due.
        #[test]
        fn schema_and_parser_agree(
            minute in field(0, 59), hour in field(0, 23), day in field(1, 28), month in field(1, 12), weekday in field(0, 6),
        ) {
            let text = format!("{minute} {hour} {day} {month} {weekday}");
            prop_assert!(regex::Regex::new(&schema_pattern()).unwrap().is_match(&text), "{}", text);
            prop_assert!(CronSchedule::new(&text).parse().is_ok(), "{}", text);
        }
    }
}
