//! A real etcd of a given minor version on loopback, and what a test wants to ask it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use base64_simd::STANDARD;
use etcd_storage::cluster::NewCluster;
use etcd_storage::schema::Minor;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// The folder of a version's `etcd`, `etcdctl` and `etcdutl`.
pub(crate) fn binaries(minor: Minor) -> PathBuf {
    let cache = env::var_os("DRUID_DEV_CACHE").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| PathBuf::from(env::var_os("HOME").unwrap()).join(".cache/druid-dev"));
    let dir = cache.join(format!("bin/etcd-{minor}"));
    assert!(
        dir.join("etcd").exists(),
        "etcd {minor} is not in {}: build the development tools, or name their folder in DRUID_DEV_CACHE",
        dir.display()
    );
    dir
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// Where a member listens.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) name: String,
    client: u16,
    peer: u16,
}

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            client: free_port(),
            peer: free_port(),
        }
    }

    pub(crate) fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer)
    }
}

pub(crate) fn cluster(places: &[Place]) -> NewCluster {
    NewCluster::new(
        "test-token",
        places
            .iter()
            .map(|place| (place.name.clone(), vec![place.peer_url()])),
    )
    .unwrap()
}

pub(crate) struct Etcd {
    child: Child,
    binaries: PathBuf,
    place: Place,
    log: PathBuf,
    connection: Option<BufReader<TcpStream>>,
    /// `name:password` of etcdctl's user.
    pub(crate) user: Option<&'static str>,
}

impl Etcd {
    /// Starts a member and does not wait for it.
    pub(crate) fn spawn(minor: Minor, data_dir: &Path, place: &Place, all: &[Place]) -> Self {
        Self::spawn_as("new", minor, data_dir, place, all)
    }

    /// Starts a member that joins the others, and does not wait for it.
    pub(crate) fn spawn_joining(minor: Minor, data_dir: &Path, place: &Place, all: &[Place]) -> Self {
        Self::spawn_as("existing", minor, data_dir, place, all)
    }

    fn spawn_as(state: &str, minor: Minor, data_dir: &Path, place: &Place, all: &[Place]) -> Self {
        let binaries = binaries(minor);
        let client = format!("http://127.0.0.1:{}", place.client);
        let members: Vec<String> = all
            .iter()
            .map(|one| format!("{}={}", one.name, one.peer_url()))
            .collect();
        let log = data_dir.with_extension("log");
        let child = Command::new(binaries.join("etcd"))
            .args(["--name", &place.name, "--data-dir"])
            .arg(data_dir)
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args(["--listen-peer-urls", &place.peer_url()])
            .args(["--initial-advertise-peer-urls", &place.peer_url()])
            .args([
                "--initial-cluster",
                &members.join(","),
                "--initial-cluster-token",
                "test-token",
            ])
            .args(["--initial-cluster-state", state])
            .args([
                "--max-request-bytes",
                "104857600",
                "--max-txn-ops",
                "10000",
                "--unsafe-no-fsync",
                "--quota-backend-bytes",
                "17179869184",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self {
            child,
            binaries,
            place: place.clone(),
            log,
            connection: None,
            user: None,
        }
    }

    /// Starts the only member of a cluster and waits until it serves.
    pub(crate) fn start(minor: Minor, data_dir: &Path, place: &Place) -> Self {
        let mut etcd = Self::spawn(minor, data_dir, place, std::slice::from_ref(place));
        etcd.wait();
        etcd
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.place.client)
    }

    pub(crate) fn wait(&mut self) {
        // A linearizable read: there is a leader.
        self.wait_until(|etcd| etcd.answers("/v3/kv/range", &json!({"key": "AA=="})));
    }

    /// Waits for an etcd that lets nobody in but users, and goes on as one of them.
    pub(crate) fn wait_as(&mut self, user: &'static str) {
        self.user = Some(user);
        self.wait_until(|etcd| etcd.try_etcdctl(&["get", "key"]).0);
    }

    /// A learner answers nothing but status calls.
    pub(crate) fn wait_for_learner(&mut self) {
        self.wait_until(|etcd| etcd.answers("/v3/maintenance/status", &json!({})));
    }

    fn answers(&mut self, path: &str, body: &Value) -> bool {
        self.try_post(path, body).is_some_and(|(status, _)| status == 200)
    }

    fn wait_until(&mut self, mut is_ready: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + Duration::from_mins(1);
        while !is_ready(self) {
            let exited = self.child.try_wait().unwrap();
            assert!(
                exited.is_none() && Instant::now() < deadline,
                "etcd did not start ({exited:?}): {}",
                self.log_tail()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Ends etcd as a container's end does.
    pub(crate) fn stop(mut self) {
        kill(
            Pid::from_raw(i32::try_from(self.child.id()).unwrap()),
            Signal::SIGTERM,
        )
        .unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn etcdctl(&self, args: &[&str]) -> String {
        let (success, out) = self.try_etcdctl(args);
        assert!(success, "etcdctl {args:?} failed: {out}");
        out
    }

    pub(crate) fn try_etcdctl(&self, args: &[&str]) -> (bool, String) {
        let mut command = Command::new(self.binaries.join("etcdctl"));
        command.args(["--endpoints", &self.endpoint()]).args(args);
        if let Some(user) = self.user {
            command.args(["--user", user]);
        }
        let out = command.output().unwrap();
        let text = if out.status.success() {
            out.stdout
        } else {
            out.stderr
        };
        (out.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    /// Calls etcd's JSON gateway.
    pub(crate) fn post(&mut self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.try_post(path, body).unwrap();
        assert_eq!(status, 200, "{path} {body}: {answer}");
        answer
    }

    fn try_post(&mut self, path: &str, body: &Value) -> Option<(u16, Value)> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => BufReader::new(TcpStream::connect(("127.0.0.1", self.place.client)).ok()?),
        };
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        connection
            .get_mut()
            .write_all([head.as_bytes(), body.as_bytes()].concat().as_slice())
            .ok()?;
        let mut line = String::new();
        connection.read_line(&mut line).ok()?;
        let status = line.split(' ').nth(1)?.parse().ok()?;
        let mut len = Some(0);
        loop {
            line.clear();
            connection.read_line(&mut line).ok()?;
            match line.trim_end().split_once(": ") {
                None => break,
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    len = Some(value.parse().ok()?);
                }
                Some((name, _)) if name.eq_ignore_ascii_case("transfer-encoding") => len = None,
                Some(_) => {}
            }
        }
        let answer = match len {
            Some(len) => read_exactly(&mut connection, len)?,
            None => read_chunks(&mut connection)?,
        };
        self.connection = Some(connection);
        Some((status, serde_json::from_slice(&answer).ok()?))
    }

    pub(crate) fn put(&mut self, key: &str, value: &[u8], lease: i64) -> i64 {
        let answer = self.post("/v3/kv/put", &put_request(key, value, lease));
        number(&answer["header"]["revision"])
    }

    pub(crate) fn delete(&mut self, from: &str, to: &str) -> i64 {
        let range =
            json!({"key": STANDARD.encode_to_string(from), "range_end": STANDARD.encode_to_string(to)});
        number(&self.post("/v3/kv/deleterange", &range)["header"]["revision"])
    }

    pub(crate) fn txn(&mut self, operations: &[Value]) -> i64 {
        number(&self.post("/v3/kv/txn", &json!({"success": operations}))["header"]["revision"])
    }

    pub(crate) fn grant(&mut self, id: i64, ttl: i64) {
        self.post(
            "/v3/lease/grant",
            &json!({"ID": id.to_string(), "TTL": ttl.to_string()}),
        );
    }

    pub(crate) fn revoke(&mut self, id: i64) {
        self.post("/v3/lease/revoke", &json!({"ID": id.to_string()}));
    }

    /// Hash, revision and compact revision by `HashKV` at the last revision.
    pub(crate) fn hash_kv(&mut self) -> (u32, i64, i64) {
        let answer = self.post("/v3/maintenance/hashkv", &json!({"revision": 0}));
        let hash = u32::try_from(number(&answer["hash"])).unwrap();
        (
            hash,
            number(&answer["header"]["revision"]),
            number(&answer["compact_revision"]),
        )
    }

    pub(crate) fn live_keys(&mut self) -> i64 {
        let all = json!({"key": "AA==", "range_end": "AA==", "count_only": true});
        number(&self.post("/v3/kv/range", &all)["count"])
    }

    pub(crate) fn value(&mut self, key: &str) -> Option<Vec<u8>> {
        let answer = self.post("/v3/kv/range", &json!({"key": STANDARD.encode_to_string(key)}));
        let found = answer["kvs"].as_array()?.first()?.clone();
        Some(
            STANDARD
                .decode_to_vec(found["value"].as_str().unwrap_or(""))
                .unwrap(),
        )
    }

    /// Ids and granted TTLs, sorted.
    pub(crate) fn leases(&mut self) -> Vec<(i64, i64)> {
        let answer = self.post("/v3/lease/leases", &json!({}));
        let ids: Vec<i64> = answer["leases"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|one| number(&one["ID"]))
            .collect();
        let mut leases: Vec<(i64, i64)> = ids
            .into_iter()
            .map(|id| {
                let told = self.post("/v3/lease/timetolive", &json!({"ID": id.to_string()}));
                (id, number(&told["grantedTTL"]))
            })
            .collect();
        leases.sort_unstable();
        leases
    }

    pub(crate) fn snapshot(&self, path: &Path) {
        self.etcdctl(&["snapshot", "save", path.to_str().unwrap()]);
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_exactly(connection: &mut impl Read, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    connection.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

/// A body whose length nobody knew when it began.
fn read_chunks(connection: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        connection.read_line(&mut line).ok()?;
        let len = usize::from_str_radix(line.trim_end(), 16).ok()?;
        let chunk = read_exactly(connection, len + 2)?;
        if len == 0 {
            return Some(body);
        }
        body.extend_from_slice(&chunk[..len]);
    }
}

pub(crate) fn put_request(key: &str, value: &[u8], lease: i64) -> Value {
    json!({
        "key": STANDARD.encode_to_string(key),
        "value": STANDARD.encode_to_string(value),
        "lease": lease.to_string(),
    })
}

/// The gateway writes 64-bit numbers as text, and leaves zeros out.
pub(crate) fn number(value: &Value) -> i64 {
    match value {
        Value::String(text) => text.parse().unwrap(),
        other => other.as_i64().unwrap_or(0),
    }
}
