//! `druidctl`: Druid on the command line.

use std::process::ExitCode;

use clap::Parser as _;
use druidctl::{Cli, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    // The first provider wins; nothing else installs one before this line.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    run(cli).await
}
