//! The HTTP client below everything: one request, one answer. Redirects aren't followed, for what a request carries
//! (keys, tokens, signatures) is for the host that it was made for; and what is too slow is given up.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use http_body::{Body, Frame, SizeHint};
use object_store::client::{
    HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody, HttpService,
};
use reqwest::{Certificate, Client, redirect::Policy};
use tracing::warn;

use crate::{
    config::invalid,
    error::Result,
    rate::{Gauge, MinimumRate, TooSlow},
};

/// Content is handed to the connection in pieces of this size: its progress shows by them.
const PIECE: usize = 64 * 1024;

/// What the connection may hold of a body that was handed to it as a whole.
const BUFFERED: u64 = 2 << 20;

const USER_AGENT: &str = concat!("druid/", env!("CARGO_PKG_VERSION"));

/// How a server is connected to, and whom is trusted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connection {
    pub allow_http: bool,
    /// Any certificate will do.
    pub skip_verify: bool,
    /// More certificates of authorities, PEM.
    pub ca: Option<String>,
    pub rate: MinimumRate,
}

#[derive(Debug)]
pub(crate) struct Wire {
    client: Client,
    rate: MinimumRate,
}

impl Wire {
    pub(crate) fn new(connection: &Connection, connect_timeout: Duration) -> Result<Self> {
        let pem = connection.ca.as_deref().unwrap_or_default();
        let certificates = Certificate::from_pem_bundle(pem.as_bytes());
        let certificates = certificates.map_err(|e| invalid(format!("trusted CA certificate: {e}")))?;
        if connection.ca.is_some() && certificates.is_empty() {
            return Err(invalid("trusted CA certificate: there is none in it"));
        }
        let client = Client::builder()
            .user_agent(USER_AGENT)
            .redirect(Policy::none())
            .referer(false)
            .connect_timeout(connect_timeout)
            .https_only(!connection.allow_http)
            .tls_danger_accept_invalid_certs(connection.skip_verify)
            .tls_certs_merge(certificates)
            .build();
        Ok(Self {
            client: client.map_err(|e| invalid(format!("HTTP client: {e}")))?,
            rate: connection.rate,
        })
    }
}

#[async_trait]
impl HttpService for Wire {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let url = parts.uri.to_string().parse::<reqwest::Url>();
        let url = url.map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?;
        // Content that is read, as opposed to answers that may be kept open while the store works.
        let reads = parts.method == Method::GET;
        let (length, handed) = (body.content_length() as u64, Arc::new(AtomicU64::new(0)));
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        *request.body_mut() = (length > 0).then(|| {
            reqwest::Body::wrap(Pieces {
                body,
                pending: Bytes::new(),
                left: length,
                handed: Arc::clone(&handed),
            })
        });
        let response = tokio::select! {
            biased;
            response = self.client.execute(request) => response.map_err(from_reqwest)?,
            slow = until_too_slow(self.rate, length, &handed) => {
                return Err(HttpError::new(HttpErrorKind::Timeout, slow));
            }
        };
        let (parts, body) = http::Response::<reqwest::Body>::from(response).into_parts();
        let rate = if reads {
            self.rate
        } else {
            self.rate.silence_only()
        };
        let gauge = Gauge::new(rate, body.size_hint().exact());
        let body = HttpResponseBody::new(Answer { body, gauge });
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// Ends when content goes out too slowly, or when the answer doesn't come after it.
async fn until_too_slow(limit: MinimumRate, length: u64, handed: &AtomicU64) -> TooSlow {
    const LOOKS: u32 = 8;
    let slow = |within, bytes| TooSlow {
        limit,
        within,
        bytes,
        total: handed.load(Ordering::Relaxed),
        length: Some(length),
    };
    let (mut at_window, mut looks) = (0, 0);
    while handed.load(Ordering::Relaxed) < length {
        tokio::time::sleep(limit.within / LOOKS).await;
        looks += 1;
        let total = handed.load(Ordering::Relaxed);
        if looks == LOOKS / 2 && total - at_window < limit.bytes / 2 && total < length {
            warn!(sent = total, length, "the store takes content slowly");
        }
        if looks == LOOKS {
            if total - at_window < limit.bytes && total < length {
                return slow(limit.within, total - at_window);
            }
            (at_window, looks) = (total, 0);
        }
    }
    // The end of it may still lie in the buffers of a slow connection.
    let time = limit.within + limit.time_for(length.min(BUFFERED));
    tokio::time::sleep(time).await;
    slow(time, 0)
}

/// The content of a request, which counts what it has handed out.
struct Pieces {
    body: HttpRequestBody,
    pending: Bytes,
    left: u64,
    handed: Arc<AtomicU64>,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        while self.pending.is_empty() {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => self.pending = frame.into_data().unwrap_or_default(),
                end => return Poll::Ready(end),
            }
        }
        let size = PIECE.min(self.pending.len());
        let piece = self.pending.split_to(size);
        self.left = self.left.saturating_sub(size as u64);
        self.handed.fetch_add(size as u64, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// The content of an answer, while it comes fast enough.
struct Answer {
    body: reqwest::Body,
    gauge: Gauge,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let slow = |slow| HttpError::new(HttpErrorKind::Timeout, slow);
        let frame = match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                return self
                    .gauge
                    .poll_wait(context)
                    .map(|too_slow| Some(Err(slow(too_slow))));
            }
        };
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                Some(self.gauge.count(bytes).map(|()| frame).map_err(slow))
            }
            Some(Err(error)) => Some(Err(from_reqwest(error))),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Without the address, which may hold what is secret.
fn from_reqwest(error: reqwest::Error) -> HttpError {
    let kind = if error.is_timeout() {
        HttpErrorKind::Timeout
    } else if error.is_connect() {
        HttpErrorKind::Connect
    } else if error.is_decode() {
        HttpErrorKind::Decode
    } else {
        HttpErrorKind::Request
    };
    HttpError::new(kind, error.without_url())
}
