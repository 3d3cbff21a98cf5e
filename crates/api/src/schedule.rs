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
            .parse(&self.0)
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
        })
    }
}
