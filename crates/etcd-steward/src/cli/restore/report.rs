//! What a restore tells.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use etcd_storage::restore::Restored;
use indicatif::HumanBytes;
use serde::Serialize;

use super::Args;
use crate::{
    chain::{Catalog, Fault, Revisions, Route},
    cli::output::Report,
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Done {
    data_dir: PathBuf,
    revision: i64,
    /// Revision of the state that was restored: lower if the revision was raised.
    data_revision: i64,
    base_revision: i64,
    /// What it was restored from.
    snapshots: Vec<String>,
    /// Snapshots that could not be used.
    left_out: Vec<Fault>,
    /// Revisions that are lost by that.
    lost: Option<Revisions>,
    /// What isn't as it should be in the full snapshot.
    warning: Option<String>,
    cluster_id: String,
    member_id: String,
    initial_cluster_token: String,
    db_size: u64,
    leases: Leases,
    alarms_dropped: u64,
}

/// What became of the leases.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Leases {
    kept: u64,
    created: u64,
    /// Ids, in hex, of leases that were not made because no snapshot tells their time to live; at most 1000.
    unknown: Vec<String>,
    unknown_count: u64,
}

impl Done {
    pub(super) fn new(
        args: &Args,
        token: String,
        catalog: &Catalog,
        route: Route,
        restored: Restored,
    ) -> Self {
        let names = catalog.snapshots(&route.plan);
        let names = names.map(|stored| stored.name.to_string()).collect();
        Self {
            left_out: route.left_out,
            lost: route.lost,
            ..Self::of(args, token, names, restored)
        }
    }

    /// Of snapshots that were all used.
    pub(super) fn of(args: &Args, token: String, snapshots: Vec<String>, restored: Restored) -> Self {
        let leases = restored.leases;
        Self {
            data_dir: args.data_dir.clone(),
            revision: restored.revision,
            data_revision: restored.data_revision,
            base_revision: restored.base_revision,
            snapshots,
            left_out: Vec::new(),
            lost: None,
            warning: restored.warnings.text(),
            cluster_id: restored.cluster_id.to_string(),
            member_id: restored.member_id.to_string(),
            initial_cluster_token: token,
            db_size: restored.db_size,
            leases: Leases {
                kept: leases.kept,
                created: leases.created,
                unknown: leases.unknown.iter().map(|id| format!("{id:016x}")).collect(),
                unknown_count: leases.unknown_count,
            },
            alarms_dropped: restored.alarms_dropped,
        }
    }
}

impl Report for Done {
    fn table(&self, out: &mut dyn Write) -> io::Result<()> {
        let (dir, size) = (self.data_dir.display(), HumanBytes(self.db_size));
        let (from, to) = (self.data_revision, self.revision);
        let raised = if to > from {
            format!(", raised to {to}")
        } else {
            String::new()
        };
        writeln!(out, "restored {dir} at revision {from}{raised} ({size})")?;
        let token = &self.initial_cluster_token;
        writeln!(
            out,
            "cluster {}, member {}, token {token}",
            self.cluster_id, self.member_id
        )?;
        let base = self.snapshots.first().map_or("", String::as_str);
        writeln!(out, "from {base} and {} deltas", self.snapshots.len() - 1)?;
        for fault in &self.left_out {
            writeln!(out, "left out: {fault}")?;
        }
        if let Some(warning) = &self.warning {
            writeln!(out, "warning: {base}: {warning}")?;
        }
        if let Some(lost) = &self.lost {
            writeln!(out, "lost: {lost}")?;
        }
        let Leases {
            kept,
            created,
            unknown_count,
            ..
        } = &self.leases;
        if kept + created + unknown_count > 0 {
            writeln!(
                out,
                "leases: {kept} kept, {created} made, {unknown_count} of unknown time to live left out"
            )?;
        }
        if self.alarms_dropped > 0 {
            writeln!(out, "alarms dropped: {}", self.alarms_dropped)?;
        }
        Ok(())
    }
}
