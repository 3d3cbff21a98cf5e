//! Data that is lost and comes back: leases, users, more history than the quota allows, and what is told of it all.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use e2e::store::S3;
use etcd_client::{Client, CompactionOptions, ConnectOptions, PutOptions};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    deltas::restores_equal,
    faults::Proxy,
    rig::{Rig, Setup, last_revision, revisions},
    signing::manifest,
};

/// A key that hangs on a lease of so many seconds.
async fn put_leased(client: &mut Client, key: &str, ttl: i64) -> anyhow::Result<i64> {
    let lease = client.lease_grant(ttl, None).await?.id();
    let put = client
        .put(key, "leased", Some(PutOptions::new().with_lease(lease)))
        .await?;
    Ok(put.header().context("a header")?.revision())
}

/// What the member tells about itself.
async fn status(rig: &Rig) -> anyhow::Result<Value> {
    Ok(rig.members[0].call("GET", "/member").await?.1)
}

/// RES-02: leases that run out while their deltas are taken don't disturb a restore: each revision is there, once.
#[tokio::test]
async fn res_02_leases_that_run_out_are_restored_exactly() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::single()).await?;
    rig.until_covered(1).await?;
    let mut client = rig.client().await?;
    for number in 0..60 {
        put_leased(&mut client, &format!("/short/{number}"), 2 + number % 7).await?;
        put_leased(&mut client, &format!("/long/{number}"), 600).await?;
    }
    let mut restores = 0;
    rig.until("all short leases have run out", async || {
        let gone = rig.members[0].count("/short/").await? == 0;
        ensure!(gone, "some are left");
        Ok(())
    })
    .await?;
    let last = rig.put("/after/", 1).await?;
    while restores < 3 {
        let stored = rig.stored()?;
        let end = stored.iter().map(|name| revisions(name).1).max();
        let records = rig.restored()?;
        let reached = last_revision(&records);
        ensure!(reached >= end, "restored to {reached:?} of {end:?}");
        restores += 1;
    }
    rig.until_covered(last).await?;
    let deltas = rig.stored()?.len() - 1;
    ensure!(deltas > 3, "the leases ran out within {deltas} deltas");
    restores_equal(&mut rig).await
}

/// RES-03: a lease that only a delta knows comes back, and runs out.
#[tokio::test]
async fn res_03_restored_leases_run_out() -> anyhow::Result<()> {
    const TTL: i64 = 15;
    let mut rig = Rig::start(Setup::single()).await?;
    rig.until_covered(1).await?;
    let revision = put_leased(&mut rig.client().await?, "/leased", TTL).await?;
    rig.until_covered(revision).await?;
    rig.lose_all().await?;
    let begun = Instant::now();
    ensure!(
        rig.members[0].count("/leased").await? == 1,
        "the key wasn't restored"
    );
    rig.until("the lease has run out", async || {
        ensure!(rig.members[0].count("/leased").await? == 0);
        Ok(())
    })
    .await?;
    ensure!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    Ok(())
}

/// RES-04: with authentication on, what was written is restored, and so is the lock on the door.
#[tokio::test]
async fn res_04_authentication_is_no_obstacle() -> anyhow::Result<()> {
    let mut rig = Rig::start_locked(Setup::single()).await?;
    rig.full_snapshot().await?;
    let url = rig.members[0].client_url();
    let root = async || {
        let options = ConnectOptions::new().with_user("root", "secret");
        Client::connect([&url], Some(options)).await
    };
    let put = root().await?.put("/kept", "value", None).await?;
    rig.until_covered(put.header().context("a header")?.revision())
        .await?;
    rig.kill_all();
    rig.members[0].wipe()?;
    rig.start_all()?;
    rig.until("the value is there again", async || {
        let read = root().await?.get("/kept", None).await?;
        ensure!(read.count() == 1);
        Ok(())
    })
    .await?;
    let refused = rig.client().await?.get("/kept", None).await;
    let error = refused.err().context("anybody may read")?.to_string();
    ensure!(error.contains("user name is empty"), "{error}");
    Ok(())
}

/// RES-05: deltas hold more history than the quota allows at once; the restored cluster takes writes all the same.
#[tokio::test]
async fn res_05_more_history_than_the_quota_is_restored() -> anyhow::Result<()> {
    const QUOTA: i64 = 64 << 20;
    let mut setup = Setup::single();
    setup.options = json!({"quota-backend-bytes": QUOTA});
    let mut rig = Rig::start(setup).await?;
    rig.until_covered(1).await?;
    for _ in 0..5 {
        let revision = rig.fill("/large/", 24).await?;
        rig.until_covered(revision).await?;
        let physical = Some(CompactionOptions::new().with_physical());
        rig.client().await?.compact(revision, physical).await?;
        let (status, answer) = rig.members[0].call("POST", "/maintenance/defrag").await?;
        ensure!(status == 200, "{status}: {answer}");
    }
    ensure!(rig.fulls()?.len() == 1, "{:?}", rig.fulls()?);
    let before = rig.members[0].count("/large/").await?;
    rig.lose_all().await?;
    rig.until("there is room for a write", async || {
        rig.client().await?.put("/after", "x", None).await?;
        Ok(())
    })
    .await?;
    ensure!(
        rig.members[0].count("/large/").await? == before,
        "keys are missing"
    );
    rig.until("the database is small", async || {
        let size = rig.members[0].db_size().await?;
        ensure!(size < QUOTA, "{size}");
        Ok(())
    })
    .await
}

/// RES-08: what a file system keeps in the root of a volume is no obstacle, and is left alone.
#[tokio::test]
async fn res_08_a_volume_with_lost_and_found_is_restored() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::single()).await?;
    let revision = rig.put("/kept/", 10).await?;
    rig.until_covered(revision).await?;
    rig.kill_all();
    rig.members[0].wipe()?;
    let found = rig.members[0].volume().join("lost+found");
    fs::create_dir(&found)?;
    rig.start_all()?;
    rig.until_ready().await?;
    ensure!(rig.members[0].count("/kept/").await? == 10, "keys are missing");
    ensure!(found.is_dir());
    Ok(())
}

/// RES-10: the newest backup is bad: the member waits and names it, and what somebody then chooses to do without is what
/// is done without.
#[tokio::test]
async fn res_10_a_bad_newest_backup_is_named_and_waited_for() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::single()).await?;
    let revision = rig.put("/kept/", 10).await?;
    rig.until_covered(revision).await?;
    // Not of the same revision as the first one.
    rig.put("/after/", 1).await?;
    rig.full_snapshot().await?;
    rig.kill_all();
    rig.members[0].wipe()?;
    let newest = rig.fulls()?.pop().context("a full snapshot")?;
    let path = rig.store().join("v2").join(&newest);
    let size = fs::metadata(&path)?.len();
    fs::File::options().write(true).open(&path)?.set_len(size / 2)?;
    rig.start_all()?;
    rig.until("the bad one is named", async || {
        let told = status(&rig).await?["conditions"].to_string();
        ensure!(told.contains(&newest), "{told}");
        Ok(())
    })
    .await?;
    ensure!(
        !rig.members[0].data_dir().join("member").exists(),
        "it began without its data"
    );
    fs::rename(&path, rig.store().join("set-aside"))?;
    rig.until_ready().await?;
    let (count, told) = (rig.members[0].count("/kept/").await?, status(&rig).await?);
    ensure!(
        count == 10,
        "{count} of 10 keys: {}, from {:?}",
        told["lastRestoration"],
        rig.stored()?
    );
    Ok(())
}

/// A damaged newest full snapshot, of which older objects have every revision, keeps nobody waiting: what they have is
/// restored, and the message says what was left out.
#[tokio::test]
async fn a_damaged_full_that_others_cover_is_gone_around() -> anyhow::Result<()> {
    for damage in ["flipped", "empty"] {
        let mut rig = Rig::start(Setup::single()).await?;
        rig.until_covered(1).await?;
        rig.until_covered(rig.put("/kept/", 10).await?).await?;
        sleep(Duration::from_secs(1)).await;
        rig.full_snapshot().await?;
        let fulls = rig.stored()?.into_iter().filter(|name| name.starts_with("Full-"));
        let newest = fulls
            .max_by_key(|name| revisions(name).1)
            .context("a full snapshot")?;
        rig.kill_all();
        rig.members[0].wipe()?;
        let path = rig.store().join("v2").join(&newest);
        let mut bytes = fs::read(&path)?;
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        if damage == "empty" {
            bytes.clear();
        }
        fs::write(&path, bytes)?;
        rig.start_all()?;
        rig.until_ready().await?;
        ensure!(rig.members[0].count("/kept/").await? == 10, "{damage}");
        let told = status(&rig).await?["lastRestoration"]["message"].to_string();
        println!("{damage}: {told}");
        ensure!(
            told.contains(&format!("without snapshot {newest}")),
            "{damage}: {told}"
        );
    }
    Ok(())
}

/// BOOT-12: where all snapshots are gone and their manifests aren't, there has been a cluster: none is begun in its place.
#[tokio::test]
async fn boot_12_manifests_alone_are_no_empty_store() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::single()).await?;
    rig.until_covered(rig.put("/kept/", 5).await?).await?;
    rig.full_snapshot().await?;
    rig.kill_all();
    rig.members[0].wipe()?;
    for name in rig.stored()? {
        fs::remove_file(rig.store().join("v2").join(name))?;
    }
    rig.start_all()?;
    rig.until("it is told", async || {
        let (reason, message) = rig.members[0].condition("Initialized").await?;
        ensure!(
            reason == "RestorationFailed" || reason == "ChainDamaged",
            "{reason}: {message}"
        );
        Ok(())
    })
    .await?;
    ensure!(
        !rig.members[0].data_dir().join("member").exists(),
        "it began without its data"
    );
    Ok(())
}

/// QUO-09: a cluster that comes from a backup has the members that are wanted, and none of those that the backup knows,
/// such as a learner that never voted.
#[tokio::test]
async fn quo_09_a_recovered_cluster_has_one_voter_and_no_learner() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::single()).await?;
    let mut client = rig.client().await?;
    let learner = etcd_client::MemberAddOptions::new().with_is_learner();
    client.member_add(["http://127.0.0.1:9"], Some(learner)).await?;
    let last = rig.put("/kept/", 5).await?;
    rig.full_snapshot().await?;
    rig.until_covered(last).await?;
    let before = rig.hash().await?;
    rig.lose_all_and_keep_revision().await?;
    let listed = rig.client().await?.member_list().await?;
    let names: Vec<_> = listed
        .members()
        .iter()
        .map(|member| (member.name(), member.is_learner()))
        .collect();
    ensure!(names == [(rig.members[0].name.as_str(), false)], "{names:?}");
    ensure!(rig.hash().await? == before);
    rig.put("/after/", 1).await?;
    Ok(())
}

/// RES-16: what was restored, from what, and what is lost, is told; and it is what the manifest says.
#[tokio::test]
async fn res_16_what_was_restored_is_told() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::single()).await?;
    for round in 0..3 {
        let revision = rig.put(&format!("/round-{round}/"), 5).await?;
        rig.until_covered(revision).await?;
    }
    let (stored, before) = (rig.stored()?, rig.hash().await?);
    rig.lose_all_and_keep_revision().await?;
    let told = status(&rig).await?["lastRestoration"].clone();
    ensure!(
        told["status"] == "Success" && told["type"] == "FromSnapshot",
        "{told}"
    );
    ensure!(
        told["revision"] == before.0 && told["snapshot"] == stored[0],
        "{told}"
    );
    let deltas = stored.len() - 1;
    let since = told["coveredUntil"].as_str().context("a time")?;
    ensure!(told["deltas"] == deltas && !since.is_empty(), "{told}");
    let message = told["message"].as_str().context("a message")?;
    let deltas = format!("{} deltas", stored.len() - 1);
    ensure!(
        message.contains(&deltas) && message.contains("is lost"),
        "{message}"
    );
    ensure!(rig.hash().await? == before);
    // Of a full snapshot alone the manifest tells the number of keys as well.
    rig.full_snapshot().await?;
    let full = rig.fulls()?.last().context("a full snapshot")?.clone();
    let said = manifest(&rig, &full)?;
    ensure!(said["keys"] == 15, "{said}");
    rig.lose_all().await?;
    rig.until("the keys are counted", async || {
        let told = status(&rig).await?["lastRestoration"].clone();
        ensure!(told["snapshot"] == full && told["deltas"] == 0, "{told}");
        ensure!(told["keys"] == said["keys"], "{told}");
        ensure!(told["snapshotSHA256"] == said["sha256"], "{told}, {said}");
        Ok(())
    })
    .await
}

/// RES-17: a restore that takes its time shows how far it is.
#[tokio::test]
async fn res_17_progress_is_shown() -> anyhow::Result<()> {
    let mut rig = Rig::start(Setup::single()).await?;
    rig.until_covered(1).await?;
    for round in 0..8 {
        let revision = rig.fill(&format!("/large/{round}/"), 12).await?;
        rig.until_covered(revision).await?;
    }
    rig.kill_all();
    rig.members[0].wipe()?;
    rig.start_all()?;
    let (mut seen, mut percents) = (BTreeSet::new(), Vec::new());
    let begun = Instant::now();
    let restored = loop {
        ensure!(begun.elapsed() < Duration::from_mins(1), "{seen:?}");
        if let Ok(told) = status(&rig).await {
            let progress = &told["initialization"];
            let message = progress["message"].as_str().unwrap_or_default();
            if message.starts_with("restores") && seen.insert(message.to_owned()) {
                percents.extend(progress["progressPercent"].as_i64());
            }
            if told["lastRestoration"]["status"] == "Success" {
                break told;
            }
        }
        sleep(Duration::from_millis(5)).await;
    };
    ensure!(seen.len() >= 3, "{seen:?}: {restored}");
    ensure!(percents.is_sorted(), "{percents:?}");
    rig.until_ready().await
}

/// RES-17: however slowly the store gives its objects, how far the restore is moves on at least every ten seconds.
#[tokio::test]
async fn store_s3_res_17_progress_moves_with_a_slow_store() -> anyhow::Result<()> {
    const RATE: u64 = 96 << 10;
    let server = S3::running();
    let proxy = Proxy::start_for(0, server.address()?).await?;
    let mut setup = Setup::single();
    setup.backup["store"] = json!({
        "provider": "S3", "container": server.file("bucket")?, "prefix": format!("test/{:032x}/t1", rand::random::<u128>()),
        "endpointOverride": format!("http://127.0.0.1:{}", proxy.port),
    });
    let mut rig = Rig::new(setup)?;
    rig.members[0].set_env(
        "AWS_APPLICATION_CREDENTIALS",
        server.secret().to_string_lossy().into_owned(),
    );
    rig.start_all()?;
    rig.until_ready().await?;
    rig.fill("/large/", 10).await?;
    rig.full_snapshot().await?;
    let before = rig.hash().await?;
    rig.kill_all();
    rig.members[0].wipe()?;
    rig.keep_revision()?;
    proxy.limit_back(RATE);
    rig.start_all()?;
    let (mut moves, mut seen) = (0, String::new());
    let (begun, mut last) = (Instant::now(), Instant::now());
    loop {
        ensure!(
            begun.elapsed() < Duration::from_mins(3),
            "it takes too long: {seen}"
        );
        ensure!(
            last.elapsed() < Duration::from_secs(10),
            "nothing has moved since {seen:?}"
        );
        if let Ok(told) = status(&rig).await {
            if told["lastRestoration"]["status"] == "Success" {
                break;
            }
            let message = told["initialization"]["message"].as_str().unwrap_or_default();
            if message != seen {
                (moves, last) = (moves + 1, Instant::now());
                message.clone_into(&mut seen);
            }
        }
        sleep(Duration::from_millis(200)).await;
    }
    ensure!(
        begun.elapsed() > Duration::from_secs(20) && moves > 5,
        "{moves} moves"
    );
    proxy.limit_back(u64::MAX);
    rig.until_ready().await?;
    ensure!(rig.hash().await? == before);
    Ok(())
}
