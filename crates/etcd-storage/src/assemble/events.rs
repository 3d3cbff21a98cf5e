//! Adds the events of deltas to the end of the history, each revision once and none left out.

use std::fs::File;
use std::io::{BufWriter, Read};

use super::leases::LeaseBook;
use super::{Error, Meter};
use crate::bolt::{self, Edge, Pages, TreeBuilder};
use crate::delta::{Decoder, Event, EventKind, Positioned};
use crate::mvcc::{KeyValue, MAX_START, RecordKey, Revision};
use crate::object::{Object, Target};
use crate::schema::bucket;

/// The end of the history, open for more.
pub(super) struct Appender {
    pub(super) pages: Pages<BufWriter<File>>,
    pub(super) tree: TreeBuilder,
    pub(super) leases: LeaseBook,
    /// Last revision that is complete.
    complete: i64,
    /// The revision whose events are coming in, when it is to be added.
    open: Option<i64>,
    /// The target is reached: nothing more is added.
    full: bool,
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Appender {
    pub(super) fn new(
        mut pages: Pages<BufWriter<File>>,
        edge: Edge,
        revision: i64,
        leases: LeaseBook,
    ) -> Result<Self, bolt::Error> {
        let mut tree = TreeBuilder::new(bucket::KEY, pages.page_size(), 100);
        tree.resume(edge, &mut pages)?;
        let (before, after) = (Vec::new(), Vec::new());
        Ok(Self {
            pages,
            tree,
            leases,
            complete: revision,
            open: None,
            full: false,
            before,
            after,
        })
    }

    /// Last revision that is written.
    pub(super) fn revision(&self) -> i64 {
        self.complete
    }

    /// Adds what is new in a delta. The whole delta is read, and its hash has been checked when this returns.
    pub(super) fn apply(
        &mut self,
        object: &Object,
        source: impl Read,
        target: Target,
        meter: &mut Meter<'_, '_>,
    ) -> Result<(), Error> {
        let mut decoder = Decoder::new(source);
        let damaged = |source| Error::Delta {
            object: object.name.clone(),
            source,
        };
        let mut position = 0;
        let mut last = 0;
        while let Some(positioned) = decoder.next_event().map_err(damaged)? {
            last = positioned.event.mod_revision;
            self.event(object, &positioned, target)?;
            meter.progress.revision = self.complete;
            meter.add(decoder.position() - position)?;
            position = decoder.position();
        }
        self.close();
        if last != object.last {
            return Err(Error::EndsElsewhere {
                object: object.name.clone(),
                stated: object.last,
                found: last,
            });
        }
        meter.object_done(self.complete)
    }

    fn event(&mut self, object: &Object, positioned: &Positioned, target: Target) -> Result<(), Error> {
        let revision = positioned.event.mod_revision;
        if self.open != Some(revision) {
            self.close();
            if revision <= self.complete || self.full {
                return Ok(());
            }
            if is_beyond(object, &positioned.event, target)? {
                self.full = true;
                return Ok(());
            }
            let next = self.complete.saturating_add(1);
            if revision > next {
                let (from, to) = (next, revision - 1);
                return Err(Error::Gap {
                    object: object.name.clone(),
                    from,
                    to,
                });
            }
            self.open = Some(revision);
        }
        self.leases.record(&positioned.event);
        self.record(positioned).map_err(Error::Write)
    }

    /// The open revision has no more events.
    fn close(&mut self) {
        if let Some(revision) = self.open.take() {
            self.complete = revision;
        }
    }

    fn record(&mut self, positioned: &Positioned) -> Result<(), bolt::Error> {
        let event = &positioned.event;
        let tombstone = event.kind == EventKind::Delete;
        let key = RecordKey {
            revision: Revision {
                main: event.mod_revision,
                sub: positioned.sub,
            },
            tombstone,
        };
        // Of a deleted key etcd stores the key alone.
        let record = if tombstone {
            KeyValue {
                key: &event.key,
                ..KeyValue::default()
            }
        } else {
            KeyValue {
                key: &event.key,
                create_revision: event.create_revision,
                mod_revision: event.mod_revision,
                version: event.version,
                value: &event.value,
                lease: event.lease,
            }
        };
        record.encode_around_value(&mut self.before, &mut self.after);
        let value = [&self.before[..], record.value, &self.after];
        self.tree.push(&mut self.pages, key.bytes().as_ref(), &value, 0)
    }

    /// Adds an empty record at a later revision, as etcd's own restore does to raise the revision.
    pub(super) fn bump(&mut self, amount: i64) -> Result<(), Error> {
        let raised = self.complete.checked_add(amount);
        let raised = raised.filter(|raised| *raised <= MAX_START);
        self.complete = raised.ok_or(Error::RevisionTooHigh {
            revision: self.complete,
            amount,
        })?;
        let key = RecordKey {
            revision: Revision {
                main: self.complete,
                sub: 0,
            },
            tombstone: false,
        };
        let pushed = self.tree.push(&mut self.pages, key.bytes().as_ref(), &[], 0);
        pushed.map_err(Error::Write)
    }
}

fn is_beyond(object: &Object, event: &Event, target: Target) -> Result<bool, Error> {
    Ok(match target {
        Target::Latest => false,
        Target::Revision(target) => event.mod_revision > target,
        Target::Time(target) => {
            let no_time = || Error::NoTime {
                object: object.name.clone(),
                revision: event.mod_revision,
            };
            event.time.ok_or_else(no_time)? > target
        }
    })
}
