//! How slow a transfer may be. Only time spent waiting for the other side counts: who reads slowly himself, or reads
//! nothing for a while, isn't cut off.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};
use tracing::warn;

/// The slowest transfer that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinimumRate {
    /// At least so many bytes must pass
    pub bytes: u64,
    /// in this time. Silence ends a transfer after the same time.
    pub within: Duration,
}

/// 8 KiB/s: four parts at once pass a connection of 256 kbit/s.
impl Default for MinimumRate {
    fn default() -> Self {
        let within = Duration::from_mins(2);
        Self {
            bytes: within.as_secs() * 8 * 1024,
            within,
        }
    }
}

impl MinimumRate {
    /// Nothing but silence counts: answers that are kept open with spaces while the store works.
    pub(crate) fn silence_only(self) -> Self {
        Self { bytes: 1, ..self }
    }

    /// The same for what may begin anew once.
    pub(crate) fn twice(self) -> Self {
        Self {
            bytes: self.bytes * 2,
            within: self.within * 2,
        }
    }

    /// How long `bytes` take at this rate.
    pub(crate) fn time_for(&self, bytes: u64) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        self.within.mul_f64(bytes as f64 / self.bytes.max(1) as f64)
    }
}

/// A transfer was slower than that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} bytes came or went in {within:?}, {total} in all{}: given up (at least {} are expected in that time)",
    .length.map_or_else(String::new, |length| format!(" of {length}")),
    .limit.bytes
)]
pub(crate) struct TooSlow {
    pub(crate) limit: MinimumRate,
    /// The time that was looked at, and the bytes that passed in it.
    pub(crate) within: Duration,
    pub(crate) bytes: u64,
    /// Bytes since the beginning, and how many there should be.
    pub(crate) total: u64,
    pub(crate) length: Option<u64>,
}

/// Measures one transfer, in windows of [`MinimumRate::within`] of waiting.
#[derive(Debug)]
pub(crate) struct Gauge {
    limit: MinimumRate,
    length: Option<u64>,
    total: u64,
    /// Of the current window.
    bytes: u64,
    waited: Duration,
    is_reported: bool,
    waiting_since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Gauge {
    /// `length`: bytes that are expected in all.
    pub(crate) fn new(limit: MinimumRate, length: Option<u64>) -> Self {
        Self {
            limit,
            length,
            total: 0,
            bytes: 0,
            waited: Duration::ZERO,
            is_reported: false,
            waiting_since: None,
            timer: None,
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// So many bytes came.
    pub(crate) fn count(&mut self, bytes: usize) -> Result<(), TooSlow> {
        self.bytes += bytes as u64;
        self.total += bytes as u64;
        self.waited += self
            .waiting_since
            .take()
            .map_or(Duration::ZERO, |since| since.elapsed());
        self.judge()
    }

    /// Nothing has come yet. Wakes the task when it is time to look again, and is ready when that has taken too long.
    pub(crate) fn poll_wait(&mut self, context: &mut Context<'_>) -> Poll<TooSlow> {
        loop {
            let since = *self.waiting_since.get_or_insert_with(Instant::now);
            let mark = if self.is_reported {
                self.limit.within
            } else {
                self.limit.within / 2
            };
            let due = since + mark.saturating_sub(self.waited);
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
            if timer.deadline() != due {
                timer.as_mut().reset(due);
            }
            ready!(timer.as_mut().poll(context));
            let now = Instant::now();
            self.waited += now - since;
            self.waiting_since = Some(now);
            if let Err(slow) = self.judge() {
                return Poll::Ready(slow);
            }
        }
    }

    /// Half a window that is too slow is reported, a whole one is too much.
    fn judge(&mut self) -> Result<(), TooSlow> {
        let Self {
            limit,
            waited,
            bytes,
            total,
            length,
            ..
        } = *self;
        if waited >= limit.within {
            if bytes < limit.bytes {
                return Err(TooSlow {
                    limit,
                    within: waited,
                    bytes,
                    total,
                    length,
                });
            }
            (self.waited, self.bytes, self.is_reported) = (Duration::ZERO, 0, false);
        } else if waited >= limit.within / 2 && !self.is_reported {
            self.is_reported = true;
            if bytes < limit.bytes / 2 {
                warn!(bytes, within = ?waited, total, length, "the store is slow");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const LIMIT: MinimumRate = MinimumRate {
        bytes: 1000,
        within: Duration::from_secs(100),
    };

    /// Bytes come in turn: so many after so many seconds. Returns when it was given up.
    async fn cut_after(pieces: impl IntoIterator<Item = (u64, usize)>) -> Option<u64> {
        let (begun, mut gauge) = (Instant::now(), Gauge::new(LIMIT, None));
        for (pause, bytes) in pieces {
            let arrival = tokio::time::sleep(Duration::from_secs(pause));
            let slow = tokio::select! {
                biased;
                () = arrival => gauge.count(bytes).err(),
                slow = poll_fn(|context| gauge.poll_wait(context)) => Some(slow),
            };
            if slow.is_some() {
                return Some(begun.elapsed().as_secs());
            }
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_is_too_slow_is_cut() {
        let every = |pause, bytes| std::iter::repeat_n((pause, bytes), 500);
        assert_eq!(cut_after(every(5, 1)).await, Some(100), "one byte per 5 s");
        assert_eq!(cut_after(every(1000, 1)).await, Some(100), "silence");
        assert_eq!(cut_after(every(1, 10)).await, None, "as slow as is allowed");
        assert_eq!(
            cut_after(every(90, 1000)).await,
            None,
            "long pauses, but a fair rate"
        );
        assert_eq!(cut_after(every(0, 1)).await, None, "fast, in small pieces");
        let begins_well = [(1, 100_000)].into_iter().chain(every(5, 1));
        assert_eq!(
            cut_after(begins_well).await,
            Some(200),
            "what was fast before doesn't count for ever"
        );
    }

    /// The other side isn't to blame while nobody asks for more.
    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_not_the_stores_fault() {
        let mut gauge = Gauge::new(LIMIT, Some(50));
        for _ in 0..50 {
            tokio::time::sleep(Duration::from_mins(1)).await;
            assert_eq!(gauge.count(1), Ok(()));
        }
        assert_eq!(gauge.total(), 50);
    }

    #[test]
    fn says_what_was_expected() {
        let slow = TooSlow {
            limit: LIMIT,
            within: Duration::from_secs(100),
            bytes: 20,
            total: 30,
            length: Some(5000),
        };
        let expected = "20 bytes came or went in 100s, 30 in all of 5000: given up (at least 1000 are expected in that time)";
        assert_eq!(slow.to_string(), expected);
    }
}
