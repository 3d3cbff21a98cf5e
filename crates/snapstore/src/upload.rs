//! What uploads to all object stores have in common: one request when the content is small, else parts; never over an
//! existing object; and not done before the store shows the object as it was sent.

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt as _;

use crate::{
    body::{Body, Content, Seal},
    error::{Class, Error, Result},
    listing::Object,
};

/// Content below this size goes up in one request, more in parts of it.
pub(crate) const PART_SIZE: usize = 8 * 1024 * 1024;

/// Parts on their way at once.
const PARALLEL_PARTS: usize = 4;

/// What an upload is about.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub key: String,
    /// Random, goes into the object's metadata. By it an upload whose answer got lost is recognized as our own, when
    /// its repetition finds the object to exist.
    pub token: String,
    pub action: String,
}

impl Ticket {
    pub(crate) fn new(key: String) -> Self {
        let token = format!("{:032x}", rand::random::<u128>());
        Self {
            token,
            action: format!("upload {key}"),
            key,
        }
    }

    pub(crate) fn error(&self, class: Class, detail: impl Into<String>) -> Error {
        Error::new(class, &self.action, detail)
    }
}

/// The object as the store shows it.
#[derive(Debug)]
pub(crate) struct Found {
    pub object: Object,
    pub token: Option<String>,
}

/// How one provider does it.
#[async_trait]
pub(crate) trait Upload: Sync {
    fn ticket(&self) -> &Ticket;

    /// Makes the object, unless there is one (see [`or_verify`]).
    async fn put(&self, content: Bytes) -> Result<()>;

    /// The same in parts, `first` being a whole one. Asks `seal` before the object becomes visible, and returns the
    /// number of bytes sent. Clears away what it sent when it fails.
    async fn put_parts(&self, first: Bytes, content: Content, seal: Seal) -> Result<u64>;

    /// The object, if there is one.
    async fn look(&self) -> Result<Option<Found>>;

    /// Uploads `body` and makes sure that it arrived.
    async fn run(&self, body: Body) -> Result<Object> {
        let action = &self.ticket().action;
        let (mut content, seal) = body.split();
        let first = content.next_part(PART_SIZE, action).await?;
        let sent = if first.len() < PART_SIZE {
            let sent = first.len() as u64;
            seal.check(sent, action).await?;
            or_verify(self.put(first).await)?;
            sent
        } else {
            self.put_parts(first, content, seal).await?
        };
        verify(self.ticket(), self.look().await?, sent)
    }
}

/// "It exists" may be said of a foreign object or of ours, made by a request whose answer was lost: verification tells
/// them apart.
pub(crate) fn or_verify<T: Default>(result: Result<T>) -> Result<T> {
    match result {
        Err(error) if error.class() == Class::AlreadyExists => Ok(T::default()),
        result => result,
    }
}

fn verify(ticket: &Ticket, found: Option<Found>, sent: u64) -> Result<Object> {
    match found {
        None => Err(ticket.error(
            Class::Corrupt,
            "the store doesn't show the object after the upload",
        )),
        Some(Found { token, .. }) if token.as_ref() != Some(&ticket.token) => {
            Err(ticket.error(Class::AlreadyExists, ""))
        }
        Some(Found { object, .. }) if object.size != sent => {
            let detail = format!("sent {sent} bytes, the store shows {}", object.size);
            Err(ticket.error(Class::Corrupt, detail))
        }
        Some(Found { object, .. }) => Ok(object),
    }
}

/// Sends `first` and what follows in numbered parts, several at once, while the next one is read. Returns what
/// `send_one` gave for each, in order, and the number of bytes.
pub(crate) async fn send_parts<P, F>(
    first: Bytes,
    content: Content,
    action: &str,
    send_one: impl Fn(usize, Bytes) -> F,
) -> Result<(Vec<P>, u64)>
where
    F: Future<Output = Result<P>>,
{
    let mut sent = 0;
    let parts = content
        .into_parts(first, PART_SIZE, action)
        .inspect_ok(|(_, part)| sent += part.len() as u64)
        .map_ok(|(number, part)| send_one(number, part))
        .try_buffered(PARALLEL_PARTS)
        .try_collect()
        .await?;
    Ok((parts, sent))
}
