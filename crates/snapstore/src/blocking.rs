//! Work on files, away from the threads of the runtime and for a bounded time: a network file system may hang for hours,
//! and whoever waits for it must get an answer all the same.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use crate::error::{Class, Error, Result};

/// How long one step may take: a look at a folder, or so many bytes as are written or synced at once.
const LIMIT: Duration = Duration::from_secs(30);

/// Steps under way at once. Those that hang count for as long as they do: each holds a thread.
const AT_ONCE: usize = 32;

/// Does the work of one store.
#[derive(Debug, Clone)]
pub(crate) struct Blocking {
    permits: Arc<Semaphore>,
    limit: Duration,
}

impl Default for Blocking {
    fn default() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            limit: LIMIT,
        }
    }
}

impl Blocking {
    /// Does one step. What hangs can't be broken off: it goes on when the file system does, and nobody waits for it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        action: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let silent = |detail: String| Error::new(Class::Unreachable, action, detail);
        let permit = timeout(self.limit, Arc::clone(&self.permits).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(silent(format!(
                "the file system doesn't answer: {AT_ONCE} calls hang"
            )));
        };
        let step = spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        match timeout(self.limit, step).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => Err(Error::new(Class::Other, action, error.to_string())),
            Err(_) => Err(silent(format!(
                "the file system hasn't answered for {:?}",
                self.limit
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    };

    use super::*;

    /// A file system that hangs: each call returns when `release` is dropped.
    fn hanging(limit: u64, at_once: usize) -> (Blocking, mpsc::Sender<()>, Arc<Mutex<mpsc::Receiver<()>>>) {
        let (release, held) = mpsc::channel();
        let blocking = Blocking {
            permits: Arc::new(Semaphore::new(at_once)),
            limit: Duration::from_millis(limit),
        };
        (blocking, release, Arc::new(Mutex::new(held)))
    }

    #[tokio::test]
    async fn who_waits_for_a_file_system_that_hangs_gets_an_answer() {
        let (blocking, release, held) = hanging(50, 2);
        let hang = || {
            let held = Arc::clone(&held);
            move || {
                let _ = held.lock().unwrap().recv();
                Ok(())
            }
        };
        for expected in [
            "hasn't answered for 50ms",
            "hasn't answered for 50ms",
            "calls hang",
        ] {
            let error = blocking.run("write x", hang()).await.unwrap_err();
            assert_eq!(error.class(), Class::Unreachable);
            assert!(error.to_string().contains(expected), "{error}");
        }
        drop(release);
        let works = async || blocking.run("write x", || Ok(())).await.is_ok();
        while !works().await {}
    }

    /// The leadership may be gone when the file system comes back.
    #[tokio::test]
    async fn what_nobody_waits_for_isnt_begun() {
        let (blocking, release, held) = hanging(60_000, 1);
        let first = tokio::spawn({
            let (blocking, held) = (blocking.clone(), Arc::clone(&held));
            async move {
                let hang = move || {
                    let _ = held.lock().unwrap().recv();
                    Ok(())
                };
                blocking.run("write x", hang).await
            }
        });
        while blocking.permits.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&begun);
        let second = blocking.run("write y", move || {
            begins.store(true, Ordering::Relaxed);
            Ok(())
        });
        assert!(timeout(Duration::from_millis(20), second).await.is_err());
        drop(release);
        first.await.unwrap().unwrap();
        blocking.run("write z", || Ok(())).await.unwrap();
        assert!(!begun.load(Ordering::Relaxed));
    }
}
