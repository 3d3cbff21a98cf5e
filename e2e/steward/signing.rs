//! Snapshots that are signed, and what becomes of those that aren't.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::{
    member::{program, run},
    rig::{Rig, Setup},
};

/// The keys that snapshots are signed with, as a Secret of them would be mounted.
struct Keys(TempDir);

impl Keys {
    fn new() -> anyhow::Result<Self> {
        let keys = Self(tempfile::tempdir()?);
        keys.add("2026-01")?;
        Ok(keys)
    }

    fn add(&self, id: &str) -> anyhow::Result<()> {
        Ok(fs::write(
            self.0.path().join(id),
            format!("the secret of {id}, which is long enough"),
        )?)
    }

    fn path(&self) -> String {
        self.0.path().to_string_lossy().into_owned()
    }
}

/// One member whose snapshots aren't compressed, so that they can be altered by hand.
fn setup() -> Setup {
    Setup {
        backup: json!({
            "deltaSnapshotPeriod": "1s", "fullSnapshotSchedule": "0 0 1 1 *", "compression": {"enabled": false},
        }),
        ..Setup::single()
    }
}

async fn signed(keys: &Keys) -> anyhow::Result<Rig> {
    let mut rig = Rig::new(setup())?;
    rig.members[0].set_env("SNAPSHOT_SIGNING_KEYS", keys.path());
    rig.start_all()?;
    rig.until_ready().await?;
    rig.until_covered(1).await?;
    Ok(rig)
}

fn envelope(rig: &Rig, snapshot: &str) -> anyhow::Result<Value> {
    let path = rig.store().join("v2").join(format!("Manifest-{snapshot}"));
    let text = fs::read(&path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_slice(&text)?)
}

/// What a snapshot's manifest says.
pub(crate) fn manifest(rig: &Rig, snapshot: &str) -> anyhow::Result<Value> {
    let envelope = envelope(rig, snapshot)?;
    let payload = BASE64.decode(envelope["payload"].as_str().context("a payload")?)?;
    Ok(serde_json::from_slice(&payload)?)
}

fn key_of(rig: &Rig, snapshot: &str) -> anyhow::Result<Value> {
    Ok(envelope(rig, snapshot)?["signatures"][0]["keyid"].clone())
}

/// Changes a value within a delta, and mends the hash at its end, as anybody can who may write to the store. Returns what
/// it was.
fn tamper(path: &Path) -> anyhow::Result<Vec<u8>> {
    let whole = fs::read(path)?;
    let mut altered = whole[..whole.len() - 32].to_vec();
    let (true_value, fake) = (BASE64.encode("value 3"), BASE64.encode("faked 3"));
    let at = altered
        .windows(true_value.len())
        .position(|bytes| bytes == true_value.as_bytes());
    let at = at.context("the value")?;
    altered[at..at + fake.len()].copy_from_slice(fake.as_bytes());
    let hash = Sha256::digest(&altered);
    altered.extend(hash);
    fs::write(path, altered)?;
    Ok(whole)
}

/// Restores with the command line: exit code, and what it says.
fn restore(store: &Path, more: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let to = tempfile::tempdir()?;
    let output = std::process::Command::new(program()?)
        .args(["restore", "--store-provider=Local"])
        .arg(format!("--store-container={}", store.display()))
        .arg(format!(
            "--data-dir={}",
            to.path().join("restored.etcd").display()
        ))
        .args(more)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output.status.code(), said))
}

/// Exit code for damaged backups.
const DAMAGED: Option<i32> = Some(3);

async fn delta_with_values(rig: &Rig) -> anyhow::Result<(PathBuf, String)> {
    let last = rig.put("/signed/", 5).await?;
    rig.until_covered(last).await?;
    let stored = rig.stored()?;
    let holds = |name: &&String| {
        let content = fs::read(rig.store().join("v2").join(name)).unwrap_or_default();
        let value = BASE64.encode("value 3");
        name.starts_with("Incr-")
            && content
                .windows(value.len())
                .any(|bytes| bytes == value.as_bytes())
    };
    let name = stored
        .iter()
        .find(holds)
        .context("a delta with the value")?
        .clone();
    rig.until("its manifest is stored", async || manifest(rig, &name).map(drop))
        .await?;
    Ok((rig.store().join("v2").join(&name), name))
}

/// SEC-02: who may write to the store, but doesn't have the key, can't have anything restored that the cluster didn't
/// hold. RES-15: who doesn't have the key either is told which one is needed.
#[tokio::test]
async fn sec_02_altered_snapshots_are_refused() -> anyhow::Result<()> {
    let keys = Keys::new()?;
    let mut rig = signed(&keys).await?;
    let (path, name) = delta_with_values(&rig).await?;
    let with_keys = format!("--signing-keys={}", keys.path());
    let restored = restore(&rig.store(), &[&with_keys])?;
    ensure!(restored.0 == Some(0), "{restored:?}");
    let before = rig.hash().await?;
    rig.kill_all();

    let whole = tamper(&path)?;
    let fooled = restore(&rig.store(), &["--signatures=Ignore"])?;
    ensure!(fooled.0 == Some(0), "the hash wasn't mended: {fooled:?}");
    let refused = restore(&rig.store(), &[&with_keys])?;
    ensure!(
        refused.0 == DAMAGED
            && refused.1.contains(&name)
            && refused.1.contains("isn't the one that was uploaded"),
        "{refused:?}"
    );
    // A manifest that fits, but that nobody with the key has made.
    let forged = rig.store().join("v2").join(format!("Manifest-{name}"));
    let kept = fs::read(&forged)?;
    let mut said = manifest(&rig, &name)?;
    said["sha256"] = hex::encode(Sha256::digest(fs::read(&path)?)).into();
    let mut envelope = envelope(&rig, &name)?;
    envelope["payload"] = BASE64.encode(said.to_string()).into();
    fs::write(&forged, envelope.to_string())?;
    let refused = restore(&rig.store(), &[&with_keys])?;
    ensure!(
        refused.0 == DAMAGED && refused.1.contains("isn't what was signed with key \"2026-01\""),
        "{refused:?}"
    );
    // One that has none yet may get it in a moment, so that neither is anything restored without it.
    fs::remove_file(&forged)?;
    let refused = restore(&rig.store(), &[&with_keys])?;
    ensure!(
        refused.0 != Some(0) && refused.1.contains(&name) && refused.1.contains("no manifest yet"),
        "{refused:?}"
    );
    fs::write(&forged, kept)?;

    // The member doesn't take it either, says so, and goes on as soon as the true one is back.
    rig.members[0].wipe()?;
    rig.keep_revision()?;
    rig.start_all()?;
    rig.until("the member refuses", async || {
        let told = rig.members[0].call("GET", "/member").await?.1["lastRestoration"].clone();
        ensure!(
            told["status"] == "Failed" && told["message"].to_string().contains(&name),
            "{told}"
        );
        Ok(())
    })
    .await?;
    fs::write(&path, whole)?;
    rig.until_ready().await?;
    ensure!(rig.hash().await? == before);
    Ok(())
}

/// RES-15: without the key that snapshots are signed with nothing is restored, and the missing key is named; what else a
/// restore needs is in the manifest.
#[tokio::test]
async fn res_15_a_missing_key_is_named() -> anyhow::Result<()> {
    let keys = Keys::new()?;
    let rig = signed(&keys).await?;
    let (_, name) = delta_with_values(&rig).await?;
    let said = manifest(&rig, &name)?;
    let version = said["etcdVersion"].as_str().unwrap_or_default();
    ensure!(version.starts_with("3.6.") && said["auth"] == false, "{said}");
    let cluster = format!("{:x}", rig.members[0].cluster_id().await?);
    ensure!(
        said["clusterID"] == cluster && said["configHash"].is_string(),
        "{said}"
    );
    let others = tempfile::tempdir()?;
    fs::write(
        others.path().join("2025-12"),
        "another secret, which is long enough",
    )?;
    for more in [
        vec![],
        vec![format!("--signing-keys={}", others.path().display())],
    ] {
        let more: Vec<_> = more.iter().map(String::as_str).collect();
        let refused = restore(&rig.store(), &more)?;
        ensure!(
            refused.0 == DAMAGED && refused.1.contains("signed with key \"2026-01\""),
            "{more:?}: {refused:?}"
        );
    }
    Ok(())
}

/// A key is replaced while the steward runs: what the old one has signed still counts.
#[tokio::test]
async fn sec_02_keys_are_replaced() -> anyhow::Result<()> {
    let keys = Keys::new()?;
    let rig = signed(&keys).await?;
    let (_, old) = delta_with_values(&rig).await?;
    keys.add("2026-02")?;
    let last = rig.put("/after/", 3).await?;
    rig.until_covered(last).await?;
    let newest = rig.stored()?.last().context("a delta")?.clone();
    rig.until("the new key signs", async || {
        let (old, new) = (key_of(&rig, &old)?, key_of(&rig, &newest)?);
        ensure!(old == "2026-01" && new == "2026-02", "{old} {new}");
        Ok(())
    })
    .await?;
    let restored = restore(&rig.store(), &[&format!("--signing-keys={}", keys.path())])?;
    ensure!(restored.0 == Some(0), "{restored:?}");
    Ok(())
}

/// Signing is switched on for a cluster that has backups: it gets signed ones at once, for the others don't count any more.
#[tokio::test]
async fn sec_02_signing_is_switched_on() -> anyhow::Result<()> {
    let keys = Keys::new()?;
    let mut rig = Rig::start(setup()).await?;
    rig.until_covered(rig.put("/unsigned/", 5).await?).await?;
    let with_keys = format!("--signing-keys={}", keys.path());
    let refused = restore(&rig.store(), &[&with_keys])?;
    ensure!(
        refused.0 == DAMAGED && refused.1.contains("it isn't signed"),
        "{refused:?}"
    );
    rig.members[0].kill_steward();
    rig.members[0].set_env("SNAPSHOT_SIGNING_KEYS", keys.path());
    rig.start_all()?;
    rig.until("a signed full snapshot is stored", async || {
        ensure!(rig.fulls()?.len() == 2);
        let newest = rig.fulls()?.last().context("a full snapshot")?.clone();
        ensure!(key_of(&rig, &newest)? == "2026-01");
        Ok(())
    })
    .await?;
    let restored = restore(&rig.store(), &[&with_keys])?;
    ensure!(restored.0 == Some(0), "{restored:?}");
    // What is compacted is signed as well.
    rig.until_covered(rig.put("/more/", 2).await?).await?;
    let scratch = tempfile::tempdir()?;
    let store = rig.store();
    run(&[
        "compact",
        "--store-provider=Local",
        "--store-container",
        &store.to_string_lossy(),
        "--temp-dir",
        &scratch.path().to_string_lossy(),
        &with_keys,
    ])?;
    let compacted = rig.fulls()?.last().context("a full snapshot")?.clone();
    ensure!(key_of(&rig, &compacted)? == "2026-01");
    ensure!(manifest(&rig, &compacted)?["databaseSHA256"].is_string());
    Ok(())
}
