//! `etcd-controller`: turns Etcds into objects.

use std::process::ExitCode;

fn main() -> ExitCode {
    operator::main("etcd-controller", env!("CARGO_PKG_VERSION"), etcd_controller::run)
}
