//! A store whose snapshots have manifests: one is written after each upload, and looked for before a snapshot is used.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;

use super::{Digest, Envelope, Keyring, Manifest, Signatures, keys::Key, name_of, subject};
use crate::{
    body::{Attached, Body, ByteStream},
    error::{Class, Error, Result},
    listing::{Listing, Object, StoredSnapshot},
    name::SnapshotName,
    store::{Immutability, SnapStore},
};

/// What a snapshot's manifest is worth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attestation {
    /// There is none.
    Absent,
    /// It is there, and anybody may have written it.
    Unsigned(Manifest),
    /// Somebody with one of the keys has written it.
    Signed(Manifest),
    /// It is signed with a key that isn't known here.
    UnknownKey { manifest: Manifest, key: String },
    /// It isn't what was written; says how that shows.
    Bad(String),
}

impl Attestation {
    pub(crate) fn of(envelope: Option<&[u8]>, snapshot: &SnapshotName, keys: &[Key]) -> Self {
        match envelope {
            None => Self::Absent,
            Some(envelope) => Envelope::open(envelope, snapshot, keys),
        }
    }
}

/// A store that writes and reads manifests.
#[derive(Debug)]
pub struct Attesting {
    store: Arc<dyn SnapStore>,
    keys: Keyring,
    /// Manifests of snapshots that are stored, which aren't stored themselves yet.
    owed: Mutex<HashMap<SnapshotName, Owed>>,
}

/// A manifest that isn't stored yet.
#[derive(Debug, Clone)]
struct Owed {
    envelope: Bytes,
    /// Bytes and SHA-256 of the snapshot that was sent.
    sent: (u64, String),
}

impl Attesting {
    pub fn new(store: Arc<dyn SnapStore>, keys: Keyring) -> Self {
        Self {
            store,
            keys,
            owed: Mutex::default(),
        }
    }

    fn owed(&self) -> std::sync::MutexGuard<'_, HashMap<SnapshotName, Owed>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The manifest of what was just uploaded: its own one, or that which it had where it was copied from.
    fn seal(
        name: &SnapshotName,
        attached: Attached,
        digest: Digest,
        key: Option<&Key>,
    ) -> Result<Option<Bytes>> {
        let facts = match attached {
            Attached::Envelope(envelope) => return Ok(envelope),
            Attached::Facts(facts) => facts(),
        };
        let (size, sha256) = digest.finish();
        let manifest = Manifest {
            snapshot: subject(name),
            size,
            sha256,
            facts,
        };
        let sealed = Envelope::seal(&manifest, key);
        let failed = |error: serde_json::Error| {
            Error::new(Class::Other, format!("describe {name}"), error.to_string())
        };
        Ok(Some(sealed.map_err(failed)?.into()))
    }

    async fn upload(&self, name: &SnapshotName, mut body: Body) -> Result<StoredSnapshot> {
        // Before the snapshot is there: one that can't be signed is of no use.
        let keys = self.keys.keys()?;
        let attached = body.take_attached();
        let digest = Arc::new(Mutex::new(Digest::default()));
        let passing = Arc::clone(&digest);
        let body = body.inspect(move |bytes| {
            passing
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .update(bytes);
        });
        let stored = self.store.put(name, body).await;
        // It may have arrived although it is said to have failed.
        let refused = |error: &Error| matches!(error.class(), Class::AlreadyExists | Class::Corrupt);
        if stored.as_ref().err().is_none_or(|error| !refused(error)) {
            let digest = digest.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let sent = digest.clone().finish();
            if let Some(envelope) = Self::seal(name, attached, digest, keys.last())? {
                self.owed().insert(name.clone(), Owed { envelope, sent });
            }
        }
        stored
    }

    /// A snapshot of ours whose manifest isn't stored yet, when it is uploaded again. Only if all of it is there: what an
    /// upload left that failed may be the half of it.
    async fn uploaded(&self, name: &SnapshotName) -> Result<Option<StoredSnapshot>> {
        let Some(Owed { sent, .. }) = self.owed().get(name).cloned() else {
            return Ok(None);
        };
        let listing = self.store.list().await?;
        let found = listing.snapshots.into_iter().find(|stored| stored.name == *name);
        let Some(found) = found.filter(|found| found.object.size == sent.0) else {
            return Ok(None);
        };
        let digest = Digest::of_object(self.store.as_ref(), &found.object).await?;
        Ok((digest.finish() == sent).then_some(found))
    }

    /// Whether the store has this manifest of a snapshot.
    async fn has_manifest(&self, name: &SnapshotName, envelope: &Bytes) -> Result<bool> {
        let listing = self.store.list().await?;
        let Some(found) = listing.snapshots.iter().find(|stored| stored.name == *name) else {
            return Ok(false);
        };
        Ok(self.store.envelope(found).await?.as_ref() == Some(envelope))
    }

    async fn store_owed(&self, name: &SnapshotName) -> Result<Option<Object>> {
        let Some(Owed { envelope, .. }) = self.owed().get(name).cloned() else {
            return Ok(None);
        };
        let file = name_of(name);
        let put = self.store.put_object(&file, Body::from_bytes(envelope.clone()));
        match put.await {
            Ok(object) => {
                self.owed().remove(name);
                Ok(Some(object))
            }
            Err(error) if error.class() == Class::AlreadyExists => {
                let is_ours = self.has_manifest(name, &envelope).await?;
                self.owed().remove(name);
                // By an earlier try whose answer got lost. With any other manifest the snapshot can't be used.
                if is_ours { Ok(None) } else { Err(error) }
            }
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl SnapStore for Attesting {
    fn location(&self) -> &str {
        self.store.location()
    }

    async fn list(&self) -> Result<Listing> {
        let mut listing = self.store.list().await?;
        if self.keys.signatures() == Signatures::Required {
            listing.set_apart_unsettled(Timestamp::now());
        }
        Ok(listing)
    }

    /// The snapshot, and then its manifest. An error may mean that only the latter isn't there: uploading the snapshot
    /// again mends that.
    async fn put(&self, name: &SnapshotName, body: Body) -> Result<StoredSnapshot> {
        let stored = match self.uploaded(name).await? {
            Some(stored) => stored,
            None => self.upload(name, body).await?,
        };
        let manifest = self.store_owed(name).await?;
        Ok(StoredSnapshot { manifest, ..stored })
    }

    async fn put_object(&self, file: &str, body: Body) -> Result<Object> {
        self.store.put_object(file, body).await
    }

    async fn get(&self, object: &Object, range: Option<Range<u64>>) -> Result<ByteStream> {
        self.store.get(object, range).await
    }

    fn judge(&self, envelope: Option<&[u8]>, name: &SnapshotName) -> Result<Attestation> {
        if self.keys.signatures() == Signatures::Ignore {
            return Ok(Attestation::Absent);
        }
        Ok(Attestation::of(envelope, name, &self.keys.keys()?))
    }

    fn signatures(&self) -> Signatures {
        self.keys.signatures()
    }

    async fn delete(&self, object: &Object) -> Result<()> {
        self.store.delete(object).await
    }

    async fn immutability(&self) -> Result<Immutability> {
        self.store.immutability().await
    }

    async fn abort_stale_uploads(&self, started_before: Timestamp) -> Result<u64> {
        self.store.abort_stale_uploads(started_before).await
    }
}
