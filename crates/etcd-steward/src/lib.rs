//! The steward: looks after one member of an etcd cluster. The binary is a thin shell around this.

pub mod backup;
pub mod bootstrap;
pub mod chain;
pub mod cli;
pub mod config;
pub mod etcd;
pub mod exit_record;
pub mod identity;
pub mod install;
pub mod launch;
pub mod maintenance;
pub mod member;
pub mod metrics;
pub mod quorum;
pub mod restore;
pub mod rollout;
pub mod running;
pub mod serve;
pub mod server;
pub mod volume;
