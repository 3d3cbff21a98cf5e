//! A proxy on loopback that lets bytes through at a limited rate.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::sleep,
};

const CHUNK: usize = 16 << 10;

/// Passes connections on to a port, until it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    /// Bytes a second towards the port, of each connection.
    rate: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(target: u16, rate: u64) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let rate = Arc::new(AtomicU64::new(rate));
        let task = tokio::spawn({
            let rate = Arc::clone(&rate);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(pass(client, target, Arc::clone(&rate)));
                }
            }
        });
        Ok(Self { port, rate, task })
    }

    pub(crate) fn limit(&self, rate: u64) {
        self.rate.store(rate, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(client: TcpStream, target: u16, rate: Arc<AtomicU64>) -> std::io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", target)).await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let back = tokio::spawn(async move {
        let mut from_server = from_server;
        let copied = tokio::io::copy(&mut from_server, &mut to_client).await;
        let _ = to_client.shutdown().await;
        copied
    });
    slowly(&mut from_client, to_server, &rate).await?;
    let _ = back.await;
    Ok(())
}

async fn slowly(
    from: &mut (impl AsyncRead + Unpin),
    mut to: impl AsyncWrite + Unpin,
    rate: &AtomicU64,
) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = from.read(&mut chunk).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&chunk[..count]).await?;
        let rate = rate.load(Ordering::Relaxed).max(1);
        sleep(Duration::from_micros(count as u64 * 1_000_000 / rate)).await;
    }
}
