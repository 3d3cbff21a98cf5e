//! What Druid's controllers share: start-up, configuration, leader election, telemetry, health, events,
//! server-side apply and the client of the stewards. No decision about etcd is taken here.

pub mod apply;
pub mod cache;
pub mod config;
pub mod events;
pub mod fence;
pub mod finalizers;
pub mod leader;
pub mod metrics;
pub mod owner;
pub mod pod;
pub mod reconcile;
pub mod runtime;
pub mod server;
pub mod steward;
pub mod store;
pub mod telemetry;

pub use config::Config;
pub use reconcile::{Reason, Reconciler};
pub use runtime::{Context, main};
