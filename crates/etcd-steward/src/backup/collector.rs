//! Collects the events that etcd's watch reports into the delta that is stored next. What is held is compressed
//! already, and never more than a limit: beyond it the watch isn't read, and etcd holds the events back. A watch that
//! has fallen behind gets up to a thousand revisions in one answer, whatever their size, so answers come in fragments.

use std::{
    collections::HashMap,
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use etcd_client::{Client, WatchOptions, WatchResponse, WatchStream, proto::PbKeyValue};
use etcd_storage::{
    compression::{self, Compression},
    delta::{Encoder, Event, EventKind, Summary},
};
use jiff::Timestamp;
use tracing::debug;

use super::{BackupError, backlog::Content, pieces::Pieces};
use crate::etcd::{CALL_TIMEOUT, Connector, EtcdError, call};

/// etcd takes values of any size that its own limit allows, and never splits one; the answer must fit.
const LARGEST_MESSAGE: usize = i32::MAX as usize;

/// A finished delta.
#[derive(Debug)]
pub(super) struct Delta {
    /// The compressed object.
    pub content: Content,
    /// First revision that it covers: the one after the snapshot before.
    pub start: i64,
    /// What is in it.
    pub summary: Summary,
    /// When it was closed: later events are in the next one.
    pub closed_at: Timestamp,
}

/// The watch, and the events since the last delta.
pub(super) struct Collector {
    client: Client,
    stream: WatchStream,
    compression: Compression,
    /// Last revision before the first event of the next delta.
    base: i64,
    encoder: Option<Encoder<compression::Encoder<Pieces>>>,
    /// Bytes that `encoder` has compressed.
    compressed: Arc<AtomicU64>,
    last: i64,
    /// Events of one revision of which more may come: a fragment of an answer ends anywhere.
    open: Vec<Event>,
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
        let options = WatchOptions::new()
            .with_all_keys()
            .with_start_revision(base + 1)
            .with_fragment();
        let mut watches = client.watch_client().max_decoding_message_size(LARGEST_MESSAGE);
        let stream = call("watch etcd", CALL_TIMEOUT, watches.watch("\0", Some(options))).await?;
        Ok(Self {
            client,
            stream,
            compression,
            base,
            encoder: None,
            compressed: Arc::default(),
            last: base,
            open: Vec::new(),
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

    /// Adds the events of an answer. A delta never splits a revision, so the last one of a fragment is held back until all
    /// of it is there.
    pub(super) async fn add(&mut self, answer: WatchResponse) -> Result<(), BackupError> {
        let is_fragment = answer.0.fragment;
        for event in answer.0.events {
            let kind = if event.r#type == DELETE {
                EventKind::Delete
            } else {
                EventKind::Put
            };
            let Some(kv) = event.kv else { continue };
            if self
                .open
                .last()
                .is_some_and(|open| open.mod_revision != kv.mod_revision)
            {
                self.settle()?;
            }
            let lease_ttl = self.ttl(kv.lease).await;
            self.open.push(event_of(kind, kv, lease_ttl));
        }
        if is_fragment { Ok(()) } else { self.settle() }
    }

    /// The open revision is complete.
    fn settle(&mut self) -> Result<(), BackupError> {
        for event in std::mem::take(&mut self.open) {
            // A full snapshot may have covered it meanwhile.
            if event.mod_revision <= self.base {
                continue;
            }
            let encoder = if let Some(encoder) = &mut self.encoder {
                encoder
            } else {
                let pieces = Pieces::default();
                self.compressed = pieces.counter();
                let compressing = compression::Encoder::new(self.compression, pieces, 1)?;
                self.encoder.insert(Encoder::new(compressing))
            };
            encoder.push(&event)?;
            self.last = event.mod_revision;
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
                // The next key of this lease may have better luck.
                debug!(lease, %error, "a lease's time to live isn't known");
                return None;
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

    /// Bytes of them that are held: they are compressed.
    pub(super) fn held(&self) -> u64 {
        match &self.encoder {
            Some(_) => self.compressed.load(Ordering::Relaxed),
            None => 0,
        }
    }

    /// Last revision before the first event of the next delta.
    pub(super) fn base(&self) -> i64 {
        self.base
    }

    /// Last revision that was collected completely.
    pub(super) fn last(&self) -> i64 {
        self.last
    }

    /// Finishes the delta of what was collected; `None` when that is nothing.
    pub(super) fn cut(&mut self) -> Result<Option<Delta>, BackupError> {
        let Some(encoder) = self.encoder.take() else {
            return Ok(None);
        };
        let (encoder, summary) = encoder.finish()?;
        let content = Content::Memory(encoder.finish()?.seal());
        let start = self.base + 1;
        self.base = summary.last_revision;
        Ok(Some(Delta {
            content,
            start,
            summary,
            closed_at: Timestamp::now(),
        }))
    }

    /// Drops what was collected up to `revision`, if that is all: a delta never splits what is in it.
    pub(super) fn drop_covered(&mut self, revision: i64) {
        if self.last <= revision {
            self.encoder = None;
            (self.base, self.last) = (self.base.max(revision), revision);
        }
    }
}

const MAX_LEASES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// What etcd calls a deletion: `mvccpb.Event.EventType`.
const DELETE: i32 = 1;

fn event_of(kind: EventKind, kv: PbKeyValue, lease_ttl: Option<i64>) -> Event {
    Event {
        kind,
        key: kv.key,
        value: kv.value,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        lease: kv.lease,
        lease_ttl,
        time: Some(Timestamp::now()),
    }
}
