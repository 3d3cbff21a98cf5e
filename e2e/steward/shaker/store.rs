//! Where a run's backups are: in a folder, or behind an S3 server that can fail and lie. What is judged is the folder, which the
//! server keeps its objects in.

use super::{
    gate::{Gate, Mode},
    story::{StoreFault, StoreKind},
};
use crate::{
    member::Member,
    rig::{Rig, Setup, revisions},
    s3_stub::{Fault, Stub},
};

pub(crate) enum Store {
    Folder,
    Server {
        stub: Stub,
        gate: Gate,
        /// Whether it has ever kept half of an upload, so that a name says nothing of what is there.
        torn: bool,
    },
}

impl Store {
    pub(crate) async fn open(kind: StoreKind, rig: &mut Rig) -> anyhow::Result<Self> {
        if kind == StoreKind::Folder {
            return Ok(Self::Folder);
        }
        let stub = Stub::start(&rig.store()).await?;
        let gate = Gate::open(stub.port).await?;
        let mut backup = Setup::default().backup;
        backup["store"] = Stub::store_at(gate.port);
        rig.change_backup(backup)?;
        let store = Self::Server {
            stub,
            gate,
            torn: false,
        };
        rig.members.iter_mut().for_each(|member| store.admit(member));
        Ok(store)
    }

    /// Gives a member what it needs to get to the store.
    pub(crate) fn admit(&self, member: &mut Member) {
        if let Self::Server { stub, .. } = self {
            member.set_env("AWS_APPLICATION_CREDENTIALS", stub.credentials());
        }
    }

    pub(crate) fn fail(&mut self, fault: StoreFault, rig: &Rig) -> anyhow::Result<()> {
        match (self, fault) {
            (Self::Folder, _) => return rig.block_store(),
            (Self::Server { gate, .. }, StoreFault::Gone) => gate.set(Mode::Cut),
            (Self::Server { gate, .. }, StoreFault::Network(mode)) => gate.set(mode),
            (Self::Server { stub, torn, .. }, StoreFault::Answers(fault)) => {
                *torn |= fault.tears();
                stub.set(fault);
            }
        }
        Ok(())
    }

    pub(crate) fn mend(&mut self, rig: &Rig) -> anyhow::Result<()> {
        match self {
            Self::Folder => rig.unblock_store()?,
            Self::Server { stub, gate, .. } => {
                gate.set(Mode::Pass);
                stub.set(Fault::None);
            }
        }
        Ok(())
    }

    /// Whether what a name tells may not be there.
    pub(crate) fn has_torn(&self) -> bool {
        matches!(self, Self::Server { torn: true, .. })
    }

    /// The last revision that the backups hold now.
    pub(crate) async fn covered(&self, rig: &Rig) -> anyhow::Result<i64> {
        let mut names = rig.stored()?;
        if self.has_torn() {
            names.clear();
            for member in &rig.members {
                // Who is down has said nothing.
                let Ok(told) = member.backup_status().await else {
                    continue;
                };
                names.extend(
                    [told.last_full, told.last_delta]
                        .into_iter()
                        .flatten()
                        .map(|one| one.name),
                );
            }
        }
        Ok(names.iter().map(|name| revisions(name).1).max().unwrap_or(0))
    }
}
