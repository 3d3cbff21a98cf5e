//! A real API server with an etcd of its own, and nothing else: no controllers, no kubelet. All runs share it.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use rcgen::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::{
    member::{free_port, tool},
    pki::Authority,
};

const START_TIMEOUT: Duration = Duration::from_mins(2);
const PAUSE: Duration = Duration::from_millis(300);
const TOKEN: &str = "of-the-shaker";

/// The API server, until it is dropped.
#[derive(Debug)]
pub(crate) struct ApiServer {
    pub(crate) port: u16,
    authority: String,
    processes: Vec<Child>,
    folder: TempDir,
}

impl ApiServer {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let authority = Authority::new()?;
        let mut api = Self {
            port: free_port()?,
            authority: authority.certificate.clone(),
            processes: Vec::new(),
            folder: tempfile::Builder::new().prefix("druid-shaker-").tempdir()?,
        };
        let (server, tokens) = (authority.server()?, KeyPair::generate()?);
        for (name, text) in [
            ("tls.crt", server.certificate),
            ("tls.key", server.key),
            ("tokens.pub", tokens.public_key_pem()),
            ("tokens.key", tokens.serialize_pem()),
            ("users", format!("{TOKEN},shaker,1,system:masters\n")),
        ] {
            fs::write(api.folder.path().join(name), text)?;
        }
        api.start_processes()?;
        api.until_ready().await?;
        Ok(api)
    }

    fn start_processes(&mut self) -> anyhow::Result<()> {
        let (client, peer) = (free_port()?, free_port()?);
        let (client, peer) = (
            format!("http://127.0.0.1:{client}"),
            format!("http://127.0.0.1:{peer}"),
        );
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let etcd = [
            "--name=api".to_owned(),
            "--unsafe-no-fsync".to_owned(),
            format!("--data-dir={}", file("etcd")),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=api={peer}"),
        ];
        let server = [
            format!("--etcd-servers={client}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.port),
            "--service-cluster-ip-range=10.96.0.0/24".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--authorization-mode=AlwaysAllow".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            format!("--token-auth-file={}", file("users")),
            format!("--tls-cert-file={}", file("tls.crt")),
            format!("--tls-private-key-file={}", file("tls.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", file("tokens.pub")),
            format!("--service-account-signing-key-file={}", file("tokens.key")),
            format!("--cert-dir={}", file("certificates")),
        ];
        let processes = [
            self.process("etcd-3.6/etcd", &etcd)?,
            self.process("kube-apiserver", &server)?,
        ];
        self.processes.extend(processes);
        Ok(())
    }

    fn process(&self, program: &str, arguments: &[String]) -> anyhow::Result<Child> {
        let path = tool(program)?;
        let log = self.folder.path().join(program.replace('/', "-") + ".log");
        let log = File::create(log)?;
        Command::new(&path)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("{}: e2e/cluster/build.sh builds it", path.display()))
    }

    async fn until_ready(&mut self) -> anyhow::Result<()> {
        let client = self.client().await?;
        let begin = Instant::now();
        loop {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            match client.request_text(request).await {
                Ok(text) if text == "ok" => return Ok(()),
                answer => {
                    let log = self.folder.path().join("kube-apiserver.log");
                    ensure!(
                        begin.elapsed() < START_TIMEOUT,
                        "the API server isn't ready: {answer:?}\n{}",
                        fs::read_to_string(log)?
                    );
                }
            }
            sleep(PAUSE).await;
        }
    }

    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let kubeconfig: Kubeconfig = serde_json::from_value(self.kubeconfig(self.port))?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    /// Writes a file that leads to it by a port, which may be another one's that leads on to it.
    pub(crate) fn write_kubeconfig(&self, port: u16, file: &Path) -> anyhow::Result<()> {
        Ok(fs::write(file, self.kubeconfig(port).to_string())?)
    }

    fn kubeconfig(&self, port: u16) -> Value {
        use base64::{Engine as _, prelude::BASE64_STANDARD};
        let authority = BASE64_STANDARD.encode(&self.authority);
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "clusters": [{"name": "k", "cluster": {
                "server": format!("https://127.0.0.1:{port}"), "certificate-authority-data": authority,
            }}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        })
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        // Asked to end, it would wait for its etcd.
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
