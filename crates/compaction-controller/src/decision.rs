//! Whether snapshots are compacted, and when. Pure.

use std::sync::Arc;

use api::{
    conditions::compaction as condition,
    quantity,
    v1alpha1::{Etcd, EtcdMember, MemberSnapshots},
};
use jiff::{SignedDuration, Timestamp};

use crate::Config;

/// The pause after the first failure; it doubles with each that follows.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_mins(5);
const LAST_PAUSE: SignedDuration = SignedDuration::from_hours(2);
/// How long a Job that isn't needed any more can be looked at.
const KEPT: SignedDuration = SignedDuration::from_hours(6);

/// What a restore has to replay on top of the newest full snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Last revision of the full snapshot.
    pub full: i64,
    /// Last revision in a delta.
    pub last: i64,
    /// Revisions in deltas.
    pub events: i64,
    /// Size of the deltas before compression, where it is known.
    pub bytes: Option<u64>,
}

/// When to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Compact from this many revisions on.
    pub events: i64,
    /// Compact from this many bytes on.
    pub bytes: Option<u64>,
    /// Take a full snapshot instead from this many revisions on.
    pub full_snapshot: i64,
}

/// The last compaction that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastRun {
    /// How many there have been in a row, this one included, without success.
    pub attempt: u32,
    /// Whether it succeeded.
    pub succeeded: bool,
    /// The reason of its end, as in the condition.
    pub reason: String,
    /// When it ended.
    pub ended: Timestamp,
    /// Last revision in a delta when it began.
    pub covered: i64,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The chain is short enough.
    Nothing,
    /// Compact by a Job.
    Compact {
        /// Which try this is.
        attempt: u32,
    },
    /// Have the owner of the backups take a full snapshot.
    FullSnapshot,
    /// Look again then.
    Wait(Timestamp),
}

/// The backlog, as the owner of the backups knows it, or else the member that knew most; `None` while there is no full
/// snapshot to start from.
pub fn backlog(members: &[Arc<EtcdMember>]) -> Option<Backlog> {
    let statuses = || members.iter().filter_map(|member| member.status.as_ref());
    let owner = statuses().find(|status| status.backup_owner == Some(true));
    let known = owner.or_else(|| statuses().max_by_key(|status| newest(&status.snapshots)))?;
    let snapshots = &known.snapshots;
    let full = snapshots.last_full.as_ref()?.end_revision;
    let last = newest(snapshots)?;
    let size = snapshots.accumulated_delta_size.as_ref();
    Some(Backlog {
        full,
        last,
        events: last.saturating_sub(full),
        bytes: size.and_then(|size| quantity::bytes(size).ok()),
    })
}

fn newest(snapshots: &MemberSnapshots) -> Option<i64> {
    let last = [&snapshots.last_full, &snapshots.last_delta];
    last.into_iter().flatten().map(|info| info.end_revision).max()
}

impl Thresholds {
    /// Those of an Etcd: its own, else the controller's.
    pub fn of(etcd: &Etcd, config: &Config) -> Self {
        let own = etcd.spec.backup.snapshot_compaction.as_ref();
        let bytes = own.and_then(|own| own.delta_size_threshold.as_ref());
        let bytes = bytes.or(config.delta_size_threshold.as_ref());
        Self {
            events: own
                .and_then(|own| own.events_threshold)
                .unwrap_or(config.events_threshold),
            bytes: bytes.and_then(|size| quantity::bytes(size).ok()),
            full_snapshot: own
                .and_then(|own| own.trigger_full_snapshot_threshold)
                .unwrap_or(config.trigger_full_snapshot_threshold),
        }
    }
}

/// What to do about a backlog. `awake`: there are members that could take a full snapshot.
pub fn decide(
    backlog: Backlog,
    thresholds: &Thresholds,
    last: Option<&LastRun>,
    awake: bool,
    now: Timestamp,
) -> Decision {
    // The owner may not have noticed yet what was compacted: what a Job has covered isn't done again.
    let done = last.filter(|run| run.succeeded && run.covered > backlog.full);
    let (events, bytes) = match done {
        Some(run) => (backlog.last.saturating_sub(run.covered), None),
        None => (backlog.events, backlog.bytes),
    };
    let too_large = bytes
        .zip(thresholds.bytes)
        .is_some_and(|(size, limit)| size >= limit);
    if events < thresholds.events && !(too_large && events > 0) {
        return Decision::Nothing;
    }
    let failed = last.filter(|run| !run.succeeded);
    let too_slow = failed.is_some_and(|run| run.reason == condition::DEADLINE_EXCEEDED);
    if awake && (events >= thresholds.full_snapshot || too_slow) {
        return Decision::FullSnapshot;
    }
    let Some(run) = failed else {
        return Decision::Compact { attempt: 1 };
    };
    let next = run
        .ended
        .checked_add(pause(run.attempt))
        .unwrap_or(Timestamp::MAX);
    if now < next {
        return Decision::Wait(next);
    }
    Decision::Compact {
        attempt: run.attempt.saturating_add(1),
    }
}

/// Until when a run is remembered; `None`: for as long as the newest full snapshot doesn't hold what it was about.
/// Then its Job only stays to be looked at.
pub fn forget_at(backlog: Backlog, last: &LastRun) -> Option<Timestamp> {
    let held = backlog.full >= last.covered;
    held.then(|| last.ended.checked_add(KEPT).unwrap_or(Timestamp::MAX))
}

/// The pause after a number of failures.
fn pause(failures: u32) -> SignedDuration {
    let doublings = failures.saturating_sub(1).min(10);
    (FIRST_PAUSE * (1 << doublings)).min(LAST_PAUSE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LIMITS: Thresholds = Thresholds {
        events: 100,
        bytes: Some(1000),
        full_snapshot: 300,
    };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn deltas(events: i64, bytes: Option<u64>) -> Backlog {
        Backlog {
            full: 1000,
            last: 1000 + events,
            events,
            bytes,
        }
    }

    fn failed(attempt: u32, reason: &str) -> LastRun {
        LastRun {
            attempt,
            succeeded: false,
            reason: reason.to_owned(),
            ended: at(0),
            covered: 1100,
        }
    }

    fn succeeded(covered: i64) -> LastRun {
        LastRun {
            succeeded: true,
            covered,
            ..failed(1, condition::NONE)
        }
    }

    #[test]
    fn every_row() {
        use Decision::{Compact, FullSnapshot, Nothing, Wait};
        let first = Compact { attempt: 1 };
        let lost = || Some(failed(1, condition::PROCESS_FAILURE));
        let late = || Some(failed(1, condition::DEADLINE_EXCEEDED));
        for (backlog, last, awake, now, want) in [
            (deltas(0, None), None, true, 0, Nothing),
            (deltas(99, Some(999)), None, true, 0, Nothing),
            (deltas(100, None), None, true, 0, first),
            (deltas(1, Some(1000)), None, true, 0, first),
            // Nothing but a size that is told late.
            (deltas(0, Some(1000)), None, true, 0, Nothing),
            (deltas(299, None), None, true, 0, first),
            (deltas(300, None), None, true, 0, FullSnapshot),
            // Nobody is there to take a full snapshot.
            (deltas(300, None), None, false, 0, first),
            (deltas(100, None), lost(), true, 299, Wait(at(300))),
            (deltas(100, None), lost(), true, 300, Compact { attempt: 2 }),
            (deltas(300, None), lost(), true, 0, FullSnapshot),
            (deltas(99, None), lost(), true, 300, Nothing),
            // A chain that was too long for a Job gets longer.
            (deltas(100, None), late(), true, 0, FullSnapshot),
            (deltas(100, None), late(), false, 0, Wait(at(300))),
            // Done, though the owner still tells of the old full snapshot.
            (deltas(150, Some(5000)), Some(succeeded(1100)), true, 0, Nothing),
            (deltas(200, Some(5000)), Some(succeeded(1100)), true, 0, first),
            // Done, and noticed.
            (deltas(100, None), Some(succeeded(900)), true, 0, first),
        ] {
            let decision = decide(backlog, &LIMITS, last.as_ref(), awake, at(now));
            assert_eq!(decision, want, "{backlog:?} {last:?} awake={awake} now={now}");
        }
    }

    /// A failing Job must not be made again and again.
    #[test]
    fn pauses_double_up_to_two_hours() {
        let pauses: Vec<_> = (1..=7).map(|n| pause(n).as_mins()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 120, 120]);
    }

    /// While its Etcd sleeps nobody notices what a Job has compacted: once it was forgotten, it would be done again.
    #[test]
    fn a_run_is_remembered_until_a_full_snapshot_holds_it() {
        for (last, want) in [
            (succeeded(1100), None),
            (succeeded(1000), Some(at(6 * 60 * 60))),
            (failed(3, condition::PROCESS_FAILURE), None),
            (
                LastRun {
                    covered: 900,
                    ..failed(3, condition::PROCESS_FAILURE)
                },
                Some(at(6 * 60 * 60)),
            ),
        ] {
            assert_eq!(forget_at(deltas(150, None), &last), want, "{last:?}");
        }
    }

    fn member(status: &serde_json::Value) -> Arc<EtcdMember> {
        let member = serde_json::from_value(json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdMember",
            "metadata": {"name": "m"}, "status": status,
        }));
        Arc::new(member.unwrap())
    }

    #[test]
    fn the_owner_knows_best() {
        let snapshots = |full: i64, delta: i64| {
            json!({
                "lastFull": {"name": "f", "endRevision": full},
                "lastDelta": {"name": "d", "endRevision": delta},
                "accumulatedDeltaSize": "1Ki",
            })
        };
        let old = member(&json!({"snapshots": snapshots(10, 500)}));
        let owner = member(&json!({"backupOwner": true, "snapshots": snapshots(100, 130)}));
        let found = backlog(&[Arc::clone(&old), owner]).unwrap();
        assert_eq!((found.events, found.bytes), (30, Some(1024)));

        // Asleep: what was known last still holds.
        let older = member(&json!({"snapshots": snapshots(10, 20)}));
        assert_eq!(backlog(&[older, old]).unwrap().events, 490);
    }

    #[test]
    fn without_a_full_snapshot_there_is_nothing_to_compact() {
        let delta = json!({"lastDelta": {"name": "d", "endRevision": 500}});
        for members in [
            vec![],
            vec![member(&json!({}))],
            vec![member(&json!({"backupOwner": true, "snapshots": delta}))],
        ] {
            assert_eq!(backlog(&members), None);
        }
    }

    /// A delta of before the newest full snapshot is part of it.
    #[test]
    fn an_older_delta_is_no_backlog() {
        let snapshots = json!({
            "lastFull": {"name": "f", "endRevision": 500},
            "lastDelta": {"name": "d", "endRevision": 400},
        });
        let found = backlog(&[member(&json!({"backupOwner": true, "snapshots": snapshots}))]);
        assert_eq!(found.unwrap().events, 0);
    }

    #[test]
    fn an_etcds_own_thresholds_win() {
        let etcd = |compaction: serde_json::Value| -> Etcd {
            serde_json::from_value(json!({
                "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd", "metadata": {"name": "m"},
                "spec": {"replicas": 1, "backup": {"snapshotCompaction": compaction}},
            }))
            .unwrap()
        };
        let config = Config::default();
        let default = Thresholds::of(&etcd(json!({})), &config);
        assert_eq!(
            (default.events, default.bytes, default.full_snapshot),
            (1_000_000, None, 3_000_000)
        );
        let own = json!({
            "eventsThreshold": 10, "triggerFullSnapshotThreshold": 20, "deltaSizeThreshold": "1Mi",
        });
        let own = Thresholds::of(&etcd(own), &config);
        assert_eq!(
            (own.events, own.bytes, own.full_snapshot),
            (10, Some(1 << 20), 20)
        );
    }
}
