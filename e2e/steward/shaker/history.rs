//! What the clients of a run did and saw. Times are nanoseconds since the run began.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
    time::Instant,
};

use serde::Serialize;

/// Everything that clients recorded.
#[derive(Debug)]
pub(crate) struct History {
    begin: Instant,
    records: Mutex<Records>,
}

#[derive(Debug, Default)]
pub(crate) struct Records {
    /// Reads and writes of registers.
    pub(crate) registers: Vec<RegisterOperation>,
    /// Keys below [`LOG`] that etcd has acknowledged.
    pub(crate) appends: Vec<Append>,
    /// Answers to linearizable requests.
    pub(crate) answers: Vec<Answer>,
    /// Keys below [`LOG`] that the watch has seen, with the revision of their event.
    pub(crate) watched: BTreeMap<String, i64>,
    /// Revisions up to which the watch doesn't speak, for etcd had compacted them: the client has listed the keys instead.
    pub(crate) relisted: Vec<i64>,
    /// The newest revision that the watch has seen.
    pub(crate) watched_to: i64,
}

/// Where each acknowledged write has a key of its own, which nothing removes.
pub(crate) const LOG: &str = "/log/";

/// As the checker of linearizability reads it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RegisterOperation {
    pub(crate) client: usize,
    pub(crate) key: String,
    pub(crate) write: bool,
    pub(crate) value: String,
    pub(crate) call: u64,
    #[serde(skip_serializing_if = "Option::is_none", rename = "return")]
    pub(crate) returned: Option<u64>,
}

#[derive(Debug, Clone)]
pub(crate) struct Append {
    pub(crate) key: String,
    pub(crate) revision: i64,
    pub(crate) cluster: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) cluster: u64,
    pub(crate) call: u64,
    pub(crate) returned: u64,
}

/// All volumes were lost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loss {
    pub(crate) since: u64,
    /// The last revision that the backups then held.
    pub(crate) covered: i64,
}

impl Records {
    /// Whether the watch has come to the last acknowledged write.
    pub(crate) fn watch_is_complete(&self) -> bool {
        let cluster = self.appends.last().map(|append| append.cluster);
        let mut of_cluster = self
            .appends
            .iter()
            .filter(|append| Some(append.cluster) == cluster);
        of_cluster.all(|append| append.revision <= self.watched_to)
    }
}

impl History {
    pub(crate) fn new() -> Self {
        Self {
            begin: Instant::now(),
            records: Mutex::default(),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn records(&self) -> MutexGuard<'_, Records> {
        self.records
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
