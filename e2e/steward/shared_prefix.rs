//! A prefix with the backups of somebody else: nothing is added to a chain that isn't shown to be ours, and of two clusters
//! that store their backups in one place the later one leaves.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    backups::Writer,
    member::{Member, run},
    rig::{Rig, Setup, last_revision, restored_from, revisions, stored_in},
    s3_stub::Stub,
};

/// What an etcd-backup-restore wrote, which writes no manifests: revisions 1 to 57.
const FOREIGN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../crates/etcd-storage/tests/fixtures/gzip-basic/store/v2"
);

/// One member of an Etcd with this UID, without backups.
async fn cluster(uid: &'static str, prefix: &str, keys: usize) -> anyhow::Result<Rig> {
    let mut rig = Rig::new(Setup {
        backup: Value::Null,
        ..Setup::single()
    })?;
    rig.make_anew(uid)?;
    rig.start_all()?;
    rig.until_ready().await?;
    if keys > 0 {
        rig.put(prefix, keys).await?;
    }
    Ok(rig)
}

fn backup(period: &str) -> Value {
    json!({
        "deltaSnapshotPeriod": period, "fullSnapshotSchedule": "0 0 1 1 *", "maxBackupsLimitBasedGC": 1,
        "garbageCollectionPeriod": "1s",
    })
}

/// Gives a cluster its backups, in a folder or by a server over it.
fn back_up(rig: &mut Rig, folder: &Path, stub: Option<&Stub>, mut backup: Value) -> anyhow::Result<()> {
    backup["store"] = match stub {
        Some(stub) => stub.store(),
        None => json!({"provider": "Local", "container": folder, "prefix": ""}),
    };
    rig.change_backup(backup)?;
    for member in &mut rig.members {
        if let Some(stub) = stub {
            member.set_env("AWS_APPLICATION_CREDENTIALS", stub.credentials());
        }
        member.kill_steward();
        member.start_steward()?;
    }
    Ok(())
}

fn copy_into(store: &Path, from: &Path, wanted: impl Fn(&str) -> bool) -> anyhow::Result<Vec<String>> {
    let folder = store.join("v2");
    fs::create_dir_all(&folder)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if wanted(&name) {
            fs::copy(entry.path(), folder.join(&name))?;
            names.push(name);
        }
    }
    Ok(names)
}

/// What was stored besides `foreign` begins with a full snapshot, and what is restored is all that the cluster has.
async fn has_a_chain_of_its_own(rig: &Rig, foreign: &[String], reason: &str) -> anyhow::Result<()> {
    let last = rig.put("/after/", 5).await?;
    rig.until_covered(last).await?;
    let own: Vec<_> = rig
        .stored()?
        .into_iter()
        .filter(|name| !foreign.contains(name))
        .collect();
    let first = own.first().context("nothing was stored")?;
    ensure!(
        first.starts_with("Full-"),
        "{first} was added to what isn't ours: {own:?}"
    );
    let log = rig.members[0].log();
    ensure!(log.contains(reason), "{log}");
    let records = restored_from(&rig.store())?;
    let reached = last_revision(&records);
    ensure!(
        reached == Some(last),
        "restored up to {reached:?}, written up to {last}"
    );
    let keys = rig.members[0].count("").await?;
    let restored = crate::backups::live(&records).len();
    ensure!(
        i64::try_from(restored)? == keys,
        "{restored} keys are restored, {keys} are there"
    );
    println!("{reason}: {} is stored beside {foreign:?}", own[0]);
    Ok(())
}

/// A cluster at revision 66, and a prefix that ends before that with what an etcd-backup-restore stored of another one.
#[tokio::test]
async fn backups_without_manifests_are_not_continued() -> anyhow::Result<()> {
    for served in [false, true] {
        let mut rig = cluster("u-1", "/own/", 65).await?;
        let store = rig.store();
        let foreign = copy_into(&store, Path::new(FOREIGN), |_| true)?;
        let stub = if served {
            Some(Stub::start(&store).await?)
        } else {
            None
        };
        back_up(&mut rig, &store, stub.as_ref(), Setup::default().backup)?;
        has_a_chain_of_its_own(&rig, &foreign, "HistoryUnproven").await?;
    }
    Ok(())
}

/// The same of a full snapshot alone, with and without its manifest.
#[tokio::test]
async fn a_full_snapshot_of_another_cluster_is_not_continued() -> anyhow::Result<()> {
    let mut other = cluster("u-2", "/other/", 20).await?;
    let store = other.store();
    back_up(&mut other, &store, None, Setup::default().backup)?;
    other.until_covered(21).await?;
    for with_manifest in [false, true] {
        let mut rig = cluster("u-1", "/own/", 65).await?;
        let wanted =
            |name: &str| name.starts_with("Full-") || with_manifest && name.starts_with("Manifest-Full-");
        let foreign = copy_into(&rig.store(), &store.join("v2"), wanted)?;
        ensure!(foreign.iter().any(|name| revisions(name).1 == 21), "{foreign:?}");
        let store = rig.store();
        back_up(&mut rig, &store, None, Setup::default().backup)?;
        let reason = if with_manifest {
            "HistoryDiffers"
        } else {
            "HistoryUnproven"
        };
        has_a_chain_of_its_own(&rig, &foreign, reason).await?;
    }
    Ok(())
}

/// The store's content is another one all of a sudden, as when the credentials lead to another bucket: the next delta
/// doesn't follow what isn't there.
#[tokio::test]
async fn a_store_whose_content_changes_gets_a_new_chain() -> anyhow::Result<()> {
    for served in [false, true] {
        let mut rig = cluster("u-1", "/own/", 65).await?;
        let store = rig.store();
        let stub = if served {
            Some(Stub::start(&store).await?)
        } else {
            None
        };
        back_up(&mut rig, &store, stub.as_ref(), Setup::default().backup)?;
        rig.put("/kept/", 3).await?;
        rig.until("all of it counts as stored", async || {
            let told = rig.members[0].backup_status().await?;
            ensure!(
                told.last_full.is_some() && told.uncovered_revisions == 0,
                "{told:?}"
            );
            Ok(())
        })
        .await?;
        fs::rename(store.join("v2"), store.join("v2-aside"))?;
        let foreign = copy_into(&store, Path::new(FOREIGN), |_| true)?;
        rig.until("the change is noticed", async || {
            ensure!(rig.members[0].log().contains("SnapshotMissing"));
            Ok(())
        })
        .await?;
        has_a_chain_of_its_own(&rig, &foreign, "HistoryUnproven").await?;
    }
    Ok(())
}

async fn error_of(member: &Member) -> anyhow::Result<(String, String)> {
    let error = member.backup_status().await?.error.context("no error")?;
    Ok((error.reason, error.message))
}

async fn stops(rig: &Rig) -> anyhow::Result<()> {
    rig.until("the later one stops", async || {
        let ready = rig.members[0].condition("BackupReady").await?;
        let error = error_of(&rig.members[0]).await?;
        ensure!(
            ready.0 == "PrefixInUse" && error.0 == "PrefixInUse",
            "{ready:?} {error:?}"
        );
        ensure!(error.1.contains("spec.backup.store.prefix"), "{error:?}");
        Ok(())
    })
    .await?;
    let counted = rig.members[0]
        .metric("etcdbr_snapshotter_failure{error=\"PrefixInUse\"}")
        .await?;
    ensure!(counted >= 1.0, "{counted}");
    println!("{:?}", error_of(&rig.members[0]).await?);
    Ok(())
}

/// Two clusters, one prefix, and the first one has nothing to store: it answers, the later one stops, and both can be
/// restored, each to what it was.
#[tokio::test]
async fn two_clusters_with_one_prefix_notice_each_other() -> anyhow::Result<()> {
    const PERIOD: Duration = Duration::from_secs(3);
    for served in [false, true] {
        let mut first = cluster("u-1", "/first/", 10).await?;
        let store = first.store();
        let stub = if served {
            Some(Stub::start(&store).await?)
        } else {
            None
        };
        back_up(&mut first, &store, stub.as_ref(), backup("3s"))?;
        first.until_covered(11).await?;
        let of_first = stored_in(&store)?;

        let mut later = cluster("u-2", "/later/", 50).await?;
        // Whatever stored its newest snapshot a moment ago is obviously alive.
        sleep(2 * PERIOD).await;
        back_up(&mut later, &store, stub.as_ref(), backup("3s"))?;
        later
            .until("the later one has stored something", async || {
                ensure!(stored_in(&store)?.iter().any(|name| revisions(name).1 == 51));
                Ok(())
            })
            .await?;
        let begun = Instant::now();
        stops(&later).await?;
        println!(
            "noticed after {:?}, with a delta period of {PERIOD:?}",
            begun.elapsed()
        );
        ensure!(
            first.members[0].log().contains("PrefixShared"),
            "{}",
            first.members[0].log()
        );

        // The first one goes on, and what it had stays until its own retention takes it.
        let last = first.put("/more/", 5).await?;
        first
            .until("the first one goes on", async || {
                let told = first.members[0].backup_status().await?;
                ensure!(told.error.is_none() && told.uncovered_revisions == 0, "{told:?}");
                ensure!(told.last_delta.context("a delta")?.end_revision == last);
                Ok(())
            })
            .await?;
        later.put("/unstored/", 5).await?;
        sleep(2 * PERIOD).await;
        let stored = stored_in(&store)?;
        let of_later: Vec<_> = stored.iter().filter(|name| revisions(name).1 >= 51).collect();
        ensure!(of_later.len() == 1, "{stored:?} after {of_first:?}");
        stops(&later).await?;

        each_restores_to_what_it_was(&mut first, &store, of_later[0]).await?;
    }
    Ok(())
}

async fn each_restores_to_what_it_was(first: &mut Rig, store: &Path, of_later: &str) -> anyhow::Result<()> {
    let to = tempfile::tempdir()?;
    let data_dir = to.path().join("later.etcd").to_string_lossy().into_owned();
    let container = store.to_string_lossy();
    let from = ["--store-provider=Local", "--store-container", &container];
    run(&[
        &["restore"],
        &from[..],
        &["--snapshot", of_later, "--data-dir", &data_dir],
    ]
    .concat())?;
    let dumped = String::from_utf8(run(&["dump", "--data-dir", &data_dir])?.stdout)?;
    ensure!(dumped.lines().count() == 50, "{dumped}");
    let data_dir = to.path().join("first.etcd").to_string_lossy().into_owned();
    run(&[
        &["restore"],
        &from[..],
        &["--etcd-uid=u-1", "--data-dir", &data_dir],
    ]
    .concat())?;
    let dumped = String::from_utf8(run(&["dump", "--data-dir", &data_dir])?.stdout)?;
    ensure!(dumped.lines().count() == 15, "{dumped}");
    let before = first.members[0].count("").await?;
    first.lose_all().await?;
    let (after, others) = (
        first.members[0].count("").await?,
        first.members[0].count("/later/").await?,
    );
    ensure!(
        (after, others) == (before, 0),
        "{before} keys were there, {after} are restored, {others} of the other cluster"
    );
    Ok(())
}

/// The first one stores something all the time: the later one doesn't even begin.
#[tokio::test]
async fn a_prefix_that_is_in_use_is_left_alone() -> anyhow::Result<()> {
    let mut first = cluster("u-1", "/first/", 10).await?;
    let store = first.store();
    back_up(&mut first, &store, None, Setup::default().backup)?;
    first.until_covered(11).await?;
    let writer = Writer::start(&first, Duration::from_millis(20)).await?;
    let fulls = first.fulls()?;
    let mut later = cluster("u-2", "/later/", 50).await?;
    back_up(&mut later, &store, None, backup("5s"))?;
    stops(&later).await?;
    let (last, _) = writer.end().await?;
    first.until_covered(last).await?;
    ensure!(first.fulls()? == fulls, "{:?}", stored_in(&store)?);
    crate::backups::check_chain(&first, last).await
}
