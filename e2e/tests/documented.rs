//! The calls of a steward that the docs show, typed as they stand there: each works with the client certificate that the
//! docs tell to take, and is refused without.

use std::{fmt::Write as _, process::Stdio};

use anyhow::{Context as _, ensure};
use api::v1alpha1::Etcd;
use e2e::{
    Lab,
    lab::{PATIENCE, etcd, has, run},
    store::Store,
};
use tokio::{io::AsyncWriteExt as _, process::Command, time::timeout};

const REFERENCE: &str = include_str!("../../docs/reference/steward.md");

/// Waits for the tunnel that the preparation opens in the background, and closes it at the end.
const TUNNEL: &str = "
    tunnel=$!
    trap 'kill $tunnel' EXIT
    for _ in {1..100}; do
      if curl -sk https://127.0.0.1:8080/healthz >/dev/null; then break; fi
      sleep 0.1
    done
";

/// As the docs define them, but as nobody.
const WITHOUT_CERTIFICATE: &str = r#"
    g() { grpcurl -cacert $dir/ca.crt -authority $host "$@"; }
    h() { curl --fail-with-body --cacert $dir/ca.crt --resolve $host:8080:127.0.0.1 "$@"; }
"#;

/// What is to be typed, block by block.
fn blocks(text: &str) -> Vec<&str> {
    text.split("```sh\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect()
}

/// All commands that come after the preparation, and the preparation for a cluster.
fn documented(namespace: &str, etcd: &str) -> anyhow::Result<(String, Vec<&'static str>)> {
    const CLUSTER: &str = "ns=default etcd=demo ";
    let blocks = blocks(REFERENCE);
    let (first, others) = blocks.split_first().context("no block of commands")?;
    ensure!(
        first.contains(CLUSTER),
        "the first block doesn't name the cluster"
    );
    let prepared = first.replace(CLUSTER, &format!("ns={namespace} etcd={etcd} "));
    let commands: Vec<_> = others.iter().flat_map(|block| block.lines()).collect();
    ensure!(commands.len() > 10, "only {commands:?}");
    Ok((format!("set -euo pipefail\n{prepared}{TUNNEL}"), commands))
}

async fn bash(script: &str) -> anyhow::Result<String> {
    let mut child = Command::new("bash")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut stdin = child.stdin.take().context("no input")?;
    stdin.write_all(script.as_bytes()).await?;
    drop(stdin);
    let output = timeout(PATIENCE, child.wait_with_output())
        .await
        .with_context(|| format!("still running after {PATIENCE:?}: {script}"))??;
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success(), "{}\n{out}\n{err}", output.status);
    Ok(out.into_owned())
}

async fn all_work(lab: &Lab) -> anyhow::Result<()> {
    let (preparation, commands) = documented(&lab.namespace, "t1")?;
    // With the commands in between, as one who types them sees it.
    let typed = commands.join("\n");
    let out = bash(&format!("{preparation}set -v\n{typed}\n")).await?;
    for expected in [
        "steward.v1.MaintenanceService",
        "rpc CreateSnapshot",
        "\"clusterId\":",
        "\"state\": \"OPERATION_STATE_SUCCEEDED\"",
        "\"owner\": true",
        "\"status\": \"SERVING\"",
        "{\"health\":true}",
        "\"fullSnapshot\":{",
        "\"snapName\":\"Full-",
        "\"state\":\"Succeeded\",\"type\":\"Compact\"",
        "\"state\":\"Succeeded\",\"type\":\"Defragment\"",
        "initial-cluster-token",
    ] {
        ensure!(out.contains(expected), "{expected} is nowhere in\n{out}");
    }
    Ok(())
}

async fn all_are_refused_without_certificate(lab: &Lab) -> anyhow::Result<()> {
    let (preparation, commands) = documented(&lab.namespace, "t1")?;
    let mut typed = String::new();
    for command in commands {
        if !command.contains("ealth") {
            writeln!(
                typed,
                "if out=$( ({command}) 2>&1 ); then echo \"not refused: $out\"; exit 1; fi\n\
                 [[ $out == *Unauthenticated* || $out == *' 401'* ]] || {{ echo \"$out\"; exit 1; }}"
            )?;
        }
    }
    // Variables that earlier commands would have set.
    let unset = "id=0123456789abcdef location=/operations/0123456789abcdef\n";
    bash(&format!("{preparation}{WITHOUT_CERTIFICATE}{unset}{typed}")).await?;
    Ok(())
}

#[tokio::test]
async fn e2e_documented_calls_of_a_steward_work_with_a_certificate_only() -> anyhow::Result<()> {
    run("documented", |lab| async move {
        let backup = lab.backup(Store::S3).await?;
        lab.apply::<Etcd>(&etcd("t1", 1, &backup)).await?;
        lab.until_ready("t1").await?;
        lab.put_keys("t1-0", "/documented/", 3).await?;
        let backed_up = |etcd: &Etcd| has(etcd, "BackupReady");
        lab.until("t1", "have its backups ready", backed_up).await?;
        all_work(&lab).await?;
        all_are_refused_without_certificate(&lab).await
    })
    .await
}
