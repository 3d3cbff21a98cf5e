//! One upload to Swift: in one request, or as segments and a manifest (static large object), which the store checks
//! against them. The object comes into being with the manifest.

use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use md5::{Digest as _, Md5};
use serde::Serialize;
use tracing::warn;

use super::{client::Client, delete_each, describe};
use crate::{
    body::{Content, Seal},
    error::{Class, Error, Result},
    request::{Call, text},
    upload::{Checksum, Found, Ticket, Upload, or_verify, send_parts},
};

const TOKEN: HeaderName = HeaderName::from_static("x-object-meta-upload-token");

pub(super) struct SwiftUpload<'a> {
    pub client: &'a Client,
    pub ticket: Ticket,
    /// Keys of the segments that may be with the store.
    segments: Mutex<Vec<String>>,
    /// Begins the numbers of the segments. Those of another upload of the same name must not be overwritten.
    series: u32,
}

/// A line of a manifest, <https://docs.openstack.org/swift/latest/overview_large_objects.html>.
#[derive(Debug, Serialize)]
struct Segment {
    path: String,
    etag: String,
    size_bytes: usize,
}

#[async_trait]
impl Upload for SwiftUpload<'_> {
    fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    async fn put(&self, content: Bytes) -> Result<()> {
        let Ticket { key, .. } = &self.ticket;
        let etag = hex::encode(Md5::digest(&content));
        self.send(key, Vec::new(), self.headers(Some(&etag)), content)
            .await
    }

    async fn put_parts(&self, first: Bytes, content: Content, seal: Seal) -> Result<u64> {
        let sent = self.send_all(first, content, seal).await;
        if let Err(error) = &sent {
            warn!(%error, key = self.ticket.key, "upload failed, dropping its segments");
            self.drop_segments().await;
        }
        sent
    }

    async fn look(&self) -> Result<Option<Found>> {
        let Ticket { key, action, .. } = &self.ticket;
        let call = Call {
            method: Method::HEAD,
            path: key,
            ..Call::default()
        };
        match self.client.send(call, action).await {
            Ok(response) => {
                let token = text(response.headers(), TOKEN.as_str()).map(str::to_owned);
                Ok(Some(Found {
                    object: describe(key, response.headers()),
                    checksum: text(response.headers(), header::ETAG.as_str()).and_then(Checksum::of_etag),
                    token,
                }))
            }
            Err(e) if e.class() == Class::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl<'a> SwiftUpload<'a> {
    pub(super) fn new(client: &'a Client, ticket: Ticket) -> Self {
        Self {
            client,
            ticket,
            segments: Mutex::default(),
            series: rand::random(),
        }
    }

    /// Headers of the request that makes the object.
    fn headers(&self, etag: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_static("*"))]);
        let token = HeaderValue::from_str(&self.ticket.token);
        headers.extend(token.ok().map(|token| (TOKEN, token)));
        headers.extend(
            etag.and_then(|etag| HeaderValue::from_str(etag).ok())
                .map(|etag| (header::ETAG, etag)),
        );
        headers
    }

    async fn send_all(&self, first: Bytes, content: Content, seal: Seal) -> Result<u64> {
        let Ticket { key, action, .. } = &self.ticket;
        let send_one = |number, part| self.send_segment(number, part);
        let (segments, sent) = send_parts(first, content, action, send_one).await?;
        seal.check(sent, action).await?;
        let manifest = serde_json::to_vec(&segments);
        let manifest = manifest.map_err(|e| self.ticket.error(Class::Other, e.to_string()))?;
        let query = vec![("multipart-manifest", "put")];
        let made = self.send(key, query, self.headers(None), manifest.into()).await;
        if made.as_ref().is_err_and(|e| e.class() == Class::AlreadyExists) && !self.is_ours().await? {
            self.drop_segments().await;
        }
        or_verify(made)?;
        Ok(sent)
    }

    async fn is_ours(&self) -> Result<bool> {
        let found = self.look().await?;
        Ok(found.is_some_and(|found| found.token.as_ref() == Some(&self.ticket.token)))
    }

    async fn send_segment(&self, number: usize, content: Bytes) -> Result<Segment> {
        let key = format!("{}/{:010}{number:06}", self.ticket.key, self.series);
        if let Ok(mut segments) = self.segments.lock() {
            segments.push(key.clone());
        }
        let etag = hex::encode(Md5::digest(&content));
        let value = HeaderValue::from_str(&etag);
        let headers = HeaderMap::from_iter(value.ok().map(|etag| (header::ETAG, etag)));
        let size_bytes = content.len();
        self.send(&key, Vec::new(), headers, content).await?;
        Ok(Segment {
            path: format!("/{}/{key}", self.client.container),
            etag,
            size_bytes,
        })
    }

    async fn send(
        &self,
        key: &str,
        query: Vec<(&'static str, &str)>,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<()> {
        let call = Call {
            method: Method::PUT,
            path: key,
            query,
            headers,
            body,
            ..Call::default()
        };
        // What isn't found when something is put is the container.
        self.client
            .send(call, &self.ticket.action)
            .await
            .map(drop)
            .map_err(Error::of_bucket)
    }

    async fn drop_segments(&self) {
        let segments = self
            .segments
            .lock()
            .map(|mut keys| std::mem::take(&mut *keys))
            .unwrap_or_default();
        let dropped = delete_each(self.client, segments).await;
        dropped.unwrap_or_else(|error| warn!(%error, key = self.ticket.key, "segments are left"));
    }
}
