//! A member on loopback: its steward, its launcher with a real etcd, and their folder.

mod ports;
mod told;

use std::{
    env,
    fs::{self, File},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use anyhow::{Context as _, anyhow, ensure};
use etcd_client::Client;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use self::ports::Ports;
pub(crate) use self::ports::free_port;
use crate::pki::Leaf;

/// A member: its processes and its folder.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    folder: PathBuf,
    etcd: &'static str,
    ports: Ports,
    /// The port by which peers reach it, if that isn't its own.
    front: Option<u16>,
    /// The port by which the other stewards reach its steward, if that isn't its own.
    api_front: Option<u16>,
    /// Where its steward is told that all others serve their clients, if that isn't so.
    strangers: Option<String>,
    /// A folder with programs that come before those of etcd's version.
    pub(crate) programs: Option<PathBuf>,
    /// Whether its steward's API asks for certificates.
    secure: bool,
    /// Whether it is to speak TLS with its peers.
    pub(crate) peer_tls: bool,
    steward: Option<Child>,
    launcher: Option<Child>,
    /// Port at which the steward finds etcd, where that isn't etcd's own.
    via: Option<u16>,
    /// How its steward gets to a Kubernetes API, if there is to be one.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// What the steward has in its environment.
    environment: Vec<(&'static str, String)>,
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

/// One of the tools that `e2e/cluster/build.sh` builds, or a folder of them.
pub(crate) fn tool(name: &str) -> anyhow::Result<PathBuf> {
    let cache = env::var("DRUID_DEV_CACHE").map(PathBuf::from).or_else(|_| {
        let cache = env::var("XDG_CACHE_HOME").or_else(|_| env::var("HOME").map(|home| home + "/.cache"));
        cache.map(|cache| PathBuf::from(cache).join("druid-dev"))
    })?;
    Ok(cache.join("bin").join(name))
}

/// A process that stands still until this is dropped.
#[derive(Debug)]
pub(crate) struct Paused(Pid);

impl Paused {
    fn new(pid: Pid) -> Option<Self> {
        kill(pid, Signal::SIGSTOP).is_ok().then_some(Self(pid))
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

fn path_with(etcd: &str) -> anyhow::Result<String> {
    let folder = tool(&format!("etcd-{etcd}"))?;
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
            front: None,
            api_front: None,
            strangers: None,
            programs: None,
            secure: false,
            peer_tls: false,
            steward: None,
            launcher: None,
            via: None,
            kubeconfig: None,
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

    /// Where its peers reach it.
    pub(crate) fn peer_url(&self) -> String {
        let port = self.front.unwrap_or(self.ports.peer);
        format!("{}://127.0.0.1:{port}", self.peer_scheme())
    }

    /// Where it listens for its peers.
    pub(crate) fn listen_peer_url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.peer_scheme(), self.ports.peer)
    }

    fn peer_scheme(&self) -> &'static str {
        if self.peer_tls { "https" } else { "http" }
    }

    pub(crate) fn peer_port(&self) -> u16 {
        self.ports.peer
    }

    /// Has its peers reach it by another port.
    pub(crate) fn reached_by(&mut self, front: u16) {
        self.front = Some(front);
    }

    /// Has it listen for its peers at another port from its next start on.
    pub(crate) fn move_peer_port(&mut self) -> anyhow::Result<()> {
        self.ports.peer = free_port()?;
        Ok(())
    }

    /// Tells its steward a wrong client URL of all others, or the right ones again.
    pub(crate) fn mislead(&mut self, client_url: Option<String>) {
        self.strangers = client_url;
    }

    /// Client URL of another member, as its steward is told it.
    pub(crate) fn sees(&self, other: &Self) -> String {
        let own = other.name == self.name;
        self.strangers
            .clone()
            .filter(|_| !own)
            .unwrap_or_else(|| other.dialled_url())
    }

    pub(crate) fn api_url(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.ports.api)
    }

    /// Where the other stewards reach its steward.
    pub(crate) fn front_api_url(&self) -> String {
        match self.api_front {
            Some(port) => format!("http://127.0.0.1:{port}"),
            None => self.api_url(),
        }
    }

    /// Has the other stewards reach its steward by another port.
    pub(crate) fn api_reached_by(&mut self, front: u16) {
        self.api_front = Some(front);
    }

    pub(crate) fn api_port(&self) -> u16 {
        self.ports.api
    }

    /// Gives its steward certificates, which it then asks its callers for.
    pub(crate) fn secure(&mut self, ca: &str, server: &Leaf) -> anyhow::Result<()> {
        self.secure = true;
        for (name, text) in [
            ("ca.crt", ca),
            ("tls.crt", &server.certificate),
            ("tls.key", &server.key),
        ] {
            fs::write(self.folder.join("tls").join(name), text)?;
        }
        Ok(())
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

    /// Starts what has ended, as kubelet does.
    pub(crate) fn revive(&mut self) -> anyhow::Result<()> {
        for process in [&mut self.steward, &mut self.launcher] {
            if let Some(child) = process
                && child.try_wait()?.is_some()
            {
                *process = None;
            }
        }
        self.start()
    }

    /// Stops etcd in its tracks, if it runs.
    pub(crate) fn pause_etcd(&self) -> Option<Paused> {
        self.etcd_pid().and_then(Paused::new)
    }

    pub(crate) fn pause_steward(&self) -> Option<Paused> {
        let pid = self.steward_pid()?.try_into().ok()?;
        Paused::new(Pid::from_raw(pid))
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
            .args([
                flag("etcd-tls", "tls"),
                flag("client-tls", "tls"),
                flag("steward-tls", "tls"),
            ])
            .arg(format!("--listen=127.0.0.1:{api}"))
            .arg(format!("--listen-health=127.0.0.1:{health}"))
            .args((!self.secure).then_some("--insecure-api"))
            .arg("--log-format=text")
            .args(self.kubeconfig.is_none().then_some("--no-kubernetes"))
            .envs(self.kubeconfig.iter().map(|file| ("KUBECONFIG", file)))
            .env("POD_NAME", &self.name)
            // As in the pod.
            .env("MALLOC_ARENA_MAX", "2")
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
            .env("PATH", self.path()?)
            .spawn()?;
        self.launcher = Some(child);
        Ok(())
    }

    fn path(&self) -> anyhow::Result<String> {
        let path = path_with(self.etcd)?;
        Ok(match &self.programs {
            Some(first) => format!("{}:{path}", first.display()),
            None => path,
        })
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

    /// Asks the launcher to end, and returns its exit code.
    pub(crate) fn stop_launcher(&mut self) -> anyhow::Result<Option<i32>> {
        let mut launcher = self.launcher.take().context("a launcher")?;
        kill(Pid::from_raw(launcher.id().try_into()?), Signal::SIGTERM)?;
        Ok(launcher.wait()?.code())
    }

    pub(crate) fn steward_pid(&self) -> Option<u32> {
        self.steward.as_ref().map(Child::id)
    }

    /// Kills etcd alone.
    pub(crate) fn kill_etcd(&self) -> anyhow::Result<()> {
        Ok(kill(self.etcd_pid().context("an etcd")?, Signal::SIGKILL)?)
    }

    /// Processes below the launcher, with their states as in `/proc/PID/stat`.
    pub(crate) fn children(&self) -> anyhow::Result<Vec<(i32, String)>> {
        let launcher = self.launcher.as_ref().context("a launcher")?.id();
        let mut found = Vec::new();
        for task in fs::read_dir(format!("/proc/{launcher}/task"))? {
            let children = fs::read_to_string(task?.path().join("children"))?;
            for pid in children.split_whitespace() {
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                let state = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').next());
                found.push((pid.parse()?, state.unwrap_or_default().to_owned()));
            }
        }
        Ok(found)
    }

    /// How etcd last ended, by the record on the volume.
    pub(crate) fn exit_record(&self) -> anyhow::Result<Value> {
        let text = fs::read(self.volume().join("exit-record.json"))?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// What the launcher and etcd have logged.
    pub(crate) fn launcher_log(&self) -> String {
        fs::read_to_string(self.folder.join("launcher.log")).unwrap_or_default()
    }

    /// etcd, wherever among the launcher's children it is.
    pub(crate) fn etcd_pid(&self) -> Option<Pid> {
        let is_etcd = |pid: &i32| {
            // The launcher asks it for its version, too.
            let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline"));
            arguments.is_ok_and(|arguments| arguments.contains("--config-file"))
        };
        let children = self.children().ok()?;
        let mut pids = children.into_iter().map(|(pid, _)| pid);
        pids.find(is_etcd).map(Pid::from_raw)
    }

    /// Loses the volume's content. The volume itself may be mounted.
    pub(crate) fn wipe(&self) -> anyhow::Result<()> {
        for entry in fs::read_dir(self.volume())? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Loses etcd's data, and keeps the volume.
    pub(crate) fn lose_data(&self) -> anyhow::Result<()> {
        Ok(fs::remove_dir_all(self.data_dir())?)
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
