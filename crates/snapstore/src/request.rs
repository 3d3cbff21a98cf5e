//! Requests of our own to object stores, before they are signed, and their answers.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt as _;
use http::{HeaderMap, Method, header};
use jiff::Timestamp;
use object_store::client::{HttpClient, HttpError, HttpRequest, HttpResponse};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{
    error::{Class, Error, Result},
    failure::Failure,
};

/// All but what RFC 3986 calls unreserved, as signatures want it.
pub(crate) const QUERY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
const PATH: &AsciiSet = &QUERY.remove(b'/');

/// What is asked of a store.
#[derive(Debug, Default, Clone)]
pub(crate) struct Call<'a> {
    pub method: Method,
    /// Below the base address; may be empty.
    pub path: &'a str,
    /// One more step of the path, in which slashes count as letters; may be empty.
    pub step: &'a str,
    pub query: Vec<(&'static str, &'a str)>,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Call<'_> {
    /// `base`: without a slash at its end.
    pub(crate) fn request(self, base: &str, action: &str) -> Result<HttpRequest> {
        let url = self.url(base);
        self.request_to(&url, action)
    }

    fn url(&self, base: &str) -> String {
        let mut url = base.to_owned();
        if !self.path.is_empty() || self.query.is_empty() {
            url.push('/');
            url.extend(utf8_percent_encode(self.path, PATH));
        }
        if !self.step.is_empty() {
            url.push('/');
            url.extend(utf8_percent_encode(self.step, QUERY));
        }
        for (index, (name, value)) in self.query.iter().enumerate() {
            url.push(if index == 0 { '?' } else { '&' });
            url.push_str(name);
            url.push('=');
            url.extend(utf8_percent_encode(value, QUERY));
        }
        url
    }

    /// To a whole address; path and query aren't looked at.
    pub(crate) fn request_to(self, url: &str, action: &str) -> Result<HttpRequest> {
        let uri = url.parse::<http::Uri>();
        let uri = uri.map_err(|e| Error::new(Class::InvalidConfig, action, e.to_string()))?;
        let length = self.body.len();
        let mut request = HttpRequest::new(self.body.into());
        *request.method_mut() = self.method;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers;
        // Also when it is 0: some stores want it said.
        if matches!(*request.method(), Method::PUT | Method::POST) {
            request
                .headers_mut()
                .insert(header::CONTENT_LENGTH, length.into());
        }
        Ok(request)
    }
}

pub(crate) async fn execute(client: &HttpClient, request: HttpRequest, action: &str) -> Result<HttpResponse> {
    client.execute(request).await.map_err(|e| from_http(&e, action))
}

/// Larger answers aren't read: listings come in pages, all else is small.
const LARGEST_ANSWER: usize = 32 << 20;

/// How long an answer may take that is kept open while the store works.
const LONGEST_ANSWER: Duration = Duration::from_mins(15);

/// The whole body of an answer that is known to be short.
pub(crate) async fn read(response: HttpResponse, action: &str) -> Result<Bytes> {
    let mut stream = response.into_body().bytes_stream();
    let whole = async {
        let mut body = BytesMut::new();
        while let Some(bytes) = stream.try_next().await.map_err(|e| from_http(&e, action))? {
            if body.len() + bytes.len() > LARGEST_ANSWER {
                let detail = format!("the answer is larger than {} MiB", LARGEST_ANSWER >> 20);
                return Err(Error::new(Class::BadResponse, action, detail));
            }
            body.extend_from_slice(&bytes);
        }
        Ok(body.freeze())
    };
    let slow = |_| {
        let detail = format!(
            "the answer isn't whole after {} minutes",
            LONGEST_ANSWER.as_secs() / 60
        );
        Error::new(Class::TooSlow, action, detail)
    };
    tokio::time::timeout(LONGEST_ANSWER, whole).await.map_err(slow)?
}

pub(crate) fn from_http(error: &HttpError, action: &str) -> Error {
    Failure::find(error).map_or_else(
        || Failure::broken(error).to_error(action),
        |failure| failure.to_error(action),
    )
}

/// No ambient identity looks like an unreachable metadata service.
pub(crate) fn credentials_failed(error: &object_store::Error, action: &str) -> Error {
    let detail = Failure::find(error).map_or_else(|| error.to_string(), ToString::to_string);
    Error::new(Class::CredentialsUnavailable, action, detail)
}

/// A header's value.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// `Last-Modified`, or another header with a time of RFC 9110.
pub(crate) fn time(headers: &HeaderMap, name: &str) -> Option<Timestamp> {
    let time = jiff::fmt::rfc2822::parse(text(headers, name)?).ok()?;
    Some(time.timestamp())
}

/// `ETag` and `Content-Length`.
pub(crate) fn length(headers: &HeaderMap) -> Option<u64> {
    text(headers, "content-length")?.parse().ok()
}
