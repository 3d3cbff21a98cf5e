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

/// The pattern of five fields, each a comma list of `*`, a value or a range, with an optional step.
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
        let item = format!("([*]|({value})(-({value}))?)(/[1-9][0-9]?)?");
        format!("{item}(,{item})*")
    };
    format!("^ *{} *$", values.map(field).join(" +"))
}
