//! One upload to S3. 10 000 parts are allowed: 80 GiB.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use tracing::warn;

use super::{
    client::{Client, Digest},
    head, xml,
};
use crate::{
    body::{Content, Seal},
    error::{Class, Result},
    listing::Object,
    request::{Call, length, text, time},
    upload::{Checksum, Found, Ticket, Upload, or_verify, send_parts},
};

const TOKEN: HeaderName = HeaderName::from_static("x-amz-meta-upload-token");
const ALGORITHM: HeaderName = HeaderName::from_static("x-amz-checksum-algorithm");

/// Waits before the tries to complete an upload.
const COMPLETION_PAUSES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

pub(super) struct S3Upload<'a> {
    pub client: &'a Client,
    pub ticket: Ticket,
}

#[async_trait]
impl Upload for S3Upload<'_> {
    fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    async fn put(&self, content: Bytes) -> Result<()> {
        let mut headers = self.headers();
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
        match self.put_with(headers, content.clone()).await {
            // A store without conditional requests.
            Err(e) if e.class() == Class::Unsupported => match self.look().await? {
                Some(_) => Err(self.ticket.error(Class::AlreadyExists, "")),
                None => self.put_with(self.headers(), content).await,
            },
            result => result,
        }
    }

    async fn put_parts(&self, first: Bytes, content: Content, seal: Seal) -> Result<u64> {
        let Ticket { key, action, .. } = &self.ticket;
        let id = self.begin().await?;
        let sent = async {
            let send_one = |number, part| self.send_part(&id, number, part);
            let (parts, sent) = send_parts(first, content, action, send_one).await?;
            seal.check(sent, action).await?;
            self.complete(&id, &parts).await?;
            Ok(sent)
        }
        .await;
        if let Err(error) = &sent {
            warn!(%error, key, "upload failed, dropping its parts");
            let aborted = abort(self.client, key, &id).await;
            aborted.unwrap_or_else(|error| warn!(%error, key, "parts are left"));
        }
        sent
    }

    async fn look(&self) -> Result<Option<Found>> {
        let headers = head(self.client, &self.ticket.key, None).await?;
        Ok(headers.map(|headers| Found {
            token: text(&headers, TOKEN.as_str()).map(str::to_owned),
            object: describe(&self.ticket.key, &headers),
            checksum: text(&headers, "etag").and_then(Checksum::of_etag),
        }))
    }
}

impl S3Upload<'_> {
    /// Headers of the request that makes the object.
    fn headers(&self) -> HeaderMap {
        let mut headers = self.client.encryption.clone();
        let token = HeaderValue::from_str(&self.ticket.token);
        headers.extend(token.ok().map(|token| (TOKEN, token)));
        headers
    }

    async fn put_with(&self, headers: HeaderMap, content: Bytes) -> Result<()> {
        let Ticket { key, action, .. } = &self.ticket;
        let digest = Digest::of(&content);
        let call = Call {
            method: Method::PUT,
            path: key,
            headers,
            body: content,
            ..Call::default()
        };
        self.client.send_content(call, digest, action).await.map(drop)
    }

    async fn begin(&self) -> Result<String> {
        let Ticket { key, action, .. } = &self.ticket;
        let mut headers = self.headers();
        if self.client.checksums {
            headers.insert(ALGORITHM, HeaderValue::from_static("SHA256"));
        }
        let query = vec![("uploads", "")];
        let call = Call {
            method: Method::POST,
            path: key,
            query,
            headers,
            ..Call::default()
        };
        let begun = self.client.fetch(call, action).await?;
        Ok(xml::parse::<xml::Begun>(&begun, action)?.upload_id)
    }

    async fn send_part(&self, id: &str, number: usize, content: Bytes) -> Result<xml::Part> {
        let Ticket { key, action, .. } = &self.ticket;
        let digest = Digest::of(&content);
        let part_number = number.to_string();
        let call = Call {
            method: Method::PUT,
            path: key,
            query: vec![("partNumber", &part_number), ("uploadId", id)],
            headers: self.client.customer_key.clone(),
            body: content,
            ..Call::default()
        };
        let response = self.client.send_content(call, digest, action).await?;
        let etag = text(response.headers(), "etag").ok_or_else(|| {
            self.ticket
                .error(Class::Other, format!("the store gave no etag for part {number}"))
        })?;
        let checksum = self.client.checksums.then(|| digest.base64());
        Ok(xml::Part {
            number,
            etag: etag.to_owned(),
            checksum,
        })
    }

    async fn complete(&self, id: &str, parts: &[xml::Part]) -> Result<()> {
        let document = xml::Complete::document(parts, &self.ticket.action)?;
        let mut complaint = String::new();
        for pause in COMPLETION_PAUSES {
            tokio::time::sleep(pause).await;
            match self.try_complete(id, document.clone()).await {
                // The upload is over: a request whose answer was lost has completed it.
                Err(e) if e.class() == Class::NotFound => return Ok(()),
                Err(e) => return Err(e),
                Ok(None) => return Ok(()),
                Ok(Some(code)) => complaint = code,
            }
            warn!(
                complaint,
                key = self.ticket.key,
                "the store could not complete the upload"
            );
        }
        Err(self.ticket.error(Class::Unavailable, complaint))
    }

    /// Returns the error that comes with status 200, since the store answers before it is done.
    async fn try_complete(&self, id: &str, document: String) -> Result<Option<String>> {
        let Ticket { key, action, .. } = &self.ticket;
        let mut headers = self.client.customer_key.clone();
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
        let query = vec![("uploadId", id)];
        let body = document.into();
        let call = Call {
            method: Method::POST,
            path: key,
            query,
            headers,
            body,
            ..Call::default()
        };
        let answer = or_verify(self.client.fetch(call, action).await)?;
        if answer.is_empty() {
            return Ok(None);
        }
        let xml::Completed { code, message } = xml::completed(&answer, action)?;
        Ok(code.map(|code| format!("{code}: {}", message.unwrap_or_default())))
    }
}

fn describe(key: &str, headers: &HeaderMap) -> Object {
    let retained = text(headers, "x-amz-object-lock-retain-until-date");
    Object {
        key: key.to_owned(),
        size: length(headers).unwrap_or_default(),
        etag: text(headers, "etag").map(str::to_owned),
        last_modified: time(headers, "last-modified"),
        version: text(headers, "x-amz-version-id").map(str::to_owned),
        immutable_until: retained.and_then(|t| t.parse().ok()),
    }
}

pub(super) async fn abort(client: &Client, key: &str, upload_id: &str) -> Result<()> {
    let action = format!("abort the upload of s3 object {key}");
    let query = vec![("uploadId", upload_id)];
    let call = Call {
        method: Method::DELETE,
        path: key,
        query,
        ..Call::default()
    };
    match client.send(call, &action).await {
        Err(e) if e.class() != Class::NotFound => Err(e),
        _ => Ok(()),
    }
}
