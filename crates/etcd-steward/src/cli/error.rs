//! Why a command didn't do what it was asked for, and the exit code that this means.

use std::{io, path::PathBuf};

use etcd_storage::{assemble, dump};
use snapstore::{Class, SnapshotName};

use super::Exit;
use crate::{
    backup::BackupError,
    chain::{self, Damage, FindError},
};

#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// Flags don't fit together, or mean nothing.
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Store(#[from] snapstore::Error),
    /// The chain is broken; `advice` says what can be done.
    #[error("{damage}{advice}")]
    Damaged { damage: Box<Damage>, advice: String },
    /// What was asked for isn't in the store.
    #[error(transparent)]
    Route(chain::Error),
    /// Without it the newest state may be lost; with it something that nobody has signed may be restored.
    #[error("snapshot {0} was stored a moment ago, and has no manifest yet: try again in a minute")]
    Unsettled(SnapshotName),
    #[error(transparent)]
    Engine(#[from] assemble::Error),
    #[error("{path}: {source}")]
    Database { path: PathBuf, source: dump::Error },
    /// A database is being written to.
    #[error("{0} is in use: stop its etcd first")]
    Locked(PathBuf),
    #[error(transparent)]
    Snapshot(#[from] BackupError),
    /// What would be uploaded isn't what was computed.
    #[error("the compacted snapshot is not what was computed: {0}")]
    Miscomputed(String),
    #[error("{} of {total} snapshots could not be copied", failed.len())]
    Copy {
        failed: Vec<(SnapshotName, snapstore::Error)>,
        total: usize,
    },
    #[error("{action}")]
    Io { action: String, source: io::Error },
    #[error("the work was given up")]
    Abandoned(#[from] tokio::task::JoinError),
}

impl CliError {
    pub(super) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }

    /// Why there is no way to a state; `advise` says what can be done about that.
    pub(super) fn of(error: FindError, advise: impl FnOnce(chain::Error) -> Self) -> Self {
        match error {
            FindError::Route(error) => advise(error),
            FindError::Store(error) => Self::Store(error),
        }
    }

    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Damaged { .. } => Exit::Damaged,
            Self::Store(error) if error.class() == Class::InvalidConfig => Exit::Usage,
            Self::Store(error) if error.class() == Class::Corrupt => Exit::Damaged,
            Self::Engine(error) if chain::is_damage(error) => Exit::Damaged,
            Self::Database { source, .. } if is_damage(source) => Exit::Damaged,
            Self::Copy { failed, .. } if failed.iter().any(|(_, error)| error.class() == Class::Corrupt) => {
                Exit::Damaged
            }
            _ => Exit::Failed,
        }
    }

    /// Stable CamelCase word for scripts.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Store(error) => error.reason(),
            Self::Route(_) => "NotInBackups",
            _ => match self.exit() {
                Exit::Usage => "Usage",
                Exit::Damaged => "Damaged",
                Exit::Done | Exit::Failed => "Failed",
            },
        }
    }

    pub(super) fn damage(&self) -> Option<&Damage> {
        match self {
            Self::Damaged { damage, .. } => Some(damage),
            _ => None,
        }
    }
}

fn is_damage(error: &dump::Error) -> bool {
    match error {
        dump::Error::Database(error) => !matches!(error, etcd_storage::bolt::Error::Io { .. }),
        dump::Error::NoRecord(_) => true,
        dump::Error::Write(_) => false,
    }
}
