//! Azure Blob Storage.

mod client;
mod upload;
mod xml;

use std::ops::Range;

use async_trait::async_trait;
use http::{HeaderMap, Method};
use jiff::Timestamp;
use tracing::warn;

use self::{client::Client, upload::AzureUpload};
use crate::{
    body::{Body, ByteStream},
    config::StoreConfig,
    document,
    error::{Class, Result},
    listing::{EXCLUDE_MARK, Listing, Object, Raw},
    pages::Pages,
    reload::Reloading,
    request::{Call, length, text, time},
    store::{Immutability, SnapStore},
    transport,
    upload::{Ticket, Upload as _},
};

/// What a listing tells besides names; reading tags needs a right of its own.
const DETAILS: &str = "immutabilitypolicy,legalhold";
const DETAILS_AND_TAGS: &str = "immutabilitypolicy,legalhold,tags";

/// A container of Azure Blob Storage.
#[derive(Debug)]
pub(crate) struct AzureStore {
    clients: Reloading<Client>,
    prefix: String,
    location: String,
}

impl AzureStore {
    pub(crate) fn open(config: &StoreConfig) -> Result<Self> {
        let prefix = config.key_prefix()?;
        let location = format!("azure://{}/{prefix}", config.container()?);
        let owned = config.clone();
        let clients = Reloading::new(client::files(config), move || Client::new(&owned))?;
        Ok(Self {
            clients,
            prefix,
            location,
        })
    }

    async fn list_folder(&self, client: &Client, folder: &str) -> Result<Vec<xml::Blob>> {
        let prefix = format!("{}{folder}/", self.prefix);
        let action = format!("list {}", self.location);
        let mut details = DETAILS_AND_TAGS;
        let (mut blobs, mut pages) = (Vec::new(), Pages::new(&action, &prefix));
        let mut marker: Option<String> = None;
        loop {
            let mut query = vec![
                ("restype", "container"),
                ("comp", "list"),
                ("prefix", prefix.as_str()),
            ];
            query.push(("include", details));
            query.extend(marker.as_deref().map(|marker| ("marker", marker)));
            let page = match list_page(client, query, &action).await {
                Err(error) if error.class() == Class::AccessDenied && details == DETAILS_AND_TAGS => {
                    warn!(%error, "tags can't be read, so that excluded snapshots aren't known");
                    details = DETAILS;
                    continue;
                }
                page => page?,
            };
            pages.check(page.blobs.blobs.iter().map(|blob| blob.name.as_str()))?;
            blobs.extend(page.blobs.blobs);
            // At the end it is there, and empty.
            let is_truncated = page.next_marker.as_ref().map(|marker| !marker.is_empty());
            marker = pages.next(is_truncated, page.next_marker)?;
            if marker.is_none() {
                return Ok(blobs);
            }
        }
    }
}

async fn list_page(
    client: &Client,
    query: Vec<(&'static str, &str)>,
    action: &str,
) -> Result<xml::ListBlobs> {
    let call = Call {
        query,
        ..Call::default()
    };
    let page = client.fetch(call, action).await?;
    // The document begins with a byte order mark.
    let page = page.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&page);
    document::parse(page, "EnumerationResults", action)
}

#[async_trait]
impl SnapStore for AzureStore {
    fn location(&self) -> &str {
        &self.location
    }

    async fn list(&self) -> Result<Listing> {
        let client = self.clients.get();
        let mut found = Vec::new();
        for folder in ["v1", "v2"] {
            found.extend(self.list_folder(&client, folder).await?);
        }
        Ok(Listing::classify(&self.prefix, found.into_iter().map(Raw::from)))
    }

    async fn put_object(&self, file: &str, body: Body) -> Result<Object> {
        let client = self.clients.get();
        let ticket = Ticket::new(format!("{}v2/{file}", self.prefix), &body);
        AzureUpload {
            client: &client,
            ticket,
        }
        .run(self, body)
        .await
    }

    async fn get(&self, object: &Object, range: Option<Range<u64>>) -> Result<ByteStream> {
        let client = self.clients.get();
        transport::get(&client.store, object, range, client.rate).await
    }

    async fn delete(&self, object: &Object) -> Result<()> {
        let client = self.clients.get();
        let action = format!("delete {}", object.key);
        let call = Call {
            method: Method::DELETE,
            path: &object.key,
            ..Call::default()
        };
        match client.send(call, &action).await {
            Err(e) if e.class() != Class::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// The account's settings aren't for data users to see: what is known of protection is in listings.
    async fn immutability(&self) -> Result<Immutability> {
        Ok(Immutability::default())
    }

    /// Blocks that were never committed can't be listed, and vanish after a week.
    async fn abort_stale_uploads(&self, _started_before: Timestamp) -> Result<u64> {
        Ok(0)
    }
}

impl From<xml::Blob> for Raw {
    fn from(
        xml::Blob {
            name,
            properties,
            tags,
        }: xml::Blob,
    ) -> Self {
        let time = |text: String| jiff::fmt::rfc2822::parse(&text).ok().map(|time| time.timestamp());
        let until = properties.immutability_policy_until_date.and_then(time);
        let is_held = properties.legal_hold.unwrap_or_default();
        let tags = tags.map(|tags| tags.tag_set.tags).unwrap_or_default();
        Self {
            object: Object {
                key: name,
                size: properties.length,
                etag: properties.etag,
                last_modified: properties.last_modified.and_then(time),
                version: None,
                // A hold has no end but by hand.
                immutable_until: if is_held { Some(Timestamp::MAX) } else { until },
            },
            excluded: tags
                .iter()
                .any(|tag| tag.key == EXCLUDE_MARK && tag.value == "true"),
        }
    }
}

fn describe(key: &str, headers: &HeaderMap) -> Object {
    Object {
        key: key.to_owned(),
        size: length(headers).unwrap_or_default(),
        etag: text(headers, "etag").map(str::to_owned),
        last_modified: time(headers, "last-modified"),
        version: None,
        immutable_until: time(headers, "x-ms-immutability-policy-until-date"),
    }
}
