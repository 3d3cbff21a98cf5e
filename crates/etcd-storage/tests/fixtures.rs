//! Every case of real backups, by its outcome.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "in a test that is how an error is shown"
)]

mod common;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use common::{Case, cases, options, plan, restore_to};
use etcd_storage::assemble::Error;
use etcd_storage::bolt::{self, Db};
use etcd_storage::object::Target;
use etcd_storage::restore::restore;
use etcd_storage::validate::{Verdict, full};
use etcd_storage::{chain, dump};

fn dumped(data_dir: &Path) -> (String, u32) {
    let db = Db::open(&data_dir.join("member/snap/db")).unwrap();
    bolt::check(&db).unwrap();
    let mut lines = Vec::new();
    dump::dump(&db, &mut lines).unwrap();
    (
        String::from_utf8(lines).unwrap(),
        dump::hash_kv(&db).unwrap().hash,
    )
}

/// The restored dir has every record of the source, the source's own hash, and passes a full validation.
fn assert_restored(case: &Case, data_dir: &Path) {
    let (lines, hash) = dumped(data_dir);
    assert!(lines == case.expected(), "{}: records differ", case.name());
    assert_eq!(hash.to_string(), case.fact("hash-kv"), "{}", case.name());
    let Verdict::Valid(found) = full(data_dir, Duration::ZERO) else {
        panic!("{} is not valid", case.name())
    };
    assert_eq!(
        found.revision.to_string(),
        case.fact("final-revision"),
        "{}",
        case.name()
    );
}

#[test]
fn good_chains_restore_exactly() {
    let mut seen = 0;
    for case in cases().iter().filter(|case| case.fact("outcome") == "ok") {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("default.etcd");
        let restored = restore_to(&plan(&case.objects(), None).unwrap(), &data_dir).unwrap();
        assert_eq!(
            restored.revision.to_string(),
            case.fact("final-revision"),
            "{}",
            case.name()
        );
        assert_restored(case, &data_dir);
        seen += 1;
    }
    assert_eq!(seen, 12);
}

#[test]
fn a_bad_full_is_named_and_can_be_left_out() {
    let case = common::case("zero-byte-newest-full");
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("default.etcd");
    let mut objects = case.objects();
    let error = restore_to(&plan(&objects, None).unwrap(), &data_dir).unwrap_err();
    assert_eq!(error.object(), Some("Full-00000000-00000022-1796004722.gz"));
    assert!(!data_dir.exists());
    objects.retain(|object| Some(object.name.as_str()) != error.object());
    restore_to(&plan(&objects, None).unwrap(), &data_dir).unwrap();
    assert_restored(&case, &data_dir);
}

#[test]
fn a_gap_is_named_and_never_stepped_over() {
    let case = common::case("gap");
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("default.etcd");
    let objects = case.objects();
    let Err(chain::Error::Gap(gap)) = plan(&objects, None) else {
        panic!()
    };
    assert_eq!((gap.from, gap.to), (15, 20));
    // A planner that missed it would be stopped by the engine.
    let deltas = objects[1..].iter().map(common::Stored::object).collect();
    let blind = etcd_storage::object::Chain {
        base: objects[0].object(),
        deltas,
    };
    let error = restore_to(&blind, &data_dir).unwrap_err();
    assert!(matches!(error, Error::Gap { from: 15, to: 20, .. }), "{error}");
    assert!(!data_dir.exists());
    // As far as it goes.
    let chain = plan(&objects, Some(gap.reachable.end)).unwrap();
    restore_to(&chain, &data_dir).unwrap();
    assert_restored(&case, &data_dir);
}

#[test]
fn a_damaged_delta_is_named_and_not_applied() {
    let case = common::case("truncated-delta");
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("default.etcd");
    let objects = case.objects();
    let error = restore_to(&plan(&objects, None).unwrap(), &data_dir).unwrap_err();
    assert_eq!(error.object(), Some("Incr-00000014-00000020-1796004717.gz"));
    assert!(error.to_string().contains("SHA-256 does not match"), "{error}");
    assert!(!data_dir.exists());
    assert!(
        std::fs::read_dir(dir.path()).unwrap().next().is_none(),
        "nothing is left behind"
    );
    restore_to(&plan(&objects, Some(13)).unwrap(), &data_dir).unwrap();
    assert_restored(&case, &data_dir);
}

#[test]
fn deltas_alone_are_no_empty_store() {
    let case = common::case("deltas-only");
    assert_eq!(
        plan(&case.objects(), None).unwrap_err(),
        chain::Error::NoFull { first: 11 }
    );
}

/// Every revision of a chain can be had, from within the base as well: exactly the records up to it.
#[test]
fn every_revision_can_be_the_target() {
    for name in ["gzip-basic", "leases", "large-txn"] {
        let case = common::case(name);
        let chain = plan(&case.objects(), None).unwrap();
        let expected = case.expected();
        let last: i64 = case.fact("final-revision").parse().unwrap();
        for target in 1..=last {
            let dir = tempfile::tempdir().unwrap();
            let data_dir = dir.path().join("default.etcd");
            let options = etcd_storage::restore::Options {
                target: Target::Revision(target),
                ..options(&data_dir)
            };
            let restored = restore(&chain, &options, &mut |_| ControlFlow::Continue(())).unwrap();
            assert_eq!(restored.revision, target);
            let up_to: String = expected
                .lines()
                .filter(|line| {
                    let revision = line.strip_prefix("{\"rev\":").unwrap().split_once(',').unwrap().0;
                    revision.parse::<i64>().unwrap() <= target
                })
                .flat_map(|line| [line, "\n"])
                .collect();
            assert!(dumped(&data_dir).0 == up_to, "{name} at {target}");
        }
    }
}

#[test]
fn a_target_beyond_the_end_is_refused() {
    let case = common::case("none");
    let dir = tempfile::tempdir().unwrap();
    let chain = plan(&case.objects(), None).unwrap();
    let target = Target::Revision(56);
    let options = etcd_storage::restore::Options {
        target,
        ..options(&dir.path().join("default.etcd"))
    };
    let error = restore(&chain, &options, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(
        matches!(
            error,
            Error::TargetNotReached {
                target: 56,
                reached: 55
            }
        ),
        "{error}"
    );
}

/// What a killed restore has left under the temporary name is of no consequence to the next.
#[test]
fn leftovers_of_a_killed_restore_are_replaced() {
    let case = common::case("none");
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("default.etcd");
    let leftover = dir.path().join("default.etcd.part/member/snap");
    std::fs::create_dir_all(&leftover).unwrap();
    std::fs::write(leftover.join("db"), b"half a database").unwrap();
    std::fs::write(leftover.join("0000000000000009-0000000000000009.snap"), b"junk").unwrap();
    restore_to(&plan(&case.objects(), None).unwrap(), &data_dir).unwrap();
    assert_restored(&case, &data_dir);
    assert_eq!(
        std::fs::read_dir(data_dir.join("member/snap")).unwrap().count(),
        2
    );
    assert!(!dir.path().join("default.etcd.part").exists());
}

#[test]
fn a_data_dir_with_content_is_never_touched() {
    let case = common::case("none");
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("member");
    std::fs::create_dir(&kept).unwrap();
    let error = restore_to(&plan(&case.objects(), None).unwrap(), dir.path()).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Io {
                action: "restore into",
                ..
            }
        ),
        "{error}"
    );
    assert!(kept.exists());
}

/// Progress grows to the end, and its caller can stop the work.
#[test]
fn progress_is_told_and_can_stop() {
    let case = common::case("many-deltas");
    let chain = plan(&case.objects(), None).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut last = None;
    let target = options(&dir.path().join("whole"));
    restore(&chain, &target, &mut |progress| {
        assert!(last.is_none_or(|last: etcd_storage::restore::Progress| {
            last.objects_done <= progress.objects_done && last.bytes <= progress.bytes
        }));
        last = Some(progress);
        ControlFlow::Continue(())
    })
    .unwrap();
    let last = last.unwrap();
    assert_eq!((last.objects_done, last.objects, last.revision), (121, 121, 150));
    let target = options(&dir.path().join("stopped"));
    let error = restore(&chain, &target, &mut |progress| {
        if progress.objects_done < 60 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })
    .unwrap_err();
    assert!(matches!(error, Error::Stopped), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
