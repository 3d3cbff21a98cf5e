//! A member's whole life without Kubernetes: real etcd processes, stewards and a store on loopback. The id of a field
//! report in a comment names the trouble that somebody had elsewhere.

mod backups;
mod bootstrap;
mod launch;
mod maintenance;
mod member;
mod membership;
mod pki;
mod proxy;
mod retention;
mod rig;
mod secondary;
mod security;
