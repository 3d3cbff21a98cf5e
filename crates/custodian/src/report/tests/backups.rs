//! Backups by what members tell, and by time.

use super::*;

#[test]
fn backups_are_ready_once_a_full_is_stored() {
    let status = with_backup(Scene::new(1)).status();
    is(&status, backup_ready::TYPE, ("True", "BackupSucceeded"));
    let condition = find_condition(&status.conditions, backup_ready::TYPE).unwrap();
    for part in ["v2/Full-1", "v2/Incr-2", "next full due at 2026-05-04T11:00:00Z"] {
        assert!(condition.message.contains(part), "{}", condition.message);
    }
    assert_eq!(status.last_backup_time.map(|time| time.0), Some(in_secs(-30)));
}

#[test]
fn backups_by_time() {
    for (later, path, value, want) in [
        // The hourly full of 11:00 may take 15 minutes.
        (
            44 * 60,
            "/record/status/snapshots/x",
            json!(0),
            ("True", "BackupSucceeded"),
        ),
        (
            45 * 60,
            "/record/status/snapshots/x",
            json!(0),
            ("False", "BackupOverdue"),
        ),
        (
            13 * 60,
            "/record/status/snapshots/coveredUntil",
            json!(ago(0)),
            ("False", "BackupOverdue"),
        ),
        (
            0,
            "/record/status/snapshots/coveredUntil",
            json!(null),
            ("Unknown", "BackupPending"),
        ),
        (
            0,
            "/record/status/snapshots",
            json!({}),
            ("Unknown", "BackupPending"),
        ),
    ] {
        let mut scene = with_backup(Scene::new(1)).set(0, path, value);
        let at = in_secs(later);
        if path.ends_with('x') {
            // Deltas are current all along.
            let covered = json!(at.to_string());
            scene = scene.set(0, "/record/status/snapshots/coveredUntil", covered);
        }
        scene = scene.set(0, SILENT, json!(format!("{at:.6}")));
        let status = scene.report(&EtcdStatus::default(), at).status;
        is(&status, backup_ready::TYPE, want);
    }
}

/// Pending ends by itself: it is overdue when the first full has had its time.
#[test]
fn a_first_full_that_never_comes_is_overdue() {
    let scene = with_backup(Scene::new(1)).set(0, "/record/status/snapshots", json!({}));
    let first = scene.status();
    is(&first, backup_ready::TYPE, ("Unknown", "BackupPending"));
    let second = scene.report(&first, in_secs(14 * 60)).status;
    is(&second, backup_ready::TYPE, ("Unknown", "BackupPending"));
    let third = scene.report(&second, in_secs(15 * 60)).status;
    is(&third, backup_ready::TYPE, ("False", "BackupOverdue"));
    let fourth = scene.report(&third, in_secs(16 * 60)).status;
    is(&fourth, backup_ready::TYPE, ("False", "BackupOverdue"));
}

/// What was stored before an Etcd went to sleep is old when it wakes up: nobody is to be woken for that.
#[test]
fn an_etcd_that_wakes_up_gets_time_for_its_backups() {
    const DAY: i64 = 24 * 60 * 60;
    let awake = with_backup(Scene::new(1));
    let before = awake.status();
    let mut asleep = Scene {
        replicas: 0,
        ..awake.clone()
    }
    .set(0, GONE, Value::Null);
    let slept = asleep.report(&before, in_secs(60)).status;
    asleep.replicas = 1;
    let woken = asleep.report(&slept, in_secs(DAY));
    is(&woken.status, backup_ready::TYPE, ("Unknown", "BackupPending"));
    let since = find_condition(&woken.status.conditions, backup_ready::TYPE).unwrap();
    assert_eq!(since.last_transition_time.as_ref().unwrap().0, in_secs(DAY));
    assert_eq!(woken.until, Some(in_secs(DAY + 15 * 60)));
    assert_eq!(transitions::between(&slept, &woken.status, None), []);
    let later = asleep.report(&woken.status, in_secs(DAY + 14 * 60)).status;
    is(&later, backup_ready::TYPE, ("Unknown", "BackupPending"));
    let late = asleep.report(&later, in_secs(DAY + 15 * 60)).status;
    is(&late, backup_ready::TYPE, ("False", "BackupOverdue"));

    // Nor is an Etcd overdue that was created asleep, long ago.
    let born = Scene { replicas: 0, ..awake }.set(0, "/record/status/snapshots", json!({}));
    let first = born.status();
    is(&first, backup_ready::TYPE, ("Unknown", shared::NOT_CHECKED));
    let woken = Scene { replicas: 1, ..born }.report(&first, in_secs(DAY)).status;
    is(&woken, backup_ready::TYPE, ("Unknown", "BackupPending"));
}

#[test]
fn the_owner_says_why_backups_fail() {
    let works = owner_says(with_backup(Scene::new(1)), "True", "BackupSucceeded");
    let fails = owner_says(with_backup(Scene::new(1)), "False", "BucketNotFound");
    let status = fails.status();
    is(&status, backup_ready::TYPE, ("False", "BucketNotFound"));
    assert_eq!(status.reason.as_deref(), Some("BucketNotFound"));
    let condition = find_condition(&status.conditions, backup_ready::TYPE).unwrap();
    assert!(
        condition
            .message
            .starts_with("no such bucket; newest full v2/Full-1")
    );
    assert_eq!(works.events(&fails), [event::BACKUP_FAILED]);
    assert_eq!(fails.events(&works), [event::BACKUP_RECOVERED]);
}

/// A delta every few seconds must not write the Etcd every few seconds, and what was covered stays covered.
#[test]
fn deltas_are_told_in_steps() {
    let scene = with_backup(Scene::new(1));
    let first = scene.status();
    let delta = |covered: i64, name: &str| {
        let snapshots = json!({
            "lastFull": {"name": "v2/Full-1", "timestamp": "2026-05-04T10:00:00Z"},
            "lastDelta": {"name": name, "timestamp": ago(covered)},
            "coveredUntil": ago(covered),
        });
        scene.clone().set(0, "/record/status/snapshots", snapshots)
    };
    assert_eq!(delta(10, "v2/Incr-3").report(&first, now()).status, first);
    let moved = delta(-40, "v2/Incr-4").report(&first, in_secs(41)).status;
    assert_eq!(
        moved.last_backup_time.clone().map(|time| time.0),
        Some(in_secs(40))
    );
    let back = delta(30, "v2/Incr-4").report(&moved, in_secs(42)).status;
    assert_eq!(back.last_backup_time, moved.last_backup_time);
}

/// Deltas that are turned off can't be late, and a schedule that can't be read is told as such.
#[test]
fn the_spec_decides_what_is_due() {
    let scene = with_backup(Scene::new(1)).set(0, "/record/status/snapshots/coveredUntil", json!(ago(1500)));
    let mut cluster = scene.cluster();
    let mut etcd = (*cluster.etcd).clone();
    etcd.spec.backup.delta_snapshot_period = Some(api::duration::GoDuration::new("0s"));
    cluster.etcd = Arc::new(etcd.clone());
    let report = Report::new(&cluster, &EtcdStatus::default(), THRESHOLDS, now());
    is(&report.status, backup_ready::TYPE, ("True", "BackupSucceeded"));
    etcd.spec.backup.full_snapshot_schedule = Some(api::schedule::CronSchedule::new("never"));
    cluster.etcd = Arc::new(etcd);
    let report = Report::new(&cluster, &EtcdStatus::default(), THRESHOLDS, now());
    is(&report.status, backup_ready::TYPE, ("Unknown", "Unknown"));
}
