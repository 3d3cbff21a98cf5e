//! What is known of a stored snapshot beside its name: a manifest lies next to it and says what was uploaded and what a
//! restore needs besides. It may be signed, and then proves that nobody without the key has made or changed the snapshot.
//!
//! The envelope is that of DSSE (Dead Simple Signing Envelope, v1), its signature an HMAC-SHA-256 over DSSE's
//! pre-authentication encoding.

mod attest;
mod keys;
#[cfg(test)]
mod tests;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use self::{
    attest::{Attestation, Attesting},
    keys::{Keyring, Signatures, Signing},
};
use crate::{
    body::ByteStream,
    error::{Class, Error, Result},
    listing::{Object, StoredSnapshot},
    name::SnapshotName,
    store::SnapStore,
};

/// DSSE's name for what is in the envelope.
const PAYLOAD_TYPE: &str = "application/vnd.druid.snapshot-manifest+json";

/// Begins the names of manifests. A name of five fields is no snapshot to etcd-backup-restore.
pub(crate) const PREFIX: &str = "Manifest-";

/// A manifest is a few hundred bytes; what is larger than this is none.
pub(crate) const LARGEST: u64 = 64 << 10;

/// What was uploaded, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Name of the snapshot, without `.final`, which a copy may drop.
    pub snapshot: String,
    /// Bytes of the stored object.
    pub size: u64,
    /// SHA-256 of the stored object, in hexadecimal digits.
    pub sha256: String,
    #[serde(flatten)]
    pub facts: Facts,
}

/// What only the one who takes a snapshot knows of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Facts {
    /// The cluster that it was taken of, in hexadecimal digits.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// Version of the etcd that wrote the data. An older minor version doesn't read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_version: Option<String>,
    /// Hash of the configuration that the member ran with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_hash: Option<String>,
    /// Whether clients need a user name and a password, which are in the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<bool>,
    /// Keys at the snapshot's last revision. Only of full snapshots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<i64>,
    /// Whether somebody has accepted that there are far fewer than in the full snapshot before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fewer_keys_accepted: bool,
    /// SHA-256 of the database, uncompressed. Only of full snapshots.
    #[serde(rename = "databaseSHA256", skip_serializing_if = "Option::is_none")]
    pub database_sha256: Option<String>,
    /// UID of the Etcd that the cluster belongs to.
    #[serde(rename = "etcdUID", skip_serializing_if = "Option::is_none")]
    pub etcd_uid: Option<String>,
    /// Since when that cluster stores its backups in this place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_since: Option<Timestamp>,
    /// An event of the last revision. Only of full snapshots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_event: Option<LastEvent>,
}

/// An event of a snapshot's last revision: by it a cluster can tell whether the snapshot is of its own history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastEvent {
    /// The key, base64.
    pub key: String,
    /// Whether the key was deleted. Then it has neither version nor value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// How often the key was written since it was created.
    pub version: i64,
    /// SHA-256 of the value, in hexadecimal digits.
    #[serde(rename = "valueSHA256")]
    pub value_sha256: String,
}

/// What a snapshot's manifest says, whatever that is worth; nothing if there is none that can be read.
pub async fn facts(store: &dyn SnapStore, snapshot: &StoredSnapshot) -> Result<Option<Facts>> {
    let envelope = store.envelope(snapshot).await?;
    Ok(match Attestation::of(envelope.as_deref(), &snapshot.name, &[]) {
        Attestation::Signed(manifest)
        | Attestation::Unsigned(manifest)
        | Attestation::UnknownKey { manifest, .. } => Some(manifest.facts),
        Attestation::Absent | Attestation::Bad(_) => None,
    })
}

/// What a manifest calls its snapshot: a copy may drop `.final`.
fn subject(snapshot: &SnapshotName) -> String {
    snapshot.clone().with_final(false).to_string()
}

/// Name of the manifest of a snapshot.
pub(crate) fn name_of(snapshot: &SnapshotName) -> String {
    format!("{PREFIX}{}", subject(snapshot))
}

impl Manifest {
    /// Whether it is that of this snapshot.
    fn is_of(&self, snapshot: &SnapshotName) -> bool {
        self.snapshot == subject(snapshot)
    }

    /// Whether these were its bytes.
    pub fn check(&self, digest: Digest) -> Result<()> {
        let (size, sha256) = digest.finish();
        if (size, &sha256) == (self.size, &self.sha256) {
            return Ok(());
        }
        let action = format!("compare {} with its manifest", self.snapshot);
        Err(Error::new(
            Class::Corrupt,
            action,
            "the object isn't the one that was uploaded",
        ))
    }
}

/// Follows the bytes of an object on their way, to compare them with what its manifest says.
#[derive(Debug, Clone, Default)]
pub struct Digest {
    hasher: Sha256,
    size: u64,
}

impl Digest {
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.size += bytes.len() as u64;
    }

    /// Bytes so far, and their SHA-256 in hexadecimal digits.
    pub fn finish(self) -> (u64, String) {
        (self.size, hex::encode(self.hasher.finalize()))
    }

    /// That of an object's bytes, all of which are read.
    pub async fn of_object(store: &dyn SnapStore, object: &Object) -> Result<Self> {
        let mut stream = store.get(object, None).await?;
        let mut digest = Self::default();
        while let Some(piece) = stream.try_next().await? {
            digest.update(&piece);
        }
        Ok(digest)
    }

    /// Passes a stream through, with an error in place of the end if it isn't what the manifest says.
    pub(crate) fn check(stream: ByteStream, manifest: Manifest) -> ByteStream {
        let state = (stream, Some(Self::default()), manifest);
        stream::try_unfold(state, |(mut stream, digest, manifest)| async move {
            let Some(mut digest) = digest else { return Ok(None) };
            if let Some(piece) = stream.try_next().await? {
                digest.update(&piece);
                return Ok(Some((piece, (stream, Some(digest), manifest))));
            }
            manifest.check(digest).map(|()| None)
        })
        .boxed()
    }
}

/// DSSE's JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload_type: String,
    payload: String,
    signatures: Vec<Signature>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Signature {
    keyid: String,
    sig: String,
}

impl Envelope {
    /// Puts a manifest into an envelope, signed if there is a key.
    fn seal(manifest: &Manifest, key: Option<&keys::Key>) -> serde_json::Result<Vec<u8>> {
        let payload = serde_json::to_vec(manifest)?;
        let signatures = key.map(|key| Signature {
            keyid: key.id.clone(),
            sig: BASE64.encode(key.sign(&pre_authentication(PAYLOAD_TYPE, &payload))),
        });
        serde_json::to_vec(&Self {
            payload_type: PAYLOAD_TYPE.to_owned(),
            payload: BASE64.encode(&payload),
            signatures: signatures.into_iter().collect(),
        })
    }

    /// Opens an envelope: what it says, and what its signature is worth.
    fn open(bytes: &[u8], snapshot: &SnapshotName, keys: &[keys::Key]) -> Attestation {
        let bad = |what: &str| Attestation::Bad(format!("its manifest {what}"));
        let Ok(envelope) = serde_json::from_slice::<Self>(bytes) else {
            return bad("can't be read");
        };
        let payload = BASE64.decode(&envelope.payload).ok();
        let Some(payload) = payload.filter(|_| envelope.payload_type == PAYLOAD_TYPE) else {
            return bad("is of another kind");
        };
        let Ok(manifest) = serde_json::from_slice::<Manifest>(&payload) else {
            return bad("can't be understood");
        };
        if !manifest.is_of(snapshot) {
            return bad(&format!("is that of {}", manifest.snapshot));
        }
        let message = pre_authentication(&envelope.payload_type, &payload);
        let mut unknown = None;
        for Signature { keyid, sig } in &envelope.signatures {
            let Some(key) = keys.iter().find(|key| key.id == *keyid) else {
                unknown.get_or_insert_with(|| keyid.clone());
                continue;
            };
            return match BASE64.decode(sig) {
                Ok(sig) if key.verifies(&message, &sig) => Attestation::Signed(manifest),
                _ => bad(&format!("isn't what was signed with key {keyid:?}")),
            };
        }
        match unknown {
            Some(key) => Attestation::UnknownKey { manifest, key },
            None => Attestation::Unsigned(manifest),
        }
    }
}

/// DSSE's encoding of what is signed: no two different pairs of type and payload have the same.
fn pre_authentication(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len());
    [head.as_bytes(), payload].concat()
}
