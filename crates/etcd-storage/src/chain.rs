//! Plans which snapshots of a store a restore needs, from what their names say.
//!
//! Names can lie in small ways: two leaders leave overlapping deltas, a full may hold more than its name claims,
//! several objects carry one time. What counts are revisions; a hole between them is never stepped over.

/// What a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A whole database.
    Full,
    /// The events after another snapshot.
    Delta,
}

/// A snapshot in a store, as its name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Full or delta.
    pub kind: Kind,
    /// First revision; 0 for a full.
    pub start: i64,
    /// Last revision.
    pub last: i64,
    /// When it was made, in seconds since 1970.
    pub created_on: i64,
    /// The cluster that it was taken of, where that is known.
    pub cluster: Option<u64>,
    /// What the caller knows it by.
    pub index: usize,
}

/// The snapshots to be restored, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The full snapshot to begin with.
    pub base: Link,
    /// The deltas after it. They may overlap, and leave no gap.
    pub deltas: Vec<Link>,
    /// The revision that is reached.
    pub end: i64,
}

/// Revisions that no snapshot has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// First missing revision.
    pub from: i64,
    /// Last missing revision.
    pub to: i64,
    /// The snapshot before the gap.
    pub before: Link,
    /// The snapshot behind the gap.
    pub behind: Link,
    /// What can be restored without what lies behind the gap.
    pub reachable: Plan,
    /// The last revision that any snapshot has: what would be lost lies between.
    pub end: i64,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There are no snapshots at all.
    #[error("no snapshots")]
    Empty,
    /// There are deltas, but nothing to apply them to.
    #[error("no full snapshot: the deltas begin at revision {first}")]
    NoFull {
        /// First revision of the deltas.
        first: i64,
    },
    /// There are full snapshots, but all are newer than the target.
    #[error("no full snapshot up to revision {target}: the oldest is at {oldest}")]
    TargetTooOld {
        /// The revision asked for.
        target: i64,
        /// Last revision of the oldest full.
        oldest: i64,
    },
    /// The snapshots end before the target.
    #[error("revision {target} is in no snapshot: they end at {end}")]
    TargetTooNew {
        /// The revision asked for.
        target: i64,
        /// The last revision there is.
        end: i64,
    },
    /// Revisions are missing.
    #[error("revisions {} to {} are missing: no snapshot covers them", .0.from, .0.to)]
    Gap(Box<Gap>),
}

/// Plans a restore of the newest state, or of the state at `target`. Objects that are known to be bad are left out of
/// `links` by the caller; then an older full takes their place, if the deltas reach from it. Snapshots of different clusters
/// never come into one plan; one of an unknown cluster only where nothing else is and it connects without an overlap.
///
/// # Errors
/// There is no way without a gap.
pub fn plan(links: &[Link], target: Option<i64>) -> Result<Plan, Error> {
    let base = base(links, target)?;
    let mut plan = Plan {
        base,
        deltas: Vec::new(),
        end: base.last,
    };
    let (mut last, mut cluster) = (base, base.cluster);
    while target.is_none_or(|target| plan.end < target) {
        let Some(next) = next(links, plan.end, cluster) else {
            break;
        };
        let after = plan.end.saturating_add(1);
        if next.start > after {
            let (from, to) = (after, next.start - 1);
            let end = links.iter().map(|link| link.last).max().unwrap_or(plan.end);
            return Err(Error::Gap(Box::new(Gap {
                from,
                to,
                before: last,
                behind: next,
                reachable: plan,
                end,
            })));
        }
        plan.end = next.last;
        plan.deltas.push(next);
        (last, cluster) = (next, cluster.or(next.cluster));
    }
    match target {
        Some(target) if plan.end < target => Err(Error::TargetTooNew {
            target,
            end: plan.end,
        }),
        _ => Ok(plan),
    }
}

/// The newest full up to the target. Of several at one revision the one made last: the others may be leftovers.
fn base(links: &[Link], target: Option<i64>) -> Result<Link, Error> {
    let fulls = || links.iter().filter(|link| link.kind == Kind::Full).copied();
    let usable = fulls().filter(|full| target.is_none_or(|target| full.last <= target));
    if let Some(base) = usable.max_by_key(|full| (full.last, full.created_on)) {
        return Ok(base);
    }
    let oldest = fulls().map(|full| full.last).min();
    let first = links.iter().map(|link| link.start).min();
    Err(match (oldest, first, target) {
        (Some(oldest), _, Some(target)) => Error::TargetTooOld { target, oldest },
        (_, Some(first), _) => Error::NoFull { first },
        _ => Error::Empty,
    })
}

/// The delta that takes the plan furthest from `end`; without one that connects, the one that begins first behind it.
fn next(links: &[Link], end: i64, cluster: Option<u64>) -> Option<Link> {
    let newer = || {
        links
            .iter()
            .filter(|link| link.kind == Kind::Delta && link.last > end && belongs(link, end, cluster))
            .copied()
    };
    let connected = newer().filter(|delta| delta.start <= end.saturating_add(1));
    let furthest = connected.max_by_key(|delta| (delta.cluster == cluster, delta.last, delta.created_on));
    furthest.or_else(|| newer().min_by_key(|delta| (delta.start, delta.last)))
}

/// Whether a delta may follow what ends at `end` and is of `cluster`.
fn belongs(delta: &Link, end: i64, cluster: Option<u64>) -> bool {
    match (delta.cluster, cluster) {
        (Some(delta), Some(cluster)) => delta == cluster,
        // What overlaps may tell another story of the same revisions.
        (None, Some(_)) => delta.start > end,
        (_, None) => true,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn links(spec: &[(char, i64, i64)]) -> Vec<Link> {
        let link = |(index, (kind, start, last)): (usize, &(char, i64, i64))| {
            let kind = if *kind == 'F' { Kind::Full } else { Kind::Delta };
            Link {
                kind,
                start: *start,
                last: *last,
                created_on: 100,
                cluster: None,
                index,
            }
        };
        spec.iter().enumerate().map(link).collect()
    }

    fn planned(spec: &[(char, i64, i64)], target: Option<i64>) -> Result<(usize, Vec<usize>, i64), Error> {
        let plan = plan(&links(spec), target)?;
        Ok((
            plan.base.index,
            plan.deltas.iter().map(|delta| delta.index).collect(),
            plan.end,
        ))
    }

    /// Name, snapshots, target; indexes of base and deltas, and the end.
    type Row<'a> = (
        &'a str,
        &'a [(char, i64, i64)],
        Option<i64>,
        (usize, &'a [usize], i64),
    );

    #[test]
    fn plans_cover_without_gap() {
        let cases: [Row<'_>; 10] = [
            ("full alone", &[('F', 0, 5)], None, (0, &[], 5)),
            (
                "in any order",
                &[('D', 9, 12), ('F', 0, 5), ('D', 6, 8)],
                None,
                (1, &[2, 0], 12),
            ),
            (
                "overlap",
                &[('F', 0, 8), ('D', 9, 12), ('D', 9, 15), ('D', 16, 20)],
                None,
                (0, &[2, 3], 20),
            ),
            (
                "duplicates",
                &[('F', 0, 8), ('D', 9, 12), ('D', 9, 12)],
                None,
                (0, &[2], 12),
            ),
            (
                "newest full",
                &[('F', 0, 5), ('D', 6, 9), ('F', 0, 9), ('D', 10, 11)],
                None,
                (2, &[3], 11),
            ),
            (
                "delta across the full",
                &[('F', 0, 8), ('D', 6, 12)],
                None,
                (0, &[1], 12),
            ),
            ("old deltas only", &[('D', 2, 8), ('F', 0, 8)], None, (1, &[], 8)),
            (
                "wide revisions",
                &[('F', 0, 99_999_999), ('D', 100_000_000, 100_000_001)],
                None,
                (0, &[1], 100_000_001),
            ),
            (
                "target in a delta",
                &[('F', 0, 5), ('D', 6, 9), ('D', 10, 20)],
                Some(7),
                (0, &[1], 9),
            ),
            (
                "target before a full",
                &[('F', 0, 5), ('D', 6, 9), ('F', 0, 9)],
                Some(8),
                (0, &[1], 9),
            ),
        ];
        for (name, spec, target, (base, deltas, end)) in cases {
            assert_eq!(planned(spec, target), Ok((base, deltas.to_vec(), end)), "{name}");
        }
    }

    #[test]
    fn of_fulls_at_one_revision_the_last_made_counts() {
        let mut two = links(&[('F', 0, 5), ('F', 0, 5), ('F', 0, 5)]);
        two[1].created_on = 101;
        assert_eq!(plan(&two, None).unwrap().base.index, 1);
    }

    /// Kinds and revisions with clusters; the plan. Two clusters with one prefix, or one that came after another.
    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn clusters_are_kept_apart() {
        let (a, b) = (Some(1), Some(2));
        for (name, spec, base, deltas, end) in [
            (
                "the other one reaches further",
                &[
                    (('F', 0, 21), a),
                    (('D', 22, 90), a),
                    (('F', 0, 30), b),
                    (('D', 31, 80), b),
                ][..],
                2,
                &[3][..],
                80,
            ),
            (
                "from the same revision on",
                &[
                    (('F', 0, 30), b),
                    (('D', 31, 95), a),
                    (('D', 31, 80), b),
                    (('D', 81, 82), b),
                ],
                0,
                &[2, 3],
                82,
            ),
            (
                "what is known goes before what isn't",
                &[(('F', 0, 30), b), (('D', 31, 95), None), (('D', 31, 80), b)],
                0,
                &[2],
                80,
            ),
            (
                "a manifest is missing",
                &[(('F', 0, 30), b), (('D', 31, 40), None), (('D', 41, 80), b)],
                0,
                &[1, 2],
                80,
            ),
            (
                "an overlap that nothing vouches for",
                &[(('F', 0, 30), b), (('D', 22, 90), None), (('D', 31, 40), b)],
                0,
                &[2],
                40,
            ),
            (
                "continued by another tool's successor",
                &[
                    (('F', 0, 8), None),
                    (('D', 9, 12), None),
                    (('D', 13, 20), a),
                    (('D', 13, 25), b),
                ],
                0,
                &[1, 3],
                25,
            ),
            (
                "and only by one of them",
                &[
                    (('F', 0, 8), None),
                    (('D', 9, 20), a),
                    (('D', 21, 25), b),
                    (('D', 21, 23), a),
                ],
                0,
                &[1, 3],
                23,
            ),
        ] {
            let of: Vec<_> = spec.iter().map(|(of, _)| *of).collect();
            let mut links = links(&of);
            for (link, (_, cluster)) in links.iter_mut().zip(spec) {
                link.cluster = *cluster;
            }
            let plan = plan(&links, None).unwrap();
            let found: Vec<_> = plan.deltas.iter().map(|delta| delta.index).collect();
            assert_eq!(
                (plan.base.index, &found[..], plan.end),
                (base, deltas, end),
                "{name}"
            );
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        assert_eq!(planned(&[], None), Err(Error::Empty));
        assert_eq!(
            planned(&[('D', 11, 15), ('D', 16, 20)], None),
            Err(Error::NoFull { first: 11 })
        );
        let late = planned(&[('F', 0, 10), ('F', 0, 20)], Some(5));
        assert_eq!(
            late,
            Err(Error::TargetTooOld {
                target: 5,
                oldest: 10
            })
        );
        let early = planned(&[('F', 0, 10), ('D', 11, 12)], Some(15));
        assert_eq!(early, Err(Error::TargetTooNew { target: 15, end: 12 }));
        let gap = planned(&[('F', 0, 8), ('D', 9, 14), ('D', 21, 26), ('D', 27, 32)], None).unwrap_err();
        assert_eq!(
            gap.to_string(),
            "revisions 15 to 20 are missing: no snapshot covers them"
        );
        let Error::Gap(gap) = gap else { panic!() };
        assert_eq!((gap.before.index, gap.behind.index, gap.end), (1, 2, 32));
        assert_eq!((gap.reachable.deltas.len(), gap.reachable.end), (1, 14));
        assert_eq!(
            planned(&[('F', 0, 8), ('D', 9, 14), ('D', 21, 26)], Some(12)),
            Ok((0, vec![1], 14))
        );
    }

    proptest! {
        /// Whatever lies there: a plan never has a gap, and is never refused when there is a cover to its end.
        #[test]
        fn plans_are_sound(spec in proptest::collection::vec((any::<bool>(), 1_i64..30, 0_i64..8), 0..20)) {
            let spec: Vec<_> = spec.into_iter()
                .map(|(full, start, len)| if full { ('F', 0, start + len) } else { ('D', start, start + len) })
                .collect();
            match plan(&links(&spec), None) {
                Ok(plan) => {
                    let mut end = plan.base.last;
                    for delta in &plan.deltas {
                        prop_assert!(delta.start <= end + 1 && delta.last > end);
                        end = delta.last;
                    }
                    prop_assert_eq!(end, plan.end);
                    prop_assert_eq!(Some(end), spec.iter().map(|(_, _, last)| *last).max());
                }
                Err(Error::Gap(gap)) => {
                    let covers = |revision| spec.iter().any(|(kind, start, last)| *kind == 'D' && (*start..=*last).contains(&revision));
                    prop_assert!((gap.from..=gap.to).all(|revision| !covers(revision)));
                    prop_assert!(gap.from <= gap.to);
                }
                Err(Error::NoFull { .. }) => prop_assert!(spec.iter().all(|(kind, _, _)| *kind == 'D')),
                Err(Error::Empty) => prop_assert!(spec.is_empty()),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }
}
