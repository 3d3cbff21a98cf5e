//! HTTP for every provider: retries what may pass, with backoff and jitter, for a bounded time, and turns refusals
//! into typed errors. Sits below `object_store`, whose requests go through it like our own.

use std::{ops::Range, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{StatusCode, header};
use object_store::{
    ClientConfigKey, ClientOptions, GetOptions, GetRange, ObjectStore, RetryConfig,
    client::{HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService},
};
use rand::Rng as _;
use tokio::time::Instant;
use tracing::warn;

use crate::{
    body::ByteStream,
    config::StoreConfig,
    error::{Class, Error},
    explanation::Asked,
    failure::Failure,
    listing::Object,
    rate::{Gauge, MinimumRate},
    wire::{Connection, Wire},
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
    /// What is slower is given up.
    pub rate: MinimumRate,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 6,
            first_wait: Duration::from_millis(400),
            longest_wait: Duration::from_secs(15),
            budget: Duration::from_mins(2),
            rate: MinimumRate::default(),
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

/// Makes [`Transport`]s: for the store itself, and for where the library gets credentials.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    retry: Retry,
    connection: Connection,
    /// That requests are signed for, of S3; for messages.
    region: Option<String>,
}

impl Connector {
    pub(crate) fn new(config: &StoreConfig) -> Self {
        Self {
            retry: config.retry,
            connection: Connection {
                allow_http: config.allow_http,
                rate: config.retry.rate,
                ..Connection::default()
            },
            region: None,
        }
    }

    #[must_use]
    pub(crate) fn with_region(self, region: &str) -> Self {
        Self {
            region: Some(region.to_owned()),
            ..self
        }
    }

    #[must_use]
    pub(crate) fn with_allow_http(mut self, allow_http: bool) -> Self {
        self.connection.allow_http = allow_http;
        self
    }

    /// Whom to trust: also the authorities of `ca` (PEM), or anybody.
    #[must_use]
    pub(crate) fn with_trust(mut self, ca: Option<String>, skip_verify: bool) -> Self {
        (self.connection.ca, self.connection.skip_verify) = (ca, skip_verify);
        self
    }

    pub(crate) fn client(&self) -> Result<HttpClient, Error> {
        self.client_with(&self.connection, CONNECT_TIMEOUT)
    }

    fn client_with(&self, connection: &Connection, connect_timeout: Duration) -> Result<HttpClient, Error> {
        Ok(HttpClient::new(Transport {
            wire: Wire::new(connection, connect_timeout)?,
            retry: self.retry,
            region: self.region.clone(),
        }))
    }
}

impl HttpConnector for Connector {
    /// The library asks for other options where it looks for a metadata service: those are spoken to in plain http, and
    /// most often aren't there.
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let timeout = |options: &ClientOptions| options.get_config_value(&ClientConfigKey::ConnectTimeout);
        let is_metadata = timeout(options) != timeout(&client_options());
        let client = if is_metadata {
            let connection = Connection {
                allow_http: true,
                ..self.connection.clone()
            };
            self.client_with(&connection, METADATA_CONNECT_TIMEOUT)
        } else {
            self.client()
        };
        client.map_err(|e| object_store::Error::Generic {
            store: "HTTP",
            source: Box::new(e),
        })
    }
}

#[derive(Debug)]
struct Transport {
    wire: Wire,
    retry: Retry,
    region: Option<String>,
}

#[async_trait]
impl HttpService for Transport {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let started = Instant::now();
        let mut attempt = 1;
        loop {
            let failure = match self.wire.call(request.clone()).await {
                Ok(response) if is_answer(&response) => return Ok(response),
                Ok(response) => {
                    Failure::refused(&Asked::new(&request, self.region.as_deref()), response).await
                }
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

/// Success, "not modified" and "resume incomplete" (resumable uploads) are answers; all else is a failure. The latter has
/// the status of a redirect, but doesn't say where to.
fn is_answer(response: &HttpResponse) -> bool {
    match response.status() {
        StatusCode::NOT_MODIFIED => true,
        StatusCode::PERMANENT_REDIRECT => !response.headers().contains_key(header::LOCATION),
        status => status.is_success(),
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const METADATA_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// What the library is to know of our connections, which [`Connector`] makes.
pub(crate) fn client_options() -> ClientOptions {
    ClientOptions::new().with_connect_timeout(CONNECT_TIMEOUT)
}

/// How the library goes on when an answer's body breaks off. Requests as such are repeated below it.
pub(crate) fn resume() -> RetryConfig {
    RetryConfig {
        max_retries: 8,
        // Counted from the beginning of a read, however long that takes when all is well.
        retry_timeout: Duration::from_hours(24),
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
    rate: MinimumRate,
) -> Result<ByteStream, Error> {
    if range.as_ref().is_some_and(Range::is_empty) {
        return Ok(stream::empty().boxed());
    }
    let action = format!("read {}", object.key);
    let path = object_store::path::Path::parse(&object.key);
    let path = path.map_err(|e| Error::new(Class::InvalidConfig, &action, e.to_string()))?;
    let expected = expected(object, range.as_ref());
    let options = GetOptions {
        version: object.version.clone(),
        range: range.map(GetRange::Bounded),
        ..GetOptions::default()
    };
    let result = store
        .get_opts(&path, options)
        .await
        .map_err(|e| from_library(e, &action))?;
    check_size(object, result.meta.size, &action)?;
    let broken = action.clone();
    let content = result.into_stream().map_err(move |e| from_library(e, &broken));
    Ok(exactly(content.boxed(), expected, rate, action))
}

/// How many bytes a read is to give.
pub(crate) fn expected(object: &Object, range: Option<&Range<u64>>) -> u64 {
    range.map_or(object.size, |range| {
        range.end.min(object.size).saturating_sub(range.start)
    })
}

/// Before the first byte is used: the object has the size that it was listed with.
pub(crate) fn check_size(object: &Object, size: u64, action: &str) -> Result<(), Error> {
    if size == object.size {
        return Ok(());
    }
    let detail = format!("it was listed with {} bytes, the store has {size}", object.size);
    Err(Error::new(Class::Corrupt, action, detail))
}

/// Passes on exactly `expected` bytes, whatever the length in the answer's header was worth; and gives up what is too
/// slow even though it was begun anew.
pub(crate) fn exactly(content: ByteStream, expected: u64, rate: MinimumRate, action: String) -> ByteStream {
    let reading = (content, Gauge::new(rate.twice(), Some(expected)), action);
    let next = move |(mut content, mut gauge, action): (ByteStream, Gauge, String)| async move {
        let slow = |slow: crate::rate::TooSlow| Error::new(Class::TooSlow, &action, slow.to_string());
        let next: Option<Bytes> = tokio::select! {
            biased;
            next = content.try_next() => next?,
            too_slow = std::future::poll_fn(|context| gauge.poll_wait(context)) => return Err(slow(too_slow)),
        };
        gauge.count(next.as_ref().map_or(0, Bytes::len)).map_err(slow)?;
        let total = gauge.total();
        if total > expected || (next.is_none() && total < expected) {
            let detail = format!("{total} bytes came where {expected} were listed");
            return Err(Error::new(Class::Corrupt, &action, detail));
        }
        Ok(next.map(|bytes| (bytes, (content, gauge, action))))
    };
    stream::try_unfold(reading, next).boxed()
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
            ..Retry::default()
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
