//! Kubernetes quantities (`8Gi`, `500m`, `1e3`) as numbers.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// A text that is no quantity, or one that doesn't fit where it is used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidQuantity {
    #[error(
        "quantity {0:?} is malformed: write a number with an optional suffix, like 8Gi, 500M or 1073741824"
    )]
    Malformed(String),
    #[error("quantity {0:?} is negative")]
    Negative(String),
    #[error("quantity {0:?} is larger than 2^63-1 or has too many digits")]
    TooLarge(String),
}

/// Binary suffixes and the power of two that each stands for.
const BINARY: [(&str, u32); 6] = [
    ("Ki", 10),
    ("Mi", 20),
    ("Gi", 30),
    ("Ti", 40),
    ("Pi", 50),
    ("Ei", 60),
];

/// Decimal suffixes and the power of ten that each stands for.
const DECIMAL: [(&str, i32); 10] = [
    ("", 0),
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// The whole number of bytes (or units) that a quantity stands for, fractions rounded up as Kubernetes does.
pub fn bytes(quantity: &Quantity) -> Result<u64, InvalidQuantity> {
    let text = quantity.0.as_str();
    u64::try_from(scaled(text, 0)?)
        .ok()
        .filter(|value| i64::try_from(*value).is_ok())
        .ok_or_else(|| InvalidQuantity::TooLarge(text.to_owned()))
}

/// Whether two texts stand for the same quantity: the API server writes `0.5` as `500m`.
pub fn same(one: &str, other: &str) -> bool {
    // Nothing smaller than a billionth is kept.
    let value = |text| scaled(text, 9);
    one == other || matches!((value(one), value(other)), (Ok(one), Ok(other)) if one == other)
}

/// The quantity times ten to the power of `decimals`, rounded up.
fn scaled(text: &str, decimals: i32) -> Result<u128, InvalidQuantity> {
    let malformed = || InvalidQuantity::Malformed(text.to_owned());
    if let Some(rest) = text.strip_prefix('-') {
        let zero = !rest.is_empty() && rest.bytes().all(|b| b == b'0');
        return if zero {
            Ok(0)
        } else {
            Err(InvalidQuantity::Negative(text.to_owned()))
        };
    }
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let suffix_at = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(suffix_at);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(malformed());
    }
    let mut scale = Scale::of(suffix).ok_or_else(malformed)?;
    scale.decimal = scale.decimal.saturating_add(decimals);
    scale
        .apply(whole, fraction)
        .ok_or_else(|| InvalidQuantity::TooLarge(text.to_owned()))
}

/// The shortest exact quantity for a number of bytes: `8Gi`, `1536Mi`, `1000`.
pub fn from_bytes(bytes: u64) -> Quantity {
    let best = BINARY
        .iter()
        .rev()
        .find(|(_, power)| bytes > 0 && bytes.trailing_zeros() >= *power);
    Quantity(match best {
        Some((suffix, power)) => format!("{}{suffix}", bytes >> power),
        None => bytes.to_string(),
    })
}

/// What a number is multiplied with: a power of two and a power of ten.
struct Scale {
    binary: u32,
    decimal: i32,
}

impl Scale {
    fn of(suffix: &str) -> Option<Self> {
        if let Some((_, power)) = BINARY.iter().find(|(name, _)| *name == suffix) {
            return Some(Self {
                binary: *power,
                decimal: 0,
            });
        }
        if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
            return Some(Self {
                binary: 0,
                decimal: *power,
            });
        }
        let exponent = suffix.strip_prefix(['e', 'E'])?;
        let decimal: i32 = exponent.parse().ok()?;
        Some(Self { binary: 0, decimal })
    }

    /// `whole.fraction` scaled and rounded up; `None` when it doesn't fit.
    fn apply(&self, whole: &str, fraction: &str) -> Option<u128> {
        let fraction = fraction.trim_end_matches('0');
        let mantissa: u128 = format!("0{whole}{fraction}").parse().ok()?;
        let mantissa = mantissa.checked_mul(1 << self.binary)?;
        let shift = self.decimal.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        match 10_u128.checked_pow(shift.unsigned_abs()) {
            _ if mantissa == 0 => Some(0),
            Some(power) if shift >= 0 => mantissa.checked_mul(power),
            Some(power) => Some(mantissa.div_ceil(power)),
            None if shift >= 0 => None,
            None => Some(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<u64, InvalidQuantity> {
        bytes(&Quantity(text.to_owned()))
    }

    #[test]
    fn reads_every_notation() {
        let table = [
            ("0", 0),
            ("-0", 0),
            ("1", 1),
            ("+7", 7),
            ("1024", 1 << 10),
            ("8Gi", 8 << 30),
            ("1.5Gi", 3 << 29),
            (".5Ki", 512),
            ("1.Ki", 1024),
            ("7Ei", 7 << 60),
            ("500M", 500_000_000),
            ("1k", 1000),
            ("1E", 1_000_000_000_000_000_000),
            ("1e3", 1000),
            ("1E3", 1000),
            ("12e-1", 2),
            ("500m", 1),
            ("1001m", 2),
            ("1n", 1),
            ("2000000u", 2),
            ("0.0000000000000000000000001", 1),
            ("1e-99", 1),
            ("0e99", 0),
            ("9223372036854775807", i64::MAX as u64),
        ];
        for (text, expected) in table {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn refuses_with_the_reason() {
        for text in [
            "", "Gi", ".", "1.2.3", "1GB", "10 Gi", "1e", "1e+", "e3", "1Gi2", "0x10", "--1",
        ] {
            let error = read(text).unwrap_err();
            let negative = InvalidQuantity::Negative(text.to_owned());
            assert!(
                error == InvalidQuantity::Malformed(text.to_owned()) || error == negative,
                "{text:?}: {error}"
            );
        }
        assert_eq!(read("-1Gi"), Err(InvalidQuantity::Negative("-1Gi".to_owned())));
        for text in [
            "9223372036854775808",
            "8Ei",
            "1e19",
            "1e99",
            "1e2147483647",
            &"9".repeat(50),
        ] {
            assert_eq!(
                read(text),
                Err(InvalidQuantity::TooLarge(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn the_same_amount_in_other_words() {
        for (one, other) in [
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1024Mi", "1Gi"),
            ("0.5Gi", "512Mi"),
            ("1e3", "1k"),
            ("100u", "0.1m"),
        ] {
            assert!(same(one, other) && same(other, one), "{one} {other}");
        }
        for (one, other) in [
            ("500m", "400m"),
            ("1", "1m"),
            ("1G", "1Gi"),
            ("x", "y"),
            ("-1", "-2"),
        ] {
            assert!(!same(one, other) && !same(other, one), "{one} {other}");
        }
    }

    #[test]
    fn writes_the_shortest() {
        let table = [
            (0, "0"),
            (1, "1"),
            (1000, "1000"),
            (1 << 10, "1Ki"),
            (8 << 30, "8Gi"),
            (3 << 29, "1536Mi"),
        ];
        for (number, expected) in table {
            assert_eq!(from_bytes(number).0, expected);
        }
    }

    proptest! {
        #[test]
        fn reads_what_it_writes(number in 0..i64::MAX as u64, power in 0..40_u32) {
            let number = number >> power << power;
            prop_assert_eq!(bytes(&from_bytes(number)), Ok(number));
        }

        /// A user can write anything; nothing of it may bring a controller down.
        #[test]
        fn never_panics(text in "[-+0-9.eEKkMGi]{0,40}") {
            let _ = read(&text);
        }
    }
}
