//! What lies between a steward and the world: a TCP proxy that cuts connections, and a server that refuses everyone.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// Passes connections on, up to a number of bytes that come back over each.
pub(crate) struct Proxy {
    limit: Arc<AtomicU64>,
}

impl Proxy {
    /// Listens on one port and passes all on to another.
    pub(crate) async fn start(port: u16, target: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let limit = Arc::new(AtomicU64::new(u64::MAX));
        tokio::spawn({
            let limit = Arc::clone(&limit);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    if let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await {
                        pass(client, server, Arc::clone(&limit));
                    }
                }
            }
        });
        Ok(Self { limit })
    }

    /// Each connection is cut after so many bytes, from now on.
    pub(crate) fn cut_after(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }
}

fn pass(client: TcpStream, server: TcpStream, limit: Arc<AtomicU64>) {
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    tokio::spawn(async move {
        let there = async {
            let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
        };
        // What ends first takes the other along, and with it both connections.
        tokio::select! {
            () = there => {}
            () = back(from_server, to_client, &limit) => {}
        }
    });
}

async fn back(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, limit: &AtomicU64) {
    let (mut buffer, mut passed, mut known) = (vec![0; 64 << 10], 0, 0);
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let limit = limit.load(Ordering::Relaxed);
        if limit != known {
            (passed, known) = (0, limit);
        }
        passed += count as u64;
        if passed > limit || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
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
