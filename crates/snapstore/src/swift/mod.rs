//! OpenStack Swift.
//!
//! Large objects are manifests with segments below `<name>/`. In listings the segments are taken together with their
//! manifest; those without one are leftovers. Manifests of both kinds (static and dynamic) are read and deleted.

mod client;
mod identity;
mod upload;

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use async_trait::async_trait;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{HeaderMap, Method};
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use serde::Deserialize;

use self::{client::Client, upload::SwiftUpload};
use crate::{
    body::{Body, ByteStream},
    config::StoreConfig,
    error::{Class, Error, Result},
    listing::{Listing, Object, Raw},
    pages::Pages,
    reload::Reloading,
    request::{Call, length, text, time},
    store::{Immutability, SnapStore},
    upload::{Ticket, Upload as _},
};

/// Objects on a page of a listing.
const PAGE: &str = "10000";

/// Segments that are deleted at once.
const PARALLEL_DELETES: usize = 8;

/// A container of Swift.
#[derive(Debug)]
pub(crate) struct SwiftStore {
    clients: Reloading<Client>,
    prefix: String,
    location: String,
}

/// An entry of a listing.
#[derive(Debug, Deserialize)]
struct Entry {
    name: String,
    bytes: u64,
    hash: Option<String>,
    /// UTC, without saying so.
    last_modified: Option<DateTime>,
}

impl SwiftStore {
    pub(crate) fn open(config: &StoreConfig) -> Result<Self> {
        let prefix = config.key_prefix()?;
        let location = format!("swift://{}/{prefix}", config.container()?);
        let owned = config.clone();
        let clients = Reloading::new(client::files(config), move || Client::new(&owned))?;
        Ok(Self {
            clients,
            prefix,
            location,
        })
    }
}

#[async_trait]
impl SnapStore for SwiftStore {
    fn location(&self) -> &str {
        &self.location
    }

    async fn list(&self) -> Result<Listing> {
        let client = self.clients.get();
        let action = format!("list {}", self.location);
        let mut found = Vec::new();
        for folder in ["v1", "v2"] {
            found.extend(list_below(&client, &format!("{}{folder}/", self.prefix), &action).await?);
        }
        let found = with_segments(found);
        Ok(Listing::classify(
            &self.prefix,
            found.into_iter().map(|object| Raw {
                object,
                excluded: false,
            }),
        ))
    }

    async fn put_object(&self, file: &str, body: Body) -> Result<Object> {
        let client = self.clients.get();
        let ticket = Ticket::new(format!("{}v2/{file}", self.prefix), &body);
        SwiftUpload::new(&client, ticket).run(self, body).await
    }

    async fn get(&self, object: &Object, range: Option<Range<u64>>) -> Result<ByteStream> {
        client::read(self.clients.get(), object, range).await
    }

    /// First what makes the object one, then its segments: what may be left in between are leftovers.
    async fn delete(&self, object: &Object) -> Result<()> {
        let client = self.clients.get();
        let action = format!("delete {}", object.key);
        let segments = list_below(&client, &format!("{}/", object.key), &action).await?;
        let segments = segments.into_iter().map(|segment| segment.key);
        delete_each(&client, vec![object.key.clone()]).await?;
        delete_each(&client, segments.collect()).await
    }

    async fn immutability(&self) -> Result<Immutability> {
        Ok(Immutability::default())
    }

    /// Segments without a manifest are in the listing, as chunks.
    async fn abort_stale_uploads(&self, _started_before: Timestamp) -> Result<u64> {
        Ok(0)
    }
}

async fn list_below(client: &Client, prefix: &str, action: &str) -> Result<Vec<Object>> {
    let (mut objects, mut pages) = (Vec::<Object>::new(), Pages::new(action, prefix));
    loop {
        let marker = objects.last().map(|last| last.key.clone()).unwrap_or_default();
        let query = vec![
            ("format", "json"),
            ("limit", PAGE),
            ("prefix", prefix),
            ("marker", &marker),
        ];
        let page = client
            .fetch(
                Call {
                    query,
                    ..Call::default()
                },
                action,
            )
            .await
            .map_err(Error::of_bucket)?;
        let page: Vec<Entry> = serde_json::from_slice(&page)
            .map_err(|e| Error::new(Class::BadResponse, action, format!("answer not understood: {e}")))?;
        pages.check(page.iter().map(|entry| entry.name.as_str()))?;
        if page.is_empty() {
            return Ok(objects);
        }
        objects.extend(page.into_iter().map(Object::from));
    }
}

/// Drops the segments of manifests, whose own size is that of a list or nothing, and adds up their sizes instead.
fn with_segments(objects: Vec<Object>) -> Vec<Object> {
    let keys: HashMap<&str, usize> = objects
        .iter()
        .enumerate()
        .map(|(at, object)| (object.key.as_str(), at))
        .collect();
    let manifest_of = |object: &Object| keys.get(object.key.rsplit_once('/')?.0).copied();
    let manifests: Vec<_> = objects.iter().map(manifest_of).collect();
    let mut sizes = BTreeMap::<usize, u64>::new();
    for (object, manifest) in objects.iter().zip(&manifests) {
        if let Some(at) = manifest {
            *sizes.entry(*at).or_default() += object.size;
        }
    }
    let whole = objects
        .into_iter()
        .zip(manifests)
        .enumerate()
        .filter(|(_, (_, manifest))| manifest.is_none());
    whole
        .map(|(at, (object, _))| Object {
            size: sizes.get(&at).copied().unwrap_or(object.size),
            ..object
        })
        .collect()
}

async fn delete_each(client: &Client, keys: Vec<String>) -> Result<()> {
    let delete = |key: String| async move {
        let call = Call {
            method: Method::DELETE,
            path: &key,
            ..Call::default()
        };
        match client.send(call, &format!("delete {key}")).await {
            Err(e) if e.class() != Class::NotFound => Err(e),
            _ => Ok(()),
        }
    };
    stream::iter(keys)
        .map(delete)
        .buffer_unordered(PARALLEL_DELETES)
        .try_collect()
        .await
}

impl From<Entry> for Object {
    fn from(entry: Entry) -> Self {
        let modified = entry
            .last_modified
            .and_then(|time| time.to_zoned(TimeZone::UTC).ok());
        Self {
            key: entry.name,
            size: entry.bytes,
            etag: entry.hash,
            last_modified: modified.map(|time| time.timestamp()),
            version: None,
            immutable_until: None,
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
        immutable_until: None,
    }
}
