//! What uploads to all object stores have in common: one request when the content is small, else parts; never over an
//! existing object; and not done before the store shows the object as it was sent.

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt as _;
use md5::{Digest as _, Md5};

use crate::{
    body::{Body, Content, Seal},
    error::{Class, Error, Result},
    listing::Object,
    store::SnapStore,
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
    /// its repetition finds the object to exist, see [`Body::with_token`].
    pub token: String,
    pub action: String,
}

impl Ticket {
    pub(crate) fn new(key: String, body: &Body) -> Self {
        let token = body.token().map(str::to_owned);
        let token = token.unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
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
    /// Of the whole content, where the store gives one.
    pub checksum: Option<Checksum>,
}

/// What a store says of an object's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checksum {
    Md5([u8; 16]),
    Crc32c(u32),
}

impl Checksum {
    /// An entity tag that has the form of an MD5. With some kinds of encryption it isn't the content's.
    pub(crate) fn of_etag(etag: &str) -> Option<Self> {
        let mut sum = [0; 16];
        hex::decode_to_slice(etag.trim_matches('"'), &mut sum).ok()?;
        Some(Self::Md5(sum))
    }

    fn is_of(self, content: &[u8]) -> bool {
        match self {
            Self::Md5(sum) => Md5::digest(content)[..] == sum,
            Self::Crc32c(sum) => crc32c::crc32c(content) == sum,
        }
    }
}

/// What was sent.
enum Sent {
    /// In one request.
    Whole(Bytes),
    /// So many bytes in parts, each with its own checksum.
    Parts(u64),
}

impl Sent {
    fn len(&self) -> u64 {
        match self {
            Self::Whole(content) => content.len() as u64,
            Self::Parts(count) => *count,
        }
    }
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

    /// Uploads `body` to `store` and makes sure that it arrived.
    async fn run(&self, store: &dyn SnapStore, body: Body) -> Result<Object> {
        let action = &self.ticket().action;
        let (mut content, seal) = body.split();
        let first = content.next_part(PART_SIZE, action).await?;
        let sent = if first.len() < PART_SIZE {
            seal.check(first.len() as u64, action).await?;
            or_verify(self.put(first.clone()).await)?;
            Sent::Whole(first)
        } else {
            Sent::Parts(self.put_parts(first, content, seal).await?)
        };
        verify(self.ticket(), store, self.look().await?, &sent).await
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

/// Compares what the store shows with what was sent. An object of ours that differs is removed: nobody can use it, and
/// it would be in the way of the next try.
async fn verify(ticket: &Ticket, store: &dyn SnapStore, found: Option<Found>, sent: &Sent) -> Result<Object> {
    let Some(found) = found else {
        let detail = "the store doesn't show the object after the upload";
        return Err(ticket.error(Class::Corrupt, detail));
    };
    if found.token.as_ref() != Some(&ticket.token) {
        return Err(ticket.error(Class::AlreadyExists, ""));
    }
    let Some(difference) = difference(store, &found, sent).await? else {
        return Ok(found.object);
    };
    let state = match store.delete(&found.object).await {
        Ok(()) => "it was removed".to_owned(),
        Err(error) => format!("it can't be removed ({error}), remove it by hand"),
    };
    Err(ticket.error(Class::Corrupt, format!("{difference}; {state}")))
}

/// How the object differs from what was sent. Where the store gives no checksum, or another one, its bytes decide.
async fn difference(store: &dyn SnapStore, found: &Found, sent: &Sent) -> Result<Option<String>> {
    let size = found.object.size;
    if size != sent.len() {
        return Ok(Some(format!("sent {} bytes, the store has {size}", sent.len())));
    }
    let Sent::Whole(content) = sent else {
        return Ok(None);
    };
    if found.checksum.is_some_and(|checksum| checksum.is_of(content)) {
        return Ok(None);
    }
    let equal = match has_content(store, &found.object, content).await {
        // Who may only write can't compare.
        Err(error) if error.class() == Class::AccessDenied => true,
        // Already its size isn't the one that the store told.
        Err(error) if error.class() == Class::Corrupt => false,
        equal => equal?,
    };
    Ok((!equal).then(|| "the store has other content than was sent".to_owned()))
}

async fn has_content(store: &dyn SnapStore, object: &Object, content: &[u8]) -> Result<bool> {
    let mut rest = content;
    let mut stream = store.get(object, None).await?;
    while let Some(bytes) = stream.try_next().await? {
        match rest.strip_prefix(&bytes[..]) {
            Some(behind) => rest = behind,
            None => return Ok(false),
        }
    }
    Ok(rest.is_empty())
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

#[cfg(test)]
mod tests {
    use std::{
        ops::Range,
        sync::atomic::{AtomicBool, Ordering},
    };

    use futures::{StreamExt as _, stream};
    use jiff::Timestamp;

    use super::*;
    use crate::{body::ByteStream, listing::Listing, store::Immutability};

    /// A store that has something else than it says.
    #[derive(Debug, Default)]
    struct Lying {
        content: &'static [u8],
        readable: bool,
        deletable: bool,
        deleted: AtomicBool,
    }

    #[async_trait]
    impl SnapStore for Lying {
        fn location(&self) -> &'static str {
            "lying"
        }

        async fn list(&self) -> Result<Listing> {
            Ok(Listing::default())
        }

        async fn put_object(&self, file: &str, _: Body) -> Result<Object> {
            Err(Error::new(Class::Unsupported, file, ""))
        }

        async fn get(&self, object: &Object, _: Option<Range<u64>>) -> Result<ByteStream> {
            if self.readable {
                Ok(stream::iter([Ok(Bytes::from_static(self.content))]).boxed())
            } else {
                Err(Error::new(Class::AccessDenied, &object.key, ""))
            }
        }

        async fn delete(&self, object: &Object) -> Result<()> {
            if !self.deletable {
                return Err(Error::new(Class::Locked, &object.key, ""));
            }
            self.deleted.store(true, Ordering::Relaxed);
            Ok(())
        }

        async fn immutability(&self) -> Result<Immutability> {
            Ok(Immutability::default())
        }

        async fn abort_stale_uploads(&self, _: Timestamp) -> Result<u64> {
            Ok(0)
        }
    }

    fn found(token: &str, size: u64, checksum: Option<Checksum>) -> Found {
        Found {
            object: Object {
                key: "v2/name".to_owned(),
                size,
                etag: None,
                last_modified: None,
                version: None,
                immutable_until: None,
            },
            token: Some(token.to_owned()),
            checksum,
        }
    }

    const SENT: &[u8] = b"all of it";

    /// What is found is ours only with our token, stored only with all bytes, and removed only if it is ours.
    #[tokio::test]
    async fn only_what_was_sent_counts() {
        let right = Checksum::Md5(Md5::digest(SENT).into());
        let wrong = Checksum::Md5([0; 16]);
        // Token, size, checksum; what is read: the class of the error, and whether the object is removed.
        for (token, size, checksum, read, expected, removed) in [
            ("ours", 9, Some(right), None, None, false),
            (
                "ours",
                9,
                Some(Checksum::Crc32c(crc32c::crc32c(SENT))),
                None,
                None,
                false,
            ),
            ("ours", 9, None, Some(SENT), None, false),
            (
                "ours",
                9,
                None,
                Some(&b"all of i?"[..]),
                Some(Class::Corrupt),
                true,
            ),
            ("ours", 9, None, Some(&b"all "[..]), Some(Class::Corrupt), true),
            // Some encryptions make other entity tags: the bytes decide.
            ("ours", 9, Some(wrong), Some(SENT), None, false),
            (
                "ours",
                9,
                Some(wrong),
                Some(&b"all of it, "[..]),
                Some(Class::Corrupt),
                true,
            ),
            // Who may only write can't compare.
            ("ours", 9, Some(wrong), None, None, false),
            ("ours", 4, Some(right), None, Some(Class::Corrupt), true),
            ("another's", 4, None, None, Some(Class::AlreadyExists), false),
            (
                "another's",
                9,
                Some(right),
                None,
                Some(Class::AlreadyExists),
                false,
            ),
        ] {
            for deletable in [true, false] {
                let store = Lying {
                    content: read.unwrap_or_default(),
                    readable: read.is_some(),
                    deletable,
                    ..Lying::default()
                };
                let body = Body::from_bytes(SENT).with_token("ours");
                let ticket = Ticket::new("v2/name".to_owned(), &body);
                let sent = Sent::Whole(Bytes::from_static(SENT));
                let verified = verify(&ticket, &store, Some(found(token, size, checksum)), &sent).await;
                let row = format!("{token} {size} {checksum:?} {read:?}: {verified:?}");
                assert_eq!(verified.as_ref().err().map(Error::class), expected, "{row}");
                assert_eq!(
                    store.deleted.load(Ordering::Relaxed),
                    removed && deletable,
                    "{row}"
                );
                if removed && !deletable {
                    assert!(
                        verified.unwrap_err().to_string().contains("remove it by hand"),
                        "{row}"
                    );
                }
            }
        }
    }
}
