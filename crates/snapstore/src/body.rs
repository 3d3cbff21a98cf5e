//! What is uploaded: a stream of bytes, perhaps of announced length, with a last word of its owner before it counts.

use std::{fmt, io, mem, path::Path};

use bytes::{Bytes, BytesMut};
use futures::{
    FutureExt as _, Stream, StreamExt as _, TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use tokio_util::io::ReaderStream;

use crate::{
    error::{Class, Error, Result},
    manifest::{Digest, Facts},
};

/// Bytes read from a store.
pub type ByteStream = BoxStream<'static, Result<Bytes>>;

/// Size of a read from a file.
pub(crate) const READ_SIZE: usize = 256 * 1024;

/// The content of an upload.
pub struct Body {
    content: Content,
    seal: Seal,
    attached: Attached,
    token: Option<String>,
}

/// What goes into a snapshot's manifest.
pub(crate) enum Attached {
    /// A manifest is to be made with these, which are asked for when all bytes are with the store.
    Facts(Box<dyn FnOnce() -> Facts + Send>),
    /// The manifest that the snapshot has where it is copied from, if it has one.
    Envelope(Option<Bytes>),
}

impl Default for Attached {
    fn default() -> Self {
        Self::Facts(Box::new(Facts::default))
    }
}

impl Body {
    /// `length`: bytes to come, if known; any other number fails the upload. An error in the stream does so too, and
    /// in both cases no object comes into being.
    pub fn from_stream(
        stream: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        length: Option<u64>,
    ) -> Self {
        let content = Content {
            stream: stream.boxed(),
            pending: Bytes::new(),
        };
        Self {
            content,
            seal: Seal { length, guard: None },
            attached: Attached::default(),
            token: None,
        }
    }

    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        let length = bytes.len() as u64;
        Self::from_stream(stream::iter([Ok(bytes)]), Some(length))
    }

    /// The whole content of the file at `path`.
    pub async fn from_file(path: &Path) -> io::Result<Self> {
        let file = tokio::fs::File::open(path).await?;
        let length = file.metadata().await?.len();
        Ok(Self::from_stream(
            ReaderStream::with_capacity(file, READ_SIZE),
            Some(length),
        ))
    }

    /// `guard` is asked when all bytes are with the store and before the object becomes visible; an error withdraws
    /// the upload. Who must hold a lease to write checks it here.
    #[must_use]
    pub fn with_guard(mut self, guard: impl Future<Output = io::Result<()>> + Send + 'static) -> Self {
        self.seal.guard = Some(guard.boxed());
        self
    }

    /// Passes each piece of the content through `inspect` on its way.
    #[must_use]
    pub fn inspect(mut self, mut inspect: impl FnMut(&Bytes) + Send + 'static) -> Self {
        self.content.stream = self
            .content
            .stream
            .inspect_ok(move |bytes| inspect(bytes))
            .boxed();
        self
    }

    /// What the snapshot's manifest is to say of it, where the store writes manifests. Asked for after the last byte.
    #[must_use]
    pub fn with_facts(mut self, facts: impl FnOnce() -> Facts + Send + 'static) -> Self {
        self.attached = Attached::Facts(Box::new(facts));
        self
    }

    /// The manifest that the snapshot has already. None is made for one that has none: a copy vouches for nothing.
    #[must_use]
    pub(crate) fn with_envelope(mut self, envelope: Option<Bytes>) -> Self {
        self.attached = Attached::Envelope(envelope);
        self
    }

    /// Marks the object where the store keeps metadata. All tries of one upload carry the same token, so that a later try
    /// recognizes what an earlier one has left.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Reads the content to its end and returns its digest; nothing is uploaded.
    pub async fn digest(self) -> Result<Digest> {
        let mut content = self.content;
        let mut digest = Digest::default();
        while let Some(bytes) = content.next("read what was uploaded").await? {
            digest.update(&bytes);
        }
        Ok(digest)
    }

    pub(crate) fn take_attached(&mut self) -> Attached {
        mem::take(&mut self.attached)
    }

    pub(crate) fn split(self) -> (Content, Seal) {
        (self.content, self.seal)
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("length", &self.seal.length)
            .finish_non_exhaustive()
    }
}

/// The bytes of a body.
pub(crate) struct Content {
    stream: BoxStream<'static, io::Result<Bytes>>,
    /// Read but not yet handed out by [`next_part`](Self::next_part).
    pending: Bytes,
}

impl Content {
    pub(crate) async fn next(&mut self, action: &str) -> Result<Option<Bytes>> {
        let next = self.stream.try_next().await;
        next.map_err(|e| Error::new(Class::SourceFailed, action, e.to_string()).with_source(e))
    }

    /// The next part of exactly `size` bytes; shorter, or empty, only at the end.
    pub(crate) async fn next_part(&mut self, size: usize, action: &str) -> Result<Bytes> {
        let mut part = BytesMut::from(&*mem::take(&mut self.pending));
        while part.len() < size {
            match self.next(action).await? {
                Some(bytes) => part.extend_from_slice(&bytes),
                None => break,
            }
        }
        let rest = part.split_off(part.len().min(size));
        self.pending = rest.freeze();
        Ok(part.freeze())
    }

    /// `first` and all that follows in parts of `size`, numbered from 1. At least one part, none but the only one
    /// empty.
    pub(crate) fn into_parts(
        self,
        first: Bytes,
        size: usize,
        action: &str,
    ) -> BoxStream<'_, Result<(usize, Bytes)>> {
        stream::try_unfold(
            (1, Some(first), self),
            move |(number, first, mut content)| async move {
                let part = match first {
                    Some(part) => part,
                    None => content.next_part(size, action).await?,
                };
                let is_last = part.is_empty() && number > 1;
                Ok((!is_last).then_some(((number, part), (number + 1, None, content))))
            },
        )
        .boxed()
    }
}

/// What decides at the end whether an upload counts.
pub(crate) struct Seal {
    length: Option<u64>,
    guard: Option<BoxFuture<'static, io::Result<()>>>,
}

impl Seal {
    /// To be called between the last byte and the object's becoming visible.
    pub(crate) async fn check(self, sent: u64, action: &str) -> Result<()> {
        if let Some(length) = self.length.filter(|length| *length != sent) {
            let detail = format!("{length} bytes were announced, {sent} came");
            return Err(Error::new(Class::SourceFailed, action, detail));
        }
        let Some(guard) = self.guard else { return Ok(()) };
        let withdrawn =
            |e: io::Error| Error::new(Class::SourceFailed, action, format!("withdrawn: {e}")).with_source(e);
        guard.await.map_err(withdrawn)
    }
}
