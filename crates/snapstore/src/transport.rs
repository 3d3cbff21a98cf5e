//! HTTP for every provider: retries what may pass, with backoff and jitter, for a bounded time, and turns refusals
//! into typed errors. Sits below `object_store`, whose requests go through it like our own.

use std::{error::Error as StdError, fmt, ops::Range, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use object_store::{
    ClientOptions, GetOptions, GetRange, ObjectStore, RetryConfig,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
        ReqwestConnector,
    },
};
use rand::Rng as _;
use serde::Deserialize;
use tokio::time::Instant;
use tracing::warn;

use crate::{
    body::ByteStream,
    error::{Class, Error},
    listing::Object,
};

/// No more than this of an error's body is read.
const ERROR_BODY_LIMIT: usize = 64 * 1024;

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

/// Why a request had no good answer.
#[derive(Debug)]
pub(crate) struct Failure {
    pub class: Class,
    /// 0 when there was no answer at all.
    pub status: u16,
    /// The server's own word for it.
    pub code: String,
    message: String,
    retry_after: Option<Duration>,
}

impl Failure {
    async fn refused(response: HttpResponse) -> Self {
        let (parts, body) = response.into_parts();
        let (code, message) = describe(&parts.headers, &read_capped(body.bytes_stream()).await);
        Self {
            class: classify(parts.status, &code, &message),
            status: parts.status.as_u16(),
            code,
            message,
            retry_after: retry_after(&parts.headers),
        }
    }

    fn broken(error: &HttpError) -> Self {
        let class = match error.kind() {
            HttpErrorKind::Decode => Class::Other,
            _ => Class::Unreachable,
        };
        Self {
            class,
            status: 0,
            code: String::new(),
            message: causes(error),
            retry_after: None,
        }
    }

    /// A digest that the server didn't confirm means that bytes changed on the way.
    fn may_pass(&self) -> bool {
        self.class.is_retryable() || self.class == Class::Corrupt || self.code == "ConditionalRequestConflict"
    }

    /// The failure below `error`, if a request was what failed.
    pub(crate) fn find<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        std::iter::successors(Some(error), |e| (*e).source()).find_map(|e| e.downcast_ref())
    }

    pub(crate) fn to_error(&self, action: impl Into<String>) -> Error {
        Error::new(self.class, action, self.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            status,
            code,
            message,
            ..
        } = self;
        let words = [code.as_str(), message.as_str()]
            .into_iter()
            .filter(|w| !w.is_empty());
        let words = words.collect::<Vec<_>>().join(": ");
        match (*status, words.is_empty()) {
            (0, _) => f.write_str(&words),
            (_, true) => write!(f, "status {status}"),
            _ => write!(f, "status {status}, {words}"),
        }
    }
}

impl StdError for Failure {}

/// An error with all its causes, each said once.
fn causes(error: &HttpError) -> String {
    let mut text = String::new();
    let mut next: Option<&(dyn StdError + 'static)> = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

async fn read_capped(mut stream: futures::stream::BoxStream<'static, Result<Bytes, HttpError>>) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(Ok(bytes)) = stream.next().await {
        body.extend_from_slice(&bytes[..bytes.len().min(ERROR_BODY_LIMIT - body.len())]);
        if body.len() == ERROR_BODY_LIMIT {
            break;
        }
    }
    body
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .parse()
        .ok()
        .map(Duration::from_secs)
}

/// The server's code and message out of an error document: S3 and Azure (XML), Google and OAuth (JSON), Keystone.
/// Other elements may repeat the request, so that they are left out.
fn describe(headers: &HeaderMap, body: &[u8]) -> (String, String) {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "PascalCase")]
    struct Xml {
        code: String,
        message: String,
    }
    if let Ok(Xml { code, message }) = quick_xml::de::from_reader::<_, Xml>(body)
        && !code.is_empty()
    {
        return (code, message.lines().next().unwrap_or_default().to_owned());
    }
    if let Ok(json) = serde_json::from_slice::<serde_json::Value>(body) {
        let text = |pointer| {
            json.pointer(pointer)
                .and_then(|v| v.as_str())
                .unwrap_or_default()
                .to_owned()
        };
        let code = [
            text("/error/errors/0/reason"),
            text("/error/status"),
            text("/error/title"),
            text("/error"),
        ];
        let message = [text("/error/message"), text("/error_description")];
        let first = |words: [String; 2]| words.into_iter().find(|w| !w.is_empty()).unwrap_or_default();
        return (
            code.into_iter().find(|w| !w.is_empty()).unwrap_or_default(),
            first(message),
        );
    }
    let header = |name| {
        headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    };
    (header("x-ms-error-code"), String::new())
}

/// The meaning of a refusal. Codes are looked at first: providers don't agree on statuses.
fn classify(status: StatusCode, code: &str, message: &str) -> Class {
    match code {
        "NoSuchBucket" | "ContainerNotFound" | "ContainerBeingDeleted" => return Class::BucketNotFound,
        "SlowDown" | "SlowDownWrite" | "SlowDownRead" | "ServerBusy" | "TooManyRequests" => {
            return Class::Throttled;
        }
        "BadDigest"
        | "XAmzContentSHA256Mismatch"
        | "XAmzContentChecksumMismatch"
        | "Md5Mismatch"
        | "IncompleteBody" => {
            return Class::Corrupt;
        }
        "EntityTooLarge" | "XMinioStorageFull" | "QuotaExceeded" | "RequestBodyTooLarge" => {
            return Class::PayloadRejected;
        }
        "ObjectLocked"
        | "FileImmutable"
        | "retentionPolicyNotMet"
        | "BlobImmutableDueToPolicy"
        | "BlobImmutableDueToLegalHold" => return Class::Locked,
        "AuthorizationHeaderMalformed" | "InvalidBucketName" | "PermanentRedirect" | "InvalidRegion" => {
            return Class::InvalidConfig;
        }
        "RequestTimeout" => return Class::Unreachable,
        _ if says_locked(message) => return Class::Locked,
        _ => {}
    }
    match status.as_u16() {
        401 | 403 => Class::AccessDenied,
        404 | 410 => Class::NotFound,
        408 => Class::Unreachable,
        409 | 412 => Class::AlreadyExists,
        411 | 413 | 415 | 422 | 507 => Class::PayloadRejected,
        429 => Class::Throttled,
        300..=399 => Class::InvalidConfig,
        405 | 501 => Class::Unsupported,
        500..=599 => Class::Unavailable,
        _ => Class::Other,
    }
}

/// S3 and its imitators tell a locked object from a forbidden one by the message only.
fn says_locked(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["object lock", "worm protected", "retention"]
        .iter()
        .any(|word| message.contains(word))
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
