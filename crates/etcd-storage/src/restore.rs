//! Restores a chain into a new data dir, written once, from which a member of a new cluster starts.
//!
//! The dir is written beside as `<data dir>.part` and gets its name when it is complete and synced. What a crash
//! has left under that name is removed by the next try.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

pub use crate::assemble::Progress;
use crate::assemble::{Assembly, Durable, Error, LeaseReport, OnProgress, Rewrite, assemble};
use crate::bolt::Bucket;
use crate::cluster::{Id, Member, NewCluster};
pub use crate::full::{Consent, Warnings};
use crate::mvcc::{RecordKey, Revision};
use crate::object::{Chain, Target};
use crate::schema::{Minor, bucket, key};
use crate::{snap, wal};

/// Term of a new cluster's first entries.
const TERM: u64 = 1;

/// How to restore.
#[derive(Clone, Debug)]
pub struct Options {
    /// The data dir to make. It must not exist, or be empty.
    pub data_dir: PathBuf,
    /// The cluster that the dir is to be a member of.
    pub cluster: NewCluster,
    /// Name of that member.
    pub member: String,
    /// Where to stop.
    pub target: Target,
    /// Minor version of the etcd that is to start. `None` leaves the versions in the database as they are in the
    /// full snapshot; a lower etcd then may refuse to start.
    pub minor: Option<Minor>,
    /// Raise the revision by so much and mark all before as compacted, so that watchers and caches notice. What lies beyond
    /// [`MAX_START`](crate::mvcc::MAX_START) is refused.
    pub bump_revision: Option<i64>,
    /// TTL in seconds for leases that keys hang on, but whose TTL is unknown. `None`: they are not created, and
    /// their keys stay.
    pub unknown_lease_ttl: Option<i64>,
    /// What is to be done without, where the full snapshot isn't whole.
    pub consent: Consent,
}

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Revision that the etcd begins with which starts from the database.
    pub revision: i64,
    /// Revision of the state that was restored: lower than `revision` if that was raised.
    pub data_revision: i64,
    /// Revision of the full snapshot that it was made from.
    pub base_revision: i64,
    /// Id of the new cluster.
    pub cluster_id: Id,
    /// Id of the member.
    pub member_id: Id,
    /// Length of the database in bytes.
    pub db_size: u64,
    /// What isn't as it should be in the full snapshot.
    pub warnings: Warnings,
    /// What became of the leases.
    pub leases: LeaseReport,
    /// Alarms that the source had. They name members that are no more, so they are left out: a full or corrupt
    /// database raises its alarm anew.
    pub alarms_dropped: u64,
}

/// Restores `chain` into a new data dir.
///
/// # Errors
/// An object is missing revisions or damaged, the target can't be had, or the dir can't be written. Then there is
/// no data dir.
pub fn restore(chain: &Chain, options: &Options, progress: OnProgress<'_>) -> Result<Restored, Error> {
    let member = options
        .cluster
        .member(&options.member)
        .ok_or_else(|| no_member(options))?;
    let part = prepare(&options.data_dir)?;
    let restored = fill(&part, chain, options, member, progress);
    if restored.is_err() {
        // It is of no use, and the disk may be full; the error that matters is the one at hand.
        let _ = fs::remove_dir_all(&part);
    }
    restored
}

fn fill(
    part: &Path,
    chain: &Chain,
    options: &Options,
    member: &Member,
    progress: OnProgress<'_>,
) -> Result<Restored, Error> {
    let assembly = assemble(
        chain,
        options.target,
        &part.join("member/snap/db"),
        (Durable::Yes, options.consent),
        progress,
    )?;
    let restored = seal(assembly, options, member)?;
    write_log(part, &options.cluster, member)?;
    publish(part, &options.data_dir)?;
    Ok(restored)
}

fn no_member(options: &Options) -> Error {
    let source = io::Error::new(
        io::ErrorKind::NotFound,
        format!("no member {:?} in the cluster", options.member),
    );
    Error::Io {
        action: "restore into",
        path: options.data_dir.clone(),
        source,
    }
}

/// Makes the folders of the new dir beside its final place.
fn prepare(data_dir: &Path) -> Result<PathBuf, Error> {
    match fs::read_dir(data_dir).map(|mut entries| entries.next().is_none()) {
        Ok(true) => {}
        Ok(false) => {
            let source = io::Error::from(io::ErrorKind::DirectoryNotEmpty);
            return Err(Error::Io {
                action: "restore into",
                path: data_dir.to_owned(),
                source,
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(Error::io("restore into", data_dir)(source)),
    }
    let mut part = data_dir.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    match fs::remove_dir_all(&part) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(Error::io("removal of", &part)(source)),
    }
    for folder in ["member/snap", "member/wal"] {
        let folder = part.join(folder);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(Error::io("creation of", &folder))?;
    }
    Ok(part)
}

fn seal(mut assembly: Assembly, options: &Options, member: &Member) -> Result<Restored, Error> {
    let (base_revision, data_revision) = (assembly.overview.revision, assembly.revision);
    let warnings = assembly.warnings;
    let mut compact = Compaction {
        finished: assembly.overview.finished_compact,
        scheduled: assembly.overview.scheduled_compact,
    };
    if let Some(amount) = options.bump_revision.filter(|amount| *amount > 0) {
        assembly.bump(amount)?;
        compact.scheduled = assembly.revision;
    }
    let alarms_dropped = count_alarms(&assembly)?;
    let storage_version = match options.minor {
        Some(minor) => minor.storage_version().map(str::to_owned),
        None => assembly.overview.storage_version.clone(),
    };
    let meta = meta_bucket(&options.cluster, compact, storage_version)?;
    let members = member_bucket(&options.cluster)?;
    let expected = [bucket::META, bucket::MEMBERS, bucket::CLUSTER];
    let rewrite = |name: &[u8], found: Option<&Bucket>| match (name, options.minor) {
        (bucket::META, _) => Rewrite::With(meta.clone()),
        (bucket::MEMBERS, _) => Rewrite::With(members.clone()),
        (bucket::MEMBERS_REMOVED | bucket::ALARM, _) => Rewrite::With(BTreeMap::new()),
        (bucket::CLUSTER, Some(minor)) => Rewrite::With(cluster_bucket(minor)),
        (bucket::CLUSTER, None) if found.is_none() => Rewrite::With(BTreeMap::new()),
        _ => Rewrite::Keep,
    };
    let rewritten = assembly.seal(&expected, options.unknown_lease_ttl, &rewrite)?;
    Ok(Restored {
        revision: rewritten.revision,
        data_revision,
        base_revision,
        cluster_id: options.cluster.id(),
        member_id: member.id(),
        db_size: rewritten.db.page_count() * rewritten.db.page_size() as u64,
        warnings,
        leases: rewritten.leases,
        alarms_dropped,
    })
}

fn count_alarms(assembly: &Assembly) -> Result<u64, Error> {
    let base = assembly.base();
    let mut count = 0;
    if let Some(alarms) = base.bucket(bucket::ALARM).map_err(Error::Write)? {
        let mut cursor = alarms.cursor(base);
        while cursor.next_entry().map_err(Error::Write)?.is_some() {
            count += 1;
        }
    }
    Ok(count)
}

/// Revisions of compactions; 0 for none.
#[derive(Clone, Copy)]
struct Compaction {
    finished: i64,
    scheduled: i64,
}

/// What must fit the new log: nothing of the old raft state may stay.
fn meta_bucket(
    cluster: &NewCluster,
    compact: Compaction,
    storage_version: Option<String>,
) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
    let revision = |main| {
        let key = RecordKey {
            revision: Revision { main, sub: 0 },
            tombstone: false,
        };
        key.bytes().as_ref().to_vec()
    };
    let index = cluster.members().len() as u64;
    let conf_state = serde_json::to_vec(&ConfStateJson::of(cluster)).map_err(json_error)?;
    let mut meta = BTreeMap::from([
        (key::CONSISTENT_INDEX.to_vec(), index.to_be_bytes().to_vec()),
        (key::TERM.to_vec(), TERM.to_be_bytes().to_vec()),
        (key::CONF_STATE.to_vec(), conf_state),
    ]);
    for (name, main) in [
        (key::FINISHED_COMPACT, compact.finished),
        (key::SCHEDULED_COMPACT, compact.scheduled),
    ] {
        if main > 0 {
            meta.insert(name.to_vec(), revision(main));
        }
    }
    if let Some(version) = storage_version {
        meta.insert(key::STORAGE_VERSION.to_vec(), version.into_bytes());
    }
    Ok(meta)
}

/// `raftpb.ConfState` as Go's JSON encoder writes it.
#[derive(serde::Serialize)]
struct ConfStateJson {
    voters: Vec<u64>,
    auto_leave: bool,
}

impl ConfStateJson {
    fn of(cluster: &NewCluster) -> Self {
        Self {
            voters: cluster.conf_state().voters,
            auto_leave: false,
        }
    }
}

fn member_bucket(cluster: &NewCluster) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
    let json = |member: &Member| {
        Ok((
            member.id().to_string().into_bytes(),
            member.json().map_err(json_error)?,
        ))
    };
    cluster.members().iter().map(json).collect()
}

fn cluster_bucket(minor: Minor) -> BTreeMap<Vec<u8>, Vec<u8>> {
    BTreeMap::from([(key::CLUSTER_VERSION.to_vec(), minor.version().as_bytes().to_vec())])
}

fn json_error(error: serde_json::Error) -> Error {
    Error::Io {
        action: "encoding of the members of",
        path: PathBuf::from("db"),
        source: error.into(),
    }
}

fn write_log(part: &Path, cluster: &NewCluster, member: &Member) -> Result<(), Error> {
    let (snap_dir, wal_dir) = (part.join("member/snap"), part.join("member/wal"));
    let position = wal::create(&wal_dir, cluster, member).map_err(Error::io("write of", &wal_dir))?;
    snap::create(&snap_dir, cluster, position).map_err(Error::io("write of", &snap_dir))
}

/// Syncs every folder, then gives the dir its name.
fn publish(part: &Path, data_dir: &Path) -> Result<(), Error> {
    let sync = |dir: &Path| {
        File::open(dir)
            .and_then(|dir| dir.sync_all())
            .map_err(Error::io("sync of", dir))
    };
    for folder in ["member/snap", "member/wal", "member", ""] {
        sync(&part.join(folder))?;
    }
    fs::rename(part, data_dir).map_err(Error::io("renaming to", data_dir))?;
    match data_dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync(parent),
        _ => sync(Path::new(".")),
    }
}
