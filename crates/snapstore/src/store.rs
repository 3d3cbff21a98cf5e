//! The contract that every provider keeps.

use std::{fmt, ops::Range};

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt as _;
use jiff::{SignedDuration, Timestamp};

use crate::{
    body::{Body, ByteStream},
    error::{Class, Result},
    listing::{Layout, Listing, Object, StoredSnapshot},
    manifest::{self, Attestation, Signatures},
    name::SnapshotName,
};

/// Backups of one etcd cluster: everything below one prefix of one bucket.
///
/// Calls retry what may pass (see [`Class::is_retryable`](crate::Class::is_retryable)) for a bounded time, and read
/// credential files anew when these have changed. All of them may be dropped at any point.
#[async_trait]
pub trait SnapStore: fmt::Debug + Send + Sync {
    /// For messages: `s3://bucket/prefix`. Holds no secret.
    fn location(&self) -> &str;

    /// All that lies below the prefix's `v2/` and `v1/`; nothing of neighbouring prefixes. An error says nothing
    /// about what is there: *unknown* is not *empty*.
    async fn list(&self) -> Result<Listing>;

    /// Uploads an object as `v2/<file>`. It is visible only when complete, and its size and checksum or etag are
    /// compared with what was sent before the call returns. Fails with
    /// [`Class::AlreadyExists`](crate::Class::AlreadyExists), leaving the object as it is, if there is one of that name.
    async fn put_object(&self, file: &str, body: Body) -> Result<Object>;

    /// Uploads a snapshot, as any object.
    async fn put(&self, name: &SnapshotName, body: Body) -> Result<StoredSnapshot> {
        let object = self.put_object(&name.to_string(), body).await?;
        Ok(StoredSnapshot {
            name: name.clone(),
            layout: Layout::V2,
            object,
            excluded: false,
            manifest: None,
        })
    }

    /// Reads an object, or `range` of its bytes. A broken connection is resumed; the stream ends cleanly only after
    /// the last byte.
    async fn get(&self, object: &Object, range: Option<Range<u64>>) -> Result<ByteStream>;

    /// The manifest of a snapshot as it lies in the store, if there is one. What is too large to be one is empty.
    async fn envelope(&self, snapshot: &StoredSnapshot) -> Result<Option<Bytes>> {
        let Some(object) = &snapshot.manifest else {
            return Ok(None);
        };
        if object.size > manifest::LARGEST {
            return Ok(Some(Bytes::new()));
        }
        let read = async {
            let mut stream = self.get(object, None).await?;
            let (mut pieces, mut len) = (Vec::new(), 0);
            // Whatever was listed: what is longer than any manifest isn't read to its end.
            while len <= manifest::LARGEST
                && let Some(piece) = stream.try_next().await?
            {
                len += piece.len() as u64;
                pieces.push(piece);
            }
            Ok::<_, crate::error::Error>(pieces)
        };
        match read.await {
            Ok(pieces) => Ok(Some(pieces.concat().into())),
            // Deleted since the listing.
            Err(error) if error.class() == Class::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What a snapshot's manifest says, and what that is worth.
    async fn attest(&self, snapshot: &StoredSnapshot) -> Result<Attestation> {
        let envelope = self.envelope(snapshot).await?;
        self.judge(envelope.as_deref(), &snapshot.name)
    }

    /// The same of a manifest that was read already.
    fn judge(&self, envelope: Option<&[u8]>, name: &SnapshotName) -> Result<Attestation> {
        Ok(Attestation::of(envelope, name, &[]))
    }

    /// Which signatures are asked for before a snapshot is used.
    fn signatures(&self) -> Signatures {
        Signatures::default()
    }

    /// Deletes an object; one that isn't there any more counts as deleted. Fails with
    /// [`Class::Locked`](crate::Class::Locked) while the store protects it.
    async fn delete(&self, object: &Object) -> Result<()>;

    /// What the bucket promises about new objects.
    async fn immutability(&self) -> Result<Immutability>;

    /// Drops uploads that were begun before `started_before` and never finished. Returns how many.
    async fn abort_stale_uploads(&self, started_before: Timestamp) -> Result<u64>;
}

/// Protection against deletion that a bucket gives to new objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Immutability {
    pub versioned: bool,
    /// How long a new object is protected, if at all.
    pub retention: Option<SignedDuration>,
}
