//! HTTP for every provider: retries what may pass, with backoff and jitter, for a bounded time, and turns refusals
//! into typed errors. Sits below `object_store`, whose requests go through it like our own.

use std::{ops::Range, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::StatusCode;
use object_store::{
    ClientOptions, GetOptions, GetRange, ObjectStore, RetryConfig,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
        ReqwestConnector,
    },
};
use rand::Rng as _;
use tokio::time::Instant;
use tracing::warn;

use crate::{
    body::ByteStream,
    error::{Class, Error},
    failure::Failure,
    listing::Object,
};

/// How often and how long a request is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Tries of one request, the first included.
    pub attempts: u32,
    /// Longest wait before the second try; doubles with each further one. The wait is drawn from the upper half.
    pub first_wait: Duration,
    pub longest_wait: Duration,
    /// No try is begun after this time.
    pub budget: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 6,
            first_wait: Duration::from_millis(400),
            longest_wait: Duration::from_secs(15),
            budget: Duration::from_mins(2),
        }
    }
}

impl Retry {
    /// How long to wait after the failed try number `attempt`, or `None` to give up.
    fn wait(&self, attempt: u32, elapsed: Duration, asked: Option<Duration>) -> Option<Duration> {
        if attempt >= self.attempts {
            return None;
        }
        let ceiling = self
            .first_wait
            .saturating_mul(1 << attempt.saturating_sub(1).min(16));
        let ceiling = ceiling.min(self.longest_wait);
        let jittered = ceiling.mul_f64(rand::rng().random_range(0.5..=1.0));
        let wait = asked.map_or(jittered, |asked| asked.max(jittered).min(self.longest_wait));
        (elapsed + wait < self.budget).then_some(wait)
    }
}

/// Makes [`Transport`]s on top of the library's own client.
#[derive(Debug)]
pub(crate) struct Connector(pub Retry);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Transport {
            client,
            retry: self.0,
        }))
    }
}

#[derive(Debug)]
struct Transport {
    client: HttpClient,
    retry: Retry,
}

#[async_trait]
impl HttpService for Transport {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let started = Instant::now();
        let mut attempt = 1;
        loop {
            let failure = match self.client.execute(request.clone()).await {
                Ok(response) if is_answer(response.status()) => return Ok(response),
                Ok(response) => Failure::refused(response).await,
                Err(error) => Failure::broken(&error),
            };
            let wait = failure
                .may_pass()
                .then(|| self.retry.wait(attempt, started.elapsed(), failure.retry_after))
                .flatten();
            let Some(wait) = wait else {
                return Err(HttpError::new(HttpErrorKind::Unknown, failure));
            };
            let (method, host) = (request.method(), request.uri().host().unwrap_or_default());
            warn!(%method, host, attempt, wait_ms = wait.as_millis(), %failure, "store request failed, trying again");
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }
}

/// Success, "not modified" and "resume incomplete" (308, resumable uploads) are answers; all else is a failure.
fn is_answer(status: StatusCode) -> bool {
    status.is_success() || matches!(status, StatusCode::NOT_MODIFIED | StatusCode::PERMANENT_REDIRECT)
}

/// Connections of all providers. No limit on whole requests, which may carry gigabytes; silence is limited.
pub(crate) fn client_options() -> ClientOptions {
    ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(Duration::from_secs(10))
        .with_read_timeout(Duration::from_mins(2))
}

/// How the library goes on when an answer's body breaks off. Requests as such are repeated below it.
pub(crate) fn resume() -> RetryConfig {
    RetryConfig {
        max_retries: 8,
        ..RetryConfig::default()
    }
}

/// An error of the library in our terms.
pub(crate) fn from_library(error: object_store::Error, action: &str) -> Error {
    if let Some(failure) = Failure::find(&error) {
        return failure.to_error(action).with_source(error);
    }
    if let Some(broken) = Failure::find_broken(&error) {
        return broken.to_error(action).with_source(error);
    }
    let class = match &error {
        object_store::Error::NotFound { .. } => Class::NotFound,
        object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. } => {
            Class::AlreadyExists
        }
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            Class::AccessDenied
        }
        object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
            Class::Unsupported
        }
        object_store::Error::InvalidPath { .. } => Class::InvalidConfig,
        _ => Class::Other,
    };
    let detail = error.to_string();
    Error::new(class, action, detail).with_source(error)
}

/// Reads an object with the library, which goes on where a connection broke.
pub(crate) async fn get(
    store: &dyn ObjectStore,
    object: &Object,
    range: Option<Range<u64>>,
) -> Result<ByteStream, Error> {
    if range.as_ref().is_some_and(Range::is_empty) {
        return Ok(stream::empty().boxed());
    }
    let action = format!("read {}", object.key);
    let path = object_store::path::Path::parse(&object.key);
    let path = path.map_err(|e| Error::new(Class::InvalidConfig, &action, e.to_string()))?;
    let options = GetOptions {
        version: object.version.clone(),
        range: range.map(GetRange::Bounded),
        ..GetOptions::default()
    };
    let result = store
        .get_opts(&path, options)
        .await
        .map_err(|e| from_library(e, &action))?;
    Ok(result
        .into_stream()
        .map_err(move |e| from_library(e, &action))
        .boxed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_end() {
        let retry = Retry {
            attempts: 5,
            first_wait: Duration::from_millis(100),
            longest_wait: Duration::from_millis(300),
            budget: Duration::from_secs(10),
        };
        for (attempt, ceiling) in [(1, 100), (2, 200), (3, 300), (4, 300)] {
            for _ in 0..100 {
                let wait = retry.wait(attempt, Duration::ZERO, None).unwrap();
                assert!(
                    (ceiling / 2..=ceiling).contains(&wait.as_millis()),
                    "{attempt}: {wait:?}"
                );
            }
        }
        assert_eq!(retry.wait(5, Duration::ZERO, None), None, "tries are limited");
        assert_eq!(
            retry.wait(1, Duration::from_secs(10), None),
            None,
            "time is limited"
        );
        let asked = retry.wait(1, Duration::ZERO, Some(Duration::from_millis(250)));
        assert_eq!(
            asked,
            Some(Duration::from_millis(250)),
            "the server's wish counts"
        );
        let asked = retry.wait(1, Duration::ZERO, Some(Duration::from_hours(1)));
        assert_eq!(asked, Some(retry.longest_wait), "within limits");
    }
}
