//! etcdctl, in the pods themselves: their image is the stock one, which has it.

use anyhow::{Context as _, ensure};
use tokio::process::Command;

use crate::Lab;

impl Lab {
    /// Runs etcdctl in a member's pod, and returns what it printed.
    pub async fn etcdctl(&self, pod: &str, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new("kubectl");
        command
            .args(["-n", &self.namespace, "exec", pod, "-c", "etcd", "--", "etcdctl"])
            .args(args);
        let output = command.output().await.context("run kubectl")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "etcdctl {args:?} in {pod}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(text)
    }

    /// Writes `count` keys.
    pub async fn put_keys(&self, pod: &str, prefix: &str, count: u32) -> anyhow::Result<()> {
        for n in 0..count {
            self.etcdctl(pod, &["put", &format!("{prefix}{n}"), &format!("value {n}")])
                .await?;
        }
        Ok(())
    }

    /// How many keys begin with a prefix, by a linearizable read.
    pub async fn count_keys(&self, pod: &str, prefix: &str) -> anyhow::Result<u32> {
        let text = self
            .etcdctl(
                pod,
                &["get", prefix, "--prefix", "--count-only", "--write-out=fields"],
            )
            .await?;
        let line = text
            .lines()
            .find(|line| line.contains("\"Count\""))
            .context("no count in the answer")?;
        Ok(line.rsplit(':').next().unwrap_or_default().trim().parse()?)
    }
}
