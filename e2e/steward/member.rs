//! A member on loopback: its steward, its launcher with a real etcd, and their folder.

use std::{
    env,
    fs::{self, File},
    net::TcpListener,
    path::PathBuf,
    process::{self, Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail, ensure};
use etcd_client::Client;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use steward_proto::v1::{
    GetBackupStatusRequest, GetBackupStatusResponse, snapshots_service_client::SnapshotsServiceClient,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::transport::Channel;

use crate::rig::PATIENCE;

/// A member: its processes and its folder.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    folder: PathBuf,
    etcd: &'static str,
    ports: Ports,
    steward: Option<Child>,
    launcher: Option<Child>,
    /// Port at which the steward finds etcd, where that isn't etcd's own.
    via: Option<u16>,
    /// What the steward has in its environment.
    environment: Vec<(&'static str, String)>,
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
    fn free() -> anyhow::Result<Self> {
        Ok(Self {
            client: free_port()?,
            peer: free_port()?,
            metrics: free_port()?,
            launcher: free_port()?,
            api: free_port()?,
            health: free_port()?,
        })
    }
}

/// A port that nobody listens on, that no other test of this process was given, and that no client is: those get theirs
/// from 32768 on. Where the search begins differs from process to process.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    for _ in 0..1000 {
        let number = process::id() % 200 * 100 + TAKEN.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(12_000 + number % 20_000)?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free")
}

/// The binary beside the test's own.
pub(crate) fn program() -> anyhow::Result<PathBuf> {
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
    /// A member that has its folder and ports, and doesn't run.
    pub(crate) fn new(name: String, folder: PathBuf, etcd: &'static str) -> anyhow::Result<Self> {
        for part in ["config", "data", "run", "temp", "tls"] {
            fs::create_dir_all(folder.join(part))?;
        }
        Ok(Self {
            name,
            folder,
            etcd,
            ports: Ports::free()?,
            steward: None,
            launcher: None,
            via: None,
            environment: Vec::new(),
        })
    }

    /// Writes the member's part of the ConfigMap.
    pub(crate) fn configure(&self, steward: &str, etcd: &str) -> anyhow::Result<()> {
        let config = self.folder.join("config");
        for (name, text) in [
            (format!("etcd-{}.yaml", self.name), etcd),
            ("steward.yaml".to_owned(), steward),
        ] {
            // Whole files appear, as in a mounted ConfigMap.
            let fresh = self.folder.join(&name);
            fs::write(&fresh, text)?;
            fs::rename(fresh, config.join(name))?;
        }
        Ok(())
    }

    /// Gives the steward a user of etcd, as the Secret with its certificates would.
    pub(crate) fn authenticate(&self, user: &str, password: &str) -> anyhow::Result<()> {
        fs::write(self.folder.join("tls/etcd-username"), user)?;
        Ok(fs::write(
            self.folder.join("tls/etcd-password"),
            format!("{password}\n"),
        )?)
    }

    /// Takes the port of the steward's API before it does.
    pub(crate) fn take_api_port(&self) -> anyhow::Result<TcpListener> {
        Ok(TcpListener::bind(("127.0.0.1", self.ports.api))?)
    }

    /// Waits for the steward to end by itself, and returns its exit code.
    pub(crate) fn steward_ended(&mut self) -> anyhow::Result<Option<i32>> {
        let mut steward = self.steward.take().context("a steward")?;
        Ok(steward.wait()?.code())
    }

    /// A call of the steward's HTTP API.
    pub(crate) async fn call(&self, method: &str, path: &str) -> anyhow::Result<(u16, Value)> {
        let (status, body) = ask(self.ports.api, method, path).await?;
        Ok((status, serde_json::from_str(&body).unwrap_or(Value::String(body))))
    }

    /// The value of a steward's metric, by its name and labels as they are exposed.
    pub(crate) async fn metric(&self, series: &str) -> anyhow::Result<f64> {
        metric(self.ports.health, series).await
    }

    /// The same of etcd's own metrics.
    pub(crate) async fn etcd_metric(&self, series: &str) -> anyhow::Result<f64> {
        metric(self.ports.metrics, series).await
    }

    /// Size of the database.
    pub(crate) async fn db_size(&self) -> anyhow::Result<i64> {
        Ok(self.client().await?.status().await?.db_size())
    }

    pub(crate) fn client_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.client)
    }

    /// Where the steward is told that etcd is.
    pub(crate) fn dialled_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.via.unwrap_or(self.ports.client))
    }

    /// Leads the steward to etcd by another port. Takes effect when the rig is configured again.
    pub(crate) fn lead_via(&mut self, port: u16) -> u16 {
        self.via = Some(port);
        self.ports.client
    }

    /// Gives the steward a variable in its environment, from its next start on.
    pub(crate) fn set_env(&mut self, name: &'static str, value: String) {
        self.environment.push((name, value));
    }

    pub(crate) fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.peer)
    }

    pub(crate) fn api_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.api)
    }

    pub(crate) fn metrics_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.metrics)
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
            .args([flag("etcd-tls", "tls"), flag("steward-tls", "tls")])
            .arg(format!("--listen=127.0.0.1:{api}"))
            .arg(format!("--listen-health=127.0.0.1:{health}"))
            .args(["--insecure-api", "--no-kubernetes", "--log-format=text"])
            .env("POD_NAME", &self.name)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
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

    /// The most memory that the steward has had so far, in bytes.
    pub(crate) fn peak_memory(&self) -> anyhow::Result<u64> {
        let pid = self.steward.as_ref().context("a steward")?.id();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: u64 = line.context("VmHWM")?.trim().trim_end_matches(" kB").parse()?;
        Ok(kib << 10)
    }

    /// The steward's scratch space.
    pub(crate) fn temp(&self) -> PathBuf {
        self.folder.join("temp")
    }

    /// What the steward knows of the backups.
    pub(crate) async fn backup_status(&self) -> anyhow::Result<GetBackupStatusResponse> {
        let answer = self
            .snapshots()
            .await?
            .get_backup_status(GetBackupStatusRequest {})
            .await?;
        Ok(answer.into_inner())
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
    pub(crate) async fn cluster_id(&self) -> anyhow::Result<u64> {
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

    pub(crate) fn last_words(&self) -> String {
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

async fn metric(port: u16, series: &str) -> anyhow::Result<f64> {
    let (_, text) = ask(port, "GET", "/metrics").await?;
    let mut values = text
        .lines()
        .filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(values
        .next()
        .with_context(|| format!("no metric {series}"))?
        .parse()?)
}

/// One request over plain HTTP.
async fn ask(port: u16, method: &str, path: &str) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await??;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer")?;
    let status = head.split(' ').nth(1).context("a status")?.parse()?;
    Ok((status, body.to_owned()))
}
