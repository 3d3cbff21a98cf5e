//! The data: a full snapshot and deltas of what a real etcd was given, the same as one full snapshot, and a chain of
//! very large things.

use std::{
    fs::{self, File},
    io::BufWriter,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use etcd_client::Client;
use etcd_storage::{
    bolt::Db,
    compression::{Compression, Encoder},
    delta::{self, Event},
    dump,
    mvcc::KeyValue,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use snapstore::SnapshotName;

use crate::server::Etcd;

/// Revisions and bytes of a value before the full snapshot, and after it; keys that they go round.
const BASE: (f64, usize) = (200_000.0, 2048);
const MORE: (f64, usize) = (300_000.0, 1024);
const KEYS: f64 = 100_000.0;
const DELTAS: usize = 5;

/// Requests that are under way.
const AT_ONCE: usize = 64;

/// The large things: puts of a mebibyte in one transaction, and revisions of 100 KiB in one delta.
const LARGE_TRANSACTION: i64 = 60;
const LARGE_DELTA: i64 = 800;

type Sink = delta::Encoder<Encoder<BufWriter<File>>>;

#[derive(Debug)]
pub(crate) struct Data {
    /// The chain.
    pub(crate) store: PathBuf,
    /// All of it as a full snapshot, uncompressed.
    pub(crate) whole: PathBuf,
    large: PathBuf,
    size: f64,
}

impl Data {
    /// With `size` 1 the database becomes 1.2 GB.
    pub(crate) fn new(work: &Path, size: f64) -> Self {
        Self {
            store: work.join("store"),
            whole: work.join("whole.db"),
            large: work.join("large"),
            size,
        }
    }

    fn count(&self, of_one: f64) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of things"
        )]
        let count = (of_one * self.size) as u64;
        count.max(1)
    }

    pub(crate) fn load_base(&self, etcd: &Etcd) -> Result<()> {
        self.load(etcd, BASE)
    }

    pub(crate) fn load_more(&self, etcd: &Etcd) -> Result<()> {
        self.load(etcd, MORE)
    }

    #[tokio::main]
    async fn load(&self, etcd: &Etcd, (revisions, value): (f64, usize)) -> Result<()> {
        let client = Client::connect([etcd.endpoint()], None).await?;
        let keys = self.count(KEYS);
        let puts = (0..self.count(revisions)).map(|number| {
            let mut kv = client.kv_client();
            let key = format!("/registry/things/default/thing-{:07}", number % keys);
            async move { kv.put(key, content(number, value), None).await }
        });
        let puts = stream::iter(puts).buffer_unordered(AT_ONCE);
        puts.try_for_each(|_| async { Ok(()) }).await?;
        Ok(())
    }

    /// What the whole has and the full snapshot in the store has not.
    pub(crate) fn make_deltas(&self) -> Result<()> {
        let base = base_of(&self.store)?;
        let mut events = Vec::new();
        dump::each_record(&Db::open(&self.whole)?, |key, value| {
            let revision = key.revision.main;
            events.extend((revision > base).then(|| event(revision, value)).flatten());
            Ok(())
        })?;
        for events in events.chunks(events.len().div_ceil(DELTAS)) {
            let (first, last) = (events.first(), events.last());
            let (first, last) = first.zip(last).context("no events")?;
            let mut sink = delta(&self.store, first.mod_revision, last.mod_revision)?;
            for event in events {
                sink.push(event)?;
            }
            close(sink)?;
        }
        Ok(())
    }

    /// A chain that ends in a large transaction and a large delta. Returns its store.
    pub(crate) fn make_large(&self) -> Result<PathBuf> {
        let base = base_of(&self.store)?;
        fs::create_dir_all(self.large.join("v2"))?;
        for object in fs::read_dir(self.store.join("v2"))? {
            let object = object?;
            if object.file_name().to_string_lossy().starts_with("Full-") {
                fs::hard_link(object.path(), self.large.join("v2").join(object.file_name()))?;
            }
        }
        let mut sink = delta(&self.large, base + 1, base + 1)?;
        for put in 0..LARGE_TRANSACTION {
            sink.push(&put_of(base + 1, put, 1 << 20))?;
        }
        close(sink)?;
        let (first, last) = (base + 2, base + 1 + LARGE_DELTA);
        let mut sink = delta(&self.large, first, last)?;
        for revision in first..=last {
            sink.push(&put_of(revision, 0, 100 << 10))?;
        }
        close(sink)?;
        Ok(self.large.clone())
    }
}

/// A value as Kubernetes' objects are: text of which less than a half can be guessed.
fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut text = String::with_capacity(len + 100);
    while text.len() < len {
        let word: [u8; 24] = random.random();
        text.extend([r#"{"name":""#, &hex::encode(word), r#"","ready":true},"#]);
    }
    text.truncate(len);
    text.into_bytes()
}

/// Last revision of the only full snapshot.
fn base_of(store: &Path) -> Result<i64> {
    let names = fs::read_dir(store.join("v2"))?.map(|entry| Ok(entry?.file_name()));
    let names: Vec<_> = names.collect::<Result<_>>()?;
    let mut fulls = names
        .iter()
        .filter_map(|name| name.to_str()?.parse::<SnapshotName>().ok());
    Ok(fulls
        .find(|name| name.kind == snapstore::Kind::Full)
        .context("no full snapshot")?
        .last_revision)
}

fn delta(store: &Path, start: i64, last: i64) -> Result<Sink> {
    let name = SnapshotName::delta(start, last, Timestamp::now(), Compression::Gzip);
    let path = store.join("v2").join(name.to_string());
    let file = BufWriter::new(File::create(path)?);
    Ok(delta::Encoder::new(Encoder::new(Compression::Gzip, file, 2)?))
}

fn close(sink: Sink) -> Result<()> {
    let (sink, _) = sink.finish()?;
    Ok(sink.finish()?.into_inner()?.sync_all()?)
}

fn event(revision: i64, record: &[u8]) -> Option<Event> {
    let record = KeyValue::parse(record)?;
    Some(Event {
        key: record.key.to_vec(),
        value: record.value.to_vec(),
        create_revision: record.create_revision,
        mod_revision: revision,
        version: record.version,
        time: Some(Timestamp::UNIX_EPOCH),
        ..Event::default()
    })
}

fn put_of(revision: i64, number: i64, len: usize) -> Event {
    Event {
        key: format!("/large/{revision}/{number}").into_bytes(),
        value: content(number.unsigned_abs(), len),
        create_revision: revision,
        mod_revision: revision,
        version: 1,
        time: Some(Timestamp::UNIX_EPOCH),
        ..Event::default()
    }
}
