//! Being told to stop: the work at hand is broken off in good order, so that nothing half-done stays.

use std::ops::ControlFlow;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Exit, error::CliError};

/// Whether to go on.
#[derive(Debug, Clone)]
pub(super) struct Stop(CancellationToken);

impl Stop {
    /// Begins to listen for SIGINT and SIGTERM. A second one ends the process at once.
    pub(super) fn on_signal() -> Result<Self, CliError> {
        let listen = |kind| signal(kind).map_err(CliError::io("listen for signals"));
        let (mut interrupt, mut terminate) =
            (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        let token = CancellationToken::new();
        let stop = Self(token.clone());
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if token.is_cancelled() {
                    std::process::exit(Exit::Failed as i32);
                }
                token.cancel();
            }
        });
        Ok(stop)
    }

    pub(super) fn go_on(&self) -> ControlFlow<()> {
        if self.0.is_cancelled() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
