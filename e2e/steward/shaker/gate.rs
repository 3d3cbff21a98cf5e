//! What lies between a member and its peers: it passes connections on, slows them, holds back one direction, or cuts them.

use std::{net::Ipv4Addr, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
    time::sleep,
};

/// What happens to what passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    /// So much later, each piece.
    Slow(Duration),
    /// Nothing gets to the member; what it says gets out.
    HoldIn,
    /// Nothing gets back from the member.
    HoldOut,
    /// Connections are closed, and new ones too.
    Cut,
}

/// A port that leads to another one, until it is dropped.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) port: u16,
    mode: watch::Sender<Mode>,
    task: JoinHandle<()>,
}

impl Gate {
    pub(crate) async fn open(target: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let (mode, modes) = watch::channel(Mode::Pass);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let modes = modes.clone();
                tokio::spawn(async move { serve(client, target, modes).await });
            }
        });
        Ok(Self { port, mode, task })
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
        self.mode.send_replace(Mode::Cut);
    }
}

async fn serve(client: TcpStream, target: u16, mut modes: watch::Receiver<Mode>) {
    if *modes.borrow() == Mode::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await else {
        return;
    };
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let (inward, outward) = (modes.clone(), modes.clone());
    tokio::select! {
        () = pass(from_client, to_server, inward, Mode::HoldIn) => {}
        () = pass(from_server, to_client, outward, Mode::HoldOut) => {}
        _ = modes.wait_for(|mode| *mode == Mode::Cut) => {}
    }
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut modes: watch::Receiver<Mode>,
    held: Mode,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if modes.wait_for(|mode| *mode != held).await.is_err() {
            return;
        }
        let mode = *modes.borrow();
        if let Mode::Slow(pause) = mode {
            sleep(pause).await;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
