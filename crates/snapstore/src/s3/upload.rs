//! One upload: a single request when the content is small, else parts; never over an existing object, and never
//! counted as done before the store shows it as it was sent.

use bytes::Bytes;
use futures::TryStreamExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use tracing::warn;

use super::{
    client::{Call, Client, Digest, text},
    head, xml,
};
use crate::{
    body::{Body, Content, Seal},
    error::{Class, Error, Result},
    listing::Object,
};

/// Content up to this size goes up in one request, more in parts of it. 10 000 parts are allowed: 80 GiB.
const PART_SIZE: usize = 8 * 1024 * 1024;

/// Parts on their way at once.
const PARALLEL_PARTS: usize = 4;

/// A random token in the object's metadata, by which an upload whose answer got lost is recognized as our own.
const TOKEN: HeaderName = HeaderName::from_static("x-amz-meta-upload-token");

const ALGORITHM: HeaderName = HeaderName::from_static("x-amz-checksum-algorithm");

pub(super) struct Upload<'a> {
    client: &'a Client,
    key: String,
    token: String,
    action: String,
}

impl<'a> Upload<'a> {
    pub(super) fn new(client: &'a Client, key: String) -> Self {
        let token = format!("{:032x}", rand::random::<u128>());
        Self {
            client,
            token,
            action: format!("upload s3 object {key}"),
            key,
        }
    }

    pub(super) async fn run(self, body: Body) -> Result<Object> {
        let (mut content, seal) = body.split();
        let first = content.next_part(PART_SIZE, &self.action).await?;
        let sent = if first.len() < PART_SIZE {
            let sent = first.len() as u64;
            seal.check(sent, &self.action).await?;
            self.put(first).await?;
            sent
        } else {
            self.put_parts(first, content, seal).await?
        };
        self.verify(sent).await
    }

    /// Headers of the request that makes the object.
    fn headers(&self) -> HeaderMap {
        let mut headers = self.client.encryption.clone();
        headers.extend(
            HeaderValue::from_str(&self.token)
                .ok()
                .map(|token| (TOKEN, token)),
        );
        headers
    }

    async fn put(&self, content: Bytes) -> Result<()> {
        let mut headers = self.headers();
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
        let call = |headers| Call {
            method: Method::PUT,
            key: &self.key,
            headers,
            body: content.clone(),
            digest: Some(Digest::of(&content)),
            ..Call::default()
        };
        match self.client.send(call(headers), &self.action).await {
            Err(e) if e.class() == Class::Unsupported => {
                self.refuse_existing().await?;
                self.client
                    .send(call(self.headers()), &self.action)
                    .await
                    .map(drop)
            }
            // Either a foreign object or ours, written by a request whose answer was lost: verification decides.
            Err(e) if e.class() == Class::AlreadyExists => Ok(()),
            result => result.map(drop),
        }
    }

    /// For stores without conditional requests.
    async fn refuse_existing(&self) -> Result<()> {
        match head(self.client, &self.key, None).await? {
            Some(_) => Err(Error::new(Class::AlreadyExists, &self.action, "")),
            None => Ok(()),
        }
    }

    async fn put_parts(&self, first: Bytes, content: Content, seal: Seal) -> Result<u64> {
        let id = self.begin().await?;
        let sent = async {
            let (parts, sent) = self.send_parts(&id, first, content).await?;
            seal.check(sent, &self.action).await?;
            self.complete(&id, &parts).await?;
            Ok(sent)
        }
        .await;
        if let Err(error) = &sent {
            warn!(%error, key = self.key, "upload failed, dropping its parts");
            abort(self.client, &self.key, &id)
                .await
                .unwrap_or_else(|e| warn!(error = %e, "parts are left"));
        }
        sent
    }

    async fn begin(&self) -> Result<String> {
        let mut headers = self.headers();
        if self.client.checksums {
            headers.insert(ALGORITHM, HeaderValue::from_static("SHA256"));
        }
        let query = vec![("uploads", "")];
        let call = Call {
            method: Method::POST,
            key: &self.key,
            query,
            headers,
            ..Call::default()
        };
        let begun = self.client.fetch(call, &self.action).await?;
        Ok(xml::parse::<xml::Begun>(&begun, &self.action)?.upload_id)
    }

    /// Sends the parts, several at once, while the next one is read.
    async fn send_parts(&self, id: &str, first: Bytes, content: Content) -> Result<(Vec<xml::Part>, u64)> {
        let mut sent = 0;
        let parts = content
            .into_parts(first, PART_SIZE, &self.action)
            .inspect_ok(|(_, part)| sent += part.len() as u64)
            .map_ok(|(number, part)| self.send_part(id, number, part))
            .try_buffered(PARALLEL_PARTS)
            .try_collect()
            .await?;
        Ok((parts, sent))
    }

    async fn send_part(&self, id: &str, number: usize, content: Bytes) -> Result<xml::Part> {
        let digest = Digest::of(&content);
        let part_number = number.to_string();
        let checksum = self.client.checksums.then(|| digest.base64());
        let call = Call {
            method: Method::PUT,
            key: &self.key,
            query: vec![("partNumber", &part_number), ("uploadId", id)],
            headers: self.client.customer_key.clone(),
            body: content,
            digest: Some(digest),
        };
        let response = self.client.send(call, &self.action).await?;
        let etag = text(response.headers(), "etag").ok_or_else(|| {
            Error::new(
                Class::Other,
                &self.action,
                format!("the store gave no etag for part {number}"),
            )
        })?;
        Ok(xml::Part {
            number,
            etag,
            checksum,
        })
    }

    async fn complete(&self, id: &str, parts: &[xml::Part]) -> Result<()> {
        let mut headers = self.client.customer_key.clone();
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
        let call = Call {
            method: Method::POST,
            key: &self.key,
            query: vec![("uploadId", id)],
            headers,
            body: xml::Complete::document(parts, &self.action)?.into(),
            ..Call::default()
        };
        match self.client.fetch(call, &self.action).await {
            Ok(body) => match xml::parse::<xml::Completed>(&body, &self.action)? {
                xml::Completed {
                    code: Some(code),
                    message,
                } => {
                    let detail = format!("{code}: {}", message.unwrap_or_default());
                    Err(Error::new(Class::Unavailable, &self.action, detail))
                }
                _ => Ok(()),
            },
            // Either a foreign object or ours, completed by a request whose answer was lost: verification decides.
            Err(e) if matches!(e.class(), Class::AlreadyExists | Class::NotFound) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// The object as the store shows it, if it is the one that was sent.
    async fn verify(&self, sent: u64) -> Result<Object> {
        let headers = head(self.client, &self.key, None).await?.ok_or_else(|| {
            Error::new(
                Class::Corrupt,
                &self.action,
                "the store doesn't show the object after the upload",
            )
        })?;
        if text(&headers, TOKEN.as_str()).is_none_or(|token| token != self.token) {
            return Err(Error::new(Class::AlreadyExists, &self.action, ""));
        }
        let size = text(&headers, "content-length").and_then(|length| length.parse().ok());
        if size != Some(sent) {
            let detail = format!("sent {sent} bytes, the store shows {size:?}");
            return Err(Error::new(Class::Corrupt, &self.action, detail));
        }
        let modified = text(&headers, "last-modified").and_then(|t| jiff::fmt::rfc2822::parse(&t).ok());
        Ok(Object {
            key: self.key.clone(),
            size: sent,
            etag: text(&headers, "etag"),
            last_modified: modified.map(|t| t.timestamp()),
            version: text(&headers, "x-amz-version-id"),
            immutable_until: text(&headers, "x-amz-object-lock-retain-until-date")
                .and_then(|t| t.parse().ok()),
        })
    }
}

pub(super) async fn abort(client: &Client, key: &str, upload_id: &str) -> Result<()> {
    let action = format!("abort the upload of s3 object {key}");
    let query = vec![("uploadId", upload_id)];
    match client
        .send(
            Call {
                method: Method::DELETE,
                key,
                query,
                ..Call::default()
            },
            &action,
        )
        .await
    {
        Err(e) if e.class() != Class::NotFound => Err(e),
        _ => Ok(()),
    }
}
