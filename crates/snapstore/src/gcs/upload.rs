//! One upload to Google: in one request with its checksum, or part after part in a session. A session's object comes
//! into being with the last part.

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::{Buf as _, Bytes};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use object_store::client::HttpResponse;
use serde_json::json;
use tracing::warn;

use super::{
    Resource,
    client::{Client, parse},
};
use crate::{
    body::{Content, Seal},
    error::{Class, Error, Result},
    request::{self, Call, text},
    upload::{Checksum, Found, PART_SIZE, Ticket, Upload, or_verify},
};

pub(super) const TOKEN: &str = "upload-token";

/// How often the rest of a part is sent that the store took only partly.
const REPEATS: usize = 5;

pub(super) struct GcsUpload<'a> {
    pub client: &'a Client,
    pub ticket: Ticket,
}

#[async_trait]
impl Upload for GcsUpload<'_> {
    fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    async fn put(&self, content: Bytes) -> Result<()> {
        let Ticket { key, token, action } = &self.ticket;
        let sum = base64(crc32c::crc32c(&content));
        let resource = json!({ "name": key, "crc32c": sum, "metadata": { TOKEN: token } });
        // The token is random, so that no content holds it by accident.
        let head = format!(
            "--{token}\r\ncontent-type: application/json\r\n\r\n{resource}\r\n\
             --{token}\r\ncontent-type: application/octet-stream\r\n\r\n"
        );
        let body = [
            head.as_bytes(),
            &content,
            format!("\r\n--{token}--\r\n").as_bytes(),
        ]
        .concat();
        let query = vec![("uploadType", "multipart"), ("ifGenerationMatch", "0")];
        let headers = content_type(&format!("multipart/related; boundary={token}"));
        let path = &self.client.uploads;
        let call = Call {
            method: Method::POST,
            path,
            query,
            headers,
            body: body.into(),
            ..Call::default()
        };
        self.client
            .send(call, action)
            .await
            .map(drop)
            .map_err(Error::of_bucket)
    }

    async fn put_parts(&self, first: Bytes, content: Content, seal: Seal) -> Result<u64> {
        let session = self.begin().await?;
        let sent = self.send_all(&session, first, content, seal).await;
        if let Err(error) = &sent {
            warn!(%error, key = self.ticket.key, "upload failed, ending its session");
            // Answered by a status of its own that means success here; a session that stays ends after a week.
            self.request(&session, Method::DELETE, Bytes::new(), HeaderMap::new())
                .await
                .ok();
        }
        sent
    }

    async fn look(&self) -> Result<Option<Found>> {
        let Ticket { key, action, .. } = &self.ticket;
        let call = Call {
            path: &self.client.objects,
            step: key,
            ..Call::default()
        };
        match self.client.fetch::<Resource>(call, action).await {
            Ok(resource) => {
                let token = resource.metadata.get(TOKEN).cloned();
                let checksum = resource.crc32c.as_deref().and_then(checksum);
                Ok(Some(Found {
                    checksum,
                    object: resource.into(),
                    token,
                }))
            }
            Err(e) if e.class() == Class::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Where a session stands.
enum Session {
    /// So many bytes are with the store.
    Has(u64),
    Done(Resource),
}

impl GcsUpload<'_> {
    /// Returns the address of the session.
    async fn begin(&self) -> Result<String> {
        let Ticket { key, token, action } = &self.ticket;
        let query = vec![("uploadType", "resumable"), ("ifGenerationMatch", "0")];
        let body = json!({ "name": key, "metadata": { TOKEN: token } })
            .to_string()
            .into();
        let headers = content_type("application/json");
        let path = &self.client.uploads;
        let call = Call {
            method: Method::POST,
            path,
            query,
            headers,
            body,
            ..Call::default()
        };
        let response = self.client.send(call, action).await.map_err(Error::of_bucket)?;
        let session = text(response.headers(), header::LOCATION.as_str());
        let session =
            session.ok_or_else(|| self.ticket.error(Class::BadResponse, "the store gave no session"))?;
        if !self.client.is_ours(session) {
            let detail = "the store wants the content and the token at another host, which don't go there";
            return Err(self.ticket.error(Class::InvalidConfig, detail));
        }
        Ok(session.to_owned())
    }

    async fn send_all(&self, session: &str, first: Bytes, mut content: Content, seal: Seal) -> Result<u64> {
        let (mut part, mut offset, mut sum) = (first, 0, 0);
        loop {
            let next = content.next_part(PART_SIZE, &self.ticket.action).await?;
            let end = offset + part.len() as u64;
            sum = crc32c::crc32c_append(sum, &part);
            if next.is_empty() {
                seal.check(end, &self.ticket.action).await?;
                let done = or_verify(self.send_part(session, offset, part, Some(end)).await.map(Some))?;
                if let Some(Session::Done(resource)) = done {
                    self.compare(&resource, &base64(sum)).await?;
                }
                return Ok(end);
            }
            self.send_part(session, offset, part, None).await?;
            (part, offset) = (next, end);
        }
    }

    /// Sends a part and, where the store takes less, its rest.
    async fn send_part(
        &self,
        session: &str,
        offset: u64,
        mut part: Bytes,
        total: Option<u64>,
    ) -> Result<Session> {
        let mut from = offset;
        for _ in 0..REPEATS {
            let end = from + part.len() as u64;
            match self.send_range(session, from, part.clone(), total).await? {
                Session::Has(at) if total.is_none() && at == end => return Ok(Session::Has(at)),
                Session::Has(at) if (from..end).contains(&at) => {
                    part.advance(usize::try_from(at - from).unwrap_or(part.len()));
                    from = at;
                }
                Session::Has(at) => {
                    let detail = format!("the store has {at} bytes when {end} were sent");
                    return Err(self.ticket.error(Class::Corrupt, detail));
                }
                done @ Session::Done(_) => return Ok(done),
            }
        }
        Err(self
            .ticket
            .error(Class::Unavailable, "the store takes no more of the content"))
    }

    async fn send_range(&self, session: &str, from: u64, part: Bytes, total: Option<u64>) -> Result<Session> {
        let last = from + part.len() as u64 - 1;
        let total = total.map_or_else(|| "*".to_owned(), |total| total.to_string());
        let range = HeaderValue::try_from(format!("bytes {from}-{last}/{total}"));
        let headers = HeaderMap::from_iter(range.ok().map(|range| (header::CONTENT_RANGE, range)));
        let response = self.request(session, Method::PUT, part, headers).await?;
        if response.status() == StatusCode::PERMANENT_REDIRECT {
            let range = text(response.headers(), header::RANGE.as_str());
            let last = range.and_then(|range| range.rsplit('-').next()?.parse::<u64>().ok());
            return Ok(Session::Has(last.map_or(0, |last| last + 1)));
        }
        let body = request::read(response, &self.ticket.action).await?;
        Ok(Session::Done(parse(&body, &self.ticket.action)?))
    }

    async fn request(
        &self,
        session: &str,
        method: Method,
        body: Bytes,
        headers: HeaderMap,
    ) -> Result<HttpResponse> {
        let call = Call {
            method,
            headers,
            body,
            ..Call::default()
        };
        let request = call.request_to(session, &self.ticket.action)?;
        self.client.execute(request, &self.ticket.action).await
    }

    /// The checksum of a session's content is known at its end only: what doesn't fit is taken away again.
    async fn compare(&self, resource: &Resource, sum: &str) -> Result<()> {
        let Ticket { key, action, .. } = &self.ticket;
        if resource.crc32c.as_deref().is_none_or(|found| found == sum) {
            return Ok(());
        }
        let query = resource
            .generation
            .as_deref()
            .map(|generation| ("generation", generation));
        let query = query.into_iter().collect();
        let call = Call {
            method: Method::DELETE,
            path: &self.client.objects,
            step: key,
            query,
            ..Call::default()
        };
        let deleted = self.client.send(call, action).await;
        let state = deleted.map_or("could not be deleted", |_| "was deleted");
        Err(self.ticket.error(
            Class::Corrupt,
            format!("the store has other content than was sent; it {state}"),
        ))
    }
}

fn content_type(value: &str) -> HeaderMap {
    HeaderMap::from_iter(
        HeaderValue::try_from(value)
            .ok()
            .map(|value| (header::CONTENT_TYPE, value)),
    )
}

fn checksum(text: &str) -> Option<Checksum> {
    let bytes = BASE64_STANDARD.decode(text).ok()?;
    Some(Checksum::Crc32c(u32::from_be_bytes(bytes.try_into().ok()?)))
}

/// A CRC-32C as Google writes it.
fn base64(sum: u32) -> String {
    BASE64_STANDARD.encode(sum.to_be_bytes())
}
