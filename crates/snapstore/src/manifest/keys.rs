//! The keys that manifests are signed with: files of one folder, as a mounted Secret has them.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::{Attestation, Manifest};
use crate::{
    config::{Environment, invalid},
    error::{Class, Error, Result},
};

/// Bytes that a key has at least: as many as the hash.
const SHORTEST: usize = 32;

/// Which signatures are asked for before a snapshot is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Signatures {
    /// Every snapshot must be signed with one of the keys.
    Required,
    /// A snapshot that is signed must be so rightly; one that isn't is used.
    #[default]
    IfPresent,
    /// Manifests aren't looked at.
    Ignore,
}

impl FromStr for Signatures {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "Required" => Self::Required,
            "IfPresent" => Self::IfPresent,
            "Ignore" => Self::Ignore,
            _ => {
                return Err(invalid(format!(
                    "signatures {text:?} is none of Required, IfPresent and Ignore"
                )));
            }
        })
    }
}

impl Signatures {
    /// What a snapshot's manifest says, or why the snapshot isn't to be used.
    pub fn judge(self, attestation: Attestation) -> std::result::Result<Option<Manifest>, String> {
        match (self, attestation) {
            (Self::Ignore, _) | (Self::IfPresent, Attestation::Absent) => Ok(None),
            (_, Attestation::Signed(manifest)) | (Self::IfPresent, Attestation::Unsigned(manifest)) => {
                Ok(Some(manifest))
            }
            (_, Attestation::Bad(reason)) => Err(reason),
            (_, Attestation::UnknownKey { key, .. }) => Err(format!(
                "it is signed with key {key:?}, which isn't among the signing keys: add it to them"
            )),
            (Self::Required, Attestation::Absent | Attestation::Unsigned(_)) => {
                Err("it isn't signed, and signatures are required".to_owned())
            }
        }
    }
}

/// How manifests are signed and checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signing {
    /// Folder of the keys.
    pub keys: Option<PathBuf>,
    /// By default signatures are required where there are keys.
    pub signatures: Option<Signatures>,
}

impl Signing {
    /// Of the variables that the operator sets: `SNAPSHOT_SIGNING_KEYS` and `SNAPSHOT_SIGNATURES`.
    pub fn of(environment: &Environment) -> Result<Self> {
        Ok(Self {
            keys: environment.get("SNAPSHOT_SIGNING_KEYS").map(PathBuf::from),
            signatures: environment
                .get("SNAPSHOT_SIGNATURES")
                .map(str::parse)
                .transpose()?,
        })
    }
}

/// The keys, and what is asked for. The files are read whenever keys are needed, so that a new one counts at once.
#[derive(Debug, Clone, Default)]
pub struct Keyring {
    folder: Option<PathBuf>,
    signatures: Signatures,
}

/// One key. Its id is its file's name.
pub(crate) struct Key {
    pub(super) id: String,
    secret: Hmac<Sha256>,
}

impl Key {
    pub(super) fn sign(&self, message: &[u8]) -> Vec<u8> {
        let mut mac = self.secret.clone();
        mac.update(message);
        mac.finalize().into_bytes().to_vec()
    }

    /// In constant time.
    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let mut mac = self.secret.clone();
        mac.update(message);
        mac.verify_slice(signature).is_ok()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Keyring {
    /// Reads the keys once, so that unusable ones are noticed early.
    pub fn open(signing: &Signing) -> Result<Self> {
        let by_default = if signing.keys.is_some() {
            Signatures::Required
        } else {
            Signatures::IfPresent
        };
        let keyring = Self {
            folder: signing.keys.clone(),
            signatures: signing.signatures.unwrap_or(by_default),
        };
        if keyring.folder.is_none() && keyring.signatures == Signatures::Required {
            return Err(invalid(
                "signatures are required, but no folder of signing keys is given",
            ));
        }
        keyring.keys()?;
        Ok(keyring)
    }

    /// What is asked for.
    pub fn signatures(&self) -> Signatures {
        self.signatures
    }

    /// All keys by their ids; the last one signs. An error if there is to be one and there is none.
    pub(super) fn keys(&self) -> Result<Vec<Key>> {
        let Some(folder) = &self.folder else {
            return Ok(Vec::new());
        };
        let unreadable = |error: io::Error| {
            Error::new(
                Class::InvalidConfig,
                format!("read the signing keys in {}", folder.display()),
                error.to_string(),
            )
        };
        let mut keys = Vec::new();
        for entry in fs::read_dir(folder).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let id = entry.file_name().to_string_lossy().into_owned();
            // The links and folders by which the kubelet swaps a Secret's content.
            if !id.starts_with("..") {
                keys.push(read(&entry.path(), id).map_err(unreadable)?);
            }
        }
        if keys.is_empty() && self.signatures != Signatures::Ignore {
            return Err(unreadable(io::Error::other("there is none")));
        }
        keys.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(keys)
    }
}

fn read(path: &Path, id: String) -> io::Result<Key> {
    let content = fs::read(path)?;
    // Editors end files with one.
    let secret = content.strip_suffix(b"\n").unwrap_or(&content);
    if secret.len() < SHORTEST {
        return Err(io::Error::other(format!(
            "key {id:?} has less than {SHORTEST} bytes: make one with `openssl rand -base64 32`"
        )));
    }
    let secret = Hmac::new_from_slice(secret).map_err(io::Error::other)?;
    Ok(Key { id, secret })
}
