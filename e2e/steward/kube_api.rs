//! As much of a Kubernetes API as a steward uses: EtcdMembers and Leases that are read and patched. Nothing can be watched,
//! which stewards do without.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::rig::Rig;

/// Objects by their paths.
type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

/// The API, until it is dropped.
#[derive(Debug)]
pub(crate) struct KubeApi {
    url: String,
    objects: Objects,
    task: JoinHandle<()>,
}

impl KubeApi {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let objects = Objects::default();
        let task = tokio::spawn({
            let objects = Arc::clone(&objects);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let objects = Arc::clone(&objects);
                    tokio::spawn(async move { serve(client, &objects).await });
                }
            }
        });
        Ok(Self { url, objects, task })
    }

    /// Has all members of a rig use it, from their next start on.
    pub(crate) fn lead(&self, rig: &mut Rig) -> anyhow::Result<()> {
        for member in &mut rig.members {
            let file = member.temp().join("kubeconfig");
            kubeconfig(&self.url, &file)?;
            member.kubeconfig = Some(file);
        }
        Ok(())
    }

    /// What a member's Lease says of its log: the index.
    pub(crate) fn raft_index(&self, member: &str) -> anyhow::Result<u64> {
        let lease = self.object("leases", member).context("a Lease")?;
        let text = &lease["metadata"]["annotations"]["druid.gardener.cloud/raft-index"];
        let index = text.as_str().and_then(|text| text.rsplit(':').next());
        Ok(index.context("an index")?.parse()?)
    }

    /// Deletes a member's Lease.
    pub(crate) fn delete_lease(&self, member: &str) {
        self.objects()
            .retain(|path, _| !path.ends_with(&format!("/leases/{member}")));
    }

    /// Reasons of Events about a member, as far as they were sent.
    pub(crate) fn events(&self, member: &str) -> Vec<String> {
        let objects = self.objects();
        let events = objects
            .values()
            .filter(|object| object["regarding"]["name"] == member);
        events
            .filter_map(|event| event["reason"].as_str().map(str::to_owned))
            .collect()
    }

    fn object(&self, kind: &str, name: &str) -> Option<Value> {
        let end = format!("/{kind}/{name}");
        let objects = self.objects();
        let found = objects.iter().find(|(path, _)| path.ends_with(&end));
        found.map(|(_, object)| object.clone())
    }

    fn objects(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Value>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KubeApi {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Writes a file that leads to an API.
pub(crate) fn kubeconfig(url: &str, file: &Path) -> anyhow::Result<()> {
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "k", "cluster": {"server": url}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    });
    Ok(fs::write(file, text.to_string())?)
}

async fn serve(client: TcpStream, objects: &Objects) -> Option<()> {
    let mut client = BufReader::new(client);
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut length = 0;
    loop {
        let mut header = String::new();
        client.read_line(&mut header).await.ok()?;
        match header.trim().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().ok()?;
            }
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    client.read_exact(&mut body).await.ok()?;
    let path = target.split('?').next()?.to_owned();
    let (status, answer) = {
        let mut objects = objects.lock().unwrap_or_else(PoisonError::into_inner);
        handle(
            &mut objects,
            &method,
            &path,
            &serde_json::from_slice(&body).unwrap_or_default(),
        )
    };
    let answer = answer.to_string();
    let head = format!(
        "HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.len()
    );
    client.write_all(format!("{head}{answer}").as_bytes()).await.ok()
}

fn handle(objects: &mut BTreeMap<String, Value>, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let failed = |code: u16, reason: &str| {
        let status =
            json!({"kind": "Status", "status": "Failure", "reason": reason, "message": reason, "code": code});
        (code, status)
    };
    let path = path.trim_end_matches("/status");
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    match method {
        "GET" if ["etcdmembers", "leases"].contains(&name.as_str()) => failed(500, "InternalError"),
        "GET" => match objects.get(path) {
            Some(object) => (200, object.clone()),
            None => failed(404, "NotFound"),
        },
        "PATCH" => {
            let object = objects.entry(path.to_owned()).or_insert_with(
                || json!({"metadata": {"name": name, "namespace": "lab", "uid": name}, "spec": {}}),
            );
            merge(object, body);
            (200, object.clone())
        }
        "POST" => {
            objects.insert(format!("{path}/{}", objects.len()), body.clone());
            (201, body.clone())
        }
        _ => failed(405, "MethodNotAllowed"),
    }
}

/// A JSON merge patch.
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            object.as_object_mut().map(|object| object.remove(key));
        } else {
            merge(&mut object[key], value);
        }
    }
}
