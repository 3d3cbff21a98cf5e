//! gRPC types and services of the steward, generated from `proto/steward/v1`.

/// Version 1 of the steward's API.
#[expect(
    clippy::pedantic,
    clippy::clone_on_ref_ptr,
    clippy::derive_partial_eq_without_eq,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("steward.v1");
}

/// The encoded descriptors of all services, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/steward.bin"));
