//! Ways through good and damaged chains, and how their objects are fetched.

use std::io::Read as _;

use jiff::Timestamp;
use snapstore::{Body, Object, Provider, StoreConfig};

use super::*;

/// A listing of names; `!` before a name stands for an empty object, an unknown suffix for an object of unknown form.
fn catalog(names: &[&str]) -> Catalog {
    let mut listing = Listing::default();
    for text in names {
        let (text, size) = text.strip_prefix('!').map_or((*text, 1000), |text| (text, 0));
        let object = Object {
            key: format!("v2/{text}"),
            size,
            etag: None,
            last_modified: None,
            version: None,
            immutable_until: None,
        };
        match text.parse::<SnapshotName>() {
            Ok(name) => listing.snapshots.push(StoredSnapshot {
                name,
                layout: Layout::V2,
                object,
                excluded: false,
                manifest: None,
            }),
            Err(reason) => listing.unparsable.push(Unparsable { object, reason }),
        }
    }
    Catalog::new(listing)
}

const F8: &str = "Full-00000000-00000008-100.gz";
const D14: &str = "Incr-00000009-00000014-110.gz";
const D20: &str = "Incr-00000015-00000020-120.gz";
const F20: &str = "Full-00000000-00000020-121.gz";
const D26: &str = "Incr-00000021-00000026-130.gz";

/// Names of the route's snapshots, what is left out, and the lost revisions.
fn described(catalog: &Catalog, route: &Route) -> (Vec<String>, Vec<String>, Option<(i64, i64)>) {
    let names = catalog.snapshots(&route.plan).map(|one| one.name.to_string());
    let left_out = route.left_out.iter().map(|fault| fault.object.clone());
    (
        names.collect(),
        left_out.collect(),
        route.lost.map(|lost| (lost.from, lost.to)),
    )
}

#[test]
fn good_chains_are_taken_as_they_are() {
    let all = catalog(&[F8, D14, D20, F20, D26]);
    for (wanted, expected) in [
        (Wanted::Latest, &[F20, D26][..]),
        (Wanted::Revision(14), &[F8, D14]),
        (Wanted::Revision(21), &[F20, D26]),
        // Before every full: perhaps the history of the oldest one reaches back.
        (Wanted::Revision(5), &[F8]),
        (Wanted::Snapshot(F20.to_owned()), &[F20]),
        (Wanted::Snapshot(D14.to_owned()), &[F8, D14]),
        // Of a second that is in a name it isn't known on which side of the snapshot it lies.
        (
            Wanted::Time(Timestamp::from_second(110).unwrap()),
            &[F8, D14, D20],
        ),
        (Wanted::Time(Timestamp::from_second(109).unwrap()), &[F8, D14]),
        (
            Wanted::Time(Timestamp::from_second(115).unwrap()),
            &[F8, D14, D20],
        ),
        (Wanted::Time(Timestamp::from_second(999).unwrap()), &[F20, D26]),
    ] {
        for fallback in [false, true] {
            let route = all.route(&wanted, fallback).unwrap();
            let (names, left_out, lost) = described(&all, &route);
            assert_eq!(names, expected, "{wanted:?}");
            assert!(left_out.is_empty() && lost.is_none());
        }
    }
}

/// A restore raises the revision: what lies between is in no snapshot, and isn't missing.
#[test]
fn a_raised_revision_is_no_hole() {
    const F: &str = "Full-00000000-1000000026-140.gz";
    const D: &str = "Incr-1000000027-1000000030-150.gz";
    let all = catalog(&[F8, D14, D20, F20, D26, F, D]);
    let time = |second| Wanted::Time(Timestamp::from_second(second).unwrap());
    for (wanted, expected) in [
        (Wanted::Latest, &[F, D][..]),
        (Wanted::Revision(26), &[F20, D26]),
        (Wanted::Revision(1_000_000_027), &[F, D]),
        (Wanted::Snapshot(D.to_owned()), &[F, D]),
        // Between the last snapshot before the restore and the first one after it.
        (time(135), &[F20, D26]),
        (time(115), &[F8, D14, D20]),
        (time(145), &[F, D]),
        (time(999), &[F, D]),
    ] {
        let route = all.route(&wanted, false).unwrap();
        let (names, left_out, lost) = described(&all, &route);
        assert_eq!(names, expected, "{wanted:?}");
        assert!(left_out.is_empty() && lost.is_none());
    }
    // A delta is missing, and nothing was restored.
    let hole = catalog(&[F8, D14, F20, D26]);
    let error = hole.route(&time(117), false).unwrap_err();
    assert!(matches!(error, Error::Damaged(_)), "{error}");
}

/// What is asked of a damaged store, the error, and what falling back gives: names, left out, lost.
type Row<'a> = (
    &'a [&'a str],
    Wanted,
    &'a str,
    Option<(&'a [&'a str], &'a [&'a str], Option<(i64, i64)>)>,
);

#[test]
fn damage_is_named_and_gone_around_when_told_to() {
    let empty_full = format!("!{F20}");
    let (too_few, short) = (
        "0 bytes are too few to hold data and its SHA-256",
        "!Incr-00000015-00000020-120.gz",
    );
    let rows: &[Row<'_>] = &[
        // A hole behind a bad full.
        (
            &[F8, D14, &empty_full, D26],
            Wanted::Latest,
            &format!("snapshot {F20}: {too_few}; without it revisions 15 to 20 are missing"),
            Some((&[F8, D14], &[F20], Some((15, 26)))),
        ),
        // A bad delta, the last one or one before.
        (
            &[F8, D14, short],
            Wanted::Latest,
            &format!("snapshot {D20}: {too_few}; without it revisions 15 to 20 are missing"),
            Some((&[F8, D14], &[D20], Some((15, 20)))),
        ),
        (
            &[F8, D14, short, D26],
            Wanted::Latest,
            &format!("snapshot {D20}: {too_few}; without it revisions 15 to 20 are missing"),
            Some((&[F8, D14], &[D20], Some((15, 26)))),
        ),
        (
            &[F8, D14, D26],
            Wanted::Latest,
            &format!("revisions 15 to 20 are missing between {D14} and {D26}"),
            Some((&[F8, D14], &[], Some((15, 26)))),
        ),
        // A revision that was asked for is never replaced by another.
        (
            &[F8, D14, D26],
            Wanted::Revision(25),
            &format!("revisions 15 to 20 are missing between {D14} and {D26}"),
            None,
        ),
        (
            &[D20, D26],
            Wanted::Latest,
            "there is no full snapshot to begin with: revisions 1 to 14 are missing",
            None,
        ),
        (
            &[&format!("!{F8}"), D14],
            Wanted::Latest,
            &format!("snapshot {F8}: {too_few}; without it revisions 1 to 8 are missing"),
            None,
        ),
    ];
    for row in rows {
        assert_damage(row);
    }
}

/// The older chain has everything: no flag is needed, and what is left out is named.
#[test]
fn damage_that_loses_nothing_is_gone_around() {
    let (empty_full, unknown) = (format!("!{F20}"), "Full-00000000-00000020-121.xz.final");
    for (names, wanted, taken, left_out) in [
        (
            &[F8, D14, D20, &empty_full, D26][..],
            Wanted::Latest,
            &[F8, D14, D20, D26][..],
            F20,
        ),
        (&[F8, D14, D20, unknown], Wanted::Latest, &[F8, D14, D20], unknown),
        (
            &[F8, D14, D20, &empty_full, D26],
            Wanted::Revision(22),
            &[F8, D14, D20, D26],
            F20,
        ),
    ] {
        let all = catalog(names);
        for fallback in [false, true] {
            let route = all.route(&wanted, fallback).unwrap();
            assert_eq!(
                described(&all, &route),
                (strings(taken), strings(&[left_out]), None)
            );
        }
    }
}

/// Whatever numbers a name holds, they can be calculated with.
#[test]
fn names_with_odd_numbers_panic_nowhere() {
    let highest = "Incr-00000009-9223370937343148031-9999999999.gz";
    let beyond = "Incr-00000009-9223372036854775807-110.gz";
    assert!(beyond.parse::<SnapshotName>().is_err());
    for names in [
        &[F8, highest][..],
        &[F8, beyond],
        &["!Full-00000000-00000000-0.gz", highest],
        &[highest],
    ] {
        let mut all = catalog(names);
        for fallback in [false, true] {
            for wanted in [Wanted::Latest, Wanted::Revision(i64::MAX), Wanted::Revision(10)] {
                let _ = all.route(&wanted, fallback);
            }
        }
        all.condemn(highest, "it is bad");
        let _ = all.route(&Wanted::Latest, true);
    }
}

fn assert_damage((names, wanted, text, detour): &Row<'_>) {
    let catalog = catalog(names);
    let error = catalog.route(wanted, false).unwrap_err();
    let Error::Damaged(damage) = &error else {
        panic!("{names:?}: {error}")
    };
    assert_eq!(error.to_string(), *text);
    assert_eq!(damage.rescue.is_some(), detour.is_some(), "{names:?}");
    let Some((names, left_out, lost)) = detour else {
        assert_eq!(catalog.route(wanted, true).unwrap_err(), error);
        return;
    };
    let route = catalog.route(wanted, true).unwrap();
    let rescue = damage.rescue.unwrap();
    assert_eq!((rescue.revision, rescue.lost), (route.plan.end, route.lost));
    let (found, left, gone) = described(&catalog, &route);
    assert_eq!((found, left, gone), (strings(names), strings(left_out), *lost));
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// What a restore finds out is as good as what the listing shows; what was bad long ago doesn't matter.
#[test]
fn what_turns_out_to_be_bad_is_gone_around() {
    let mut all = catalog(&["!Incr-00000005-00000008-99.gz", F8, D14, D20, F20, D26]);
    assert!(all.condemn(F20, "SHA-256 does not match"));
    assert!(!all.condemn(F20, "again"));
    assert!(!all.condemn("Full-00000000-00000001-1", "isn't there"));
    let route = all.route(&Wanted::Latest, true).unwrap();
    assert_eq!(
        described(&all, &route),
        (strings(&[F8, D14, D20, D26]), strings(&[F20]), None)
    );
}

#[test]
fn what_no_snapshot_has_is_no_damage() {
    let all = catalog(&[F8, D14]);
    for (wanted, text) in [
        (
            Wanted::Revision(15),
            "revision 15 is in no snapshot: they end at 14",
        ),
        (
            Wanted::Time(Timestamp::from_second(100).unwrap()),
            "no full snapshot was taken before 1970-01-01T00:01:40Z",
        ),
        (
            Wanted::Snapshot(D20.to_owned()),
            "the store has no snapshot \"Incr-00000015-00000020-120.gz\"",
        ),
    ] {
        let error = all.route(&wanted, true).unwrap_err();
        assert!(!matches!(error, Error::Damaged(_)), "{error}");
        assert_eq!(error.to_string(), text);
    }
    assert_eq!(
        catalog(&[]).route(&Wanted::Latest, true).unwrap_err(),
        Error::OutOfReach(chain::Error::Empty)
    );
}

/// A store's failure must not be taken for damage: the answer to it is another try, not an older chain.
#[tokio::test(flavor = "multi_thread")]
async fn objects_are_fetched_whole_and_failures_are_the_stores() {
    let folder = tempfile::tempdir().unwrap();
    let config = StoreConfig::new(Provider::Local, folder.path().to_str().unwrap(), "");
    let store = config.open().unwrap();
    for size in [1, 2 << 20, (9 << 20) + 17] {
        let content: Vec<u8> = (0_u32..size).map(|at| (at / 7 % 251) as u8).collect();
        let name = SnapshotName::full(
            i64::from(size),
            Timestamp::UNIX_EPOCH,
            snapstore::Compression::None,
        );
        let stored = store.put(&name, Body::from_bytes(content.clone())).await.unwrap();
        let fetched = Arc::<AtomicU64>::default();
        let read = |stored: &StoredSnapshot| {
            let object = object(&store, stored, None, &Handle::current(), &fetched);
            tokio::task::spawn_blocking(move || {
                let mut bytes = Vec::new();
                (object.open)()?.read_to_end(&mut bytes).map(|_| bytes)
            })
        };
        assert!(read(&stored).await.unwrap().unwrap() == content);
        assert_eq!(
            fetched.load(std::sync::atomic::Ordering::Relaxed),
            u64::from(size)
        );

        let file = std::fs::File::options()
            .write(true)
            .open(&stored.object.key)
            .unwrap();
        file.set_len(u64::from(size) - 1).unwrap();
        let cut = read(&stored).await.unwrap().unwrap_err();
        assert_eq!(
            damage::store_error(&cut),
            Some(snapstore::Class::Corrupt),
            "{cut}"
        );
        store.delete(&stored.object).await.unwrap();
        let gone = read(&stored).await.unwrap().unwrap_err();
        assert_eq!(
            damage::store_error(&gone),
            Some(snapstore::Class::NotFound),
            "{gone}"
        );
    }
}
