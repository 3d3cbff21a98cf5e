//! What is uploaded: a stream of bytes, perhaps of announced length, with a last word of its owner before it counts.

use std::{fmt, io, mem, path::Path};

use bytes::{Bytes, BytesMut};
use futures::{
    FutureExt as _, Stream, StreamExt as _, TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use tokio_util::io::ReaderStream;

use crate::error::{Class, Error};

/// Bytes read from a store.
pub type ByteStream = BoxStream<'static, Result<Bytes, Error>>;

/// Size of a read from a file.
const READ_SIZE: usize = 256 * 1024;

/// The content of an upload.
pub struct Body {
    stream: BoxStream<'static, io::Result<Bytes>>,
    length: Option<u64>,
    /// Read but not yet handed out by [`next_part`](Self::next_part).
    pending: Bytes,
    guard: Option<BoxFuture<'static, io::Result<()>>>,
}

impl Body {
    /// `length`: bytes to come, if known; any other number fails the upload. An error in the stream does so too, and
    /// in both cases no object comes into being.
    pub fn from_stream(
        stream: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        length: Option<u64>,
    ) -> Self {
        Self {
            stream: stream.boxed(),
            length,
            pending: Bytes::new(),
            guard: None,
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
        self.guard = Some(guard.boxed());
        self
    }

    pub(crate) async fn next(&mut self, action: &str) -> Result<Option<Bytes>, Error> {
        let next = self.stream.try_next().await;
        next.map_err(|e| Error::new(Class::SourceFailed, action, e.to_string()).with_source(e))
    }

    /// The next part of exactly `size` bytes; shorter, or empty, only at the end.
    pub(crate) async fn next_part(&mut self, size: usize, action: &str) -> Result<Bytes, Error> {
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

    /// To be called between the last byte and the object's becoming visible.
    pub(crate) async fn confirm(self, sent: u64, action: &str) -> Result<(), Error> {
        if let Some(length) = self.length.filter(|length| *length != sent) {
            let detail = format!("{length} bytes were announced, {sent} came");
            return Err(Error::new(Class::SourceFailed, action, detail));
        }
        match self.guard {
            Some(guard) => guard.await.map_err(|e| {
                Error::new(Class::SourceFailed, action, format!("withdrawn: {e}")).with_source(e)
            }),
            None => Ok(()),
        }
    }

    /// Passes each piece of the content through `inspect` on its way.
    #[must_use]
    pub fn inspect(mut self, mut inspect: impl FnMut(&Bytes) + Send + 'static) -> Self {
        self.stream = self.stream.inspect_ok(move |bytes| inspect(bytes)).boxed();
        self
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}
