//! OpenStack Swift.
//!
//! Large objects are manifests with segments below `<name>/`. In listings the segments are taken together with their
//! manifest; those without one are leftovers. Manifests of both kinds (static and dynamic) are read and deleted.
//! Segments of another upload of the same name may lie there too, and listings are only eventually consistent: how long
//! a large object is, the store is asked, once.

mod client;
mod identity;
mod upload;

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::{Mutex, PoisonError},
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

/// Segments that are deleted at once, and large objects that are asked for at once.
const AT_ONCE: usize = 8;

/// A container of Swift.
#[derive(Debug)]
pub(crate) struct SwiftStore {
    clients: Reloading<Client>,
    prefix: String,
    location: String,
    /// Bytes of the large objects that were listed last, by what the listing says of them.
    sizes: Mutex<HashMap<Listed, u64>>,
}

/// What a listing says of a manifest: key, ETag, and when it was written.
type Listed = (String, Option<String>, Option<Timestamp>);

fn listed(object: &Object) -> Listed {
    (object.key.clone(), object.etag.clone(), object.last_modified)
}

/// An entry of a listing.
#[derive(Debug, Deserialize)]
struct Entry {
    name: String,
    bytes: u64,
    hash: Option<String>,
    /// Manifests of static large objects have it.
    slo_etag: Option<String>,
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
            sizes: Mutex::default(),
        })
    }

    /// Puts in the size of large objects. One that is gone by now keeps that of its manifest.
    async fn with_sizes(&self, client: &Client, found: Vec<Found>, action: &str) -> Result<Vec<Object>> {
        let known = std::mem::take(&mut *self.sizes.lock().unwrap_or_else(PoisonError::into_inner));
        let known = &known;
        let sized = found.into_iter().map(|Found { object, is_large }| async move {
            if !is_large {
                return Ok((object, None));
            }
            let size = match known.get(&listed(&object)) {
                Some(size) => Some(*size),
                None => head(client, &object.key, action).await?,
            };
            Ok::<_, Error>((object, size))
        });
        let sized: Vec<_> = stream::iter(sized).buffered(AT_ONCE).try_collect().await?;
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        let with_size = |(object, size): (Object, Option<u64>)| {
            sizes.extend(size.map(|size| (listed(&object), size)));
            let size = size.unwrap_or(object.size);
            Object { size, ..object }
        };
        Ok(sized.into_iter().map(with_size).collect())
    }
}

/// Bytes of an object, `None` if there is none.
async fn head(client: &Client, key: &str, action: &str) -> Result<Option<u64>> {
    let call = Call {
        method: Method::HEAD,
        path: key,
        ..Call::default()
    };
    match client.send(call, action).await {
        Ok(response) => Ok(Some(describe(key, response.headers()).size)),
        Err(e) if e.class() == Class::NotFound => Ok(None),
        Err(e) => Err(e),
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
        let found = self.with_sizes(&client, without_segments(found), &action).await?;
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
        let segments = segments.into_iter().map(|segment| segment.object.key);
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

async fn list_below(client: &Client, prefix: &str, action: &str) -> Result<Vec<Found>> {
    let (mut found, mut pages) = (Vec::<Found>::new(), Pages::new(action, prefix));
    loop {
        let marker = found.last().map(|last| last.object.key.clone());
        let marker = marker.unwrap_or_default();
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
            return Ok(found);
        }
        found.extend(page.into_iter().map(Found::from));
    }
}

/// An object of a listing.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    object: Object,
    /// Whether it is a manifest: the listing has its own size then, which is that of a list, or nothing.
    is_large: bool,
}

/// Drops the segments of manifests. Dynamic ones show by their segments only.
fn without_segments(all: Vec<Found>) -> Vec<Found> {
    let keys: HashSet<&str> = all.iter().map(|found| found.object.key.as_str()).collect();
    let manifest_of = |found: &Found| {
        let (manifest, _) = found.object.key.rsplit_once('/')?;
        keys.contains(manifest).then(|| manifest.to_owned())
    };
    let manifests: Vec<_> = all.iter().map(manifest_of).collect();
    let large: HashSet<_> = manifests.iter().flatten().cloned().collect();
    let whole = all.into_iter().zip(manifests);
    let whole = whole.filter(|(_, manifest)| manifest.is_none());
    whole
        .map(|(Found { object, is_large }, _)| Found {
            is_large: is_large || large.contains(&object.key),
            object,
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
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

impl From<Entry> for Found {
    fn from(entry: Entry) -> Self {
        let modified = entry
            .last_modified
            .and_then(|time| time.to_zoned(TimeZone::UTC).ok());
        let object = Object {
            key: entry.name,
            size: entry.bytes,
            etag: entry.hash,
            last_modified: modified.map(|time| time.timestamp()),
            version: None,
            immutable_until: None,
        };
        Self {
            object,
            is_large: entry.slo_etag.is_some(),
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
