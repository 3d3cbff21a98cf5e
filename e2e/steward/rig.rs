//! Members on loopback: for each a steward, a launcher and a real etcd, and one folder as their store. No Kubernetes.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use etcd_client::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::member::{Member, run};

/// Long enough for a machine that does other things as well.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(50);

/// What the cluster is like.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) size: usize,
    /// Minor version of etcd.
    pub(crate) etcd: &'static str,
    /// `spec.backup`; its store is a folder unless it has one, and there is none when it is null.
    pub(crate) backup: Value,
    /// The rest of what stewards are told of the Etcd.
    pub(crate) steward: Value,
    /// Options of etcd.
    pub(crate) options: Value,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            size: 3,
            etcd: "3.6",
            backup: json!({"deltaSnapshotPeriod": "1s", "fullSnapshotSchedule": "0 0 1 1 *"}),
            steward: json!({}),
            options: json!({}),
        }
    }
}

impl Setup {
    /// One member.
    pub(crate) fn single() -> Self {
        Self {
            size: 1,
            ..Self::default()
        }
    }
}

/// A cluster on loopback.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) members: Vec<Member>,
    setup: Setup,
    /// UID of the Etcd, and the token of its cluster.
    uid: String,
    /// Its namespace.
    namespace: String,
    folder: TempDir,
}

impl Rig {
    /// Writes the configuration; nothing runs yet.
    pub(crate) fn new(setup: Setup) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("druid-rig-").tempdir()?;
        let mut rig = Self {
            members: Vec::new(),
            setup,
            uid: "u-1".to_owned(),
            namespace: "lab".to_owned(),
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

    /// The same of one member with authentication: `root`, whose password is `secret`.
    pub(crate) async fn start_locked(setup: Setup) -> anyhow::Result<Self> {
        let mut rig = Self::new(setup)?;
        rig.members[0].authenticate("root", "secret")?;
        rig.start_all()?;
        rig.until_ready().await?;
        let mut client = rig.client().await?;
        client.user_add("root", "secret", None).await?;
        client.user_grant_role("root", "root").await?;
        client.auth_enable().await?;
        Ok(rig)
    }

    pub(crate) fn start_all(&mut self) -> anyhow::Result<()> {
        self.members.iter_mut().try_for_each(Member::start)
    }

    /// Starts all stewards anew, and what doesn't run.
    pub(crate) fn start_stewards_anew(&mut self) -> anyhow::Result<()> {
        self.members.iter_mut().for_each(Member::kill_steward);
        self.start_all()
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
            self.members.push(Member::new(name, folder, self.setup.etcd)?);
        }
        fs::create_dir_all(self.store())?;
        self.reconfigure()
    }

    /// Has the stewards record what they do in the EtcdMembers of a namespace.
    pub(crate) fn record_in(&mut self, namespace: &str) -> anyhow::Result<()> {
        let kubeconfig = std::env::var("KUBECONFIG").context("KUBECONFIG must name a cluster")?;
        self.record_by(Path::new(&kubeconfig), namespace)
    }

    /// The same with the API that a file leads to.
    pub(crate) fn record_by(&mut self, kubeconfig: &Path, namespace: &str) -> anyhow::Result<()> {
        for member in &mut self.members {
            member.kubeconfig = Some(kubeconfig.to_owned());
        }
        namespace.clone_into(&mut self.namespace);
        self.reconfigure()
    }

    /// As an Etcd that was deleted and made again under its name.
    pub(crate) fn make_anew(&mut self, uid: &str) -> anyhow::Result<()> {
        uid.clone_into(&mut self.uid);
        self.reconfigure()
    }

    /// Writes the configuration anew, by what the members are now.
    pub(crate) fn reconfigure(&self) -> anyhow::Result<()> {
        self.members.iter().try_for_each(|member| self.configure(member))
    }

    /// Keeps the folder with everything in it for somebody to look at.
    pub(crate) fn keep(&mut self) -> &Path {
        self.folder.disable_cleanup(true);
        self.folder.path()
    }

    /// Gives etcd other options, at all members.
    pub(crate) fn change_options(&mut self, options: Value) -> anyhow::Result<()> {
        self.setup.options = options;
        self.members.iter().try_for_each(|member| self.configure(member))
    }

    /// Gives the stewards another `spec.backup`. They end by themselves when they see it.
    pub(crate) fn change_backup(&mut self, backup: Value) -> anyhow::Result<()> {
        self.setup.backup = backup;
        self.members.iter().try_for_each(|member| self.configure(member))
    }

    fn configure(&self, member: &Member) -> anyhow::Result<()> {
        let members: Vec<_> = self
            .members
            .iter()
            .map(|other| {
                json!({
                    "name": other.name, "pod": other.name, "peerUrls": [other.peer_url()],
                    "clientUrls": [member.sees(other)], "stewardUrl": other.front_api_url(),
                })
            })
            .collect();
        let mut backup = self.setup.backup.clone();
        if !backup.is_null() && backup["store"].is_null() {
            backup["store"] = json!({"provider": "Local", "container": self.store(), "prefix": ""});
        }
        if backup["secondary"].is_object() {
            backup["secondary"]["store"] =
                json!({"provider": "Local", "container": self.second_store(), "prefix": ""});
        }
        let mut steward = json!({
            "cluster": {"name": "t1", "namespace": self.namespace, "uid": self.uid, "token": self.uid, "members": members},
            "backup": if backup.is_null() { json!({}) } else { backup },
        });
        let initial: Vec<_> = self
            .members
            .iter()
            .map(|member| format!("{}={}", member.name, member.peer_url()))
            .collect();
        let mut etcd = json!({
            "name": member.name,
            "listen-peer-urls": member.listen_peer_url(),
            "listen-client-urls": member.client_url(),
            "advertise-client-urls": member.client_url(),
            "initial-advertise-peer-urls": member.peer_url(),
            "initial-cluster": initial.join(","),
            "initial-cluster-token": self.uid,
            "listen-metrics-urls": member.metrics_url(),
        });
        if member.peer_tls {
            steward["cluster"]["peerTls"] = json!(true);
            etcd["peer-transport-security"] = json!({"auto-tls": true});
        }
        for (config, more) in [
            (&mut steward, &self.setup.steward),
            (&mut etcd, &self.setup.options),
        ] {
            for (key, value) in more.as_object().into_iter().flatten() {
                config[key] = value.clone();
            }
        }
        // JSON is YAML.
        member.configure(&steward.to_string(), &etcd.to_string())
    }

    /// The folder of the store; `v2/` lies directly in it.
    pub(crate) fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// The folder of the second store, which a scenario that has one makes itself.
    pub(crate) fn second_store(&self) -> PathBuf {
        self.folder.path().join("second-store")
    }

    /// Makes the store unusable.
    pub(crate) fn block_store(&self) -> anyhow::Result<()> {
        fs::rename(self.store(), self.store().with_file_name("store-aside"))?;
        Ok(fs::write(self.store(), "not a folder")?)
    }

    /// Gives the store back.
    pub(crate) fn unblock_store(&self) -> anyhow::Result<()> {
        fs::remove_file(self.store())?;
        Ok(fs::rename(
            self.store().with_file_name("store-aside"),
            self.store(),
        )?)
    }

    /// Names of the full snapshots in the store.
    pub(crate) fn fulls(&self) -> anyhow::Result<Vec<String>> {
        let mut stored = self.stored()?;
        stored.retain(|name| name.starts_with("Full-"));
        Ok(stored)
    }

    /// Names of the objects in the store, sorted by time.
    pub(crate) fn stored(&self) -> anyhow::Result<Vec<String>> {
        stored_in(&self.store())
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

    /// Waits until all members vote, and there are no others.
    pub(crate) async fn until_all_vote(&self) -> anyhow::Result<()> {
        self.until("all vote", async || {
            let listed = self.members[0].client().await?.member_list().await?;
            let members = listed.members();
            ensure!(
                members.len() == self.members.len() && members.iter().all(|member| !member.is_learner()),
                "{listed:?}"
            );
            Ok(())
        })
        .await
    }

    /// Waits until all serve, one of them as another member than it was, with the keys that are to be kept.
    pub(crate) async fn until_joined_anew(
        &self,
        member: usize,
        before: u64,
        kept: i64,
    ) -> anyhow::Result<()> {
        self.until_ready().await?;
        let member = &self.members[member];
        ensure!(member.id().await? != before, "it took up its old ID");
        ensure!(member.count("/kept/").await? == kept, "keys are missing");
        Ok(())
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

    /// Writes so many mebibytes that hardly compress, as keys `<prefix>0`, `<prefix>1`…
    pub(crate) async fn fill(&self, prefix: &str, mebibytes: usize) -> anyhow::Result<i64> {
        const VALUE: usize = 256 << 10;
        let mut client = self.client().await?;
        let mut revision = 0;
        for number in 0..mebibytes * ((1 << 20) / VALUE) {
            let value: Vec<u8> = (0..VALUE / 8)
                .flat_map(|_| rand::random::<u64>().to_le_bytes())
                .collect();
            let response = client.put(format!("{prefix}{number}"), value, None).await?;
            revision = response.header().context("a header")?.revision();
        }
        Ok(revision)
    }

    /// All volumes are lost, and the members come back with what the backups hold.
    pub(crate) async fn lose_all(&mut self) -> anyhow::Result<()> {
        self.kill_all();
        self.members.iter().try_for_each(Member::wipe)?;
        self.start_all()?;
        self.until_ready().await
    }

    /// The same, and the cluster goes on at the revision of the backups, record for record.
    pub(crate) async fn lose_all_and_keep_revision(&mut self) -> anyhow::Result<()> {
        self.kill_all();
        self.keep_revision()?;
        self.lose_all().await
    }

    /// Restores don't raise the revision from now on.
    pub(crate) fn keep_revision(&mut self) -> anyhow::Result<()> {
        self.setup.backup["revisionAfterRestore"] = json!("Keep");
        self.reconfigure()
    }

    /// The cluster's revision, and the hash of everything that it holds.
    pub(crate) async fn hash(&self) -> anyhow::Result<(i64, u32)> {
        let answer = self.members[0].client().await?.hash_kv(0).await?;
        let revision = answer.header().context("a header")?.revision();
        Ok((revision, answer.hash()))
    }

    /// Has the first member take a full snapshot, as soon as it owns the backups.
    pub(crate) async fn full_snapshot(&self) -> anyhow::Result<()> {
        self.until("a full snapshot is taken", async || {
            let (status, answer) = self.members[0].call("POST", "/snapshot/full").await?;
            ensure!(status == 200, "{status}: {answer}");
            Ok(())
        })
        .await
    }

    /// Waits until the store covers a revision.
    pub(crate) async fn until_covered(&self, revision: i64) -> anyhow::Result<()> {
        self.until(&format!("revision {revision} is stored"), async || {
            // A snapshot counts once its manifest is there, too.
            let mut stored = self.stored()?;
            stored.retain(|name| self.has_manifest(name));
            let covered = stored.iter().map(|name| revisions(name).1).max();
            ensure!(covered >= Some(revision), "the store holds {stored:?}");
            Ok(())
        })
        .await
    }

    fn has_manifest(&self, name: &str) -> bool {
        self.store().join("v2").join(format!("Manifest-{name}")).exists()
    }

    /// Waits until the first member knows the only full snapshot, which has its manifest then. Returns its name.
    pub(crate) async fn until_full_counts(&self) -> anyhow::Result<String> {
        self.until("the full snapshot counts as stored", async || {
            let full = self.fulls()?.pop().context("a full snapshot")?;
            let last = self.members[0].backup_status().await?.last_full;
            ensure!(last.is_some_and(|last| last.name == full), "{full} isn't known");
            Ok(full)
        })
        .await
    }

    /// Restores the backups with the command line, and returns the records: what `dump` prints.
    pub(crate) fn restored(&self) -> anyhow::Result<Vec<Value>> {
        restored_from(&self.store())
    }
}

/// Restores a store with the command line, and returns the records: what `dump` prints.
pub(crate) fn restored_from(store: &Path) -> anyhow::Result<Vec<Value>> {
    restored_with(store, &[])
}

/// The same with more arguments.
pub(crate) fn restored_with(store: &Path, more: &[&str]) -> anyhow::Result<Vec<Value>> {
    let to = tempfile::tempdir()?;
    let data_dir = to.path().join("restored.etcd");
    let (store, data_dir) = (store.to_string_lossy(), data_dir.to_string_lossy());
    let arguments = [
        "restore",
        "--store-provider=Local",
        "--store-container",
        &store,
        "--data-dir",
        &data_dir,
    ];
    run(&[&arguments[..], more].concat())?;
    let output = run(&["dump", "--data-dir", &data_dir])?;
    let text = String::from_utf8(output.stdout)?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Names of the objects in a store, sorted by time.
pub(crate) fn stored_in(store: &Path) -> anyhow::Result<Vec<String>> {
    let folder = store.join("v2");
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut names: Vec<_> = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<anyhow::Result<_>>()?;
    names.retain(|name| name.starts_with("Full-") || name.starts_with("Incr-"));
    // Of the same revisions by time, which ends the name.
    names.sort_by_cached_key(|name| (revisions(name), name.clone()));
    Ok(names)
}

/// First and last revision that an object's name tells.
pub(crate) fn revisions(name: &str) -> (i64, i64) {
    let mut parts = name.split('-').skip(1).filter_map(|part| part.parse().ok());
    (parts.next().unwrap_or(-1), parts.next().unwrap_or(-1))
}

/// The newest revision among records.
pub(crate) fn last_revision(records: &[Value]) -> Option<i64> {
    records.iter().filter_map(|record| record["rev"].as_i64()).max()
}
