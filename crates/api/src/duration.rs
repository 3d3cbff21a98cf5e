//! Durations in the text form of Go's `time.ParseDuration`: `30s`, `5m`, `1h30m`, `1.5h`, `0`.

use std::{borrow::Cow, fmt, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A duration as the user wrote it: one or more groups of a decimal number and a unit (`ns`, `us`, `µs`, `ms`, `s`,
/// `m`, `h`), or a bare `0`. There is no unit for days.
///
/// The text is kept, so that what is read is written back unchanged; [`GoDuration::parse`] checks it.
#[derive(Clone, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(transparent)]
pub struct GoDuration(String);

/// A text that is no duration, and why.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidDuration {
    #[error("duration {0:?} is malformed: write numbers with units, like 30s, 5m or 1h30m")]
    Malformed(String),
    #[error("duration {0:?} has an unknown unit: use ns, us, ms, s, m or h (a day is 24h)")]
    UnknownUnit(String),
    #[error("duration {0:?} is negative")]
    Negative(String),
    #[error("duration {0:?} is longer than 292 years")]
    TooLong(String),
}

/// Units of Go's syntax in nanoseconds; `µ` is accepted both as micro sign and as Greek letter.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl GoDuration {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The length of time, exact to the nanosecond; fractions below are cut, as Go does.
    pub fn parse(&self) -> Result<Duration, InvalidDuration> {
        let malformed = || InvalidDuration::Malformed(self.0.clone());
        if self.0.starts_with('-') {
            return Err(InvalidDuration::Negative(self.0.clone()));
        }
        let mut rest = self.0.strip_prefix('+').unwrap_or(&self.0);
        if rest == "0" {
            return Ok(Duration::ZERO);
        }
        if rest.is_empty() {
            return Err(malformed());
        }
        let mut nanos: u128 = 0;
        while !rest.is_empty() {
            let (number, after) = split_where(rest, |c| !c.is_ascii_digit() && c != '.');
            let (unit, after) = split_where(after, |c| c.is_ascii_digit() || c == '.');
            rest = after;
            let scale = UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .map(|(_, scale)| *scale);
            let scale = match scale {
                Some(scale) => scale,
                None if unit.is_empty() => return Err(malformed()),
                None => return Err(InvalidDuration::UnknownUnit(self.0.clone())),
            };
            nanos += scaled(number, scale).ok_or_else(malformed)?;
            if nanos > i64::MAX as u128 {
                return Err(InvalidDuration::TooLong(self.0.clone()));
            }
        }
        u64::try_from(nanos)
            .map(Duration::from_nanos)
            .map_err(|_| malformed())
    }
}

/// Splits before the first character that satisfies `border`.
fn split_where(text: &str, border: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(border).unwrap_or(text.len()))
}

/// Digits of a fraction that can matter: an hour has fewer nanoseconds.
const FRACTION_DIGITS: usize = 18;

/// `number` (digits with at most one point) times `scale`, or `None` when it is no number.
fn scaled(number: &str, scale: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let digits: u128 = if fraction.is_empty() {
        0
    } else {
        fraction.parse().ok()?
    };
    let part = digits * scale / 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    whole.checked_mul(scale)?.checked_add(part)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Duration> for GoDuration {
    /// Writes whole hours, minutes and seconds, as Go prints them, and nanoseconds where there are any.
    fn from(duration: Duration) -> Self {
        let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
        let parts = [
            (seconds / 3600, "h"),
            (seconds / 60 % 60, "m"),
            (seconds % 60, "s"),
            (nanos.into(), "ns"),
        ];
        let parts = parts.iter().filter(|(number, _)| *number > 0);
        let text = parts
            .map(|(number, unit)| format!("{number}{unit}"))
            .collect::<Vec<_>>()
            .concat();
        Self(if text.is_empty() { "0s".to_owned() } else { text })
    }
}

/// In CEL: whether a string is a duration.
pub(crate) const MATCHES: &str =
    "self.matches('^(0|([0-9]+([.][0-9]+)?(ns|us|\u{b5}s|\u{3bc}s|ms|s|m|h))+)$')";

impl JsonSchema for GoDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 32,
            "x-kubernetes-validations": [{
                "rule": MATCHES,
                "message": "must be a duration like 30s, 5m or 1h30m (units ns, us, ms, s, m, h; write a day as 24h)",
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Duration, InvalidDuration> {
        GoDuration::new(text).parse()
    }

    /// What `time.ParseDuration` reads is read the same, to the nanosecond.
    #[test]
    fn reads_what_go_reads() {
        let nanos = Duration::from_nanos;
        let table = [
            ("0", nanos(0)),
            ("0s", nanos(0)),
            ("+5s", nanos(5_000_000_000)),
            ("30s", nanos(30_000_000_000)),
            ("1h30m", nanos(5_400_000_000_000)),
            ("30m1h", nanos(5_400_000_000_000)),
            ("1.5h", nanos(5_400_000_000_000)),
            (".5s", nanos(500_000_000)),
            ("5.s", nanos(5_000_000_000)),
            ("100ms", nanos(100_000_000)),
            ("3us2ns", nanos(3_002)),
            ("1\u{b5}s1\u{3bc}s", nanos(2_000)),
            ("0.1s", nanos(100_000_000)),
            ("0.3333333333333333333h", nanos(1_199_999_999_999)),
            ("2562047h47m16.854775807s", nanos(i64::MAX as u64)),
        ];
        for (text, expected) in table {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn refuses_with_the_reason() {
        let malformed = |text: &str| InvalidDuration::Malformed(text.to_owned());
        for text in ["", "+", "5", "1h0", ".s", "1.2.3s", "s", "1e3s ", "5 s", " 5s"] {
            let error = parse(text).unwrap_err();
            let unit = InvalidDuration::UnknownUnit(text.to_owned());
            assert!(error == malformed(text) || error == unit, "{text:?}: {error}");
        }
        assert_eq!(parse("1d"), Err(InvalidDuration::UnknownUnit("1d".to_owned())));
        assert_eq!(parse("-5m"), Err(InvalidDuration::Negative("-5m".to_owned())));
        assert_eq!(
            parse("2562048h"),
            Err(InvalidDuration::TooLong("2562048h".to_owned()))
        );
        let huge = format!("{}h", "9".repeat(40));
        assert!(parse(&huge).is_err());
    }

    proptest! {
        /// What is written is read back, whatever its length.
        #[test]
        fn reads_what_it_writes(nanos in 0..i64::MAX as u64) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(GoDuration::from(duration).parse(), Ok(duration));
        }

        /// A user can write anything; nothing of it may bring a controller down.
        #[test]
        fn never_panics(text in "[-+0-9.nuµmsh ]{0,40}") {
            let _ = parse(&text);
        }
    }
}
