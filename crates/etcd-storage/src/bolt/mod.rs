//! bbolt database files, the format in which etcd keeps its data.

#[allow(dead_code, reason = "what only a writer needs")]
pub(crate) mod format;

pub use format::MetaFault;
