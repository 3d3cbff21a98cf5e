//! The custodian: what the members of an etcd cluster tell, their heartbeats and their pods become the health in the
//! Etcd's status. It changes nothing but that status.
//!
//! `cluster` takes what is known out of the caches, `report` works out the status from it (`member` judges one member,
//! `health` and `backup` the conditions), `transitions` tells what happened since the last report.

pub mod backup;
pub mod client_tls;
pub mod cluster;
pub mod config;
pub mod health;
pub mod member;
pub mod metrics;
pub mod report;
pub mod transitions;

mod controller;

pub use config::Config;
pub use controller::run;
