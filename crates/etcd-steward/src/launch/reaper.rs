//! The launcher is the first process of its container: it inherits whatever loses its parent there, and has to take note
//! of each end, or the dead stay in the process table for ever.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use nix::{
    sys::{
        prctl,
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::Pid,
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::sleep,
};
use tracing::debug;

/// etcd's end is waited for elsewhere; until that is done, it may hide another one.
const AGAIN: Duration = Duration::from_millis(100);

/// The process that somebody else waits for. Held while it is started, so that it isn't taken for an orphan.
pub(super) type Own = Arc<Mutex<Option<Pid>>>;

/// Takes in orphans from now on, also where the launcher isn't the first process, and reaps them in the background.
pub(super) fn start(own: Own) -> io::Result<()> {
    prctl::set_child_subreaper(true)?;
    let ends = signal(SignalKind::child())?;
    tokio::spawn(run(own, ends));
    Ok(())
}

async fn run(own: Own, mut ends: Signal) {
    while ends.recv().await.is_some() {
        while !reap(&own) {
            sleep(AGAIN).await;
        }
    }
}

/// Reaps all that have ended. False: etcd has as well, so there may be more.
fn reap(own: &Own) -> bool {
    let own = own.lock().unwrap_or_else(PoisonError::into_inner);
    let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
    loop {
        // Looked at first: etcd must be left to who waits for it.
        let pid = match waitid(Id::All, ended | WaitPidFlag::WNOWAIT) {
            Ok(WaitStatus::StillAlive) | Err(_) => return true,
            Ok(status) => status.pid(),
        };
        match pid {
            Some(pid) if *own == Some(pid) => return false,
            Some(pid) => match waitid(Id::Pid(pid), ended) {
                Ok(status) => debug!(?status, "reaped an orphan"),
                Err(_) => return true,
            },
            None => return true,
        }
    }
}
