//! The fence around writes: a client layer that lets a mutating request pass only while this replica holds the
//! leader lease, judged by the local monotonic clock at the moment of the request.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
    time::Duration,
};

use http::{Method, Request};
use tokio::{sync::watch, time::Instant};
use tower::{BoxError, Layer, Service};

/// Until when this replica may write.
#[derive(Debug, Clone)]
pub struct Fence {
    until: Arc<watch::Sender<Option<Instant>>>,
    unlimited: bool,
}

/// A write was stopped because another replica may lead by now.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("not sent: this replica doesn't hold the leader lease")]
pub struct Fenced;

impl Fence {
    /// A fence that stays shut until [`Fence::extend`] opens it.
    pub fn shut() -> Self {
        Self {
            until: Arc::new(watch::Sender::new(None)),
            unlimited: false,
        }
    }

    /// A fence that is always open, for a controller that runs without election.
    pub fn open() -> Self {
        Self {
            until: Arc::new(watch::Sender::new(None)),
            unlimited: true,
        }
    }

    /// Lets writes pass for `validity` from `since` on, the instant before the renewal was sent.
    pub fn extend(&self, since: Instant, validity: Duration) {
        self.until.send_replace(Some(since + validity));
    }

    /// Stops all writes.
    pub fn close(&self) {
        self.until.send_replace(None);
    }

    /// Whether a write may be sent now.
    pub fn is_open(&self) -> bool {
        self.unlimited || self.until.borrow().is_some_and(|until| Instant::now() < until)
    }
}

impl<S> Layer<S> for Fence {
    type Service = FencedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        FencedService {
            fence: self.clone(),
            inner,
        }
    }
}

/// A service behind a [`Fence`].
#[derive(Debug, Clone)]
pub struct FencedService<S> {
    fence: Fence,
    inner: S,
}

impl<S, B> Service<Request<B>> for FencedService<S>
where
    S: Service<Request<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;
    type Response = S::Response;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if request.method() != Method::GET && !self.fence.is_open() {
            return Box::pin(async { Err(Fenced.into()) });
        }
        let response = self.inner.call(request);
        Box::pin(async { response.await.map_err(Into::into) })
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt as _;

    use super::*;

    async fn send(fence: &Fence, method: Method) -> Result<(), String> {
        let service = fence.layer(tower::service_fn(|_: Request<()>| async {
            Ok::<_, BoxError>(())
        }));
        let request = Request::builder().method(method).body(()).unwrap();
        service.oneshot(request).await.map_err(|e| e.to_string())
    }

    /// A leader that was stopped (SIGSTOP, a long pause of the machine) must not write when it wakes up.
    #[tokio::test(start_paused = true)]
    async fn writes_pass_only_while_the_lease_holds() {
        let fence = Fence::shut();
        assert!(send(&fence, Method::PATCH).await.is_err());
        assert!(send(&fence, Method::GET).await.is_ok());

        fence.extend(Instant::now(), Duration::from_secs(10));
        assert!(send(&fence, Method::PATCH).await.is_ok());
        tokio::time::advance(Duration::from_secs(11)).await;
        assert!(send(&fence, Method::DELETE).await.is_err());
        assert!(send(&fence, Method::GET).await.is_ok());

        fence.extend(Instant::now(), Duration::from_secs(10));
        fence.close();
        assert!(send(&fence, Method::POST).await.is_err());
        assert!(send(&Fence::open(), Method::POST).await.is_ok());
    }
}
