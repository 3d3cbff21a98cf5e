//! One upload: a single request when the content is small, else parts; never over an existing object, and never
//! counted as done before the store shows it as it was sent.

use std::mem;

use bytes::Bytes;
use futures::{StreamExt as _, stream::FuturesOrdered};
use http::{HeaderMap, HeaderValue, Method, header};
use object_store::{
    Attribute, Attributes, ObjectStore as _, PutMode, PutMultipartOptions, PutOptions,
    multipart::{MultipartStore as _, PartId},
    path::Path,
};
use tracing::warn;

use super::{
    client::{Call, Client},
    head, xml,
};
use crate::{
    body::Body,
    error::{Class, Error, Result},
    listing::Object,
    transport::from_library,
};

/// Content up to this size goes up in one request, more in parts of it. 10 000 parts are allowed: 80 GiB.
const PART_SIZE: usize = 8 * 1024 * 1024;

/// Parts on their way at once.
const PARALLEL_PARTS: usize = 4;

/// Metadata field with a random token, by which an upload whose answer got lost is recognized as our own.
const TOKEN: &str = "upload-token";

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

    pub(super) async fn run(self, mut body: Body) -> Result<Object> {
        let first = body.next_part(PART_SIZE, &self.action).await?;
        let sent = if first.len() < PART_SIZE {
            let sent = first.len() as u64;
            body.confirm(sent, &self.action).await?;
            self.put(first).await?;
            sent
        } else {
            self.put_parts(first, body).await?
        };
        self.verify(sent).await
    }

    fn path(&self) -> Result<Path> {
        Path::parse(&self.key).map_err(|e| Error::new(Class::InvalidConfig, &self.action, e.to_string()))
    }

    fn attributes(&self) -> Attributes {
        Attributes::from_iter([(Attribute::Metadata(TOKEN.into()), self.token.clone())])
    }

    async fn put(&self, content: Bytes) -> Result<()> {
        let options = |mode| PutOptions {
            mode,
            attributes: self.attributes(),
            ..PutOptions::default()
        };
        let path = &self.path()?;
        let put = |mode| {
            self.client
                .store
                .put_opts(path, content.clone().into(), options(mode))
        };
        let result = put(PutMode::Create)
            .await
            .map_err(|e| from_library(e, &self.action));
        match result.map(|_| ()) {
            Err(e) if e.class() == Class::Unsupported => {
                self.refuse_existing().await?;
                put(PutMode::Overwrite)
                    .await
                    .map(|_| ())
                    .map_err(|e| from_library(e, &self.action))
            }
            other => other,
        }
        .or_else(|e| {
            if e.class() == Class::AlreadyExists {
                Ok(())
            } else {
                Err(e)
            }
        })
    }

    /// For stores without conditional requests.
    async fn refuse_existing(&self) -> Result<()> {
        match head(self.client, &self.key, None).await? {
            Some(_) => Err(Error::new(Class::AlreadyExists, &self.action, "")),
            None => Ok(()),
        }
    }

    async fn put_parts(&self, first: Bytes, mut body: Body) -> Result<u64> {
        let path = self.path()?;
        let options = PutMultipartOptions {
            attributes: self.attributes(),
            ..PutMultipartOptions::default()
        };
        let id = self.client.store.create_multipart_opts(&path, options).await;
        let id = id.map_err(|e| from_library(e, &self.action))?;
        let sent = async {
            let (etags, sent) = self.send_parts(&path, &id, first, &mut body).await?;
            body.confirm(sent, &self.action).await?;
            self.complete(&id, &etags).await?;
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

    async fn send_parts(
        &self,
        path: &Path,
        id: &String,
        first: Bytes,
        body: &mut Body,
    ) -> Result<(Vec<String>, u64)> {
        let mut running = FuturesOrdered::new();
        let (mut etags, mut sent, mut count, mut part) = (Vec::new(), 0, 0, first);
        while !part.is_empty() {
            sent += part.len() as u64;
            let content = mem::take(&mut part);
            running.push_back(self.client.store.put_part(path, id, count, content.into()));
            count += 1;
            if running.len() == PARALLEL_PARTS {
                etags.extend(running.next().await.map(|part| self.etag(part)).transpose()?);
            }
            part = body.next_part(PART_SIZE, &self.action).await?;
        }
        while let Some(part) = running.next().await {
            etags.push(self.etag(part)?);
        }
        Ok((etags, sent))
    }

    fn etag(&self, part: object_store::Result<PartId>) -> Result<String> {
        part.map(|part| part.content_id)
            .map_err(|e| from_library(e, &self.action))
    }

    /// The library's own completion would overwrite an existing object.
    async fn complete(&self, id: &str, etags: &[String]) -> Result<()> {
        let call = Call {
            method: Method::POST,
            key: &self.key,
            query: vec![("uploadId", id)],
            headers: HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_static("*"))]),
            body: xml::complete_request(etags).into(),
            about_content: true,
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
        let text = |name: &str| {
            headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned)
        };
        if text(&format!("x-amz-meta-{TOKEN}")).is_none_or(|token| token != self.token) {
            return Err(Error::new(Class::AlreadyExists, &self.action, ""));
        }
        let size = text("content-length").and_then(|length| length.parse().ok());
        if size != Some(sent) {
            let detail = format!("sent {sent} bytes, the store shows {size:?}");
            return Err(Error::new(Class::Corrupt, &self.action, detail));
        }
        let modified = text("last-modified").and_then(|t| jiff::fmt::rfc2822::parse(&t).ok());
        Ok(Object {
            key: self.key.clone(),
            size: sent,
            etag: text("etag"),
            last_modified: modified.map(|t| t.timestamp()),
            version: text("x-amz-version-id"),
            immutable_until: text("x-amz-object-lock-retain-until-date").and_then(|t| t.parse().ok()),
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
