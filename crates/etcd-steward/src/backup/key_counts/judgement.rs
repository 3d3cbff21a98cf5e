//! Whether a full snapshot has so few keys that some may have been lost: a pure decision.

use std::fmt;

use snapstore::SnapshotName;

/// Smaller numbers of keys come and go.
const FEW: i64 = 100;

/// A full snapshot, as far as the number of its keys is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) name: SnapshotName,
    /// Live keys, as its manifest says.
    pub(super) keys: Option<i64>,
    /// Whether it was taken to accept that there are fewer.
    pub(super) is_accepted: bool,
}

/// The revisions after the one up to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Span {
    pub(super) after: i64,
    pub(super) to: i64,
}

/// What the deltas of a span show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Keys that were made, less those that were deleted.
    pub(super) net: i64,
    /// The last revision up to which they hold all.
    pub(super) end: i64,
}

/// What a full snapshot is worth by the number of its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may take the place of what was before.
    Plausible,
    /// Most of the keys are gone, and nothing says why.
    Collapsed(Collapse),
    /// The number of its keys isn't known, while that of an earlier one is.
    Unknown,
}

/// A number of keys that nothing explains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Collapse {
    pub(super) full: SnapshotName,
    keys: i64,
    /// The full snapshot that it was compared with, and the number of its keys.
    before: SnapshotName,
    keys_before: i64,
    /// How many keys there should be by the deltas in between.
    expected: i64,
    /// Whether those hold all revisions in between.
    pub(super) is_covered: bool,
    /// The last revision that they lead to from the full snapshot before.
    end: i64,
}

/// Judges full snapshots, the oldest first. Each is compared with the newest plausible one before it. Fails with the span of
/// which `changes` doesn't know what the deltas show.
pub(super) fn judge(
    fulls: &[Counted],
    changes: impl Fn(Span) -> Option<Changes>,
) -> Result<Vec<Verdict>, Span> {
    let mut reference: Option<(&SnapshotName, i64)> = None;
    let mut verdicts = Vec::with_capacity(fulls.len());
    for full in fulls {
        let verdict = match (reference, full.keys) {
            (None, _) => Verdict::Plausible,
            _ if full.is_accepted => Verdict::Plausible,
            (Some(_), None) => Verdict::Unknown,
            (Some(before), Some(keys)) => compare(before, full, keys, &changes)?,
        };
        if verdict == Verdict::Plausible
            && let Some(keys) = full.keys
        {
            reference = Some((&full.name, keys));
        }
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

fn compare(
    (before, keys_before): (&SnapshotName, i64),
    full: &Counted,
    keys: i64,
    changes: impl Fn(Span) -> Option<Changes>,
) -> Result<Verdict, Span> {
    if !has_collapsed(keys_before, keys) {
        return Ok(Verdict::Plausible);
    }
    let span = Span {
        after: before.last_revision,
        to: full.name.last_revision,
    };
    let Changes { net, end } = changes(span).ok_or(span)?;
    let expected = keys_before.saturating_add(net);
    if !has_collapsed(expected, keys) {
        return Ok(Verdict::Plausible);
    }
    Ok(Verdict::Collapsed(Collapse {
        full: full.name.clone(),
        keys,
        before: before.clone(),
        keys_before,
        expected,
        is_covered: end >= span.to,
        end: end.min(span.to - 1).max(span.after),
    }))
}

/// Less than half of them is left.
fn has_collapsed(expected: i64, found: i64) -> bool {
    expected >= FEW && found.saturating_mul(2) < expected
}

impl fmt::Display for Collapse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            full,
            keys,
            before,
            keys_before,
            expected,
            is_covered,
            end,
        } = self;
        let gap = if *is_covered {
            ""
        } else {
            ", which don't hold all revisions,"
        };
        write!(
            f,
            "{full} has {keys} keys, {before} had {keys_before}, and by the deltas in between{gap} there should be {expected}: \
             etcd may have lost keys. What was stored since {before} is kept. If keys are missing, restore revision {end}; if they \
             were meant to go, take a full snapshot with acceptFewerKeys"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Revision, keys, whether it is accepted.
    fn full(revision: i64, keys: Option<i64>, is_accepted: bool) -> Counted {
        let name = format!("Full-00000000-{revision:08}-{}.gz", 1_700_000_000 + revision);
        Counted {
            name: name.parse().unwrap(),
            keys,
            is_accepted,
        }
    }

    /// `p`lausible, `c`ollapsed or `u`nknown, of each; `deltas`: revision and net number of keys.
    fn judged(fulls: &[Counted], deltas: &[(i64, i64)]) -> String {
        let changes = |span: Span| {
            let within = deltas.iter().filter(|(at, _)| span.after < *at && *at <= span.to);
            Some(Changes {
                net: within.map(|(_, net)| net).sum(),
                end: span.to,
            })
        };
        let verdicts = judge(fulls, changes).unwrap();
        let letter = |verdict: &Verdict| match verdict {
            Verdict::Plausible => 'p',
            Verdict::Collapsed(_) => 'c',
            Verdict::Unknown => 'u',
        };
        verdicts.iter().map(letter).collect()
    }

    #[test]
    fn only_a_collapse_that_nothing_explains_is_one() {
        let plain = |revision, keys| full(revision, Some(keys), false);
        for (fulls, deltas, expected) in [
            (vec![plain(10, 1000), plain(20, 500)], &[][..], "pp"),
            (vec![plain(10, 1000), plain(20, 499)], &[], "pc"),
            (vec![plain(10, 100), plain(20, 0)], &[], "pc"),
            // Few keys.
            (vec![plain(10, 99), plain(20, 0)], &[], "pp"),
            // Deleted, altogether or nearly so.
            (vec![plain(10, 1000), plain(20, 1)], &[(15, -999)], "pp"),
            (vec![plain(10, 1000), plain(20, 400)], &[(15, -300)], "pp"),
            // Deleted before, or later: of another time.
            (
                vec![plain(10, 1000), plain(20, 1)],
                &[(10, -999), (21, -999)],
                "pc",
            ),
            // Made and deleted in between, as far as is known.
            (
                vec![plain(10, 1000), plain(20, 5)],
                &[(12, 500), (15, -600)],
                "pc",
            ),
            // It stays until the keys are there again, however many full snapshots there are.
            (
                vec![plain(10, 1000), plain(20, 1), plain(30, 2), plain(40, 600)],
                &[],
                "pccp",
            ),
            // An explanation that came late.
            (
                vec![plain(10, 1000), plain(20, 1), plain(30, 2)],
                &[(15, -999), (25, 1)],
                "ppp",
            ),
            // Accepted: the next ones are compared with that.
            (
                vec![
                    plain(10, 1000),
                    plain(20, 1),
                    full(20, Some(1), true),
                    plain(30, 2),
                ],
                &[],
                "pcpp",
            ),
            (
                vec![plain(10, 1000), full(20, Some(400), true), plain(30, 100)],
                &[],
                "ppc",
            ),
            // Numbers that aren't known say nothing, and take the place of nothing that is known.
            (
                vec![
                    full(5, None, false),
                    plain(10, 1000),
                    full(20, None, false),
                    plain(30, 1),
                ],
                &[],
                "ppuc",
            ),
            (vec![full(5, None, false), full(10, None, false)], &[], "pp"),
            (
                vec![plain(10, 1000), full(20, None, true), plain(30, 1)],
                &[],
                "ppc",
            ),
        ] {
            assert_eq!(judged(&fulls, deltas), expected, "{fulls:?} {deltas:?}");
        }
    }

    #[test]
    fn deltas_are_read_only_when_it_matters() {
        let fulls = [
            full(10, Some(1000), false),
            full(20, Some(900), false),
            full(30, Some(9), false),
        ];
        assert_eq!(judge(&fulls, |_| None), Err(Span { after: 20, to: 30 }));
        assert!(judge(&fulls[..2], |_| None).is_ok());
    }

    #[test]
    fn the_message_says_what_to_do() {
        let fulls = [full(10, Some(1000), false), full(20, Some(9), false)];
        let verdicts = judge(&fulls, |_| Some(Changes { net: -10, end: 15 })).unwrap();
        let Verdict::Collapsed(collapse) = &verdicts[1] else {
            panic!("{verdicts:?}");
        };
        assert_eq!(
            collapse.to_string(),
            "Full-00000000-00000020-1700000020.gz has 9 keys, Full-00000000-00000010-1700000010.gz had 1000, and by the deltas \
             in between, which don't hold all revisions, there should be 990: etcd may have lost keys. What was stored since \
             Full-00000000-00000010-1700000010.gz is kept. If keys are missing, restore revision 15; if they were meant to go, \
             take a full snapshot with acceptFewerKeys"
        );
    }
}
