//! The ports of a member.

use std::{
    net::TcpListener,
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::bail;

#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    pub(super) client: u16,
    pub(super) peer: u16,
    pub(super) metrics: u16,
    pub(super) launcher: u16,
    pub(super) api: u16,
    pub(super) health: u16,
}

impl Ports {
    pub(super) fn free() -> anyhow::Result<Self> {
        Ok(Self {
            client: free_port()?,
            peer: free_port()?,
            metrics: free_port()?,
            launcher: free_port()?,
            api: free_port()?,
            health: free_port()?,
        })
    }
}

/// A port that nobody listens on, that no other test of this process was given, and that no client is: those get theirs
/// from 32768 on. Where the search begins differs from process to process.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    for _ in 0..1000 {
        let number = process::id() % 200 * 100 + TAKEN.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(12_000 + number % 20_000)?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free")
}
