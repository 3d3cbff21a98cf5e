//! Reads one snapshot to its end and says whether it is whole: its hash, what is inside, and whether that is what its
//! name says.

use std::{
    io::{self, Write as _},
    sync::Arc,
};

use etcd_storage::{
    compression::Decoder,
    delta,
    full::{self, Scanner},
    object::Object,
};
use operator::reconcile::chain as causes;
use snapstore::{Class, Kind, SnapStore, StoredSnapshot};
use tokio::{runtime::Handle, task::JoinError};

use super::{attest::admitted, object, store_error};

/// Bytes that are read at a time.
const CHUNK: usize = 256 << 10;

/// What became of a check.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is whole, and holds all revisions up to this one.
    Sound { revision: i64 },
    /// It isn't what was written, or not what its name says.
    Damaged { reason: String },
    /// The store didn't give it, which says nothing about it.
    Unknown { reason: String },
}

impl Verdict {
    /// Whether it is whole, if that is known.
    pub(crate) fn is_sound(&self) -> Option<bool> {
        match self {
            Self::Sound { .. } => Some(true),
            Self::Damaged { .. } => Some(false),
            Self::Unknown { .. } => None,
        }
    }
}

/// Why a snapshot isn't sound.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("can't be read")]
    Read(#[from] io::Error),
    #[error(transparent)]
    Full(#[from] full::Error),
    #[error(transparent)]
    Delta(#[from] delta::Error),
    #[error("ends at revision {found}, but its name says {stated}")]
    EndsElsewhere { found: i64, stated: i64 },
    #[error("revisions {from} to {to} are missing in it")]
    Hole { from: i64, to: i64 },
}

/// Reads one snapshot of a store, if its manifest is in order.
pub(crate) async fn read_back(
    store: &Arc<dyn SnapStore>,
    stored: &StoredSnapshot,
    runtime: &Handle,
) -> Result<Verdict, JoinError> {
    let manifest = match admitted(store, stored).await {
        Ok(Ok(manifest)) => manifest,
        Ok(Err(reason)) => return Ok(Verdict::Damaged { reason }),
        Err(error) => {
            let reason = causes(&error);
            return Ok(Verdict::Unknown { reason });
        }
    };
    let (object, kind) = (
        object(store, stored, manifest, runtime, &Arc::default()),
        stored.name.kind,
    );
    tokio::task::spawn_blocking(move || check(&object, kind)).await
}

fn check(object: &Object, kind: Kind) -> Verdict {
    let found = match kind {
        Kind::Full => check_full(object),
        Kind::Delta => check_delta(object),
    };
    match found {
        Ok(revision) => Verdict::Sound { revision },
        Err(fault) => {
            let reason = causes(&fault);
            match store_error(&fault) {
                Some(class) if class != Class::Corrupt => Verdict::Unknown { reason },
                _ => Verdict::Damaged { reason },
            }
        }
    }
}

/// A full may hold more than its name says, for that is how etcd-backup-restore names it; never less.
fn check_full(object: &Object) -> Result<i64, Fault> {
    let mut source = Decoder::new(object.compression, (object.open)()?)?;
    let mut scanner = Scanner::new();
    copy(&mut source, &mut scanner)?;
    let found = scanner.finish()?.revision;
    let stated = object.last;
    if found < stated {
        return Err(Fault::EndsElsewhere { found, stated });
    }
    Ok(found)
}

/// `io::copy` with a buffer that is worth a call.
fn copy(source: &mut impl io::Read, scanner: &mut Scanner) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => scanner.write_all(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn check_delta(object: &Object) -> Result<i64, Fault> {
    let mut decoder = delta::Decoder::new(Decoder::new(object.compression, (object.open)()?)?);
    let (mut last, mut hole) = (object.start - 1, None);
    while let Some(positioned) = decoder.next_event()? {
        let revision = positioned.event.mod_revision;
        if revision > last + 1 {
            hole.get_or_insert(Fault::Hole {
                from: last + 1,
                to: revision - 1,
            });
        }
        last = last.max(revision);
    }
    // Only now the hash is proven: a hole in what was altered is no hole.
    if let Some(hole) = hole {
        return Err(hole);
    }
    if last != object.last {
        let (found, stated) = (last, object.last);
        return Err(Fault::EndsElsewhere { found, stated });
    }
    Ok(last)
}
