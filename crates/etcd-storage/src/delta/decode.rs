//! Reads a delta event by event. Memory is bounded by the largest event. The last event is followed by the check
//! of the hash: only when [`Decoder::next_event`] has returned `None` is what it returned before proven.

use std::fmt;
use std::io::Read;

use super::json::Scanner;
use super::{Error, Event, EventKind};
use crate::trailer::Hash;

/// An event and its place among the events of its revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positioned {
    /// Sub-revision, counted from 0.
    pub sub: i64,
    /// The event.
    pub event: Event,
}

/// Reads the uncompressed bytes of a delta from `R`.
pub struct Decoder<R> {
    state: State<R>,
    last: i64,
    sub: i64,
    sha256: Option<Hash>,
    position: u64,
}

enum State<R> {
    Start(Scanner<R>),
    Events(Scanner<R>),
    Done,
}

impl<R: Read> Decoder<R> {
    /// Starts to read; nothing is read yet.
    pub fn new(source: R) -> Self {
        Self {
            state: State::Start(Scanner::new(source)),
            last: 0,
            sub: 0,
            sha256: None,
            position: 0,
        }
    }

    /// As [`Decoder::new`], for who wants to know whether it is whole: its events have neither keys nor values, and take no
    /// memory.
    pub fn without_contents(source: R) -> Self {
        let mut scanner = Scanner::new(source);
        scanner.without_contents = true;
        Self {
            state: State::Start(scanner),
            last: 0,
            sub: 0,
            sha256: None,
            position: 0,
        }
    }

    /// Offset in the uncompressed data behind the last event returned.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The hash of the data, once it is verified.
    pub fn sha256(&self) -> Option<Hash> {
        self.sha256
    }

    /// The next event; `None` when all were read and the hash is right. After an error or `None` it is `None`.
    ///
    /// # Errors
    /// The data can't be read, is damaged or malformed. Malformed data is read to its end first, so that damage
    /// (a cut, a flipped bit) is called so.
    pub fn next_event(&mut self) -> Result<Option<Positioned>, Error> {
        let (mut scanner, first) = match std::mem::replace(&mut self.state, State::Done) {
            State::Done => return Ok(None),
            State::Start(scanner) => (scanner, true),
            State::Events(scanner) => (scanner, false),
        };
        let parsed = self.step(&mut scanner, first);
        self.position = scanner.position();
        match parsed {
            Ok(Some(event)) => {
                self.state = State::Events(scanner);
                Ok(Some(event))
            }
            Ok(None) => {
                self.sha256 = Some(scanner.into_body().verify()?);
                Ok(None)
            }
            Err(found @ (Error::Damaged(_) | Error::TooLarge { .. })) => Err(found),
            Err(malformed) => {
                scanner.into_body().verify()?;
                Err(malformed)
            }
        }
    }

    fn step(&mut self, scanner: &mut Scanner<R>, first: bool) -> Result<Option<Positioned>, Error> {
        if first {
            scanner.expect(b'[', "expected '['")?;
        }
        if scanner.take(b']')? {
            return match scanner.peek()? {
                None => Ok(None),
                Some(_) => scanner.malformed("data after the last event"),
            };
        }
        if !first {
            scanner.expect(b',', "expected ',' or ']'")?;
        }
        let event = element(scanner)?;
        self.number(event, scanner.position()).map(Some)
    }

    fn number(&mut self, event: Event, at: u64) -> Result<Positioned, Error> {
        let found = event.mod_revision;
        if found < self.last.max(1) {
            return Err(Error::Order {
                at,
                last: self.last,
                found,
            });
        }
        self.sub = if found == self.last { self.sub + 1 } else { 0 };
        self.last = found;
        Ok(Positioned { sub: self.sub, event })
    }
}

fn element<R: Read>(scanner: &mut Scanner<R>) -> Result<Event, Error> {
    let mut event = Event::default();
    scanner.event_len = 0;
    let mut has_event = false;
    scanner.expect(b'{', "expected an event")?;
    let mut first = true;
    while let Some(name) = scanner.field(&mut first)? {
        match name {
            b"etcdEvent" => {
                watch_event(scanner, &mut event)?;
                has_event = true;
            }
            b"time" => {
                let text = std::str::from_utf8(scanner.string()?);
                event.time = text.ok().and_then(|text| text.parse().ok());
            }
            b"leaseTTL" => event.lease_ttl = Some(scanner.integer()?),
            _ => scanner.skip()?,
        }
    }
    if has_event {
        Ok(event)
    } else {
        scanner.malformed("element without an event")
    }
}

fn watch_event<R: Read>(scanner: &mut Scanner<R>, event: &mut Event) -> Result<(), Error> {
    let mut has_key_value = false;
    scanner.expect(b'{', "expected an event")?;
    let mut first = true;
    while let Some(name) = scanner.field(&mut first)? {
        match name {
            b"type" => {
                event.kind = match scanner.integer()? {
                    0 => EventKind::Put,
                    1 => EventKind::Delete,
                    _ => return scanner.malformed("unknown type of event"),
                };
            }
            b"kv" => {
                key_value(scanner, event)?;
                has_key_value = true;
            }
            _ => scanner.skip()?,
        }
    }
    if has_key_value {
        Ok(())
    } else {
        scanner.malformed("event without a key")
    }
}

fn key_value<R: Read>(scanner: &mut Scanner<R>, event: &mut Event) -> Result<(), Error> {
    scanner.expect(b'{', "expected a key and value")?;
    let mut first = true;
    while let Some(name) = scanner.field(&mut first)? {
        match name {
            b"key" => scanner.base64(&mut event.key)?,
            b"value" => scanner.base64(&mut event.value)?,
            b"create_revision" => event.create_revision = scanner.integer()?,
            b"mod_revision" => event.mod_revision = scanner.integer()?,
            b"version" => event.version = scanner.integer()?,
            b"lease" => event.lease = scanner.integer()?,
            _ => scanner.skip()?,
        }
    }
    Ok(())
}

impl<R> fmt::Debug for Decoder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder")
            .field("last", &self.last)
            .field("sub", &self.sub)
            .finish_non_exhaustive()
    }
}
