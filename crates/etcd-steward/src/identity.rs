//! The identity file on the data volume: whose data this is. A volume that ends up at another member is recognised by
//! it, and nothing is written there.

use std::{io, path::Path};

use etcd_storage::beneath::Beneath;
use serde::{Deserialize, Serialize};

use crate::{exit_record, volume::VolumeError};

const FILE: &str = "identity.json";
/// What etcd-backup-restore left: the namespace only.
const SAFE_GUARD: &str = "safe_guard";
/// Neither is longer: names have 253 bytes at the most.
const MAX_SIZE: u64 = 4096;

/// Whose data lies on a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Namespace of the Etcd.
    pub namespace: String,
    /// Name of the Etcd.
    pub etcd: String,
    /// UID of the Etcd. An Etcd that was deleted and made again under its name takes over the volume.
    pub uid: String,
    /// Name of the member.
    pub member: String,
    /// The etcd cluster that the member was last seen in, in hexadecimal. Not part of who it is: a restore makes a new
    /// one.
    #[serde(rename = "clusterID", default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
}

/// What the volume says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// Nobody has used it.
    Nobody,
    /// This member.
    Us,
    /// This member of an earlier Etcd of the same name.
    Predecessor,
    /// Somebody else; the text says who.
    Other(String),
}

impl Identity {
    /// Compares the volume with this identity. Writes nothing.
    pub fn owner_of(&self, volume: &Path) -> Result<Owner, VolumeError> {
        let Some(found) = Self::read(volume)? else {
            return self.safe_guard(volume);
        };
        let same =
            (&found.namespace, &found.etcd, &found.member) == (&self.namespace, &self.etcd, &self.member);
        Ok(if same && found.uid == self.uid {
            Owner::Us
        } else if same {
            Owner::Predecessor
        } else {
            Owner::Other(format!(
                "member {} of Etcd {}/{}",
                found.member, found.namespace, found.etcd
            ))
        })
    }

    /// What is on the volume, if anything is.
    fn read(volume: &Path) -> Result<Option<Self>, VolumeError> {
        let file = volume.join(FILE);
        match Beneath::new(volume, FILE).read(MAX_SIZE) {
            Ok(text) => match serde_json::from_slice(&text) {
                Ok(found) if Self::is_wellformed(&found) => Ok(Some(found)),
                // Not the error itself: it repeats what is in the file.
                _ => Err(VolumeError::at("understand", &file)(io::Error::other(
                    "it isn't what a steward writes",
                ))),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(VolumeError::at("read", &file)(error)),
        }
    }

    /// It is shown to people, so it must be no more than names.
    fn is_wellformed(found: &Self) -> bool {
        let is_id =
            |id: &String| (1..=16).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let names = [&found.namespace, &found.etcd, &found.member];
        names.into_iter().all(|name| is_name(name)) && found.cluster_id.as_ref().is_none_or(is_id)
    }

    /// The cluster that this very member was last seen in: what a predecessor left doesn't count.
    pub fn recorded_cluster(&self, volume: &Path) -> Result<Option<String>, VolumeError> {
        let ours = Self::read(volume)?.filter(|found| self.is_of_same_etcd(found));
        Ok(ours.and_then(|found| found.cluster_id))
    }

    fn is_of_same_etcd(&self, found: &Self) -> bool {
        (&found.uid, &found.member) == (&self.uid, &self.member)
    }

    /// A volume of etcd-backup-restore.
    fn safe_guard(&self, volume: &Path) -> Result<Owner, VolumeError> {
        let file = volume.join(SAFE_GUARD);
        match Beneath::new(volume, SAFE_GUARD).read_text(MAX_SIZE) {
            Ok(namespace) if namespace.trim() == self.namespace => Ok(Owner::Nobody),
            Ok(namespace) if is_name(namespace.trim()) => {
                Ok(Owner::Other(format!("an Etcd in namespace {}", namespace.trim())))
            }
            Ok(_) => Ok(Owner::Other(format!(
                "somebody else: {SAFE_GUARD} on it names no namespace"
            ))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Owner::Nobody),
            Err(error) => Err(VolumeError::at("read", &file)(error)),
        }
    }

    /// Marks the volume as this member's. What it says of the member's cluster stays.
    pub fn claim(&self, volume: &Path) -> Result<(), VolumeError> {
        let cluster_id = self.recorded_cluster(volume)?;
        self.write(volume, cluster_id)
    }

    /// Notes the cluster that the member is in.
    pub fn record_cluster(&self, volume: &Path, cluster_id: &str) -> Result<(), VolumeError> {
        if self.recorded_cluster(volume)?.as_deref() == Some(cluster_id) {
            return Ok(());
        }
        self.write(volume, Some(cluster_id.to_owned()))
    }

    fn write(&self, volume: &Path, cluster_id: Option<String>) -> Result<(), VolumeError> {
        let known = Self {
            cluster_id,
            ..self.clone()
        };
        let text = serde_json::to_vec(&known).map_err(io::Error::from);
        text.and_then(|text| exit_record::replace(volume, FILE, &text))
            .map_err(VolumeError::at("write", &volume.join(FILE)))
    }
}

/// Whether the API server could have taken it for a name.
fn is_name(text: &str) -> bool {
    let is_part =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    (1..=253).contains(&text.len()) && text.bytes().all(is_part)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn identity(member: &str, uid: &str) -> Identity {
        Identity {
            namespace: "lab".into(),
            etcd: "t1".into(),
            uid: uid.into(),
            member: member.into(),
            cluster_id: None,
        }
    }

    /// Whoever claims the volume again keeps it; a successor starts without.
    #[test]
    fn the_cluster_stays_recorded_for_this_etcd() {
        let volume = tempfile::tempdir().unwrap();
        let ours = identity("t1-1", "a");
        assert_eq!(ours.recorded_cluster(volume.path()).unwrap(), None);
        ours.claim(volume.path()).unwrap();
        ours.record_cluster(volume.path(), "abc").unwrap();
        ours.claim(volume.path()).unwrap();
        assert_eq!(ours.owner_of(volume.path()).unwrap(), Owner::Us);
        assert_eq!(
            ours.recorded_cluster(volume.path()).unwrap().as_deref(),
            Some("abc")
        );
        ours.record_cluster(volume.path(), "def").unwrap();
        assert_eq!(
            ours.recorded_cluster(volume.path()).unwrap().as_deref(),
            Some("def")
        );

        let successor = identity("t1-1", "b");
        assert_eq!(successor.recorded_cluster(volume.path()).unwrap(), None);
        successor.claim(volume.path()).unwrap();
        assert_eq!(ours.recorded_cluster(volume.path()).unwrap(), None);
    }

    #[test]
    fn a_swapped_volume_is_recognised_and_left_alone() {
        let volume = tempfile::tempdir().unwrap();
        let ours = identity("t1-1", "a");
        assert_eq!(ours.owner_of(volume.path()).unwrap(), Owner::Nobody);
        ours.claim(volume.path()).unwrap();
        assert_eq!(ours.owner_of(volume.path()).unwrap(), Owner::Us);

        let before = fs::metadata(volume.path().join(FILE))
            .unwrap()
            .modified()
            .unwrap();
        assert!(
            matches!(identity("t1-2", "a").owner_of(volume.path()).unwrap(), Owner::Other(who) if who.contains("t1-1"))
        );
        assert_eq!(
            fs::metadata(volume.path().join(FILE))
                .unwrap()
                .modified()
                .unwrap(),
            before
        );
    }

    /// Etcds keep their volumes when they are deleted; made again, they get their data back.
    #[test]
    fn a_recreated_etcd_takes_over_its_volume() {
        let volume = tempfile::tempdir().unwrap();
        identity("t1-1", "old").claim(volume.path()).unwrap();
        assert_eq!(
            identity("t1-1", "new").owner_of(volume.path()).unwrap(),
            Owner::Predecessor
        );
    }

    #[test]
    fn the_guard_of_etcd_backup_restore_is_heeded() {
        let volume = tempfile::tempdir().unwrap();
        fs::write(volume.path().join(SAFE_GUARD), "lab").unwrap();
        assert_eq!(
            identity("t1-1", "a").owner_of(volume.path()).unwrap(),
            Owner::Nobody
        );
        fs::write(volume.path().join(SAFE_GUARD), "other").unwrap();
        assert!(matches!(
            identity("t1-1", "a").owner_of(volume.path()).unwrap(),
            Owner::Other(_)
        ));
    }

    /// etcd's container may write on the volume: what a link leads to is not told to anybody, and nothing is waited for.
    #[test]
    fn files_of_the_volume_lead_nowhere_else() {
        let (volume, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let key = keys.path().join("2026-01");
        fs::write(&key, "c2VjcmV0\n").unwrap();
        let ours = identity("t1-1", "a");
        for file in [SAFE_GUARD, FILE] {
            let path = volume.path().join(file);
            symlink(&key, &path).unwrap();
            let error = ours.owner_of(volume.path()).unwrap_err().to_string();
            assert!(error.contains(file) && !error.contains("c2VjcmV0"), "{error}");
            fs::remove_file(&path).unwrap();
            nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
            let error = ours.owner_of(volume.path()).unwrap_err().to_string();
            assert!(error.contains("no regular file"), "{error}");
            fs::remove_file(&path).unwrap();
            symlink("/dev/zero", &path).unwrap();
            ours.owner_of(volume.path()).unwrap_err();
            fs::remove_file(&path).unwrap();
            // Copied, not linked.
            fs::copy(&key, &path).unwrap();
            let told = match ours.owner_of(volume.path()) {
                Ok(Owner::Other(who)) => who,
                Ok(other) => panic!("{other:?}"),
                Err(error) => error.to_string(),
            };
            assert!(!told.contains("c2VjcmV0"), "{told}");
            fs::write(&path, vec![b'a'; 5000]).unwrap();
            ours.owner_of(volume.path()).unwrap_err();
            fs::remove_file(&path).unwrap();
        }
        let strange = Identity {
            member: "c2VjcmV0\n".to_owned(),
            ..ours.clone()
        };
        fs::write(volume.path().join(FILE), serde_json::to_vec(&strange).unwrap()).unwrap();
        let error = ours.owner_of(volume.path()).unwrap_err().to_string();
        assert!(!error.contains("c2VjcmV0"), "{error}");
    }

    #[test]
    fn a_broken_identity_is_an_error_not_nobody() {
        let volume = tempfile::tempdir().unwrap();
        fs::write(volume.path().join(FILE), "{").unwrap();
        let error = identity("t1-1", "a").owner_of(volume.path()).unwrap_err();
        assert!(error.to_string().contains("identity.json"), "{error}");
    }
}
