//! Clients that read and write all the time, and record every operation.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use etcd_client::{Client, ConnectOptions, GetOptions, ResponseHeader, WatchOptions};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::history::{Answer, Append, History, LOG, RegisterOperation};

const REGISTERS: usize = 4;
/// A client turns to another member after this time without an answer.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(2);
/// In which a watch has caught up when nothing is written any more.
const WATCH_TIMEOUT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);
const FAILURE_PAUSE: Duration = Duration::from_millis(400);

/// The clients of a run.
#[derive(Debug)]
pub(crate) struct Load {
    shared: Arc<Shared>,
    clients: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    history: Arc<History>,
    urls: Mutex<Vec<String>>,
    /// No more writes.
    rest: AtomicBool,
    stop: AtomicBool,
}

impl Shared {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn resting(&self) -> bool {
        self.rest.load(Ordering::Relaxed)
    }

    fn url(&self, choice: usize) -> String {
        let urls = self
            .urls
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        urls[choice % urls.len()].clone()
    }

    /// A linearizable request was answered.
    fn answered(&self, call: u64, header: Option<&ResponseHeader>) {
        if let Some(header) = header {
            let (cluster, returned) = (header.cluster_id(), self.history.now());
            self.history.records().answers.push(Answer {
                cluster,
                call,
                returned,
            });
        }
    }
}

impl Load {
    pub(crate) fn start(history: &Arc<History>, urls: Vec<String>, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            history: Arc::clone(history),
            urls: Mutex::new(urls),
            rest: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let mut clients = JoinSet::new();
        for number in 0..3 {
            clients.spawn(read_and_write(Arc::clone(&shared), number, seed));
        }
        for number in 0..2 {
            clients.spawn(append(Arc::clone(&shared), number));
        }
        clients.spawn(watch(Arc::clone(&shared)));
        Self { shared, clients }
    }

    /// Clients turn to these members from now on.
    pub(crate) fn turn_to(&self, urls: Vec<String>) {
        *self
            .shared
            .urls
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = urls;
    }

    /// Ends the clients, the watch when it has seen the last write; the error says that it hasn't.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.shared.rest.store(true, Ordering::Relaxed);
        let seen = timeout(WATCH_TIMEOUT, async {
            while !self.shared.history.records().watch_is_complete() {
                sleep(PAUSE).await;
            }
        });
        let seen = seen.await;
        self.shared.stop.store(true, Ordering::Relaxed);
        while self.clients.join_next().await.is_some() {}
        let records = self.shared.history.records();
        seen.with_context(|| {
            format!(
                "the watch is at {}, and the last write at {:?}",
                records.watched_to,
                records.appends.last()
            )
        })
    }
}

async fn connect(url: &str) -> anyhow::Result<Client> {
    let options = ConnectOptions::new()
        .with_connect_timeout(OPERATION_TIMEOUT)
        .with_keep_alive(Duration::from_secs(1), Duration::from_secs(2));
    Ok(timeout(OPERATION_TIMEOUT, Client::connect([url], Some(options))).await??)
}

/// Reads and writes registers.
async fn read_and_write(shared: Arc<Shared>, client: usize, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed.wrapping_add(client as u64));
    let mut connection = None;
    let mut written = 0;
    while !shared.resting() {
        let (member, register) = (random.random_range(0..64), random.random_range(0..REGISTERS));
        let write = random.random_bool(0.4);
        if connection.is_none() || random.random_bool(0.05) {
            connection = connect(&shared.url(member)).await.ok();
        }
        let Some(etcd) = &mut connection else {
            sleep(PAUSE).await;
            continue;
        };
        written += 1;
        let value = if write {
            format!("{client}-{written}")
        } else {
            String::new()
        };
        let mut operation = RegisterOperation {
            client,
            key: format!("/register/{register}"),
            write,
            value,
            call: shared.history.now(),
            returned: None,
        };
        match timeout(OPERATION_TIMEOUT, perform(etcd, &mut operation)).await {
            Ok(Ok(header)) => {
                operation.returned = Some(shared.history.now());
                shared.answered(operation.call, header.as_ref());
                shared.history.records().registers.push(operation);
                sleep(PAUSE).await;
            }
            failed => {
                connection = None;
                if !failed.is_ok_and(|done| done.is_err_and(|error| was_not_sent(&error))) {
                    shared.history.records().registers.push(operation);
                }
                // Each write of which nobody knows doubles what the checker has to consider.
                sleep(FAILURE_PAUSE).await;
            }
        }
    }
}

/// Whether nobody listened, so that the operation surely has no effect.
fn was_not_sent(error: &etcd_client::Error) -> bool {
    error.to_string().contains("tcp connect error")
}

async fn perform(
    etcd: &mut Client,
    operation: &mut RegisterOperation,
) -> Result<Option<ResponseHeader>, etcd_client::Error> {
    if operation.write {
        let mut answer = etcd
            .put(operation.key.as_str(), operation.value.as_str(), None)
            .await?;
        return Ok(answer.take_header());
    }
    let mut answer = etcd.get(operation.key.as_str(), None).await?;
    if let Some(pair) = answer.kvs().first() {
        pair.value_str()?.clone_into(&mut operation.value);
    }
    Ok(answer.take_header())
}

/// Writes keys of which none is ever removed.
async fn append(shared: Arc<Shared>, client: usize) {
    let (mut connection, mut member) = (None, client);
    for number in 0_u32.. {
        if shared.resting() {
            return;
        }
        if connection.is_none() {
            connection = connect(&shared.url(member)).await.ok();
        }
        let Some(etcd) = &mut connection else {
            member += 1;
            sleep(PAUSE).await;
            continue;
        };
        let (key, call) = (format!("{LOG}{client}/{number:06}"), shared.history.now());
        let done = timeout(OPERATION_TIMEOUT, etcd.put(key.as_str(), "value", None)).await;
        if let Ok(Ok(mut answer)) = done {
            if let Some(header) = answer.take_header() {
                shared.answered(call, Some(&header));
                shared.history.records().appends.push(Append {
                    key,
                    revision: header.revision(),
                    cluster: header.cluster_id(),
                });
            }
        } else {
            connection = None;
            member += 1;
        }
        sleep(PAUSE).await;
    }
}

/// Watches the keys that the others append, across all failures, without asking for what it has seen.
async fn watch(shared: Arc<Shared>) {
    let mut next = 1;
    for member in 0.. {
        if shared.stopped() {
            return;
        }
        // A failed connection is followed by the next member's.
        if watch_from(&shared, member, &mut next).await.is_err() {
            sleep(PAUSE).await;
        }
    }
}

async fn watch_from(shared: &Shared, member: usize, next: &mut i64) -> anyhow::Result<()> {
    let mut etcd = connect(&shared.url(member)).await?;
    let options = WatchOptions::new().with_prefix().with_start_revision(*next);
    let mut stream = timeout(OPERATION_TIMEOUT, etcd.watch(LOG, Some(options))).await??;
    while !shared.stopped() {
        let Ok(message) = timeout(Duration::from_millis(500), stream.message()).await else {
            continue;
        };
        let message = message?.context("the end of the stream")?;
        if message.compact_revision() > 0 {
            *next = relist(shared, &mut etcd).await? + 1;
            return Ok(());
        }
        anyhow::ensure!(!message.canceled(), "canceled: {}", message.cancel_reason());
        let seen: BTreeMap<_, _> = message
            .events()
            .iter()
            .filter_map(|event| event.kv())
            .map(|pair| {
                (
                    String::from_utf8_lossy(pair.key()).into_owned(),
                    pair.mod_revision(),
                )
            })
            .collect();
        if let Some(newest) = seen.values().copied().max() {
            *next = newest + 1;
            let mut records = shared.history.records();
            records.watched_to = newest;
            records.watched.extend(seen);
        }
    }
    Ok(())
}

/// What a client does whose revision is compacted: it lists, and goes on from there.
async fn relist(shared: &Shared, etcd: &mut Client) -> anyhow::Result<i64> {
    let options = GetOptions::new().with_prefix().with_count_only();
    let answer = timeout(OPERATION_TIMEOUT, etcd.get(LOG, Some(options))).await??;
    let revision = answer.header().context("a header")?.revision();
    let mut records = shared.history.records();
    records.relisted.push(revision);
    records.watched_to = revision;
    Ok(revision)
}
