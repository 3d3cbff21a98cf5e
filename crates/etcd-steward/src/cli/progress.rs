//! Progress on a terminal. Where standard error is none, nothing is shown.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use etcd_storage::assemble::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// Time between two pictures.
const TICK: Duration = Duration::from_millis(100);

const TEMPLATE: &str = "{msg} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} ETA {eta}";

/// A bar that counts bytes. It goes away when it is dropped.
#[derive(Debug, Clone)]
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(bytes: u64, message: &str) -> Self {
        let bar = ProgressBar::new(bytes).with_message(message.to_owned());
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// Something of unknown length.
    pub(super) fn spinner(message: &str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(message.to_owned());
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    pub(super) fn resize(&self, bytes: u64) {
        self.0.set_length(bytes);
    }

    pub(super) fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    pub(super) fn say(&self, message: String) {
        self.0.set_message(message);
    }

    /// Follows the engine: bytes by what was fetched, and which object it is at.
    pub(super) fn follow(&self, verb: &str, progress: Progress, fetched: &Arc<AtomicU64>) {
        let Progress {
            objects_done,
            objects,
            revision,
            ..
        } = progress;
        self.0.set_position(fetched.load(Ordering::Relaxed));
        let at = objects.min(objects_done + 1);
        self.say(format!("{verb} {at}/{objects}, revision {revision}"));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
