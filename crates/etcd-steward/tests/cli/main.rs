//! The commands for backups, run as a user runs them: the program itself, on stores in folders. What needs an etcd is named
//! `etcd_…`, what needs a server of objects `store_…`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "in a test that is how an error is shown"
)]

mod bounds;
mod cases;
mod commands;
mod damage;
#[path = "../../../etcd-storage/tests/common/dice.rs"]
mod dice;
mod etcd;
mod fixtures;
mod format;
mod ids;
mod image;
mod kill;
mod live;
mod made;
mod program;
#[path = "../../../etcd-storage/tests/common/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the engine")]
mod server;
mod source;
mod store;
mod verdicts;
