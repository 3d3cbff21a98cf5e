//! `opstask-controller`: carries out EtcdOpsTasks.

use std::process::ExitCode;

fn main() -> ExitCode {
    operator::main(
        "opstask-controller",
        env!("CARGO_PKG_VERSION"),
        opstask_controller::run,
    )
}
