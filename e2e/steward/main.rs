//! A member's whole life without Kubernetes: real etcd processes, stewards and a store on loopback. The id of a field
//! report in a comment names the trouble that somebody had elsewhere.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "scenarios look at what single members list, and say what they have measured"
)]

mod backups;
mod bootstrap;
mod compaction;
mod defragmentation;
mod deltas;
mod drills;
mod elections;
mod faults;
mod hangs;
mod histories;
mod identity;
mod joining;
mod key_counts;
mod kube_api;
mod lanes;
mod launch;
mod learners;
mod maintenance;
mod member;
mod membership;
mod other_fulls;
mod pki;
mod put_back;
mod quorum;
mod raised;
mod recorded;
mod restores;
mod retention;
mod rig;
mod s3_stub;
mod schemes;
mod secondary;
mod security;
mod shaker;
mod shared_prefix;
mod signing;
mod snapshots;
mod torn_uploads;
mod traces;
