//! Google Cloud Storage.

mod client;
mod identity;
mod upload;

use std::{collections::BTreeMap, ops::Range};

use async_trait::async_trait;
use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use tracing::warn;

use self::{client::Client, upload::GcsUpload};
use crate::{
    body::{Body, ByteStream},
    config::StoreConfig,
    error::{Class, Error, Result},
    listing::{EXCLUDE_MARK, Listing, Object, Raw},
    pages::Pages,
    reload::Reloading,
    request::Call,
    store::{Immutability, SnapStore},
    transport,
    upload::{Ticket, Upload as _},
};

/// A bucket of Google Cloud Storage.
#[derive(Debug)]
pub(crate) struct GcsStore {
    clients: Reloading<Client>,
    prefix: String,
    location: String,
}

/// An object, <https://cloud.google.com/storage/docs/json_api/v1/objects>.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Resource {
    name: String,
    size: String,
    etag: Option<String>,
    generation: Option<String>,
    crc32c: Option<String>,
    updated: Option<Timestamp>,
    retention_expiration_time: Option<Timestamp>,
    temporary_hold: bool,
    event_based_hold: bool,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Page {
    kind: String,
    items: Vec<Resource>,
    next_page_token: Option<String>,
}

/// What a page of a listing says that it is.
const LIST_KIND: &str = "storage#objects";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Bucket {
    versioning: Versioning,
    retention_policy: Option<RetentionPolicy>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Versioning {
    enabled: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RetentionPolicy {
    /// Seconds.
    retention_period: String,
}

impl GcsStore {
    pub(crate) fn open(config: &StoreConfig) -> Result<Self> {
        let prefix = config.key_prefix()?;
        let location = format!("gs://{}/{prefix}", config.container()?);
        let owned = config.clone();
        let clients = Reloading::new(client::files(config), move || Client::new(&owned))?;
        Ok(Self {
            clients,
            prefix,
            location,
        })
    }

    async fn list_folder(&self, client: &Client, folder: &str) -> Result<Vec<Resource>> {
        let action = format!("list {}", self.location);
        let prefix = format!("{}{folder}/", self.prefix);
        let (mut objects, mut pages) = (Vec::new(), Pages::new(&action, &prefix));
        let mut token: Option<String> = None;
        loop {
            let mut query = vec![("prefix", prefix.as_str())];
            query.extend(token.as_deref().map(|token| ("pageToken", token)));
            let call = Call {
                path: &client.objects,
                query,
                ..Call::default()
            };
            let page: Page = client.fetch(call, &action).await.map_err(Error::of_bucket)?;
            let bad = |detail: String| Error::new(Class::BadResponse, &action, detail);
            if page.kind != LIST_KIND {
                return Err(bad(format!("the answer is no {LIST_KIND}")));
            }
            pages.check(page.items.iter().map(|resource| resource.name.as_str()))?;
            if let Some(odd) = page
                .items
                .iter()
                .find(|resource| resource.size.parse::<u64>().is_err())
            {
                return Err(bad(format!("{:?} has no size", odd.name)));
            }
            objects.extend(page.items);
            token = pages.next_by_token(page.next_page_token)?;
            if token.is_none() {
                return Ok(objects);
            }
        }
    }
}

#[async_trait]
impl SnapStore for GcsStore {
    fn location(&self) -> &str {
        &self.location
    }

    async fn list(&self) -> Result<Listing> {
        let client = self.clients.get();
        let mut found = Vec::new();
        for folder in ["v1", "v2"] {
            found.extend(self.list_folder(&client, folder).await?);
        }
        Ok(Listing::classify(
            &self.prefix,
            found.into_iter().map(|resource| {
                let excluded = resource
                    .metadata
                    .get(EXCLUDE_MARK)
                    .is_some_and(|value| value == "true");
                Raw {
                    object: resource.into(),
                    excluded,
                }
            }),
        ))
    }

    async fn put_object(&self, file: &str, body: Body) -> Result<Object> {
        let client = self.clients.get();
        let ticket = Ticket::new(format!("{}v2/{file}", self.prefix), &body);
        GcsUpload {
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
            path: &client.objects,
            step: &object.key,
            ..Call::default()
        };
        match client.send(call, &action).await {
            Err(e) if e.class() != Class::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    async fn immutability(&self) -> Result<Immutability> {
        let client = self.clients.get();
        let action = format!("read the retention policy of {}", self.location);
        let call = Call {
            path: &client.bucket,
            ..Call::default()
        };
        match client.fetch::<Bucket>(call, &action).await {
            Ok(bucket) => {
                let seconds = bucket
                    .retention_policy
                    .and_then(|policy| policy.retention_period.parse().ok());
                let retention = seconds.map(SignedDuration::from_secs);
                Ok(Immutability {
                    versioned: bucket.versioning.enabled,
                    retention,
                })
            }
            Err(error) if error.class() == Class::AccessDenied => {
                warn!(%error, "retention policy of the bucket is unknown");
                Ok(Immutability::default())
            }
            Err(error) => Err(error.of_bucket()),
        }
    }

    /// Sessions leave nothing that could be listed, and end by themselves after a week.
    async fn abort_stale_uploads(&self, _started_before: Timestamp) -> Result<u64> {
        Ok(0)
    }
}

impl From<Resource> for Object {
    fn from(resource: Resource) -> Self {
        let is_held = resource.temporary_hold || resource.event_based_hold;
        Self {
            key: resource.name,
            size: resource.size.parse().unwrap_or_default(),
            etag: resource.etag,
            last_modified: resource.updated,
            version: None,
            // A hold has no end but by hand.
            immutable_until: if is_held {
                Some(Timestamp::MAX)
            } else {
                resource.retention_expiration_time
            },
        }
    }
}
