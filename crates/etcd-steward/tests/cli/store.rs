//! The commands on a real server of objects, which `e2e/cluster/stores.sh` starts.

use std::{env, fs, path::PathBuf, process::Command};

use crate::{
    made,
    program::{Ran, dump, finish, restore, steward},
};

fn server() -> PathBuf {
    let state = env::var("DRUID_DEV_STATE").unwrap_or_else(|_| "/var/lib/druid-dev".to_owned());
    let dir = PathBuf::from(state).join("stores/s3");
    assert!(
        dir.is_dir(),
        "no s3 server: start it with e2e/cluster/stores.sh up s3"
    );
    dir
}

/// A command on a prefix of the server's bucket.
fn on_s3(command: &str, prefix: &str, args: &[&str]) -> Command {
    let server = server();
    let file = |name: &str| fs::read_to_string(server.join(name)).unwrap().trim().to_owned();
    let (bucket, endpoint) = (file("bucket"), file("endpoint"));
    let store = [
        "--store-provider=S3",
        "--store-container",
        &bucket,
        "--store-prefix",
        prefix,
    ];
    let place = ["--store-endpoint", &endpoint, "--allow-http"];
    let mut command = steward([&[command], &store[..], &place, args].concat());
    command.env("AWS_APPLICATION_CREDENTIALS", server.join("secret"));
    command
}

fn ran(command: Command) -> Ran {
    finish(command).ok()
}

/// Objects of several ranges and several parts go there, are verified, compacted and restored.
#[test]
fn store_s3_serves_all_commands() {
    let dir = tempfile::tempdir().unwrap();
    let source = made::chain(dir.path(), 3, 12_000, 1000);
    let sizes = made::files(&source)
        .into_iter()
        .map(|file| fs::metadata(file).unwrap().len());
    let sizes: Vec<u64> = sizes.collect();
    assert!(sizes.iter().any(|size| *size > 4 << 20), "{sizes:?}");
    let local = dir.path().join("local");
    restore(&source, &local, &[]).ok();

    let nanos = jiff::Timestamp::now().as_nanosecond();
    let prefix = format!("test/cli-{nanos}/etcd-main");
    let from = ["--source-store-provider=Local", "--source-store-container"];
    let from = [&from[..], &[source.to_str().unwrap()]].concat();
    ran(on_s3("copy", &prefix, &from));
    ran(on_s3("verify", &prefix, &["--all"]));
    let data_dir = dir.path().join("restored");
    let to = ["--data-dir", data_dir.to_str().unwrap()];
    ran(on_s3("restore", &prefix, &to));
    assert!(dump(&data_dir) == dump(&local));
    let temp = dir.path().join("temp");
    let compacted = ran(on_s3("compact", &prefix, &["--temp-dir", temp.to_str().unwrap()]));
    let again = compacted.says(&["compacted at revision 36001"]);
    assert!(again.err.is_empty(), "{again:?}");
    fs::remove_dir_all(&data_dir).unwrap();
    ran(on_s3("restore", &prefix, &to));
    assert!(dump(&data_dir) == dump(&local), "every key is alive");
    // Neighbours are not taken for ours.
    let neighbour = ran(on_s3("list", &prefix[..prefix.len() - 1], &["-o", "json"]));
    assert_eq!(neighbour.json()["snapshots"], serde_json::json!([]));
}
