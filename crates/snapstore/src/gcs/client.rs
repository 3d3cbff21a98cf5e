//! A client for one bucket. Reads and credentials are the library's; the other calls are our own, of the JSON API,
//! since the library has no metadata, retention or conditional completion of large uploads.

use std::{fs, path::PathBuf, sync::Arc};

use bytes::Bytes;
use http::header;
use object_store::{
    client::{HttpClient, HttpRequest, HttpResponse},
    gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder},
};
use serde::Deserialize;

use super::identity::{ExternalAccount, bearer};
use crate::{
    config::StoreConfig,
    error::{Class, Error, Result},
    rate::MinimumRate,
    request::{self, Call, credentials_failed},
    transport::{Connector, client_options, resume},
};

const ENDPOINT: &str = "https://storage.googleapis.com";

const VARIABLE: &str = "GOOGLE_APPLICATION_CREDENTIALS";

#[derive(Debug)]
pub(super) struct Client {
    pub(super) store: GoogleCloudStorage,
    http: HttpClient,
    endpoint: String,
    /// Plain http is for servers on test machines. A token isn't shown to it.
    is_anonymous: bool,
    /// Paths of the bucket and of its objects below the endpoint.
    pub(super) bucket: String,
    pub(super) objects: String,
    pub(super) uploads: String,
    pub(super) rate: MinimumRate,
}

/// Files whose change calls for a new client.
pub(super) fn files(config: &StoreConfig) -> Vec<PathBuf> {
    config.env(VARIABLE).map(PathBuf::from).into_iter().collect()
}

impl Client {
    pub(super) fn new(config: &StoreConfig) -> Result<Self> {
        let bucket = config.container()?;
        let file = config.env(VARIABLE).map(PathBuf::from);
        let endpoint = endpoint(config, file.as_ref())?;
        let is_anonymous = endpoint.starts_with("http://");
        let connector = Connector::new(config).with_allow_http(is_anonymous);
        let http = connector.client()?;
        let mut builder = GoogleCloudStorageBuilder::new()
            .with_bucket_name(bucket)
            .with_base_url(&endpoint)
            .with_http_connector(connector)
            .with_retry(resume())
            .with_client_options(client_options());
        builder = match file {
            _ if is_anonymous => builder.with_bearer_token("").with_skip_signature(true),
            Some(file) => with_file(builder, &file, http.clone())?,
            None => builder,
        };
        let unusable = |e: object_store::Error| {
            Error::new(Class::CredentialsUnavailable, "open the store", e.to_string())
        };
        Ok(Self {
            store: builder.build().map_err(unusable)?,
            http,
            endpoint,
            is_anonymous,
            bucket: format!("storage/v1/b/{bucket}"),
            objects: format!("storage/v1/b/{bucket}/o"),
            uploads: format!("upload/storage/v1/b/{bucket}/o"),
            rate: config.retry.rate,
        })
    }

    pub(super) async fn send(&self, call: Call<'_>, action: &str) -> Result<HttpResponse> {
        self.execute(call.request(&self.endpoint, action)?, action).await
    }

    /// Whether the token may be shown to an address that an answer names: the endpoint's, or another one of Google when it
    /// is Google's.
    pub(super) fn is_ours(&self, address: &str) -> bool {
        let parse = |address: &str| address.parse::<http::Uri>().ok();
        let (Some(ours), Some(other)) = (parse(&self.endpoint), parse(address)) else {
            return false;
        };
        let is_google = |uri: &http::Uri| {
            let host = uri.host().unwrap_or_default();
            uri.scheme_str() == Some("https") && host.ends_with(".googleapis.com")
        };
        let is_same = ours.scheme() == other.scheme() && ours.authority() == other.authority();
        is_same || (is_google(&ours) && is_google(&other))
    }

    pub(super) async fn execute(&self, mut request: HttpRequest, action: &str) -> Result<HttpResponse> {
        if !self.is_anonymous {
            let credential = self.store.credentials().get_credential().await;
            let credential = credential.map_err(|e| credentials_failed(&e, action))?;
            request
                .headers_mut()
                .extend(bearer(&credential.bearer).map(|value| (header::AUTHORIZATION, value)));
        }
        request::execute(&self.http, request, action).await
    }

    pub(super) async fn fetch<T: for<'de> Deserialize<'de>>(
        &self,
        call: Call<'_>,
        action: &str,
    ) -> Result<T> {
        parse(
            &request::read(self.send(call, action).await?, action).await?,
            action,
        )
    }
}

pub(super) fn parse<T: for<'de> Deserialize<'de>>(body: &Bytes, action: &str) -> Result<T> {
    let parsed = serde_json::from_slice(body);
    parsed.map_err(|e| Error::new(Class::BadResponse, action, format!("answer not understood: {e}")))
}

/// The configured one, the one that lies beside the credentials (deprecated), or Google's. Go's client wants the path
/// of the API in it.
fn endpoint(config: &StoreConfig, file: Option<&PathBuf>) -> Result<String> {
    let beside = || fs::read_to_string(file?.with_file_name("storageAPIEndpoint")).ok();
    let endpoint = config
        .endpoint
        .clone()
        .or_else(beside)
        .unwrap_or_else(|| ENDPOINT.to_owned());
    let endpoint = endpoint.trim().trim_end_matches('/');
    let endpoint = endpoint.strip_suffix("/storage/v1").unwrap_or(endpoint);
    config.check_scheme(endpoint)?;
    Ok(endpoint.to_owned())
}

fn with_file(
    builder: GoogleCloudStorageBuilder,
    file: &PathBuf,
    http: HttpClient,
) -> Result<GoogleCloudStorageBuilder> {
    #[derive(Deserialize)]
    struct Kind {
        r#type: String,
    }
    let failed = |detail: String| {
        let action = format!("read store credentials at {}", file.display());
        Error::new(Class::CredentialsUnavailable, action, detail)
    };
    let json = fs::read(file).map_err(|e| failed(e.to_string()))?;
    let kind: Kind =
        serde_json::from_slice(&json).map_err(|_| failed("no JSON object with a type".to_owned()))?;
    match kind.r#type.as_str() {
        "external_account" => {
            let account = ExternalAccount::read(&json, file, http)?;
            Ok(builder.with_credentials(Arc::new(account)))
        }
        "service_account" => {
            let json = String::from_utf8(json).map_err(|_| failed("not text".to_owned()))?;
            Ok(builder.with_service_account_key(json))
        }
        other => Err(failed(format!("credentials of type {other:?} are not supported"))),
    }
}
