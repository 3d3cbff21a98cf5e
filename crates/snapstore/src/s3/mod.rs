//! S3 and the stores that speak its API.
//!
//! In a versioned bucket the oldest version of a key counts: where objects are locked, later ones can only be
//! mistakes or attacks.

mod client;
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
        let mut objects = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let mut query = vec![("list-type", "2"), ("prefix", prefix.as_str())];
            query.extend(token.as_deref().map(|token| ("continuation-token", token)));
            let page = client
                .fetch(
                    Call {
                        query,
                        ..Call::default()
                    },
                    action,
                )
                .await?;
            let page: xml::ListObjects = xml::parse(&page, action)?;
            objects.extend(page.contents.into_iter().map(Object::from));
            token = page.next_continuation_token.filter(|_| page.is_truncated);
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
        let mut marker: Option<(String, String)> = None;
        loop {
            let mut query = vec![("prefix", prefix.as_str()), ("versions", "")];
            if let Some((key, version)) = &marker {
                query.push(("key-marker", key));
                query.extend(Some(("version-id-marker", version.as_str())).filter(|(_, v)| !v.is_empty()));
            }
            let page = client
                .fetch(
                    Call {
                        query,
                        ..Call::default()
                    },
                    action,
                )
                .await?;
            let page: xml::ListVersions = xml::parse(&page, action)?;
            deleted.extend(page.delete_markers.into_iter().map(|marker| marker.key));
            for version in page.versions.into_iter().map(Object::from) {
                match objects.last_mut().filter(|last| last.key == version.key) {
                    // Newest first within a key: each one found replaces the one before.
                    Some(last) => *last = version,
                    None => objects.push(version),
                }
            }
            marker = page
                .next_key_marker
                .map(|key| (key, page.next_version_id_marker.unwrap_or_default()));
            if !page.is_truncated || marker.is_none() {
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
            ticket: Ticket::new(key),
        }
        .run(body)
        .await
    }

    async fn get(&self, object: &Object, range: Option<Range<u64>>) -> Result<ByteStream> {
        transport::get(&self.clients.get().store, object, range).await
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
        let mut stale = Vec::new();
        let mut marker: Option<(String, String)> = None;
        loop {
            let mut query = vec![("prefix", prefix.as_str()), ("uploads", "")];
            if let Some((key, id)) = &marker {
                query.extend([("key-marker", key.as_str()), ("upload-id-marker", id.as_str())]);
            }
            let page = client
                .fetch(
                    Call {
                        query,
                        ..Call::default()
                    },
                    &action,
                )
                .await?;
            let page: xml::ListUploads = xml::parse(&page, &action)?;
            stale.extend(
                page.uploads
                    .into_iter()
                    .filter(|u| u.initiated.is_some_and(|t| t < started_before)),
            );
            marker = page.next_key_marker.zip(page.next_upload_id_marker);
            if !page.is_truncated || marker.is_none() {
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
