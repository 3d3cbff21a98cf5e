//! An etcd whose backups are taken by the very part of the sidecar that does so in a pod.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use api::{
    schedule::CronSchedule,
    v1alpha1::{BackupSpec, EtcdMemberStatus, MemberRole},
};
use etcd_steward::{
    backup::{Backups, Marks, Owner, Settings},
    etcd::Connector,
    member::Status,
    metrics::Metrics,
};
use snapstore::{Kind, Provider, StoreConfig};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::{
    program::{Ran, finish, steward},
    server::Etcd,
};

/// The runtime ends last: what runs on it is told by the token.
pub(crate) struct Source {
    backups: Backups,
    shutdown: CancellationToken,
    runtime: Runtime,
}

impl Source {
    /// Begins to take backups, which it does with a full one. Others are taken when they are asked for.
    pub(crate) fn of(etcd: &Etcd, store: &Path) -> Self {
        fs::create_dir_all(store).unwrap();
        let runtime = Runtime::new().unwrap();
        let shutdown = CancellationToken::new();
        let spec = BackupSpec {
            full_snapshot_schedule: Some(CronSchedule::new("0 0 1 1 *")),
            delta_snapshot_period: Some(Duration::ZERO.into()),
            ..BackupSpec::default()
        };
        let status = Status::new(EtcdMemberStatus::default());
        status.update(|status| {
            status.role = Some(MemberRole::Leader);
            // Whose the backups are.
            status.cluster_id = Some("00000000000000c1".to_owned());
        });
        let connector = Connector {
            tls: PathBuf::new(),
            client_tls: PathBuf::new(),
            auth: None,
            local_name: "localhost".to_owned(),
            local_url: format!("http://{}", etcd.endpoint()),
            running: None,
        };
        let (owner, backups) = Owner::new(
            StoreConfig::new(Provider::Local, store.to_str().unwrap(), "")
                .open()
                .unwrap(),
            None,
            Settings::new(&spec, store.with_extension("temp")).unwrap(),
            connector,
            status,
            None,
            Metrics::new(&operator::metrics::Metrics::default()),
        );
        runtime.spawn(owner.run(shutdown.clone()));
        let source = Self {
            backups,
            shutdown,
            runtime,
        };
        let mut known = source.backups.known.clone();
        let first = known.wait_for(|known| known.full.is_some());
        source.runtime.block_on(async { first.await.map(drop) }).unwrap();
        source
    }

    /// The newest full snapshot.
    pub(crate) fn full(&self) -> String {
        let known = self.backups.known.borrow();
        known.full.as_ref().unwrap().name.to_string()
    }

    /// Takes a snapshot and tells its name.
    pub(crate) fn take(&self, kind: Kind) -> String {
        let taken = self
            .runtime
            .block_on(self.backups.take(kind, Marks::default()))
            .unwrap();
        taken.unwrap().name.to_string()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Takes a full snapshot by the command.
pub(crate) fn snapshot(etcd: &Etcd, store: &Path, args: &[&str]) -> Ran {
    let temp = store.with_extension("temp");
    let endpoint = format!("http://{}", etcd.endpoint());
    let own = [
        ["--store-provider", "Local"],
        ["--store-container", store.to_str().unwrap()],
        ["--temp-dir", temp.to_str().unwrap()],
        ["--endpoints", &endpoint],
    ];
    let mut command = steward([&["snapshot", "--once"], own.as_flattened(), args].concat());
    if let Some(user) = etcd.user {
        command.env("ETCDCTL_USER", user);
    }
    finish(command)
}
