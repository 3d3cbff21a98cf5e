//! The custodian's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    operator::main("custodian", env!("CARGO_PKG_VERSION"), custodian::run)
}
