//! Refusals of object stores, and connections that failed, brought to the classes of our errors.

use std::{error::Error as StdError, fmt, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream::BoxStream};
use http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use object_store::client::{HttpError, HttpErrorKind, HttpResponse};
use serde::Deserialize;

use crate::{
    error::{Class, Error},
    explanation::{Asked, Explanation},
    rate::TooSlow,
};

/// No more than this of an error's body is read.
const ERROR_BODY_LIMIT: usize = 64 * 1024;

/// No more of the server's words is passed on.
const LONGEST_WORDS: usize = 500;

/// Why a request had no good answer.
#[derive(Debug)]
pub(crate) struct Failure {
    pub class: Class,
    /// 0 when there was no answer at all.
    pub status: u16,
    /// The server's own word for it.
    pub code: String,
    message: String,
    /// What to change, if that is known.
    hint: String,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
}

impl Failure {
    pub(crate) async fn refused(asked: &Asked<'_>, response: HttpResponse) -> Self {
        let (parts, body) = response.into_parts();
        let document = describe(&parts.headers, &read_capped(body.bytes_stream()).await);
        let Explanation { class, hint } = Explanation::find(asked, parts.status, &parts.headers, &document);
        let Document { code, message, .. } = document;
        Self {
            class: class.unwrap_or_else(|| classify(parts.status, &code, &message)),
            status: parts.status.as_u16(),
            code,
            message,
            hint,
            retry_after: retry_after(&parts.headers),
        }
    }

    pub(crate) fn broken(error: &HttpError) -> Self {
        let class = match error.kind() {
            _ if below::<TooSlow>(error).is_some() => Class::TooSlow,
            HttpErrorKind::Decode => Class::Other,
            _ => Class::Unreachable,
        };
        Self {
            class,
            status: 0,
            code: String::new(),
            message: causes(error),
            hint: String::new(),
            retry_after: None,
        }
    }

    /// A digest that the server didn't confirm means that bytes changed on the way. A clock isn't set within seconds.
    pub(crate) fn may_pass(&self) -> bool {
        self.class != Class::ClockSkewed && self.class.is_retryable()
            || self.class == Class::Corrupt
            || self.code == "ConditionalRequestConflict"
    }

    /// The failure below `error`, if a request was what failed.
    pub(crate) fn find<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        below(error)
    }

    /// The same for an answer that broke off after it had begun.
    pub(crate) fn find_broken(error: &(dyn StdError + 'static)) -> Option<Self> {
        below(error).map(Self::broken)
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
            hint,
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
        }?;
        if hint.is_empty() {
            Ok(())
        } else {
            write!(f, "; {hint}")
        }
    }
}

impl StdError for Failure {}

fn below<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    std::iter::successors(Some(error), |e| (*e).source()).find_map(|e| e.downcast_ref())
}

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

async fn read_capped(mut stream: BoxStream<'static, Result<Bytes, HttpError>>) -> Vec<u8> {
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

/// What an error document says.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Document {
    pub code: String,
    pub message: String,
    /// Where the bucket lies, of S3.
    pub region: String,
    /// Where to ask instead, of S3.
    pub endpoint: String,
}

impl Document {
    fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            ..Self::default()
        }
    }

    /// Nothing but a line of text.
    fn cleaned(self) -> Self {
        let clean = |text: String| {
            let line = text.lines().next().unwrap_or_default();
            let shown = line.chars().filter(|c| !c.is_control());
            shown.take(LONGEST_WORDS).collect()
        };
        Self {
            code: clean(self.code),
            message: clean(self.message),
            ..self
        }
    }
}

/// The server's code and message out of an error document: S3 and Azure (XML), Google and OAuth (JSON), Keystone.
/// Other elements may repeat the request, so that they are left out.
fn describe(headers: &HeaderMap, body: &[u8]) -> Document {
    if let Ok(document) = quick_xml::de::from_reader::<_, Document>(body)
        && !document.code.is_empty()
    {
        return document.cleaned();
    }
    if let Ok(json) = serde_json::from_slice::<serde_json::Value>(body) {
        let first = |pointers: &[&str]| {
            let mut words = pointers
                .iter()
                .filter_map(|pointer| json.pointer(pointer)?.as_str());
            words.find(|word| !word.is_empty()).unwrap_or_default().to_owned()
        };
        let code = first(&[
            "/error/errors/0/reason",
            "/error/status",
            "/error/title",
            "/error",
        ]);
        let message = first(&["/error/message", "/error_description"]);
        return Document::new(code, message).cleaned();
    }
    let code = headers
        .get("x-ms-error-code")
        .and_then(|value| value.to_str().ok());
    Document::new(code.unwrap_or_default(), "").cleaned()
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
        "RequestTimeTooSkewed" => return Class::ClockSkewed,
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

#[cfg(test)]
mod tests {
    use super::*;

    type Answer = (u16, &'static str, &'static str, Class);

    /// Of S3, OSS, MinIO and Azure: status, code, message.
    const XML: &[Answer] = &[
        (403, "AccessDenied", "Access Denied", Class::AccessDenied),
        (
            403,
            "SignatureDoesNotMatch",
            "The signature does not match.",
            Class::AccessDenied,
        ),
        (
            403,
            "AccessDenied",
            "Access Denied because object protected by object lock.",
            Class::Locked,
        ),
        (
            400,
            "InvalidRequest",
            "Object is WORM protected and cannot be overwritten",
            Class::Locked,
        ),
        (409, "FileImmutable", "The object is immutable.", Class::Locked),
        (
            404,
            "NoSuchKey",
            "The specified key does not exist.",
            Class::NotFound,
        ),
        (
            404,
            "NoSuchBucket",
            "The specified bucket does not exist",
            Class::BucketNotFound,
        ),
        (
            412,
            "PreconditionFailed",
            "A precondition failed",
            Class::AlreadyExists,
        ),
        (
            503,
            "SlowDown",
            "Please reduce your request rate.",
            Class::Throttled,
        ),
        (
            500,
            "InternalError",
            "We encountered an internal error.",
            Class::Unavailable,
        ),
        (
            400,
            "EntityTooLarge",
            "Your proposed upload exceeds the maximum",
            Class::PayloadRejected,
        ),
        (
            507,
            "XMinioStorageFull",
            "Storage backend has reached its minimum",
            Class::PayloadRejected,
        ),
        (
            400,
            "BadDigest",
            "The Content-MD5 you specified did not match",
            Class::Corrupt,
        ),
        (
            403,
            "RequestTimeTooSkewed",
            "The difference between the request time and the current time is too large.",
            Class::ClockSkewed,
        ),
        (
            301,
            "PermanentRedirect",
            "Use another endpoint",
            Class::InvalidConfig,
        ),
        (
            501,
            "NotImplemented",
            "A header implies functionality",
            Class::Unsupported,
        ),
        (
            409,
            "BlobAlreadyExists",
            "The specified blob already exists.",
            Class::AlreadyExists,
        ),
        (
            409,
            "BlobImmutableDueToPolicy",
            "This operation is not permitted",
            Class::Locked,
        ),
        (
            503,
            "ServerBusy",
            "Operations per second is over the limit",
            Class::Throttled,
        ),
        (
            404,
            "ContainerNotFound",
            "The specified container does not exist.",
            Class::BucketNotFound,
        ),
    ];

    /// Of Google: status, reason, message.
    const JSON: &[Answer] = &[
        (
            403,
            "retentionPolicyNotMet",
            "Object is under active retention",
            Class::Locked,
        ),
        (
            403,
            "forbidden",
            "does not have storage.objects.list access",
            Class::AccessDenied,
        ),
        (
            412,
            "conditionNotMet",
            "At least one precondition did not hold",
            Class::AlreadyExists,
        ),
        (429, "rateLimitExceeded", "Quota exceeded", Class::Throttled),
    ];

    /// Of whatever stands in front of a store.
    const OTHER: &[Answer] = &[
        (
            413,
            "",
            "<html>413 Request Entity Too Large</html>",
            Class::PayloadRejected,
        ),
        (
            502,
            "",
            "<html><h1>Bad Gateway</h1><hr></html>",
            Class::Unavailable,
        ),
        (404, "", "", Class::NotFound),
    ];

    #[test]
    fn answers_have_their_classes() {
        let xml = |code: &str, message: &str| {
            let id = "<AWSAccessKeyId>AKIDEXAMPLE</AWSAccessKeyId><StringToSign>secret</StringToSign>";
            format!(
                "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{message}</Message>{id}</Error>"
            )
        };
        let json = |code: &str, message: &str| {
            let errors = serde_json::json!([{ "reason": code, "message": message, "domain": "global" }]);
            serde_json::json!({ "error": { "message": message, "errors": errors } }).to_string()
        };
        let other = |_: &str, message: &str| message.to_owned();
        let check = |answers: &[Answer], write: &dyn Fn(&str, &str) -> String| {
            for (status, code, message, expected) in answers {
                let document = describe(&HeaderMap::new(), write(code, message).as_bytes());
                let Document { code, message, .. } = document;
                let status = StatusCode::from_u16(*status).unwrap();
                let class = classify(status, &code, &message);
                assert_eq!(class, *expected, "{status} {code} {message}");
                let failure = Failure {
                    class,
                    status: status.as_u16(),
                    code,
                    message,
                    hint: String::new(),
                    retry_after: None,
                };
                let shown = format!("{failure} {failure:?}");
                assert!(!shown.contains("AKID") && !shown.contains("secret"), "{shown}");
            }
        };
        check(XML, &xml);
        check(JSON, &json);
        check(OTHER, &other);
    }

    /// Answers to HEAD have no body.
    #[test]
    fn azure_tells_the_code_in_a_header() {
        let headers = HeaderMap::from_iter([(
            http::HeaderName::from_static("x-ms-error-code"),
            http::HeaderValue::from_static("ContainerNotFound"),
        )]);
        let Document { code, message, .. } = describe(&headers, b"");
        assert_eq!(
            classify(StatusCode::NOT_FOUND, &code, &message),
            Class::BucketNotFound
        );
    }

    /// What is shown to people and written to terminals is one line of text.
    #[test]
    fn the_servers_words_are_a_line() {
        let text = format!(
            "<Error><Code>A&#27;[2J</Code><Message>b&#10;c{}</Message></Error>",
            "x".repeat(9000)
        );
        let document = describe(&HeaderMap::new(), text.as_bytes());
        assert_eq!((document.code.as_str(), document.message.as_str()), ("A[2J", "b"));
        let text = format!(
            "<Error><Code>A</Code><Message>{}</Message></Error>",
            "x".repeat(9000)
        );
        assert_eq!(
            describe(&HeaderMap::new(), text.as_bytes()).message.len(),
            LONGEST_WORDS
        );
    }
}
