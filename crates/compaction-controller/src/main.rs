//! `compaction-controller`: keeps chains of snapshots short.

use std::process::ExitCode;

fn main() -> ExitCode {
    operator::main(
        "compaction-controller",
        env!("CARGO_PKG_VERSION"),
        compaction_controller::run,
    )
}
