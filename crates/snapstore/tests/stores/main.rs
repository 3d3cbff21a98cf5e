//! One contract for every store, run on local folders and on real servers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod contract;
mod local;
