//! The Kubernetes API of Druid: custom resource types of group `druid.gardener.cloud`, and every name, label,
//! annotation and condition that the controllers, the steward and the command line agree on.
//!
//! The crate is pure: no client, no clock, no I/O. Reading is tolerant (an unknown enum value or a stray `null`
//! never makes an object undecodable), writing is checked by the schema and the CEL rules that the types carry.

pub mod conditions;
pub mod crd;
pub mod duration;
pub mod labels;
pub mod names;
pub mod quantity;
pub mod schedule;
pub mod steward;
pub mod v1alpha1;

mod open_enum;
mod schema;
mod tolerant;
