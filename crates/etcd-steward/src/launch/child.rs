//! etcd as the launcher's child process.

use std::{
    io,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    time::timeout,
};
use tracing::{error, info, warn};

use crate::exit_record::{ExitRecord, ExitState};

/// A running etcd.
#[derive(Debug)]
pub(super) struct Etcd {
    child: Child,
    pid: Pid,
    /// Hash of the configuration that it runs with.
    pub config_hash: String,
    volume: PathBuf,
}

impl Etcd {
    /// Starts etcd. The exit record says "running" before it does, so that an end that nobody sees counts as unclean.
    pub(super) fn start(binary: &Path, config: &Path, config_hash: &str, volume: &Path) -> io::Result<Self> {
        ExitRecord::now(ExitState::Running).write(volume)?;
        let child = Command::new(binary).arg("--config-file").arg(config).spawn()?;
        let pid = child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .ok_or_else(|| io::Error::other("etcd ended at once"))?;
        info!(pid, config_hash, "etcd started");
        Ok(Self {
            child,
            pid: Pid::from_raw(pid),
            config_hash: config_hash.to_owned(),
            volume: volume.to_owned(),
        })
    }

    /// Its process.
    pub(super) fn process(&self) -> Pid {
        self.pid
    }

    /// Its process ID.
    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// Waits until it ends by itself, and writes the exit record.
    pub(super) async fn ended(&mut self) -> io::Result<ExitRecord> {
        let status = self.child.wait().await?;
        error!(%status, "etcd ended by itself");
        Ok(self.record(status, false))
    }

    /// Asks it to stop, waits for as long as `grace`, kills it if it must, and writes the exit record.
    pub(super) async fn stop(&mut self, grace: Duration) -> io::Result<ExitRecord> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(self.record(status, false));
        }
        kill(self.pid, Signal::SIGTERM).map_err(io::Error::from)?;
        if let Ok(status) = timeout(grace, self.child.wait()).await {
            let status = status?;
            info!(%status, "etcd stopped");
            Ok(self.record(status, true))
        } else {
            warn!(?grace, "etcd didn't stop in time, killing it");
            self.child.start_kill()?;
            let status = self.child.wait().await?;
            Ok(self.record(status, false))
        }
    }

    fn record(&self, status: ExitStatus, asked: bool) -> ExitRecord {
        let record = ExitRecord {
            exit_code: status.code(),
            signal: status.signal(),
            ..ExitRecord::now(state(status, asked))
        };
        // Without it the next check is a complete one: slower, never wrong.
        if let Err(error) = record.write(&self.volume) {
            error!(%error, "failed to write the exit record");
        }
        record
    }
}

/// How it ended. Having been asked isn't enough: it may have been killed, or have panicked, on its way. etcd closes its
/// database, and then ends by the very signal that it was sent.
fn state(status: ExitStatus, asked: bool) -> ExitState {
    let in_order = status.success() || status.signal() == Some(Signal::SIGTERM as i32);
    if asked && in_order {
        ExitState::Clean
    } else {
        ExitState::Unclean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever isn't sure reads everything at the next start.
    #[test]
    fn only_an_end_in_order_is_clean() {
        let (exited, killed) = (|code: i32| code << 8, |signal: Signal| signal as i32);
        for (raw, asked, expected) in [
            (exited(0), true, ExitState::Clean),
            (killed(Signal::SIGTERM), true, ExitState::Clean),
            (killed(Signal::SIGKILL), true, ExitState::Unclean),
            (exited(2), true, ExitState::Unclean),
            (exited(0), false, ExitState::Unclean),
            (killed(Signal::SIGTERM), false, ExitState::Unclean),
        ] {
            let status = ExitStatus::from_raw(raw);
            assert_eq!(state(status, asked), expected, "{status}, asked: {asked}");
        }
    }
}
