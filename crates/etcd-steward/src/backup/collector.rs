//! Collects the events that etcd's watch reports into the delta that is stored next. What is held is compressed
//! already, and never more than a limit: beyond it the watch isn't read, and etcd holds the events back.

use std::{collections::HashMap, num::NonZeroUsize};

use etcd_client::{Client, EventType, WatchOptions, WatchResponse, WatchStream};
use etcd_storage::{
    compression::{self, Compression},
    delta::{Encoder, Event, EventKind, Summary},
};
use jiff::Timestamp;
use tracing::debug;

use super::BackupError;
use crate::etcd::{CALL_TIMEOUT, Connector, EtcdError, call};

/// etcd takes transactions of any size that its own limit allows; the answer must fit.
const LARGEST_MESSAGE: usize = i32::MAX as usize;

/// A finished delta.
#[derive(Debug, Clone)]
pub(super) struct Delta {
    /// The compressed object.
    pub bytes: bytes::Bytes,
    /// First revision that it covers: the one after the snapshot before.
    pub start: i64,
    /// What is in it.
    pub summary: Summary,
}

/// The watch, and the events since the last delta.
pub(super) struct Collector {
    client: Client,
    stream: WatchStream,
    compression: Compression,
    /// Last revision before the first event of the next delta.
    base: i64,
    encoder: Option<Encoder<compression::Encoder<Vec<u8>>>>,
    last: i64,
    leases: HashMap<i64, Option<i64>>,
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector")
            .field("base", &self.base)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

impl Collector {
    /// Watches everything after `base`.
    pub(super) async fn open(
        connector: &Connector,
        base: i64,
        compression: Compression,
    ) -> Result<Self, BackupError> {
        let client = connector.local().await?;
        let options = WatchOptions::new().with_all_keys().with_start_revision(base + 1);
        let mut watches = client.watch_client().max_decoding_message_size(LARGEST_MESSAGE);
        let stream = call("watch etcd", CALL_TIMEOUT, watches.watch("\0", Some(options))).await?;
        Ok(Self {
            client,
            stream,
            compression,
            base,
            encoder: None,
            last: base,
            leases: HashMap::new(),
        })
    }

    /// Waits for the next events. Safe to be dropped at any time: an answer is taken whole or not at all.
    pub(super) async fn next(&mut self) -> Result<WatchResponse, BackupError> {
        match self.stream.message().await {
            Ok(Some(answer)) if answer.compact_revision() > 0 => {
                Err(BackupError::Compacted(answer.compact_revision()))
            }
            Ok(Some(answer)) if answer.canceled() => {
                Err(BackupError::WatchEnded(answer.cancel_reason().to_owned()))
            }
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(BackupError::WatchEnded("the connection was closed".to_owned())),
            Err(source) => Err(EtcdError::Call {
                call: "watch etcd",
                source: Box::new(source),
            }
            .into()),
        }
    }

    /// Adds the events of an answer. An answer holds whole revisions, so that a delta never splits one.
    pub(super) async fn add(&mut self, answer: &WatchResponse) -> Result<(), BackupError> {
        for event in answer.events() {
            let Some(kv) = event.kv() else { continue };
            // A full snapshot may have covered it meanwhile.
            if kv.mod_revision() <= self.base {
                continue;
            }
            let lease_ttl = self.ttl(kv.lease()).await;
            let encoder = match &mut self.encoder {
                Some(encoder) => encoder,
                None => self.encoder.insert(Encoder::new(compression::Encoder::new(
                    self.compression,
                    Vec::new(),
                    1,
                )?)),
            };
            encoder.push(&Event {
                kind: if event.event_type() == EventType::Delete {
                    EventKind::Delete
                } else {
                    EventKind::Put
                },
                key: kv.key().to_vec(),
                value: kv.value().to_vec(),
                create_revision: kv.create_revision(),
                mod_revision: kv.mod_revision(),
                version: kv.version(),
                lease: kv.lease(),
                lease_ttl,
                time: Some(Timestamp::now()),
            })?;
            self.last = kv.mod_revision();
        }
        Ok(())
    }

    /// The granted TTL of a lease, asked once; unknown for a lease that is gone already.
    async fn ttl(&mut self, lease: i64) -> Option<i64> {
        if lease == 0 {
            return None;
        }
        if let Some(known) = self.leases.get(&lease) {
            return *known;
        }
        let asked = call(
            "time to live of a lease",
            CALL_TIMEOUT,
            self.client.lease_time_to_live(lease, None),
        )
        .await;
        let ttl = match asked {
            Ok(answer) => Some(answer.granted_ttl()).filter(|ttl| *ttl > 0),
            Err(error) => {
                debug!(lease, %error, "a lease's time to live isn't known");
                None
            }
        };
        // Ids are random: keeping those of past deltas would only grow.
        if self.leases.len() >= MAX_LEASES.get() {
            self.leases.clear();
        }
        self.leases.insert(lease, ttl);
        ttl
    }

    /// Uncompressed bytes of the events since the last delta.
    pub(super) fn len(&self) -> u64 {
        self.encoder.as_ref().map_or(0, Encoder::len)
    }

    /// Last revision that was collected.
    pub(super) fn last(&self) -> i64 {
        self.last
    }

    /// Finishes the delta of what was collected; `None` when that is nothing.
    pub(super) fn cut(&mut self) -> Result<Option<Delta>, BackupError> {
        let Some(encoder) = self.encoder.take() else {
            return Ok(None);
        };
        let (encoder, summary) = encoder.finish()?;
        let bytes = encoder.finish()?.into();
        let start = self.base + 1;
        self.base = summary.last_revision;
        Ok(Some(Delta {
            bytes,
            start,
            summary,
        }))
    }

    /// A full snapshot at `revision` is stored: what it covers is forgotten, if that is all that was collected.
    pub(super) fn covered(&mut self, revision: i64) -> bool {
        if self.last > revision {
            return false;
        }
        self.encoder = None;
        (self.base, self.last) = (self.base.max(revision), self.last.max(revision));
        true
    }
}

const MAX_LEASES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();
