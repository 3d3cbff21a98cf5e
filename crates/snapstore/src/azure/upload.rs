//! One upload to Azure: in one request, or as blocks that are committed at the end. Blocks that are never committed
//! vanish after a week.

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use md5::{Digest as _, Md5};

use super::{client::Client, describe, xml};
use crate::{
    body::{Content, Seal},
    error::{Class, Result},
    request::{Call, text},
    upload::{Checksum, Found, Ticket, Upload, or_verify, send_parts},
};

/// Metadata names are identifiers of C#: no dash.
const TOKEN: HeaderName = HeaderName::from_static("x-ms-meta-uploadtoken");
const BLOB_TYPE: HeaderName = HeaderName::from_static("x-ms-blob-type");
const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

pub(super) struct AzureUpload<'a> {
    pub client: &'a Client,
    pub ticket: Ticket,
}

#[async_trait]
impl Upload for AzureUpload<'_> {
    fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    async fn put(&self, content: Bytes) -> Result<()> {
        let mut headers = self.headers();
        headers.insert(BLOB_TYPE, HeaderValue::from_static("BlockBlob"));
        self.send(headers, Vec::new(), content).await
    }

    async fn put_parts(&self, first: Bytes, content: Content, seal: Seal) -> Result<u64> {
        let action = &self.ticket.action;
        let send_one = |number, part| self.send_block(number, part);
        let (blocks, sent) = send_parts(first, content, action, send_one).await?;
        seal.check(sent, action).await?;
        let list = quick_xml::se::to_string(&xml::BlockList { blocks: &blocks });
        let list = list.map_err(|e| self.ticket.error(Class::Other, e.to_string()))?;
        or_verify(
            self.send(self.headers(), vec![("comp", "blocklist")], list.into())
                .await,
        )?;
        Ok(sent)
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
                    checksum: text(response.headers(), CONTENT_MD5.as_str()).and_then(checksum),
                    token,
                }))
            }
            Err(e) if e.class() == Class::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

fn checksum(text: &str) -> Option<Checksum> {
    let bytes = BASE64_STANDARD.decode(text).ok()?;
    Some(Checksum::Md5(bytes.try_into().ok()?))
}

impl AzureUpload<'_> {
    /// Headers of the request that makes the blob.
    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_static("*"))]);
        let token = HeaderValue::from_str(&self.ticket.token);
        headers.extend(token.ok().map(|token| (TOKEN, token)));
        headers
    }

    /// Identifiers of all blocks of a blob have the same length; ours don't mix with those of another upload.
    async fn send_block(&self, number: usize, content: Bytes) -> Result<String> {
        let id = BASE64_STANDARD.encode(format!("{}-{number:06}", self.ticket.token));
        self.send(
            HeaderMap::new(),
            vec![("comp", "block"), ("blockid", &id)],
            content,
        )
        .await?;
        Ok(id)
    }

    async fn send(
        &self,
        mut headers: HeaderMap,
        query: Vec<(&'static str, &str)>,
        body: Bytes,
    ) -> Result<()> {
        let Ticket { key, action, .. } = &self.ticket;
        let sum = HeaderValue::try_from(BASE64_STANDARD.encode(Md5::digest(&body)));
        headers.extend(sum.ok().map(|sum| (CONTENT_MD5, sum)));
        let call = Call {
            method: Method::PUT,
            path: key,
            query,
            headers,
            body,
            ..Call::default()
        };
        self.client.send(call, action).await.map(drop)
    }
}
