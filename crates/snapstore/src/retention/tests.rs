use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{Rule::*, *};
use crate::{
    listing::{Chunk, Layout},
    name::SnapshotName,
};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// 2023-11-15 13:30:00 UTC, a Wednesday.
const NOW: i64 = 1_700_055_000;

fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn stored(name: &str, created: i64) -> StoredSnapshot {
    let name: SnapshotName = format!("{name}-{created}.gz").parse().unwrap();
    StoredSnapshot {
        object: object(&name.to_string()),
        name,
        layout: Layout::V2,
        excluded: false,
        manifest: None,
    }
}

fn object(key: &str) -> Object {
    Object {
        key: key.to_owned(),
        size: 1000,
        etag: None,
        last_modified: None,
        version: None,
        immutable_until: None,
    }
}

fn full(revision: i64, created: i64) -> StoredSnapshot {
    stored(&format!("Full-00000000-{revision:08}"), created)
}

fn delta(start: i64, last: i64, created: i64) -> StoredSnapshot {
    stored(&format!("Incr-{start:08}-{last:08}"), created)
}

fn listing(snapshots: impl IntoIterator<Item = StoredSnapshot>) -> Listing {
    let mut snapshots: Vec<_> = snapshots.into_iter().collect();
    snapshots.sort_by(|a, b| a.name.cmp(&b.name));
    Listing {
        snapshots,
        ..Listing::default()
    }
}

/// Full snapshots of ascending revisions at these times.
fn fulls_at(times: impl IntoIterator<Item = i64>) -> Listing {
    let mut times: Vec<_> = times.into_iter().collect();
    times.sort_unstable();
    listing((1..).zip(times).map(|(revision, at)| full(revision, at)))
}

fn limit(max_backups: u32) -> Policy {
    Policy {
        fulls: KeepFulls::LimitBased { max_backups },
        ..Policy::default()
    }
}

/// Each snapshot's last revision with what becomes of it.
fn outcome(listing: &Listing, policy: &Policy) -> Vec<(i64, Action, Rule)> {
    let decisions = plan(listing, policy, |_| true, time(NOW));
    let named = decisions
        .iter()
        .filter_map(|d| Some((d.name?.last_revision, d.action, d.rule)));
    named.collect()
}

fn kept(listing: &Listing, policy: &Policy, now: i64) -> Vec<i64> {
    let decisions = plan(listing, policy, |_| true, time(now));
    let kept = decisions.into_iter().filter(|d| d.action != Action::Delete);
    kept.filter_map(|d| Some(d.name?.created_on.as_second()))
        .collect()
}

#[test]
fn limit_keeps_so_many_chains() {
    let hourly = listing((0..10).map(|n| full(100 * n + 1, NOW - (10 - n) * HOUR)));
    for (limit_to, expected) in [(1, 1), (3, 3), (7, 7), (10, 10), (99, 10)] {
        let outcome = outcome(&hourly, &limit(limit_to));
        let kept: Vec<_> = outcome
            .iter()
            .filter(|o| o.1 == Action::Keep)
            .map(|o| o.0)
            .collect();
        assert_eq!(
            kept,
            (10 - expected..10).map(|n| 100 * n + 1).collect::<Vec<_>>(),
            "limit {limit_to}"
        );
    }
    // The newest survives a limit that can't be meant.
    assert_eq!(kept(&hourly, &limit(0), NOW).len(), 1);
}

/// A worked table: a full snapshot every half hour for 45 days.
#[test]
fn exponential_keeps_hours_days_and_weeks() {
    let times = (0..45 * 48).map(|n| NOW - n * HOUR / 2);
    let history = fulls_at(times);
    let hour = |hour: i64| NOW - NOW % DAY + hour * HOUR + HOUR / 2;
    let mut expected = vec![
        // The last Sundays that are more than 7 days ago, none more than 35 days ago.
        "2023-10-15",
        "2023-10-22",
        "2023-10-29",
        "2023-11-05",
        "2023-11-08",
        "2023-11-09",
        "2023-11-10",
        "2023-11-11",
        "2023-11-12",
        "2023-11-13",
        "2023-11-14",
    ]
    .into_iter()
    .map(|day| {
        format!("{day}T23:30:00Z")
            .parse::<Timestamp>()
            .unwrap()
            .as_second()
    })
    .collect::<Vec<_>>();
    // Today: the last of each hour, and all of the current one.
    expected.extend((0..13).map(hour));
    expected.extend([hour(13) - HOUR / 2, hour(13)]);
    assert_eq!(kept(&history, &Policy::default(), NOW), expected);
}

/// Collected every hour, a history still has its weekly snapshots: stretches that are counted back from the present
/// instead of along the calendar lose each one within a day.
#[test]
fn exponential_keeps_its_promise_over_time() {
    let mut times = Vec::new();
    for hour in 0..70 * 24 {
        let now = NOW + hour * HOUR;
        if hour % 6 == 0 {
            times.push(now);
        }
        let history = fulls_at(times);
        times = kept(&history, &Policy::default(), now);
    }
    let today = NOW + 70 * DAY;
    let days_ago: Vec<_> = times.iter().map(|t| today / DAY - t / DAY).collect();
    assert_eq!(days_ago.iter().filter(|age| **age > 8).count(), 4, "{days_ago:?}");
    assert_eq!(
        days_ago.iter().filter(|age| (1..=7).contains(*age)).count(),
        7,
        "{days_ago:?}"
    );
}

/// When `explain` says that something may go at a time, then it goes at that time and not before.
#[test]
fn terms_are_true() {
    let history = fulls_at((0..40).map(|n| NOW - n * 7 * HOUR));
    let policy = Policy::default();
    for decision in plan(&history, &policy, |_| true, time(NOW)) {
        let (Action::Keep, Some(until)) = (decision.action, decision.until) else {
            continue;
        };
        let is_kept = |now| {
            let later = plan(&history, &policy, |_| true, time(now));
            later.iter().find(|d| d.name == decision.name).unwrap().action == Action::Keep
        };
        let until = until.as_second();
        assert!(is_kept(until - 1), "{decision:?}");
        assert!(!is_kept(until), "{decision:?}");
    }
}

/// The rule of etcd-backup-restore as it is written there: buckets of hours, days and weeks counted back from the
/// end of today, each full compared with the next newer one. For today and the 7 days before both agree.
fn reference(times: &[i64], now: i64) -> BTreeSet<i64> {
    let eod = now - now.rem_euclid(DAY) + DAY - 1;
    let bucket = |at: i64, hours: i64| (eod - at) / (hours * HOUR);
    let keeps = |older: i64, newer: i64| {
        let age = eod - older;
        let threshold = match age {
            _ if age < DAY && older.rem_euclid(DAY) / HOUR == now.rem_euclid(DAY) / HOUR => return true,
            _ if age < DAY => 1,
            _ => 24,
        };
        let change = |hours| (bucket(older, hours) - bucket(newer, hours)) * hours / threshold != 0;
        change(1) || change(24)
    };
    let older = times
        .windows(2)
        .filter(|pair| keeps(pair[0], pair[1]))
        .map(|pair| pair[0]);
    older.chain(times.last().copied()).collect()
}

proptest! {
    #[test]
    fn agrees_with_the_reference_for_a_week(
        ages in proptest::collection::btree_set(0..7 * DAY, 1..120), into_day in 0..DAY,
    ) {
        let now = NOW - NOW % DAY + into_day;
        let times: Vec<_> = ages.iter().rev().map(|age| now - age).collect();
        let history = fulls_at(times.iter().copied());
        let kept: BTreeSet<_> = kept(&history, &Policy::default(), now).into_iter().collect();
        prop_assert_eq!(kept, reference(&times, now));
    }
}

/// The worked case: three chains, the newest with deltas, and what belongs to none.
#[test]
fn deltas_go_with_their_chain() {
    let history = || {
        [
            delta(40, 50, NOW - 9 * HOUR),
            full(100, NOW - 8 * HOUR),
            delta(101, 110, NOW - 7 * HOUR),
            delta(111, 120, NOW - 6 * HOUR),
            full(120, NOW - 5 * HOUR),
            delta(121, 130, NOW - 4 * HOUR),
            full(130, NOW - 3 * HOUR),
            delta(131, 140, NOW - 2 * HOUR),
        ]
    };
    let names = |retention_hours| {
        let policy = Policy {
            delta_retention: SignedDuration::from_hours(retention_hours),
            ..limit(2)
        };
        let outcome = outcome(&listing(history()), &policy);
        outcome.iter().map(|(_, _, rule)| *rule).collect::<Vec<_>>()
    };
    assert_eq!(
        names(0),
        [
            NoFullBefore,
            OverLimit,
            DeltaRetentionOver,
            DeltaRetentionOver,
            WithinLimit,
            DeltaRetentionOver,
            NewestChain,
            NewestChain,
        ]
    );
    // Deltas that are retained are of use only with all that comes before them in their chain.
    assert_eq!(
        names(7),
        [
            NoFullBefore,
            WithinDeltaRetention,
            WithinDeltaRetention,
            WithinDeltaRetention,
            WithinLimit,
            WithinDeltaRetention,
            NewestChain,
            NewestChain,
        ]
    );
}

/// A full that is empty, excluded or not proven is no reason to let go of the chain before it.
#[test]
fn newest_restorable_chain_stays() {
    let good = [full(100, NOW - 9 * HOUR), delta(101, 110, NOW - 8 * HOUR)];
    let newest = || full(120, NOW - HOUR);
    let empty = {
        let mut full = newest();
        full.object.size = 32;
        full
    };
    let excluded = StoredSnapshot {
        excluded: true,
        ..newest()
    };
    for bad in [empty, excluded] {
        let history = listing(good.clone().into_iter().chain([bad, delta(121, 130, NOW)]));
        let outcome = outcome(&history, &limit(1));
        assert!(outcome.iter().all(|o| o.2 == NewestChain), "{outcome:?}");
    }
    let history = listing(good.into_iter().chain([newest()]));
    let proven = |snapshot: &StoredSnapshot| snapshot.name.last_revision != 120;
    let decisions = plan(&history, &limit(1), proven, time(NOW));
    assert!(
        decisions.iter().all(|d| d.action == Action::Keep),
        "{decisions:?}"
    );
    let decisions = plan(&history, &limit(1), |_| false, time(NOW));
    assert!(decisions.iter().all(|d| d.rule == NoProvenChain), "{decisions:?}");
    // Superseded, such a full goes.
    let history = listing([
        StoredSnapshot {
            excluded: true,
            ..newest()
        },
        full(130, NOW),
    ]);
    assert_eq!(
        outcome(&history, &limit(5)),
        [(130, Action::Keep, NewestChain), (120, Action::Delete, Unusable)]
    );
}

/// A compacted full is made later than deltas that go beyond it, and these are needed.
#[test]
fn deltas_beyond_a_compacted_full_stay() {
    let history = listing([
        full(100, NOW - 9 * HOUR),
        delta(101, 200, NOW - 3 * HOUR),
        delta(201, 300, NOW - 2 * HOUR),
        full(200, NOW - HOUR),
    ]);
    assert_eq!(
        outcome(&history, &limit(1)),
        [
            (100, Action::Delete, OverLimit),
            (200, Action::Delete, DeltaRetentionOver),
            (200, Action::Keep, NewestChain),
            (300, Action::Keep, NewestChain),
        ]
    );
}

/// A cluster that was made anew in the same place counts from 1. Neither history may push out the other's newest.
#[test]
fn a_new_history_is_not_older_than_the_old_one() {
    let old = [full(5000, NOW - 9 * DAY), delta(5001, 6000, NOW - 8 * DAY)];
    let new = [
        full(10, NOW - 3 * HOUR),
        delta(11, 20, NOW - 2 * HOUR),
        full(20, NOW - HOUR),
    ];
    let history = listing(old.into_iter().chain(new));
    assert_eq!(
        outcome(&history, &limit(1)),
        [
            (10, Action::Delete, OverLimit),
            (20, Action::Delete, DeltaRetentionOver),
            (20, Action::Keep, NewestChain),
            (5000, Action::Keep, NewestChain),
            (6000, Action::Keep, NewestChain),
        ]
    );
    let since = Policy {
        history_start: Some(time(NOW - DAY)),
        ..limit(1)
    };
    let rules: Vec<_> = outcome(&history, &since)
        .iter()
        .filter(|o| o.0 >= 5000)
        .map(|o| o.2)
        .collect();
    assert_eq!(rules, [EarlierHistory, EarlierHistory]);
}

/// What the store protects stays, is no failure, and holds what it needs.
#[test]
fn locked_parts_hold_their_chain() {
    let mut locked = delta(101, 110, NOW - 7 * HOUR);
    locked.object.immutable_until = Some(time(NOW + HOUR));
    let history = listing([
        full(100, NOW - 8 * HOUR),
        locked,
        delta(111, 120, NOW - 6 * HOUR),
        full(120, NOW - 5 * HOUR),
    ]);
    assert_eq!(
        outcome(&history, &limit(1)),
        [
            (100, Action::Keep, NeededByLater),
            (110, Action::Locked, DeltaRetentionOver),
            (120, Action::Delete, DeltaRetentionOver),
            (120, Action::Keep, NewestChain),
        ]
    );
}

/// Pieces of uploads go by age alone; names that aren't understood never, and they may be what deltas need.
#[test]
fn leftovers_and_unknown_names() {
    let parent: SnapshotName = "Full-00000000-00000009-1700000000.gz".parse().unwrap();
    let chunk = |age: Option<i64>| {
        let last_modified = age.map(|age| time(NOW - age));
        Chunk {
            parent: parent.clone(),
            object: Object {
                last_modified,
                ..object("chunk")
            },
        }
    };
    let mut history = listing([delta(5, 8, NOW - 9 * HOUR), full(100, NOW - 8 * HOUR)]);
    history.chunks = vec![chunk(Some(25 * HOUR)), chunk(Some(23 * HOUR)), chunk(None)];
    let rules = |history: &Listing| {
        let decisions = plan(history, &limit(1), |_| true, time(NOW));
        decisions.iter().map(|d| d.rule).collect::<Vec<_>>()
    };
    assert_eq!(
        rules(&history),
        [
            NoFullBefore,
            NewestChain,
            Leftover,
            UploadInProgress,
            UploadInProgress
        ]
    );
    history.chunks.clear();
    history.unparsable = vec![Unparsable {
        object: object("Full.xz"),
        reason: NameError::Compression(".xz".to_owned()),
    }];
    assert_eq!(rules(&history), [AfterUnknownFull, NewestChain, NotUnderstood]);
}

/// Any mixture of snapshots, some empty, some locked, some excluded.
fn histories() -> impl Strategy<Value = Listing> {
    let snapshot = (any::<bool>(), 1..200_i64, 1..20_i64, 0..50 * DAY, 0..10_u8).prop_map(
        |(is_full, last, length, age, fate)| {
            let mut snapshot = if is_full {
                full(last, NOW - age)
            } else {
                delta((last - length).max(1), last, NOW - age)
            };
            match fate {
                0 => snapshot.object.size = 0,
                1 => snapshot.object.immutable_until = Some(time(NOW + HOUR)),
                2 => snapshot.excluded = true,
                _ => {}
            }
            snapshot
        },
    );
    proptest::collection::vec(snapshot, 0..40).prop_map(listing)
}

fn policies() -> impl Strategy<Value = Policy> {
    let fulls = prop_oneof![
        Just(KeepFulls::Exponential),
        (0..5_u32).prop_map(|max_backups| KeepFulls::LimitBased { max_backups })
    ];
    (fulls, 0..20 * DAY).prop_map(|(fulls, retention)| Policy {
        fulls,
        delta_retention: SignedDuration::from_secs(retention),
        ..Policy::default()
    })
}

proptest! {
    /// Whatever the policy, and wherever the deletions stop: the newest usable full and all after it are there, and
    /// no delta loses what comes before it in its chain.
    #[test]
    fn what_is_left_can_be_restored(history in histories(), policy in policies(), stop in 0..40_usize) {
        let decisions = plan(&history, &policy, |_| true, time(NOW));
        let due = decisions.iter().rev().filter(|d| d.action == Action::Delete).take(stop);
        let gone: BTreeSet<_> = due.map(|d| d.object.key.as_str()).collect();
        let (chains, _) = chain::group(&history.snapshots, StoredSnapshot::is_usable);
        let is_gone = |s: &StoredSnapshot| gone.contains(s.object.key.as_str());
        for chain in &chains {
            let parts: Vec<_> = chain.parts().map(is_gone).collect();
            prop_assert!(parts.is_sorted(), "a hole: {chain:?}");
        }
        if let Some(newest) = chains.last().filter(|chain| chain.base.is_some()) {
            prop_assert!(!newest.parts().any(is_gone));
        } else {
            prop_assert_eq!(gone.len(), 0);
        }
    }

    /// Once done, there is nothing more to do.
    #[test]
    fn collecting_twice_is_collecting_once(history in histories(), policy in policies()) {
        let decisions = plan(&history, &policy, |_| true, time(NOW));
        let gone: BTreeSet<_> =
            decisions.iter().filter(|d| d.action == Action::Delete).map(|d| d.object.key.clone()).collect();
        let rest = history.snapshots.iter().filter(|s| !gone.contains(&s.object.key)).cloned();
        let rest = listing(rest);
        let again = plan(&rest, &policy, |_| true, time(NOW));
        prop_assert!(again.iter().all(|d| d.action != Action::Delete), "{again:?}");
    }
}

/// A copy that brings what the target then deletes would bring it again each time.
#[test]
fn what_is_left_to_copy_is_what_stays() {
    let mut listing = listing([
        full(10, NOW - 3 * DAY),
        delta(11, 15, NOW - 3 * DAY + 60),
        full(20, NOW - 2 * DAY),
        delta(21, 25, NOW - 2 * DAY + 60),
        full(30, NOW - DAY),
        delta(31, 35, NOW - DAY + 60),
    ]);
    let policy = Policy {
        fulls: KeepFulls::LimitBased { max_backups: 2 },
        ..Policy::default()
    };
    let kept = |listing: &Listing| {
        let names = listing.snapshots.iter().map(|stored| stored.name.last_revision);
        names.collect::<Vec<_>>()
    };
    let mut doubtful = listing.clone();
    let proven = |full: &StoredSnapshot| full.name.last_revision < 20;
    leave_kept(&mut doubtful, &policy, proven, time(NOW));
    assert_eq!(
        kept(&doubtful),
        [10, 15, 20, 25, 30, 35],
        "what is doubtful lets nothing go"
    );
    leave_kept(&mut listing, &policy, |_| true, time(NOW));
    assert_eq!(kept(&listing), [20, 30, 35]);
    let decisions = plan(&listing, &policy, |_| true, time(NOW));
    assert!(decisions.iter().all(|decision| decision.action == Action::Keep));
}
