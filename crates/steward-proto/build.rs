//! Compiles `proto/steward/v1` without an external protoc, and keeps the descriptors for gRPC reflection.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let files = [
        "bootstrap",
        "maintenance",
        "members",
        "operations",
        "results",
        "snapshots",
    ]
    .map(|name| root.join(format!("steward/v1/{name}.proto")));
    println!("cargo::rerun-if-changed={}", root.display());

    let descriptors = protox::compile(&files, [&root])?;
    fs::write(
        PathBuf::from(env::var("OUT_DIR")?).join("steward.bin"),
        descriptors.encode_to_vec(),
    )?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
