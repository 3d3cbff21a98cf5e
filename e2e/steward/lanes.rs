//! Deltas and full snapshots on a slow way to the store: neither waits for the other.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use e2e::store::S3;
use serde_json::{Value, json};
use snapstore::{Environment, Kind, Provider, SnapStore, SnapshotName, StoreConfig};
use tokio::time::sleep;

use crate::{
    backups::Writer,
    faults::Proxy,
    rig::{Rig, Setup},
};

/// Bytes a second to the store.
const RATE: u64 = 256 << 10;
/// Mebibytes of the database, which don't compress: more than the rate carries in ten seconds.
const SIZE: usize = 3;

/// One member whose store is behind a proxy, and the direct way to that store.
struct SlowStore {
    rig: Rig,
    proxy: Proxy,
    config: StoreConfig,
    store: Arc<dyn SnapStore>,
}

impl SlowStore {
    async fn start(mut setup: Setup) -> anyhow::Result<Self> {
        let server = S3::running();
        let proxy = Proxy::start_for(0, server.address()?).await?;
        let secret = server.secret().to_string_lossy().into_owned();
        let variable = [("AWS_APPLICATION_CREDENTIALS", secret.as_str())];
        let config = StoreConfig {
            endpoint: Some(server.file("endpoint")?),
            allow_http: true,
            environment: Environment::from_iter(variable),
            ..StoreConfig::new(Provider::S3, server.file("bucket")?, new_prefix())
        };
        setup.backup["store"] = spec(&config, &proxy);
        let mut rig = Rig::new(setup)?;
        for member in &mut rig.members {
            member.set_env("AWS_APPLICATION_CREDENTIALS", secret.clone());
        }
        rig.start_all()?;
        rig.until_ready().await?;
        let store = config.open()?;
        let this = Self {
            rig,
            proxy,
            config,
            store,
        };
        let revision = this.rig.fill("/large/", SIZE).await?;
        this.until_covered(revision).await?;
        Ok(this)
    }

    /// Has the steward begin from nothing under another prefix.
    fn move_on(&mut self) -> anyhow::Result<()> {
        self.config.prefix = new_prefix();
        self.store = self.config.open()?;
        let mut backup = Setup::default().backup;
        backup["store"] = spec(&self.config, &self.proxy);
        self.rig.change_backup(backup)?;
        self.rig.members[0].kill_steward();
        self.rig.members[0].start_steward()
    }

    async fn names(&self) -> anyhow::Result<Vec<SnapshotName>> {
        let listing = self.store.list().await?;
        Ok(listing.snapshots.into_iter().map(|stored| stored.name).collect())
    }

    async fn fulls(&self) -> anyhow::Result<Vec<SnapshotName>> {
        let mut names = self.names().await?;
        names.retain(|name| name.kind == Kind::Full);
        Ok(names)
    }

    async fn until_covered(&self, revision: i64) -> anyhow::Result<()> {
        let what = format!("revision {revision} is stored");
        let is_stored = async || {
            let names = self.names().await?;
            ensure!(restorable(&names) >= revision, "{names:?}");
            Ok(())
        };
        self.rig.until(&what, is_stored).await
    }

    /// Looks at the store again and again until a work is done.
    async fn while_under_way(
        &self,
        writer: &Writer,
        work: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<Seen> {
        let (begun, before) = (Instant::now(), self.names().await?);
        let mut seen = Seen::default();
        let mut written = VecDeque::new();
        let look = async {
            loop {
                let names = self.names().await?;
                let covered = restorable(&names);
                written.push_back((writer.revision(), Instant::now()));
                while written.front().is_some_and(|(revision, _)| *revision <= covered) {
                    written.pop_front();
                }
                let oldest = written.front().map_or(Duration::ZERO, |(_, at)| at.elapsed());
                seen.uncovered = seen.uncovered.max(oldest);
                let count = |kind| {
                    let new = names.iter().filter(|name| !before.contains(name));
                    new.filter(|name| name.kind == kind).count()
                };
                (seen.fulls, seen.deltas) = (count(Kind::Full), count(Kind::Delta));
                sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            never = look => return never,
            done = work => done?,
        }
        seen.took = begun.elapsed();
        Ok(seen)
    }

    /// No revision is missing behind the oldest full snapshot, and what comes back from the store is what was there.
    async fn check(&mut self, writer: Writer) -> anyhow::Result<()> {
        self.proxy.limit_all(u64::MAX);
        let (last, _) = writer.end().await?;
        self.until_covered(last).await?;
        let names = self.names().await?;
        let oldest = names.iter().find(|name| name.kind == Kind::Full);
        let mut end = oldest.context("a full snapshot")?.last_revision;
        for delta in names.iter().filter(|name| name.kind == Kind::Delta) {
            let follows = delta.last_revision <= end || delta.start_revision <= end + 1;
            ensure!(follows, "{delta} doesn't follow revision {end}: {names:?}");
            end = end.max(delta.last_revision);
        }
        let before = self.keys().await?;
        self.rig.lose_all().await?;
        let after = self.keys().await?;
        ensure!(
            before == after,
            "{} keys were there, {} are",
            before.len(),
            after.len()
        );
        Ok(())
    }

    /// Keys with the revisions of their last changes.
    async fn keys(&self) -> anyhow::Result<Vec<(Vec<u8>, i64)>> {
        let options = etcd_client::GetOptions::new().with_all_keys().with_keys_only();
        let answer = self.rig.client().await?.get("", Some(options)).await?;
        let keys = answer.kvs().iter();
        Ok(keys.map(|kv| (kv.key().to_vec(), kv.mod_revision())).collect())
    }
}

/// What was seen while something was under way.
#[derive(Debug, Default)]
struct Seen {
    took: Duration,
    /// The longest time for which something that was written couldn't have been restored.
    uncovered: Duration,
    fulls: usize,
    deltas: usize,
}

/// etcd keeps five seconds of history: less than a full snapshot takes.
fn short_history() -> Setup {
    Setup {
        options: json!({"auto-compaction-mode": "periodic", "auto-compaction-retention": "5s"}),
        ..Setup::single()
    }
}

fn new_prefix() -> String {
    format!("test/{:032x}/t1", rand::random::<u128>())
}

fn spec(config: &StoreConfig, proxy: &Proxy) -> Value {
    json!({
        "provider": "S3", "container": config.container, "prefix": config.prefix,
        "endpointOverride": format!("http://127.0.0.1:{}", proxy.port),
    })
}

/// The last revision that can be restored without a gap.
fn restorable(names: &[SnapshotName]) -> i64 {
    let fulls = names.iter().filter(|name| name.kind == Kind::Full);
    let mut end = fulls.map(|name| name.last_revision).max().unwrap_or(0);
    // They come in the order of their last revisions.
    for delta in names.iter().filter(|name| name.kind == Kind::Delta) {
        if end > 0 && delta.start_revision <= end + 1 {
            end = end.max(delta.last_revision);
        }
    }
    end
}

/// A full snapshot takes more than ten seconds, and every second a delta is stored all the same.
#[tokio::test]
async fn store_s3_deltas_dont_wait_for_a_full_snapshot() -> anyhow::Result<()> {
    let mut slow = SlowStore::start(Setup::single()).await?;
    let writer = Writer::start(&slow.rig, Duration::from_millis(20)).await?;
    slow.proxy.limit_all(RATE);
    let full = async {
        let (status, answer) = slow.rig.members[0].call("POST", "/snapshot/full").await?;
        ensure!(status == 200, "{status}: {answer}");
        Ok(())
    };
    let seen = slow.while_under_way(&writer, full).await?;
    println!("while a full snapshot is stored: {seen:?}");
    ensure!(
        seen.took > Duration::from_secs(10),
        "the store wasn't slow: {seen:?}"
    );
    ensure!(seen.deltas >= 5, "deltas waited: {seen:?}");
    ensure!(seen.uncovered < seen.took / 2, "{seen:?}");
    slow.check(writer).await
}

/// A full snapshot takes longer than etcd keeps history: it is taken once, whatever was written meanwhile is stored, and the
/// chain goes on behind it.
#[tokio::test]
async fn store_s3_a_full_snapshot_that_outlasts_the_history_is_enough() -> anyhow::Result<()> {
    let mut slow = SlowStore::start(short_history()).await?;
    let writer = Writer::start(&slow.rig, Duration::from_millis(20)).await?;
    slow.proxy.limit_all(RATE);
    let full = async {
        let (status, answer) = slow.rig.members[0].call("POST", "/snapshot/full").await?;
        ensure!(status == 200, "{status}: {answer}");
        sleep(Duration::from_secs(25)).await;
        Ok(())
    };
    let seen = slow.while_under_way(&writer, full).await?;
    println!("with a full snapshot that outlasts the history: {seen:?}");
    ensure!(seen.fulls == 1 && seen.deltas >= 15, "{seen:?}");
    slow.check(writer).await
}

/// The same of the first one of a chain, before which there can be no deltas: what is collected meanwhile follows it.
#[tokio::test]
async fn store_s3_what_is_collected_before_the_first_full_snapshot_follows_it() -> anyhow::Result<()> {
    let mut slow = SlowStore::start(short_history()).await?;
    let writer = Writer::start(&slow.rig, Duration::from_millis(20)).await?;
    slow.proxy.limit_all(RATE);
    slow.move_on()?;
    let first = async {
        let stored = async || {
            ensure!(!slow.fulls().await?.is_empty());
            Ok(())
        };
        slow.rig
            .until("the first full snapshot is stored", stored)
            .await?;
        sleep(Duration::from_secs(20)).await;
        Ok(())
    };
    let seen = slow.while_under_way(&writer, first).await?;
    println!("with a first full snapshot that outlasts the history: {seen:?}");
    ensure!(seen.fulls == 1 && seen.deltas >= 10, "{seen:?}");
    slow.check(writer).await
}

/// Who loses the leadership while a full snapshot goes up in parts doesn't complete it, and says so; the new leader's deltas
/// go on where the old one's ended.
#[tokio::test]
async fn store_s3_losing_the_leadership_ends_both_lanes() -> anyhow::Result<()> {
    const PARTS: usize = 12;
    let slow = SlowStore::start(Setup::default()).await?;
    let revision = slow.rig.fill("/parts/", PARTS).await?;
    slow.until_covered(revision).await?;
    let before = slow.fulls().await?;
    let writer = Writer::start(&slow.rig, Duration::from_millis(20)).await?;
    slow.proxy.limit_all(4 * RATE);
    let leader = slow.rig.leader().await?;
    let (old, new) = (&slow.rig.members[leader], &slow.rig.members[(leader + 1) % 3]);
    let moved = async {
        sleep(Duration::from_secs(3)).await;
        old.client().await?.move_leader(new.id().await?).await?;
        anyhow::Ok(writer.revision())
    };
    let (answer, moved) = tokio::join!(old.call("POST", "/snapshot/full"), moved);
    let ((status, answer), moved) = (answer?, moved?);
    ensure!(
        status == 503 && answer["reason"] == "NotOwner",
        "{status}: {answer}"
    );
    slow.until_covered(moved + 50).await?;
    sleep(Duration::from_secs(15)).await;
    let after = slow.fulls().await?;
    ensure!(after == before, "{after:?}");
    let names = slow.names().await?;
    let deltas: Vec<_> = names.iter().filter(|name| name.kind == Kind::Delta).collect();
    let follow = |pair: &[&SnapshotName]| pair[1].start_revision == pair[0].last_revision + 1;
    ensure!(deltas.windows(2).all(follow), "{names:?}");
    let (last, _) = writer.end().await?;
    slow.proxy.limit_all(u64::MAX);
    slow.until_covered(last).await
}
