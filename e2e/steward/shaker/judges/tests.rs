//! Histories that nobody had: each judge finds what it is there for, and nothing where all is well.

use super::*;
use crate::shaker::history::Append;

const ONE: u64 = 0xA;
const OTHER: u64 = 0xB;

fn answer(cluster: u64, call: u64, returned: u64) -> Answer {
    Answer {
        cluster,
        call,
        returned,
    }
}

fn append(number: i64, revision: i64, cluster: u64) -> Append {
    Append {
        key: format!("{LOG}{number}"),
        revision,
        cluster,
    }
}

/// Keys 1, 2… at the revisions 11, 12…
fn log(numbers: impl IntoIterator<Item = i64>) -> Log {
    numbers
        .into_iter()
        .map(|number| (format!("{LOG}{number}"), number + 10))
        .collect()
}

/// What wrote and saw the keys 1 to 5.
fn records() -> Records {
    Records {
        appends: (1..=5).map(|number| append(number, number + 10, ONE)).collect(),
        watched: log(1..=5),
        watched_to: 15,
        ..Records::default()
    }
}

fn said(result: anyhow::Result<()>) -> String {
    result.map_or_else(|error| format!("{error:#}"), |()| "ok".to_owned())
}

#[test]
fn two_clusters_at_once_are_found() {
    let judge = |answers: &[Answer]| said(one_cluster_at_a_time(answers));
    assert_eq!(judge(&[]), "ok");
    assert_eq!(judge(&[answer(ONE, 1, 5), answer(ONE, 2, 3)]), "ok");
    // Asked before the other one answered.
    assert_eq!(judge(&[answer(ONE, 1, 9), answer(OTHER, 4, 6)]), "ok");
    let both = judge(&[answer(ONE, 1, 2), answer(OTHER, 3, 4), answer(ONE, 5, 6)]);
    assert!(both.contains("two clusters served"), "{both}");
}

#[test]
fn a_lost_write_is_found() {
    let judge = |losses: &[Loss], cluster, log: &Log| said(nothing_lost(&records(), losses, cluster, log));
    assert_eq!(judge(&[], ONE, &log(1..=5)), "ok");
    let lost = judge(&[], ONE, &log([1, 2, 4, 5]));
    assert!(lost.contains("1 acknowledged writes are lost"), "{lost}");
}

#[test]
fn backups_promise_what_they_cover() {
    let mut records = records();
    records.appends.push(append(6, 1000, OTHER));
    let all = |numbers: &[i64]| {
        numbers
            .iter()
            .map(|n| (format!("{LOG}{n}"), n + 10))
            .collect::<Log>()
    };
    let judge = |losses: &[Loss], log: &Log| said(nothing_lost(&records, losses, OTHER, log));
    let loss = Loss {
        since: 1,
        covered: 13,
    };
    // 4 and 5 weren't covered.
    assert_eq!(judge(&[loss], &all(&[1, 2, 3, 6])), "ok");
    let lost = judge(&[loss], &all(&[1, 2, 6]));
    assert!(lost.contains("1 acknowledged writes are lost"), "{lost}");
    let lost = judge(&[loss], &all(&[1, 2, 3]));
    assert!(lost.contains("1 acknowledged writes are lost"), "{lost}");
    let unasked = judge(&[], &all(&[1, 2, 3, 4, 5, 6]));
    assert!(unasked.contains("all volumes were lost 0 times"), "{unasked}");
}

#[test]
fn a_short_watch_is_found() {
    let judge = |records: &Records| said(nothing_unseen(records, &log(1..=5)));
    let mut records = records();
    assert_eq!(judge(&records), "ok");
    records.watched.remove(&format!("{LOG}2"));
    let short = judge(&records);
    assert!(short.contains("silent about 1 keys"), "{short}");
    // It was said that these revisions are gone.
    records.relisted.push(12);
    assert_eq!(judge(&records), "ok");
    // A watch that isn't there yet is another judge's business.
    records.watched_to = 14;
    records.watched.remove(&format!("{LOG}5"));
    assert_eq!(judge(&records), "ok");
    assert!(!records.watch_is_complete());
}

fn operation(write: bool, value: &str, call: u64, returned: Option<u64>) -> RegisterOperation {
    RegisterOperation {
        client: usize::try_from(call).unwrap_or_default(),
        key: "/register/0".to_owned(),
        write,
        value: value.to_owned(),
        call,
        returned,
    }
}

#[test]
fn a_stale_read_is_found() {
    let write = |value, call, returned| operation(true, value, call, returned);
    let read = |value, call, returned| operation(false, value, call, Some(returned));
    let judge =
        |operations: &[RegisterOperation], losses: &[Loss]| said(linearizable(operations.to_vec(), losses));
    let stale = [write("1", 1, Some(2)), write("2", 3, Some(4)), read("1", 5, 6)];
    let found = judge(&stale, &[]);
    assert!(found.contains("not linearizable"), "{found}");
    // Where all volumes were lost in between, backups gave the older value back.
    let loss = Loss { since: 5, covered: 0 };
    assert_eq!(judge(&stale, &[loss]), "ok");
    // Nobody knows when the second write took effect.
    let unknown = [
        write("1", 1, Some(2)),
        write("2", 3, None),
        read("1", 5, 6),
        read("2", 7, 8),
    ];
    assert_eq!(judge(&unknown, &[]), "ok");
    let back = [&unknown[..], &[read("1", 9, 10)]].concat();
    let found = judge(&back, &[]);
    assert!(found.contains("not linearizable"), "{found}");
}

#[test]
fn backups_of_something_else_are_found() {
    let judge = |restored: &Log| said(same(restored, &log(1..=5)));
    assert_eq!(judge(&log(1..=5)), "ok");
    let short = judge(&log(1..=4));
    assert!(short.contains("1 keys missing"), "{short}");
    let other = judge(&log(1..=6));
    assert!(other.contains("1 that aren't in the cluster"), "{other}");
    let mut moved = log(1..=5);
    moved.insert(format!("{LOG}1"), 99);
    let moved = judge(&moved);
    assert!(moved.contains("revisions differ"), "{moved}");
}
