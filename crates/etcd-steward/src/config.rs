//! What a steward is started with: flags for the things of its pod, a file for the things of its Etcd.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use api::steward::{ClusterMember, FILE, StewardConfig, path, port};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use operator::config::{LogFormat, Telemetry};
use tokio::sync::watch;

/// How a mounted folder changes.
const CHANGES: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_CLOSE_WRITE)
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_DELETE);

/// Flags of `serve`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Folder with steward.yaml and the members' etcd configurations.
    #[arg(long, default_value = path::CONFIG)]
    pub config: PathBuf,
    /// The pod, which says which member this is.
    #[arg(long, env = "POD_NAME")]
    pub pod_name: String,
    /// The data volume.
    #[arg(long, default_value = path::DATA)]
    pub volume: PathBuf,
    /// etcd's data directory on it.
    #[arg(long, default_value = path::DATA_DIR)]
    pub data_dir: PathBuf,
    /// Scratch space for snapshots.
    #[arg(long, default_value = path::TEMP)]
    pub temp: PathBuf,
    /// Socket for the launcher, in the folder that it shares with the steward.
    #[arg(long, default_value_t = format!("{}/steward.sock", path::RUN))]
    pub socket: String,
    /// Folder with etcd's certificates.
    #[arg(long, default_value = path::ETCD_TLS)]
    pub etcd_tls: PathBuf,
    /// Folder with the certificate for calls of etcd.
    #[arg(long, default_value = path::CLIENT_TLS)]
    pub client_tls: PathBuf,
    /// Folder with the steward's certificates.
    #[arg(long, default_value = path::STEWARD_TLS)]
    pub steward_tls: PathBuf,
    /// Address of the API; its port is that of spec.backup.port unless given here.
    #[arg(long)]
    pub listen: Option<SocketAddr>,
    /// Address of health and metrics, plain HTTP.
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], port::STEWARD_HEALTH)))]
    pub listen_health: SocketAddr,
    /// Serve the API without TLS. Only on a loopback address, for tests.
    #[arg(long)]
    pub insecure_api: bool,
    /// Work without a Kubernetes API: no EtcdMember, no Lease, no Events.
    #[arg(long)]
    pub no_kubernetes: bool,
    /// `json` or `text`.
    #[arg(long, env = "DRUID_LOG_FORMAT", default_value = "json")]
    pub log_format: String,
    /// Filter directives for logs.
    #[arg(long, env = "DRUID_LOG_FILTER", default_value = "info")]
    pub log_filter: String,
    /// OTLP gRPC endpoint for traces.
    #[arg(long, env = "DRUID_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,
}

/// Why a steward can't start.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file can't be understood.
    #[error("{path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// No wanted member runs in this pod.
    #[error("pod {pod} is none of the Etcd's members: {members:?}")]
    NoMember {
        /// The pod.
        pod: String,
        /// The pods of the members.
        members: Vec<String>,
    },
}

impl Args {
    /// Logs and traces.
    pub fn telemetry(&self) -> Telemetry {
        Telemetry {
            log_format: if self.log_format == "text" {
                LogFormat::Text
            } else {
                LogFormat::Json
            },
            log_filter: self.log_filter.clone(),
            otlp_endpoint: self.otlp_endpoint.clone(),
        }
    }

    /// Where the launcher keeps its files.
    pub fn run_folder(&self) -> &Path {
        Path::new(&self.socket).parent().unwrap_or_else(|| Path::new("."))
    }

    /// Reads the file.
    pub fn read(&self) -> Result<String, ConfigError> {
        let path = self.config.join(FILE);
        fs::read_to_string(&path).map_err(|source| ConfigError::Read { path, source })
    }

    /// Understands the file, and finds this member in it.
    pub fn parse(&self, text: &str) -> Result<(StewardConfig, ClusterMember), ConfigError> {
        let config: StewardConfig = serde_saphyr::from_str(text).map_err(|error| ConfigError::Parse {
            path: self.config.join(FILE),
            message: error.to_string(),
        })?;
        let member = config
            .cluster
            .member_of_pod(&self.pod_name)
            .cloned()
            .ok_or_else(|| ConfigError::NoMember {
                pod: self.pod_name.clone(),
                members: config
                    .cluster
                    .members
                    .iter()
                    .map(|member| member.pod.clone())
                    .collect(),
            })?;
        Ok((config, member))
    }
}

/// Tells whenever something changes in one of the folders, for as long as the process lives. Folders that aren't there are left
/// out.
pub fn follow(folders: &[&Path]) -> nix::Result<watch::Receiver<()>> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    for folder in folders.iter().filter(|folder| folder.exists()) {
        inotify.add_watch(*folder, CHANGES)?;
    }
    let (sender, receiver) = watch::channel(());
    // A thread of its own: it blocks until the end of the process, which must not wait for it.
    std::thread::spawn(
        move || {
            while inotify.read_events().is_ok() && sender.send(()).is_ok() {}
        },
    );
    Ok(receiver)
}

/// Blocks until the steward's file says something else than what was read there before, which it may do already.
pub fn changed(folder: &Path, before: &str) -> nix::Result<()> {
    let file = folder.join(FILE);
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    inotify.add_watch(folder, CHANGES)?;
    loop {
        // A mounted ConfigMap changes by a link that is swapped: for a moment there may be no file.
        let now = fs::read(&file).ok();
        if now.is_some_and(|now| now != before.as_bytes()) {
            return Ok(());
        }
        inotify.read_events()?;
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    /// A file may change between being read and being watched.
    #[test]
    fn what_changed_before_it_was_watched_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, seen) = mpsc::channel();
        let watch = |before: &'static str| {
            let (folder, sender) = (folder.path().to_owned(), sender.clone());
            thread::spawn(move || sender.send(changed(&folder, before)));
        };
        fs::write(folder.path().join(FILE), "new").unwrap();
        watch("old");
        assert_eq!(seen.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
        watch("new");
        assert!(seen.recv_timeout(Duration::from_millis(300)).is_err());
        fs::write(folder.path().join(FILE), "newer").unwrap();
        assert_eq!(seen.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
    }
}
