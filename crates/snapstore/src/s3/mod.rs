//! S3 and the stores that speak its API.
//!
//! In a versioned bucket the oldest version of a key counts: where objects are locked, later ones can only be
//! mistakes or attacks.

mod client;
mod partition;
mod settings;
mod upload;
mod xml;

use std::{collections::BTreeSet, ops::Range};

use async_trait::async_trait;
use futures::{StreamExt as _, TryStreamExt as _};
use http::{HeaderMap, Method};
use jiff::{SignedDuration, Timestamp};
use tracing::{debug, warn};

pub(crate) use self::settings::Flavor;
use self::{client::Client, settings::Settings};
use crate::{
    body::{Body, ByteStream},
    config::StoreConfig,
    error::{Class, Error, Result},
    listing::{EXCLUDE_MARK, Listing, Object, Raw},
    pages::Pages,
    reload::Reloading,
    request::{Call, text},
    store::{Immutability, SnapStore},
    transport,
    upload::{Ticket, Upload as _},
};

/// A bucket of S3 or of a store with its API.
#[derive(Debug)]
pub(crate) struct S3Store {
    clients: Reloading<Client>,
    prefix: String,
    location: String,
}

impl S3Store {
    pub(crate) fn open(config: &StoreConfig, flavor: Flavor) -> Result<Self> {
        let prefix = config.key_prefix()?;
        let location = format!("s3://{}/{prefix}", config.container()?);
        let owned = config.clone();
        let build = move || Client::new(&owned, &Settings::read(&owned, flavor)?);
        Ok(Self {
            clients: Reloading::new(Settings::files(config, flavor), build)?,
            prefix,
            location,
        })
    }

    fn action(&self, verb: &str) -> String {
        format!("{verb} {}", self.location)
    }

    async fn list_plain(&self, client: &Client, folder: &str, action: &str) -> Result<Vec<Object>> {
        let prefix = format!("{}{folder}/", self.prefix);
        let (mut objects, mut pages) = (Vec::new(), Pages::new(action, &prefix));
        let mut token: Option<String> = None;
        loop {
            let mut query = vec![("list-type", "2"), ("prefix", prefix.as_str())];
            query.extend(token.as_deref().map(|token| ("continuation-token", token)));
            let call = Call {
                query,
                ..Call::default()
            };
            let page: xml::ListObjects = xml::parse(&client.fetch(call, action).await?, action)?;
            pages.check(page.contents.iter().map(|contents| contents.key.as_str()))?;
            objects.extend(page.contents.into_iter().map(Object::from));
            token = pages.next(page.is_truncated, page.next_continuation_token)?;
            if token.is_none() {
                return Ok(objects);
            }
        }
    }

    /// The oldest version of each key, and the keys that have a delete marker.
    async fn list_versions(
        &self,
        client: &Client,
        folder: &str,
        action: &str,
    ) -> Result<(Vec<Object>, BTreeSet<String>)> {
        let prefix = format!("{}{folder}/", self.prefix);
        let (mut objects, mut deleted): (Vec<Object>, _) = (Vec::new(), BTreeSet::new());
        let mut pages = Pages::of_versions(action, &prefix);
        let mut marker: Option<Marker> = None;
        loop {
            let mut query = vec![("prefix", prefix.as_str()), ("versions", "")];
            if let Some(marker) = &marker {
                query.extend(marker.query("version-id-marker"));
            }
            let call = Call {
                query,
                ..Call::default()
            };
            let page: xml::ListVersions = xml::parse(&client.fetch(call, action).await?, action)?;
            let markers = page.delete_markers.iter().map(|marker| &marker.key);
            let keys = page.versions.iter().map(|version| &version.key).chain(markers);
            pages.check(keys.map(String::as_str))?;
            deleted.extend(page.delete_markers.into_iter().map(|marker| marker.key));
            for version in page.versions.into_iter().map(Object::from) {
                match objects.last_mut().filter(|last| last.key == version.key) {
                    // Newest first within a key: each one found replaces the one before.
                    Some(last) => *last = version,
                    None => objects.push(version),
                }
            }
            let next = Marker::new(page.next_key_marker, page.next_version_id_marker);
            marker = Marker::next(&mut pages, page.is_truncated, next)?;
            if marker.is_none() {
                return Ok((objects, deleted));
            }
        }
    }

    async fn is_versioned(&self, client: &Client) -> Result<bool> {
        let action = self.action("read the versioning of");
        let call = Call {
            query: vec![("versioning", "")],
            ..Call::default()
        };
        match client.fetch(call, &action).await {
            Ok(body) => Ok(xml::parse::<xml::Versioning>(&body, &action)?.status.is_some()),
            Err(e)
                if matches!(
                    e.class(),
                    Class::AccessDenied | Class::Unsupported | Class::NotFound
                ) =>
            {
                warn!(error = %e, "versioning of the bucket is unknown, only current versions are used");
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// How long the bucket protects a new object.
    async fn retention(&self, client: &Client) -> Result<Option<SignedDuration>> {
        let action = self.action("read the object lock of");
        let call = Call {
            query: vec![("object-lock", "")],
            ..Call::default()
        };
        let lock = match client.fetch(call, &action).await {
            Ok(body) => xml::parse::<xml::ObjectLock>(&body, &action)?,
            Err(e) if matches!(e.class(), Class::NotFound | Class::Unsupported | Class::Other) => {
                return Ok(None);
            }
            Err(e) if e.class() == Class::AccessDenied => {
                warn!(error = %e, "object lock of the bucket is unknown");
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        let retention = lock.rule.and_then(|rule| rule.default_retention);
        let days = retention.map(|r| r.days.unwrap_or(0) + 365 * r.years.unwrap_or(0));
        Ok(days
            .filter(|days| *days > 0)
            .map(|days| SignedDuration::from_hours(24 * days)))
    }

    async fn has_exclude_tag(&self, client: &Client, object: &Object) -> Result<bool> {
        let action = format!("read the tags of {}", object.key);
        let mut query = vec![("tagging", "")];
        query.extend(object.version.as_deref().map(|version| ("versionId", version)));
        match client
            .fetch(
                Call {
                    path: &object.key,
                    query,
                    ..Call::default()
                },
                &action,
            )
            .await
        {
            Ok(body) => {
                let tags = xml::parse::<xml::Tagging>(&body, &action)?.tag_set.tags;
                Ok(tags
                    .iter()
                    .any(|tag| tag.key == EXCLUDE_MARK && tag.value == "true"))
            }
            Err(e) if matches!(e.class(), Class::NotFound | Class::Unsupported) => Ok(false),
            Err(e) => Err(e),
        }
    }

    async fn find(&self, client: &Client, folder: &str, versioned: bool) -> Result<Vec<(Object, bool)>> {
        let action = self.action("list");
        if !versioned {
            let objects = self.list_plain(client, folder, &action).await?;
            return Ok(objects.into_iter().map(|object| (object, false)).collect());
        }
        let (objects, deleted) = self.list_versions(client, folder, &action).await?;
        futures::stream::iter(objects)
            .map(|object| async {
                let excluded = deleted.contains(&object.key) && self.has_exclude_tag(client, &object).await?;
                Ok((object, excluded))
            })
            .buffered(4)
            .try_collect()
            .await
    }
}

#[async_trait]
impl SnapStore for S3Store {
    fn location(&self) -> &str {
        &self.location
    }

    async fn list(&self) -> Result<Listing> {
        let client = self.clients.get();
        let versioned = self.is_versioned(&client).await?;
        let retention = if versioned {
            self.retention(&client).await?
        } else {
            None
        };
        let mut found = Vec::new();
        for folder in ["v1", "v2"] {
            found.extend(self.find(&client, folder, versioned).await?);
        }
        Ok(Listing::classify(
            &self.prefix,
            found.into_iter().map(|(mut object, excluded)| {
                let modified = object.last_modified;
                object.immutable_until = modified.zip(retention).and_then(|(t, r)| t.checked_add(r).ok());
                Raw { object, excluded }
            }),
        ))
    }

    async fn put_object(&self, file: &str, body: Body) -> Result<Object> {
        let client = self.clients.get();
        let key = format!("{}v2/{file}", self.prefix);
        upload::S3Upload {
            client: &client,
            ticket: Ticket::new(key, &body),
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
        let action = format!("delete s3 object {}", object.key);
        let query: Vec<_> = object
            .version
            .as_deref()
            .map(|version| ("versionId", version))
            .into_iter()
            .collect();
        let call = Call {
            method: Method::DELETE,
            path: &object.key,
            query,
            ..Call::default()
        };
        match client.send(call, &action).await {
            Ok(_) => Ok(()),
            Err(e) if e.class() == Class::NotFound => Ok(()),
            // Some say no more than "access denied" of a locked object.
            Err(e) if e.class() == Class::AccessDenied && is_locked(&client, object).await => {
                Err(Error::new(Class::Locked, action, "retention or legal hold").with_source(e))
            }
            Err(e) => Err(e),
        }
    }

    async fn immutability(&self) -> Result<Immutability> {
        let client = self.clients.get();
        let versioned = self.is_versioned(&client).await?;
        Ok(Immutability {
            versioned,
            retention: if versioned {
                self.retention(&client).await?
            } else {
                None
            },
        })
    }

    async fn abort_stale_uploads(&self, started_before: Timestamp) -> Result<u64> {
        let client = self.clients.get();
        let action = self.action("abort unfinished uploads to");
        let prefix = format!("{}v2/", self.prefix);
        let (mut stale, mut pages) = (Vec::new(), Pages::of_versions(&action, &prefix));
        let mut marker: Option<Marker> = None;
        loop {
            let mut query = vec![("prefix", prefix.as_str()), ("uploads", "")];
            if let Some(marker) = &marker {
                query.extend(marker.query("upload-id-marker"));
            }
            let call = Call {
                query,
                ..Call::default()
            };
            let page: xml::ListUploads = xml::parse(&client.fetch(call, &action).await?, &action)?;
            pages.check(page.uploads.iter().map(|upload| upload.key.as_str()))?;
            stale.extend(
                page.uploads
                    .into_iter()
                    .filter(|u| u.initiated.is_some_and(|t| t < started_before)),
            );
            let next = Marker::new(page.next_key_marker, page.next_upload_id_marker);
            marker = Marker::next(&mut pages, page.is_truncated, next)?;
            if marker.is_none() {
                break;
            }
        }
        for upload in &stale {
            debug!(key = upload.key, "aborting an unfinished upload");
            upload::abort(&client, &upload.key, &upload.id).await?;
        }
        Ok(stale.len() as u64)
    }
}

/// Where a listing goes on that has more than one entry for a key.
struct Marker {
    key: String,
    /// Of the version or upload; may be empty.
    id: String,
}

impl Marker {
    fn new(key: Option<String>, id: Option<String>) -> Option<Self> {
        let id = id.unwrap_or_default();
        key.filter(|key| !key.is_empty()).map(|key| Self { key, id })
    }

    fn next(pages: &mut Pages<'_>, is_truncated: Option<bool>, next: Option<Self>) -> Result<Option<Self>> {
        let token = next.as_ref().map(|next| format!("{}\0{}", next.key, next.id));
        let token = pages.next(is_truncated, token)?;
        Ok(token.and(next))
    }

    fn query(&self, id_name: &'static str) -> impl Iterator<Item = (&'static str, &str)> {
        let id = Some((id_name, self.id.as_str())).filter(|(_, id)| !id.is_empty());
        [("key-marker", self.key.as_str())].into_iter().chain(id)
    }
}

/// Whether the object's own retention or legal hold forbids to delete it.
async fn is_locked(client: &Client, object: &Object) -> bool {
    let Ok(Some(headers)) = head(client, &object.key, object.version.as_deref()).await else {
        return false;
    };
    let until =
        text(&headers, "x-amz-object-lock-retain-until-date").and_then(|t| t.parse::<Timestamp>().ok());
    text(&headers, "x-amz-object-lock-legal-hold") == Some("ON")
        || until.is_some_and(|until| until > Timestamp::now())
}

/// An object's headers; none if there is no such object.
async fn head(client: &Client, key: &str, version: Option<&str>) -> Result<Option<HeaderMap>> {
    let action = format!("look at s3 object {key}");
    let query = version
        .map(|version| ("versionId", version))
        .into_iter()
        .collect();
    let call = Call {
        method: Method::HEAD,
        path: key,
        query,
        headers: client.customer_key.clone(),
        ..Call::default()
    };
    match client.send(call, &action).await {
        Ok(response) => Ok(Some(response.into_parts().0.headers)),
        Err(e) if e.class() == Class::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

impl From<xml::Contents> for Object {
    fn from(contents: xml::Contents) -> Self {
        Self {
            key: contents.key,
            size: contents.size,
            etag: contents.etag,
            last_modified: contents.last_modified,
            version: contents.version_id,
            immutable_until: None,
        }
    }
}
