//! The parts that a steward consists of: they run and end together.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{anyhow, bail};
use futures::FutureExt as _;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, warn};

/// How long the parts may take to end.
const DRAIN: Duration = Duration::from_secs(10);

/// What runs, until one of the parts fails or all are told to stop.
#[derive(Debug, Clone, Default)]
pub(super) struct Parts {
    /// Cancelled when all are to end.
    pub(super) shutdown: CancellationToken,
    tasks: TaskTracker,
    failure: Arc<OnceLock<anyhow::Error>>,
}

impl Parts {
    /// Nothing runs yet.
    pub(super) fn new(shutdown: CancellationToken) -> Self {
        Self {
            shutdown,
            ..Self::default()
        }
    }

    /// Runs a part of the steward. One that fails or panics takes all down: half a steward would be trusted like a whole
    /// one.
    pub(super) fn run(
        &self,
        name: &'static str,
        work: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let parts = self.clone();
        self.tasks.spawn(async move {
            let ended = AssertUnwindSafe(work).catch_unwind().await;
            let failure = match ended {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.context(name),
                Err(_) => anyhow!("{name}: a panic, see above"),
            };
            error!("a part of the steward failed, stopping: {failure:#}");
            let _ = parts.failure.set(failure);
            parts.shutdown.cancel();
        });
    }

    /// Waits for the end, and for the parts to end in order. An error if one of them was the cause.
    pub(super) async fn ended(self) -> anyhow::Result<()> {
        self.shutdown.cancelled().await;
        self.tasks.close();
        if tokio::time::timeout(DRAIN, self.tasks.wait()).await.is_err() {
            warn!("some parts didn't end within {DRAIN:?}");
        }
        match self.failure.get() {
            Some(failure) => bail!("{failure:#}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever runs the steward must see that it failed, not that it was done.
    #[tokio::test(start_paused = true)]
    async fn the_failure_of_a_part_is_that_of_all() {
        let failing = Parts::default();
        let bystander = failing.shutdown.clone();
        failing.run("bystander", async move {
            bystander.cancelled().await;
            Ok(())
        });
        failing.run("API", async { bail!("address in use") });
        assert_eq!(
            failing.ended().await.unwrap_err().to_string(),
            "API: address in use"
        );

        let panicking = Parts::default();
        panicking.run("monitor", async { panic!("bug") });
        assert!(panicking.ended().await.is_err());

        let told = Parts::default();
        told.run("API", async { Ok(()) });
        told.shutdown.cancel();
        assert!(told.ended().await.is_ok());
    }
}
