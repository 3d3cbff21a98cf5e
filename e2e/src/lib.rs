//! What the scenarios share: a namespace of their own, manifests, waiting for what the API server tells, etcdctl in the
//! pods, and the stores.

pub mod etcdctl;
pub mod lab;
pub mod store;
pub mod tls;

pub use lab::Lab;
