//! What lies between a process and the world: a TCP proxy that slows and cuts connections, and a server that refuses
//! everyone.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Mutex,
    task::JoinHandle,
    time::sleep,
};

const CHUNK: usize = 16 << 10;

/// Passes connections on to a port, until it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    limits: Arc<Limits>,
    task: JoinHandle<()>,
}

/// Of each connection; at first none.
#[derive(Debug)]
struct Limits {
    /// Bytes a second towards the port, and back from it.
    rate: AtomicU64,
    rate_back: AtomicU64,
    /// Bytes back from it, after which the connection is cut.
    back: AtomicU64,
    link: Link,
}

/// What all connections share: bytes a second towards the port.
#[derive(Debug)]
struct Link {
    rate: AtomicU64,
    turn: Mutex<()>,
}

impl Link {
    /// Each connection takes its turn, and the others wait for as long as its bytes take.
    async fn pass(&self, count: usize) {
        if self.rate.load(Ordering::Relaxed) < u64::MAX {
            let _turn = self.turn.lock().await;
            pace(count, &self.rate).await;
        }
    }
}

impl Proxy {
    /// Listens on one port, or on any if that is 0, and passes all on to another.
    pub(crate) async fn start(port: u16, target: u16) -> anyhow::Result<Self> {
        Self::start_for(port, (Ipv4Addr::LOCALHOST, target).into()).await
    }

    /// The same for a server anywhere.
    pub(crate) async fn start_for(port: u16, target: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let port = listener.local_addr()?.port();
        let limits = Arc::new(Limits {
            rate: AtomicU64::new(u64::MAX),
            rate_back: AtomicU64::new(u64::MAX),
            back: AtomicU64::new(u64::MAX),
            link: Link {
                rate: AtomicU64::new(u64::MAX),
                turn: Mutex::default(),
            },
        });
        let task = tokio::spawn({
            let limits = Arc::clone(&limits);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    if let Ok(server) = TcpStream::connect(target).await {
                        pass(client, server, Arc::clone(&limits));
                    }
                }
            }
        });
        Ok(Self { port, limits, task })
    }

    /// So many bytes a second pass towards the port, from now on.
    pub(crate) fn limit(&self, rate: u64) {
        self.limits.rate.store(rate, Ordering::Relaxed);
    }

    /// So many bytes a second pass towards the port over all connections together, from now on.
    pub(crate) fn limit_all(&self, rate: u64) {
        self.limits.link.rate.store(rate, Ordering::Relaxed);
    }

    /// So many bytes a second come back from the port, from now on.
    pub(crate) fn limit_back(&self, rate: u64) {
        self.limits.rate_back.store(rate, Ordering::Relaxed);
    }

    /// Each connection is cut after so many bytes, from now on.
    pub(crate) fn cut_after(&self, bytes: u64) {
        self.limits.back.store(bytes, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn pass(client: TcpStream, server: TcpStream, limits: Arc<Limits>) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::spawn(async move {
        // What ends first takes the other along, and with it both connections.
        tokio::select! {
            () = there(from_client, to_server, &limits) => {}
            () = back(from_server, to_client, &limits) => {}
        }
    });
}

async fn there(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, limits: &Limits) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        limits.link.pass(count).await;
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
        pace(count, &limits.rate).await;
    }
}

/// Waits for as long as so many bytes take.
async fn pace(count: usize, rate: &AtomicU64) {
    let pause = count as u64 * 1_000_000 / rate.load(Ordering::Relaxed).max(1);
    if pause > 0 {
        sleep(Duration::from_micros(pause)).await;
    }
}

async fn back(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, limits: &Limits) {
    let (mut buffer, mut passed, mut known) = (vec![0; 64 << 10], 0, 0);
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let limit = limits.back.load(Ordering::Relaxed);
        if limit != known {
            (passed, known) = (0, limit);
        }
        passed += count as u64;
        if passed > limit || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
        pace(count, &limits.rate_back).await;
    }
}

/// An object store that knows nobody: every request is answered as S3 answers one with a wrong key. Returns its URL.
pub(crate) async fn refusing_store() -> anyhow::Result<String> {
    const BODY: &str =
        "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>";
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = vec![0; 64 << 10];
                let _ = client.read(&mut request).await;
                let answer = format!(
                    "HTTP/1.1 403 Forbidden\r\ncontent-type: application/xml\r\ncontent-length: {}\r\nconnection: \
                     close\r\n\r\n{BODY}",
                    BODY.len()
                );
                let _ = client.write_all(answer.as_bytes()).await;
            });
        }
    });
    Ok(url)
}
