//! Reads one snapshot to its end and says whether it is whole: its hash, what is inside, and whether that is what its
//! name says.

use std::{io, sync::Arc};

use etcd_storage::{
    compression::Decoder,
    full::{self, Scanner},
    object::Object,
    verify,
};
use operator::reconcile::chain as causes;
use snapstore::{Class, Kind, SnapStore, StoredSnapshot};
use tokio::{runtime::Handle, task::JoinError};

use super::{attest::admitted, object, store_error};

/// What became of a check.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is whole, and holds all revisions up to this one. `warning` says what else isn't as it should be.
    Sound { revision: i64, warning: Option<String> },
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
    match read(object, kind) {
        Ok((revision, warning)) => Verdict::Sound { revision, warning },
        Err(fault) => {
            let reason = causes(&fault);
            match store_error(&fault) {
                Some(class) if class != Class::Corrupt => Verdict::Unknown { reason },
                _ if matches!(fault, verify::Error::Full(full::Error::Scratch(_))) => {
                    Verdict::Unknown { reason }
                }
                _ => Verdict::Damaged { reason },
            }
        }
    }
}

fn read(object: &Object, kind: Kind) -> Result<(i64, Option<String>), verify::Error> {
    let open = || -> io::Result<_> { Decoder::new(object.compression, (object.open)()?) };
    let source = open().map_err(verify::Error::Read)?;
    match kind {
        Kind::Full => {
            let found = verify::full(source, Scanner::new(), object.last)?;
            Ok((found.revision, found.warnings.text()))
        }
        Kind::Delta => Ok((verify::delta(source, object.start, object.last)?, None)),
    }
}
