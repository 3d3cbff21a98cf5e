//! What all pods that run the steward's image have in common. Pure.

use k8s_openapi::api::core::v1::EnvVar;

/// By default glibc keeps what is freed in several heaps for each core: under load nearly twice the memory.
pub fn few_heaps() -> EnvVar {
    EnvVar {
        name: "MALLOC_ARENA_MAX".to_owned(),
        value: Some("2".to_owned()),
        ..EnvVar::default()
    }
}
