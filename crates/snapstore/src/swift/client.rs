//! A client for one container: calls with a token that is renewed in time, or when the store refuses it.

use std::{ops::Range, path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use object_store::client::{HttpClient, HttpError, HttpResponse};
use tokio::sync::Mutex;
use tracing::warn;

use super::identity::{Identity, Session, VARIABLE};
use crate::{
    body::ByteStream,
    config::StoreConfig,
    credentials::Place,
    error::{Class, Error, Result},
    failure::Failure,
    listing::Object,
    rate::MinimumRate,
    request::{self, Call, length, text},
    transport::{Connector, check_size, exactly, expected},
};

const AUTH_TOKEN: HeaderName = HeaderName::from_static("x-auth-token");

/// How often a read goes on after its connection broke without giving anything.
const RESUMES: usize = 5;

#[derive(Debug)]
pub(super) struct Client {
    identity: Identity,
    http: HttpClient,
    /// Instead of the catalog's address.
    storage_url: Option<String>,
    pub(super) container: String,
    session: Mutex<Option<Session>>,
    rate: MinimumRate,
}

/// Files whose change calls for a new client.
pub(super) fn files(config: &StoreConfig) -> Vec<PathBuf> {
    Place::find(config, VARIABLE)
        .map(|place| place.path().to_owned())
        .into_iter()
        .collect()
}

impl Client {
    pub(super) fn new(config: &StoreConfig) -> Result<Self> {
        let identity = Identity::read(config)?;
        if let Some(endpoint) = &config.endpoint {
            config.check_scheme(endpoint)?;
        }
        Ok(Self {
            identity,
            http: Connector::new(config).client()?,
            rate: config.retry.rate,
            storage_url: config
                .endpoint
                .as_ref()
                .map(|url| url.trim_end_matches('/').to_owned()),
            container: config.container()?.to_owned(),
            session: Mutex::new(None),
        })
    }

    /// Sends a request about the container (`path` empty) or an object.
    pub(super) async fn send(&self, call: Call<'_>, action: &str) -> Result<HttpResponse> {
        let session = self.session(None).await?;
        match self.try_send(call.clone(), &session, action).await? {
            Err(error) if is_unauthorized(&error) => {
                let session = self.session(Some(&session)).await?;
                let again = self.try_send(call, &session, action).await?;
                again.map_err(|e| request::from_http(&e, action))
            }
            answer => answer.map_err(|e| request::from_http(&e, action)),
        }
    }

    async fn try_send(
        &self,
        call: Call<'_>,
        session: &Session,
        action: &str,
    ) -> Result<Result<HttpResponse, HttpError>> {
        let storage_url = self.storage_url.as_ref().unwrap_or(&session.storage_url);
        let mut request = call.request(&format!("{storage_url}/{}", self.container), action)?;
        request.headers_mut().insert(AUTH_TOKEN, session.token.clone());
        Ok(self.http.execute(request).await)
    }

    /// The current session; a new one if it is over or is the one that was refused.
    async fn session(&self, refused: Option<&Session>) -> Result<Session> {
        let mut current = self.session.lock().await;
        if let Some(session) = &*current
            && session.is_fresh()
            && refused.is_none_or(|refused| refused.token != session.token)
        {
            return Ok(session.clone());
        }
        let session = self.identity.log_in(&self.http).await?;
        Ok(current.insert(session).clone())
    }

    pub(super) async fn fetch(&self, call: Call<'_>, action: &str) -> Result<Bytes> {
        request::read(self.send(call, action).await?, action).await
    }
}

fn is_unauthorized(error: &HttpError) -> bool {
    Failure::find(error).is_some_and(|failure| failure.status == StatusCode::UNAUTHORIZED.as_u16())
}

/// Where a read stands.
struct Reading {
    client: Arc<Client>,
    key: String,
    action: String,
    range: Range<u64>,
    /// Of the object that was begun with; another one must not be mixed in.
    etag: Option<String>,
    body: ByteStream,
    resumes: usize,
}

/// Reads an object, and goes on where a connection broke.
pub(super) async fn read(
    client: Arc<Client>,
    object: &Object,
    range: Option<Range<u64>>,
) -> Result<ByteStream> {
    if range.as_ref().is_some_and(Range::is_empty) {
        return Ok(stream::empty().boxed());
    }
    let (key, action) = (object.key.clone(), format!("read {}", object.key));
    let expected = expected(object, range.as_ref());
    let response = get(&client, &key, range.as_ref(), &action).await?;
    check_size(object, size(&response, range.is_some(), &action)?, &action)?;
    let etag = text(response.headers(), header::ETAG.as_str()).map(str::to_owned);
    let start = range.map_or(0, |range| range.start);
    let (body, rate) = (body(response, &action), client.rate);
    let reading = Reading {
        client,
        key,
        action: action.clone(),
        range: start..start + expected,
        etag,
        body,
        resumes: 0,
    };
    let content = stream::try_unfold(reading, Reading::next).boxed();
    Ok(exactly(content, expected, rate, action))
}

/// Of the whole object, as the answer has it.
fn size(response: &HttpResponse, is_range: bool, action: &str) -> Result<u64> {
    let headers = response.headers();
    let size = if is_range {
        let total = text(headers, header::CONTENT_RANGE.as_str()).and_then(|range| range.rsplit('/').next());
        total.and_then(|total| total.parse().ok())
    } else {
        length(headers)
    };
    size.ok_or_else(|| Error::new(Class::BadResponse, action, "the store doesn't say how long it is"))
}

fn body(response: HttpResponse, action: &str) -> ByteStream {
    let action = action.to_owned();
    let broken = move |e: HttpError| request::from_http(&e, &action);
    response.into_body().bytes_stream().map_err(broken).boxed()
}

async fn get(client: &Client, key: &str, range: Option<&Range<u64>>, action: &str) -> Result<HttpResponse> {
    let range = range.and_then(|r| HeaderValue::try_from(format!("bytes={}-{}", r.start, r.end - 1)).ok());
    let headers = HeaderMap::from_iter(range.map(|range| (header::RANGE, range)));
    client
        .send(
            Call {
                path: key,
                headers,
                ..Call::default()
            },
            action,
        )
        .await
}

impl Reading {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>> {
        loop {
            match self.body.try_next().await {
                Ok(Some(bytes)) => {
                    self.range.start += bytes.len() as u64;
                    self.resumes = 0;
                    return Ok(Some((bytes, self)));
                }
                Ok(None) if self.range.is_empty() => return Ok(None),
                Err(error) if self.resumes == RESUMES => return Err(error),
                Ok(None) | Err(_) => self.resume().await?,
            }
        }
    }

    async fn resume(&mut self) -> Result<()> {
        let Self {
            client,
            key,
            action,
            range,
            etag,
            ..
        } = self;
        warn!(key, at = range.start, "connection broke while reading, going on");
        let response = get(client, key, Some(range), action).await?;
        if text(response.headers(), header::ETAG.as_str()) != etag.as_deref() {
            return Err(Error::new(
                Class::Corrupt,
                &**action,
                "the object changed while it was read",
            ));
        }
        self.body = body(response, action);
        self.resumes += 1;
        Ok(())
    }
}
