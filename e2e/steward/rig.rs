//! Members on loopback: for each a steward, a launcher and a real etcd, and one folder as their store. No Kubernetes.

use std::{
    env,
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail, ensure};
use etcd_client::Client;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use steward_proto::v1::snapshots_service_client::SnapshotsServiceClient;
use tempfile::TempDir;
use tokio::time::sleep;
use tonic::transport::Channel;

/// Long enough for a machine that does other things as well.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(50);

/// What the cluster is like.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) size: usize,
    /// Minor version of etcd.
    pub(crate) etcd: &'static str,
    /// `spec.backup`, without its store; no store when it is null.
    pub(crate) backup: Value,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            size: 3,
            etcd: "3.6",
            backup: json!({"deltaSnapshotPeriod": "1s", "fullSnapshotSchedule": "0 0 1 1 *"}),
        }
    }
}

/// A cluster on loopback.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) members: Vec<Member>,
    setup: Setup,
    folder: TempDir,
}

/// A member: its processes and its folder.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    folder: PathBuf,
    etcd: &'static str,
    ports: Ports,
    steward: Option<Child>,
    launcher: Option<Child>,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    client: u16,
    peer: u16,
    metrics: u16,
    launcher: u16,
    api: u16,
    health: u16,
}

impl Ports {
    /// Ports that were free a moment ago, all different.
    fn free() -> anyhow::Result<Self> {
        let listeners: Vec<_> = (0..6)
            .map(|_| TcpListener::bind("127.0.0.1:0"))
            .collect::<Result<_, _>>()?;
        let mut ports = listeners
            .iter()
            .map(|listener| listener.local_addr().map(|address| address.port()));
        let mut next = || ports.next().context("six listeners")?.context("a local address");
        Ok(Self {
            client: next()?,
            peer: next()?,
            metrics: next()?,
            launcher: next()?,
            api: next()?,
            health: next()?,
        })
    }
}

impl Rig {
    /// Writes the configuration; nothing runs yet.
    pub(crate) fn new(setup: Setup) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("druid-rig-").tempdir()?;
        let mut rig = Self {
            members: Vec::new(),
            setup,
            folder,
        };
        rig.resize(rig.setup.size)?;
        Ok(rig)
    }

    /// A cluster of which every member serves.
    pub(crate) async fn start(setup: Setup) -> anyhow::Result<Self> {
        let mut rig = Self::new(setup)?;
        rig.start_all()?;
        rig.until_ready().await?;
        Ok(rig)
    }

    pub(crate) fn start_all(&mut self) -> anyhow::Result<()> {
        self.members.iter_mut().try_for_each(Member::start)
    }

    /// Ends everything at once, as when the machine loses its power.
    pub(crate) fn kill_all(&mut self) {
        self.members.iter_mut().for_each(Member::kill);
    }

    /// Makes it known to all that the cluster is to have so many members. New ones don't run yet.
    pub(crate) fn resize(&mut self, size: usize) -> anyhow::Result<()> {
        for ordinal in self.members.len()..size {
            let name = format!("t1-{ordinal}");
            let folder = self.folder.path().join(&name);
            for part in ["config", "data", "run", "temp"] {
                fs::create_dir_all(folder.join(part))?;
            }
            self.members.push(Member {
                name,
                folder,
                etcd: self.setup.etcd,
                ports: Ports::free()?,
                steward: None,
                launcher: None,
            });
        }
        fs::create_dir_all(self.store())?;
        self.members.iter().try_for_each(|member| self.configure(member))
    }

    fn configure(&self, member: &Member) -> anyhow::Result<()> {
        let members: Vec<_> = self
            .members
            .iter()
            .map(|member| {
                json!({
                    "name": member.name, "pod": member.name, "peerUrls": [member.peer_url()],
                    "clientUrls": [member.client_url()], "stewardUrl": member.api_url(),
                })
            })
            .collect();
        let mut backup = self.setup.backup.clone();
        if !backup.is_null() {
            backup["store"] = json!({"provider": "Local", "container": self.store(), "prefix": ""});
        }
        let steward = json!({
            "cluster": {"name": "t1", "namespace": "lab", "uid": "u-1", "token": "u-1", "members": members},
            "backup": if backup.is_null() { json!({}) } else { backup },
        });
        let initial: Vec<_> = self
            .members
            .iter()
            .map(|member| format!("{}={}", member.name, member.peer_url()))
            .collect();
        let etcd = json!({
            "name": member.name,
            "listen-peer-urls": member.peer_url(),
            "listen-client-urls": member.client_url(),
            "advertise-client-urls": member.client_url(),
            "initial-advertise-peer-urls": member.peer_url(),
            "initial-cluster": initial.join(","),
            "initial-cluster-token": "u-1",
            "listen-metrics-urls": format!("http://127.0.0.1:{}", member.ports.metrics),
        });
        // JSON is YAML.
        let config = member.folder.join("config");
        fs::write(
            config.join(format!("etcd-{}.yaml", member.name)),
            etcd.to_string(),
        )?;
        fs::write(config.join("steward.yaml"), steward.to_string())?;
        Ok(())
    }

    /// The folder of the store; `v2/` lies directly in it.
    pub(crate) fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// Names of the objects in the store, sorted by time.
    pub(crate) fn stored(&self) -> anyhow::Result<Vec<String>> {
        let folder = self.store().join("v2");
        if !folder.exists() {
            return Ok(Vec::new());
        }
        let mut names: Vec<_> = fs::read_dir(folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<anyhow::Result<_>>()?;
        names.retain(|name| name.starts_with("Full-") || name.starts_with("Incr-"));
        names.sort_by_key(|name| revisions(name));
        Ok(names)
    }

    /// A client of all members.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let urls: Vec<_> = self.members.iter().map(Member::client_url).collect();
        Ok(Client::connect(urls, None).await?)
    }

    /// Waits until every member serves, and all belong to one cluster.
    pub(crate) async fn until_ready(&self) -> anyhow::Result<()> {
        self.until("all members serve", async || {
            let mut clusters = Vec::new();
            for member in &self.members {
                clusters.push(member.cluster_id().await?);
            }
            clusters.dedup();
            ensure!(
                clusters.len() == 1,
                "the members belong to clusters {clusters:x?}"
            );
            Ok(())
        })
        .await
    }

    /// Waits until something holds. What it was like at last is in the error.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        holds: impl AsyncFn() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match holds().await {
                Ok(value) => return Ok(value),
                Err(error) if Instant::now() > deadline => {
                    let logs: String = self.members.iter().map(Member::last_words).collect();
                    return Err(error.context(format!("waited {PATIENCE:?} until {what}\n{logs}")));
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// The member that leads.
    pub(crate) async fn leader(&self) -> anyhow::Result<usize> {
        self.until("there is a leader", async || {
            for (index, member) in self.members.iter().enumerate() {
                let status = member.client().await?.status().await?;
                if status
                    .header()
                    .is_some_and(|header| header.member_id() == status.leader())
                {
                    return Ok(index);
                }
            }
            bail!("no member says that it leads")
        })
        .await
    }

    /// Writes keys `<prefix>0`, `<prefix>1`… and returns the last revision.
    pub(crate) async fn put(&self, prefix: &str, count: usize) -> anyhow::Result<i64> {
        let mut client = self.client().await?;
        let mut revision = 0;
        for number in 0..count {
            let response = client
                .put(format!("{prefix}{number}"), format!("value {number}"), None)
                .await?;
            revision = response.header().context("a header")?.revision();
        }
        Ok(revision)
    }

    /// Waits until the store covers a revision.
    pub(crate) async fn until_covered(&self, revision: i64) -> anyhow::Result<()> {
        self.until(&format!("revision {revision} is stored"), async || {
            let stored = self.stored()?;
            let covered = stored.iter().map(|name| revisions(name).1).max();
            ensure!(covered >= Some(revision), "the store holds {stored:?}");
            Ok(())
        })
        .await
    }

    /// Restores the backups with the command line, and returns the records: what `dump` prints.
    pub(crate) fn restored(&self) -> anyhow::Result<Vec<Value>> {
        let to = tempfile::tempdir()?;
        let data_dir = to.path().join("restored.etcd");
        let (store, data_dir) = (self.store(), data_dir.to_string_lossy());
        let store = store.to_string_lossy();
        run(&[
            "restore",
            "--store-provider=Local",
            "--store-container",
            &store,
            "--data-dir",
            &data_dir,
        ])?;
        let output = run(&["dump", "--data-dir", &data_dir])?;
        let text = String::from_utf8(output.stdout)?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }
}

/// First and last revision that an object's name tells.
pub(crate) fn revisions(name: &str) -> (i64, i64) {
    let mut parts = name.split('-').skip(1).filter_map(|part| part.parse().ok());
    (parts.next().unwrap_or(-1), parts.next().unwrap_or(-1))
}

/// The binary beside the test's own.
fn program() -> anyhow::Result<PathBuf> {
    let test = env::current_exe()?;
    let folder = test.ancestors().nth(2).context("the target folder")?;
    Ok(folder.join("etcd-steward"))
}

/// Runs a command of the steward to its good end.
pub(crate) fn run(args: &[&str]) -> anyhow::Result<Output> {
    let output = Command::new(program()?)
        .args(args)
        .stdin(Stdio::null())
        .output()?;
    ensure!(
        output.status.success(),
        "{args:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output)
}

fn path_with(etcd: &str) -> anyhow::Result<String> {
    let cache = env::var("DRUID_DEV_CACHE").map(PathBuf::from).or_else(|_| {
        let cache = env::var("XDG_CACHE_HOME").or_else(|_| env::var("HOME").map(|home| home + "/.cache"));
        cache.map(|cache| PathBuf::from(cache).join("druid-dev"))
    })?;
    let folder = cache.join(format!("bin/etcd-{etcd}"));
    ensure!(
        folder.join("etcd").exists(),
        "there is no etcd in {}",
        folder.display()
    );
    Ok(format!(
        "{}:{}",
        folder.display(),
        env::var("PATH").unwrap_or_default()
    ))
}

impl Member {
    pub(crate) fn client_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.client)
    }

    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.peer)
    }

    fn api_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.api)
    }

    /// The data volume.
    pub(crate) fn volume(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// etcd's data directory.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.volume().join("new.etcd")
    }

    /// Starts what doesn't run.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        if self.steward.is_none() {
            self.start_steward()?;
        }
        if self.launcher.is_none() {
            self.start_launcher()?;
        }
        Ok(())
    }

    pub(crate) fn start_steward(&mut self) -> anyhow::Result<()> {
        let Ports { api, health, .. } = self.ports;
        let flag = |name: &str, part: &str| format!("--{name}={}", self.folder.join(part).display());
        let child = self
            .command("steward.log")?
            .arg("serve")
            .args([
                flag("config", "config"),
                flag("volume", "data"),
                flag("data-dir", "data/new.etcd"),
            ])
            .args([flag("temp", "temp"), flag("socket", "run/steward.sock")])
            .arg(format!("--listen=127.0.0.1:{api}"))
            .arg(format!("--listen-health=127.0.0.1:{health}"))
            .args(["--insecure-api", "--no-kubernetes", "--log-format=text"])
            .env("POD_NAME", &self.name)
            .spawn()?;
        self.steward = Some(child);
        Ok(())
    }

    fn start_launcher(&mut self) -> anyhow::Result<()> {
        let Ports {
            launcher, metrics, ..
        } = self.ports;
        let flag = |name: &str, part: &str| format!("--{name}={}", self.folder.join(part).display());
        let child = self
            .command("launcher.log")?
            .arg("launch")
            .args([
                flag("socket", "run/steward.sock"),
                flag("volume", "data"),
                flag("run", "run"),
            ])
            .arg(format!("--listen=127.0.0.1:{launcher}"))
            .arg(format!("--etcd-health=127.0.0.1:{metrics}"))
            .env("PATH", path_with(self.etcd)?)
            .spawn()?;
        self.launcher = Some(child);
        Ok(())
    }

    fn command(&self, log: &str) -> anyhow::Result<Command> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(log))?;
        let mut command = Command::new(program()?);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    /// Ends all processes of the member at once.
    pub(crate) fn kill(&mut self) {
        self.kill_steward();
        let etcd = self.etcd_pid();
        if let Some(launcher) = self.launcher.take() {
            end(launcher);
        }
        if let Some(etcd) = etcd {
            let _ = kill(etcd, Signal::SIGKILL);
        }
    }

    pub(crate) fn kill_steward(&mut self) {
        if let Some(steward) = self.steward.take() {
            end(steward);
        }
    }

    /// The launcher's only child.
    fn etcd_pid(&self) -> Option<Pid> {
        let launcher = self.launcher.as_ref()?.id();
        let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).ok()?;
        children
            .split_whitespace()
            .next()?
            .parse()
            .ok()
            .map(Pid::from_raw)
    }

    /// Loses the volume's content.
    pub(crate) fn wipe(&self) -> anyhow::Result<()> {
        fs::remove_dir_all(self.volume())?;
        Ok(fs::create_dir(self.volume())?)
    }

    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect([self.client_url()], None).await?)
    }

    /// The cluster that the member serves: it answers a linearizable read.
    async fn cluster_id(&self) -> anyhow::Result<u64> {
        let read = async {
            let response = self.client().await?.get("any", None).await?;
            Ok(response.header().context("a header")?.cluster_id())
        };
        tokio::time::timeout(Duration::from_secs(2), read)
            .await
            .map_err(|_| anyhow!("{} doesn't answer", self.name))?
    }

    /// The member's ID in the cluster.
    pub(crate) async fn id(&self) -> anyhow::Result<u64> {
        let response = self.client().await?.status().await?;
        Ok(response.header().context("a header")?.member_id())
    }

    /// How many keys with a prefix the member itself knows.
    pub(crate) async fn count(&self, prefix: &str) -> anyhow::Result<i64> {
        let options = etcd_client::GetOptions::new().with_prefix().with_count_only();
        let response = self.client().await?.get(prefix, Some(options)).await?;
        Ok(response.count())
    }

    pub(crate) async fn snapshots(&self) -> anyhow::Result<SnapshotsServiceClient<Channel>> {
        Ok(SnapshotsServiceClient::connect(self.api_url()).await?)
    }

    /// What the steward has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("steward.log")).unwrap_or_default()
    }

    fn last_words(&self) -> String {
        let tail = |log: &str| {
            let text = fs::read_to_string(self.folder.join(log)).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            lines[lines.len().saturating_sub(12)..].join("\n")
        };
        let (steward, launcher) = (tail("steward.log"), tail("launcher.log"));
        format!(
            "--- {} steward:\n{steward}\n--- launcher and etcd:\n{launcher}\n",
            self.name
        )
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Copies a folder with all that is in it.
pub(crate) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
