//! etcd's `.snap` files: a raft snapshot whose data is the membership, in the JSON of etcd's old v2 store. The keys
//! themselves are in the database beside it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use prost::Message;
use serde::Serialize;

use crate::beneath::Beneath;
use crate::cluster::NewCluster;
use crate::raftpb::{SnapFile, Snapshot, SnapshotMetadata};
use crate::wal::LogPosition;

/// Why a `.snap` file is none.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It can't be read.
    #[error("read of snapshot file {file} failed")]
    Io {
        /// Name of the file.
        file: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It isn't what was written.
    #[error("snapshot file {file} is damaged: {what}")]
    Damaged {
        /// Name of the file.
        file: String,
        /// What is wrong.
        what: &'static str,
    },
}

/// The largest `.snap` file that is read. It holds the members and what is left of etcd's old store, some KiB.
const MAX_SIZE: u64 = 64 << 20;

fn file_name(position: LogPosition) -> String {
    format!("{:016x}-{:016x}.snap", position.term, position.index)
}

/// Verifies the newest `.snap` file in `dir` that the log knows of, as etcd does. `None` when there is none.
///
/// # Errors
/// It can't be read or is damaged.
pub fn verify_newest(dir: &Beneath, known: &[LogPosition]) -> Result<Option<LogPosition>, Error> {
    let mut known = known.to_vec();
    known.sort_unstable();
    for position in known.into_iter().rev() {
        let file = file_name(position);
        match dir.join(&file).read(MAX_SIZE) {
            Ok(bytes) => {
                return match check(&bytes, position) {
                    Ok(()) => Ok(Some(position)),
                    Err(what) => Err(Error::Damaged { file, what }),
                };
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::Io { file, source }),
        }
    }
    Ok(None)
}

fn check(bytes: &[u8], position: LogPosition) -> Result<(), &'static str> {
    let file = SnapFile::decode(bytes).map_err(|_| "it can't be decoded")?;
    let data = file
        .data
        .filter(|data| !data.is_empty() && file.crc != 0)
        .ok_or("it is empty")?;
    if crc32c::crc32c(&data) != file.crc {
        return Err("checksum does not match");
    }
    let snapshot = Snapshot::decode(&data[..]).map_err(|_| "its snapshot can't be decoded")?;
    let found = LogPosition {
        term: snapshot.metadata.term,
        index: snapshot.metadata.index,
    };
    if found == position {
        Ok(())
    } else {
        Err("it is another one than its name says")
    }
}

/// Writes the `.snap` file of a new cluster.
pub(crate) fn create(dir: &Path, cluster: &NewCluster, position: LogPosition) -> io::Result<()> {
    let metadata = SnapshotMetadata {
        conf_state: cluster.conf_state(),
        index: position.index,
        term: position.term,
    };
    let data = Snapshot {
        data: Some(membership(cluster)?),
        metadata,
    }
    .encode_to_vec();
    let file = SnapFile {
        crc: crc32c::crc32c(&data),
        data: Some(data),
    }
    .encode_to_vec();
    let path = dir.join(file_name(position));
    let mut out = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    out.write_all(&file)?;
    out.sync_all()
}

/// A node of the v2 store: a folder, or a file when it has no children.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Node {
    path: String,
    created_index: u64,
    modified_index: u64,
    expire_time: &'static str,
    value: String,
    children: Option<BTreeMap<String, Self>>,
}

impl Node {
    fn new(path: String, index: u64, value: String, children: Option<BTreeMap<String, Self>>) -> Self {
        let expire_time = "0001-01-01T00:00:00Z";
        Self {
            path,
            created_index: index,
            modified_index: index,
            expire_time,
            value,
            children,
        }
    }

    fn folder<const N: usize>(path: &str, index: u64, children: [(&str, Self); N]) -> Self {
        let children = children
            .into_iter()
            .map(|(name, node)| (name.to_owned(), node))
            .collect();
        Self::new(path.to_owned(), index, String::new(), Some(children))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Store {
    root: Node,
    current_index: u64,
    current_version: u8,
}

/// The v2 store that holds the members and nothing else. etcd up to 3.6 loads it; from 3.5 on it takes the members
/// from the database.
fn membership(cluster: &NewCluster) -> io::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct RaftAttributes<'a> {
        #[serde(rename = "peerURLs")]
        peer_urls: &'a [String],
    }
    let mut members = BTreeMap::new();
    let mut index = 0;
    for member in cluster.members() {
        index += 1;
        let folder = format!("/0/members/{}", member.id());
        let value = serde_json::to_string(&RaftAttributes {
            peer_urls: member.peer_urls(),
        })?;
        let attributes = Node::new(format!("{folder}/raftAttributes"), index, value, None);
        members.insert(
            member.id().to_string(),
            Node::folder(&folder, index, [("raftAttributes", attributes)]),
        );
    }
    let members = Node::new("/0/members".to_owned(), 1, String::new(), Some(members));
    let root = Node::folder(
        "/",
        0,
        [
            ("0", Node::folder("/0", 0, [("members", members)])),
            ("1", Node::folder("/1", 0, [])),
        ],
    );
    Ok(serde_json::to_vec(&Store {
        root,
        current_index: index,
        current_version: 2,
    })?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_verified_by_name_and_content() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = NewCluster::new("t", [("a", vec!["http://a:1"])]).unwrap();
        let position = LogPosition { term: 1, index: 1 };
        create(dir.path(), &cluster, position).unwrap();
        let newer = LogPosition { term: 2, index: 9 };
        let known = [LogPosition::default(), position, newer];
        assert_eq!(
            verify_newest(&Beneath::of(dir.path()), &known).unwrap(),
            Some(position)
        );
        assert_eq!(
            verify_newest(&Beneath::of(dir.path()), &known[..1]).unwrap(),
            None,
            "the log must know of it"
        );
        fs::copy(
            dir.path().join(file_name(position)),
            dir.path().join(file_name(newer)),
        )
        .unwrap();
        assert!(matches!(
            verify_newest(&Beneath::of(dir.path()), &known),
            Err(Error::Damaged { .. })
        ));
        let path = dir.path().join(file_name(position));
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            assert!(
                verify_newest(&Beneath::of(dir.path()), &known[..2]).is_err(),
                "byte {at}"
            );
        }
    }
}
