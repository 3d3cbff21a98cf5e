//! What needs no cluster: usage errors, and an API server that isn't there.

use assert_cmd::Command;

fn druidctl() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_druidctl"));
    command.env_remove("KUBECONFIG").env("HOME", "/nonexistent");
    command
}

#[test]
fn wrong_usage_ends_with_code_2() {
    for args in [
        &[][..],
        &["nonsense"],
        &["status", "main", "-A"],
        &["status", "-A", "-n", "ns"],
        &["status", "-o", "toml"],
        &["snapshot"],
        &["snapshot", "main", "--full", "--delta"],
        &["snapshot", "main", "--delta", "--final"],
        &["snapshot", "main", "--timeout", "1"],
        &["reconcile"],
    ] {
        let output = druidctl().args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn the_version_needs_no_cluster() {
    let version = env!("CARGO_PKG_VERSION");
    for (args, want) in [
        (&["version"][..], format!("druidctl {version}\n")),
        (
            &["version", "-o", "json"],
            format!("{{\n  \"version\": \"{version}\"\n}}\n"),
        ),
        (&["version", "-o", "yaml"], format!("version: \"{version}\"\n")),
    ] {
        druidctl().args(args).assert().success().stdout(want);
    }
}

/// A script must be able to tell an unhealthy cluster from one that it couldn't ask about.
#[test]
fn an_unreachable_api_server_ends_with_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("config");
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
        contexts: [{name: x, context: {cluster: x, user: x, namespace: ns}}]\n\
        clusters: [{name: x, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: x, user: {}}]\n";
    std::fs::write(&kubeconfig, text).unwrap();
    for command in ["status", "snapshot", "reconcile", "suspend", "resume"] {
        let output = druidctl()
            .args([command, "main", "--kubeconfig"])
            .arg(&kubeconfig)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{command}: {told}");
        assert!(told.starts_with("druidctl: read Etcd main: "), "{told}");
    }
}

#[test]
fn a_missing_kubeconfig_is_named() {
    let output = druidctl()
        .args(["status", "--kubeconfig", "/nonexistent/config"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("/nonexistent/config"), "{told}");
}
