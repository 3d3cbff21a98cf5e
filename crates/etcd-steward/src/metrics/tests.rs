use etcd_storage::compression::Compression;

use super::*;

/// Dashboards and alerts of etcd-backup-restore's users ask for these names and labels.
#[test]
fn the_names_of_etcd_backup_restore_are_kept() {
    let registry = Registry::default();
    let metrics = Metrics::new(&registry);
    let second = Duration::from_secs(1);
    let name = SnapshotName::full(7, Timestamp::UNIX_EPOCH, Compression::Gzip);
    metrics.snapshot_stored(&name);
    metrics.snapshot_ended(Kind::Delta, false, second);
    metrics.snapshot_failed("Timeout");
    metrics.collected(&Collected {
        fulls: 2,
        ..Collected::default()
    });
    metrics.validated(true, second);
    metrics.restored(true, second);
    metrics.defragmented("http://a:1", true, second);
    metrics.set_owner(true);
    metrics.uncovered(1, Some(Timestamp::UNIX_EPOCH));
    metrics.verified(Kind::Full, true, second);
    metrics.secondary_synced(true, second);
    for step in [Step::AddLearner, Step::Promote, Step::Remove] {
        metrics.stepped(step, true, second);
    }
    operator::metrics::reference::check("the steward", &registry);
    let text = registry.encode().unwrap();
    for line in [
        "etcdbr_snapshot_gc_total{kind=\"Full\",succeeded=\"true\"} 2",
        "etcdbr_snapshot_latest_revision{kind=\"Full\"} 7",
        "etcdbr_snapshot_latest_timestamp{kind=\"Full\"} 0",
        "etcdbr_snapshot_required{kind=\"Incr\"} 1",
        "etcdbr_snapshot_duration_seconds_count{kind=\"Incr\",succeeded=\"false\"} 1",
        "etcdbr_validation_duration_seconds_count{succeeded=\"true\"} 1",
        "etcdbr_restoration_duration_seconds_count{restore=\"single_node\",succeeded=\"true\"} 1",
        "etcdbr_defragmentation_duration_seconds_count{endpoint=\"http://a:1\",succeeded=\"true\"} 1",
        "etcdbr_snapstore_latest_deltas_total 0",
        "etcdbr_snapstore_latest_deltas_revisions_total 0",
        "etcdbr_snapshotter_failure{error=\"Timeout\"} 1",
        "etcdbr_cluster_size 0",
        "etcdbr_is_learner 0",
        "etcdbr_is_learner_count_total{succeeded=\"true\"} 1",
        "etcdbr_add_learner_duration_seconds_count{succeeded=\"true\"} 1",
        "etcdbr_member_remove_duration_seconds_count{succeeded=\"true\"} 1",
        "etcdbr_member_promote_duration_seconds_count{succeeded=\"true\"} 1",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is missing in\n{text}"
        );
    }
    for name in [
        "etcdbr_network_transmitted_bytes ",
        "etcdbr_network_received_bytes ",
    ] {
        assert!(text.contains(name), "{name} is missing");
    }
}

/// What a steward knew of the backups while it owned them says nothing any more: it would be an alarm for ever.
#[test]
fn who_doesnt_own_the_backups_reports_nothing_of_them() {
    let registry = Registry::default();
    let metrics = Metrics::new(&registry);
    let from_the_start = registry.encode().unwrap();
    metrics.set_owner(true);
    metrics.uncovered(10, Some(Timestamp::UNIX_EPOCH));
    metrics.set_watch_behind(3);
    metrics.set_chain_whole(true);
    metrics.set_keys_collapsed(true);
    metrics.snapshot_stored(&SnapshotName::full(7, Timestamp::UNIX_EPOCH, Compression::Gzip));
    metrics.secondary_synced.set(Some(1));
    metrics.locked.set(2);
    metrics.deltas.set(4);
    metrics.delta_revisions.set(40);
    let owned = registry.encode().unwrap();
    metrics.forget_backups();
    let without_traffic = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with("etcdbr_network"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_ne!(without_traffic(&owned), without_traffic(&from_the_start));
    let disowned = registry.encode().unwrap();
    assert_eq!(without_traffic(&disowned), without_traffic(&from_the_start));
    for line in [
        "etcdbr_snapshot_required{kind=\"Full\"} 0",
        "etcdbr_uncovered_revisions 0",
        "etcdbr_snapshot_gc_total{kind=\"Chunk\",succeeded=\"false\"} 0",
        "etcdbr_snapshot_duration_seconds_count{kind=\"Incr\",succeeded=\"false\"} 0",
        "etcdbr_validation_duration_seconds_count{succeeded=\"false\"} 0",
    ] {
        assert!(
            disowned.lines().any(|found| found == line),
            "{line} is missing in\n{disowned}"
        );
    }
    assert!(disowned.contains("etcdbr_build_info{component=\"etcd-steward\","));
    assert!(!disowned.contains("\netcdbr_backup_covered_timestamp_seconds "));
}
