//! The driver around a controller's reconcile: an object that can't be decoded, fails or panics is put aside with a
//! backoff of its own, and the controller goes on with the others.

use std::{
    any::Any,
    collections::HashMap,
    error::Error,
    fmt::Debug,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures::{FutureExt as _, StreamExt as _};
use kube::{
    Resource, ResourceExt as _,
    core::DeserializeGuard,
    runtime::{
        Controller,
        controller::{self, Action},
        reflector::ObjectRef,
    },
};
use serde::de::DeserializeOwned;
use tracing::{Instrument as _, debug, error, info_span, warn};

use crate::runtime::Context;

const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_mins(5);

tokio::task_local! {
    static RUN: String;
}

/// Names the run of a reconcile in logs, traces and `status.lastOperation`; empty outside of one.
pub fn run_id() -> String {
    RUN.try_with(Clone::clone).unwrap_or_default()
}

/// An error that knows what it is called in conditions and metrics, and whether and when to try again.
pub trait Reason: Error + Send + Sync + 'static {
    /// CamelCase class of the error.
    fn reason(&self) -> &'static str;

    /// When to try again.
    fn retry(&self) -> Retry {
        Retry::Backoff
    }
}

/// When to try again after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Soon, then less and less often.
    Backoff,
    /// After this time.
    After(Duration),
    /// When the object or one of its children changes: until then it can only fail again.
    OnChange,
}

/// What a controller does for one object.
#[async_trait]
pub trait Reconciler: Send + Sync + 'static {
    /// The kind that is reconciled.
    type Object: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static;
    /// What can go wrong.
    type Error: Reason;

    /// Name in logs and metrics.
    const NAME: &'static str;

    /// Brings the world in line with the object, once.
    async fn reconcile(&self, object: Arc<Self::Object>) -> Result<Action, Self::Error>;
}

/// The kind as it is watched: objects that can't be decoded arrive as such instead of breaking the watch.
pub type Guarded<K> = DeserializeGuard<K>;

#[derive(Debug, thiserror::Error)]
enum DriverError<E: Reason> {
    #[error(transparent)]
    Reconcile(E),
    #[error("panicked: {0}")]
    Panic(String),
    #[error("{0}")]
    Undecodable(String),
}

impl<E: Reason> DriverError<E> {
    fn reason(&self) -> &'static str {
        match self {
            Self::Reconcile(error) => error.reason(),
            Self::Panic(_) => "Panic",
            Self::Undecodable(_) => "Undecodable",
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Self::Reconcile(error) => error.retry(),
            Self::Panic(_) => Retry::Backoff,
            Self::Undecodable(_) => Retry::OnChange,
        }
    }
}

struct Driver<R: Reconciler> {
    reconciler: R,
    context: Context,
    failures: Mutex<HashMap<ObjectRef<Guarded<R::Object>>, u32>>,
}

/// Runs the controller until the process is told to stop.
pub async fn run<R: Reconciler>(
    controller: Controller<Guarded<R::Object>>,
    reconciler: R,
    context: &Context,
) {
    context.metrics.expect(R::NAME);
    let driver = Arc::new(Driver {
        reconciler,
        context: context.clone(),
        failures: Mutex::default(),
    });
    controller
        .with_config(controller::Config::default().concurrency(context.concurrency))
        .graceful_shutdown_on(context.shutdown.clone().cancelled_owned())
        .run(
            |object, driver| async move { driver.reconcile(object).await },
            Driver::retry,
            driver,
        )
        .for_each(|result| {
            if let Err(error @ (controller::Error::QueueError(_) | controller::Error::RunnerError(_))) =
                result
            {
                debug!(%error, "controller queue");
            }
            std::future::ready(())
        })
        .await;
}

impl<R: Reconciler> Driver<R> {
    async fn reconcile(&self, guard: Arc<Guarded<R::Object>>) -> Result<Action, DriverError<R::Error>> {
        // What isn't listed yet must not be taken for absent.
        tokio::select! {
            () = self.context.readiness.settled() => {}
            () = self.context.shutdown.cancelled() => return Ok(Action::await_change()),
        }
        let (namespace, name) = (guard.namespace().unwrap_or_default(), guard.name_any());
        let run = format!("{:016x}", rand::random::<u64>());
        // A span's own name is called `name` in JSON.
        let span = info_span!("reconcile", controller = R::NAME, namespace, object = name, run);
        let begin = Instant::now();
        let result = async {
            match &guard.0 {
                Ok(object) => self.guarded(Arc::new(object.clone())).await,
                Err(invalid) => {
                    let note = format!(
                        "{} {name} can't be decoded, and nothing is done for it before it is corrected: {}",
                        R::Object::kind(&()),
                        invalid.error
                    );
                    let events = &self.context.events;
                    events.warning(&*guard, "Reconcile", "Undecodable", note).await;
                    Err(DriverError::Undecodable(invalid.error.clone()))
                }
            }
        }
        .instrument(span);
        let result = RUN.scope(run, result).await;
        let outcome = result.as_ref().map_or_else(DriverError::reason, |_| "ok");
        self.context
            .metrics
            .reconciled(R::NAME, outcome, begin.elapsed().as_secs_f64());
        if result.is_ok() {
            self.failures().remove(&ObjectRef::from_obj(&*guard));
        }
        result
    }

    async fn guarded(&self, object: Arc<R::Object>) -> Result<Action, DriverError<R::Error>> {
        match AssertUnwindSafe(self.reconciler.reconcile(object))
            .catch_unwind()
            .await
        {
            Ok(result) => result.map_err(DriverError::Reconcile),
            Err(panic) => Err(DriverError::Panic(panic_message(&*panic))),
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "the signature is kube's")]
    fn retry(guard: Arc<Guarded<R::Object>>, error: &DriverError<R::Error>, driver: Arc<Self>) -> Action {
        let (namespace, name, reason) = (
            guard.namespace().unwrap_or_default(),
            guard.name_any(),
            error.reason(),
        );
        if let DriverError::Panic(_) = error {
            error!(controller = R::NAME, namespace, name, reason, "{}", chain(error));
        } else {
            warn!(controller = R::NAME, namespace, name, reason, "{}", chain(error));
        }
        match error.retry() {
            Retry::OnChange => Action::await_change(),
            Retry::After(wait) => Action::requeue(wait),
            Retry::Backoff => {
                let mut failures = driver.failures();
                let count = failures.entry(ObjectRef::from_obj(&*guard)).or_insert(0);
                let wait = backoff(*count);
                *count = count.saturating_add(1);
                Action::requeue(wait)
            }
        }
    }

    fn failures(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectRef<Guarded<R::Object>>, u32>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error and its causes on one line; a cause that its parent already tells is left out.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

fn backoff(failures: u32) -> Duration {
    let wait = FIRST_RETRY.saturating_mul(1 << failures.min(10)).min(LAST_RETRY);
    wait.mul_f64(0.8 + rand::random::<f64>() * 0.4)
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("never")]
    struct Never;

    impl Reason for Never {
        fn reason(&self) -> &'static str {
            "Never"
        }
    }

    struct Idle;

    #[async_trait]
    impl Reconciler for Idle {
        type Error = Never;
        type Object = ConfigMap;

        const NAME: &'static str = "idle";

        async fn reconcile(&self, _: Arc<ConfigMap>) -> Result<Action, Never> {
            Ok(Action::requeue(FIRST_RETRY))
        }
    }

    fn driver() -> Arc<Driver<Idle>> {
        let (service, _) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let client = kube::Client::new(service, "default");
        Arc::new(Driver {
            reconciler: Idle,
            context: Context::new(client, "idle", "idle-0", "ns".to_owned()),
            failures: Mutex::default(),
        })
    }

    fn reconciling(driver: &Arc<Driver<Idle>>) -> tokio::task::JoinHandle<Option<Action>> {
        let driver = Arc::clone(driver);
        let object = ConfigMap {
            metadata: kube::api::ObjectMeta {
                name: Some("a".to_owned()),
                ..kube::api::ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        let object = Arc::new(DeserializeGuard(Ok(object)));
        tokio::spawn(async move { driver.reconcile(object).await.ok() })
    }

    /// After a start an object may be listed before its children are: they would be taken for absent. All who wait are
    /// woken.
    #[tokio::test]
    async fn nobody_acts_before_everything_is_listed() {
        let driver = driver();
        let readiness = &driver.context.readiness;
        readiness.wait_for("pods");
        readiness.wait_for("leases");
        let waiting: Vec<_> = (0..5).map(|_| reconciling(&driver)).collect();
        readiness.done("pods");
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
        readiness.done("leases");
        for woken in waiting {
            assert_eq!(woken.await.unwrap(), Some(Action::requeue(FIRST_RETRY)));
        }
    }

    /// What waits for listings that never come must not hold up the end of the process.
    #[tokio::test]
    async fn waiting_ends_with_the_process() {
        let driver = driver();
        driver.context.readiness.wait_for("pods");
        let waiting = reconciling(&driver);
        driver.context.shutdown.cancel();
        assert_eq!(waiting.await.unwrap(), Some(Action::await_change()));
    }

    #[test]
    fn backoff_grows_to_a_limit() {
        let within = |n, seconds: f64| {
            let wait = backoff(n).as_secs_f64();
            assert!(wait >= seconds * 0.79 && wait <= seconds * 1.21, "{n}: {wait}");
        };
        within(0, 0.5);
        within(3, 4.0);
        within(60, 300.0);
    }

    #[test]
    fn the_error_chain_is_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer: inner")]
        struct Outer(#[source] Inner);
        #[derive(Debug, thiserror::Error)]
        #[error("inner")]
        struct Inner(#[source] std::fmt::Error);
        let text = chain(&Outer(Inner(std::fmt::Error)));
        assert_eq!(text.matches("inner").count(), 1, "{text}");
        assert!(text.ends_with(&std::fmt::Error.to_string()));
    }
}
