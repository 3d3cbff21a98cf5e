//! Workload identity federation: a token from a file is exchanged for one of Google's, and that perhaps for one of a
//! service account. <https://google.aip.dev/auth/4117>

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, Method, header};
use jiff::Timestamp;
use object_store::{CredentialProvider, client::HttpClient, gcp::GcpCredential};
use percent_encoding::utf8_percent_encode;
use serde::Deserialize;
use std::sync::Arc;
use tokio::{sync::Mutex, time::Instant};

use crate::{
    error::{Class, Error, Result},
    request::{self, Call, QUERY},
};

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// A token isn't used in the last part of its life.
const MARGIN: Duration = Duration::from_mins(5);

/// The part of a credential file of type `external_account` that is supported.
#[derive(Deserialize)]
struct Configuration {
    audience: String,
    subject_token_type: String,
    token_url: String,
    service_account_impersonation_url: Option<String>,
    credential_source: Source,
}

#[derive(Deserialize)]
struct Source {
    file: PathBuf,
    #[serde(default)]
    format: Format,
}

#[derive(Default, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Format {
    #[default]
    Text,
    Json {
        subject_token_field_name: String,
    },
}

/// Gives tokens, and new ones before they expire.
pub(super) struct ExternalAccount {
    configuration: Configuration,
    http: HttpClient,
    current: Mutex<Option<(Arc<GcpCredential>, Instant)>>,
}

impl ExternalAccount {
    /// The addresses must be Google's: the token would be of use to whoever else gets it.
    pub(super) fn read(json: &[u8], place: &Path, http: HttpClient) -> Result<Self> {
        let mut configuration: Configuration = serde_json::from_slice(json).map_err(|e| {
            failed(format!(
                "{}, line {}: not a supported form",
                place.display(),
                e.line()
            ))
        })?;
        let addresses = [
            Some(&configuration.token_url),
            configuration.service_account_impersonation_url.as_ref(),
        ];
        for address in addresses.into_iter().flatten() {
            let uri = address.parse::<http::Uri>().unwrap_or_default();
            let is_google = uri.host().is_some_and(|host| host.ends_with(".googleapis.com"));
            if uri.scheme_str() != Some("https") || !is_google {
                return Err(failed(format!(
                    "{}: {address} is no address of Google",
                    place.display()
                )));
            }
        }
        // The file is named as it is mounted for the primary store; other stores' lie elsewhere, beside the
        // configuration.
        let beside = place.with_file_name("token");
        if beside.is_file() {
            configuration.credential_source.file = beside;
        }
        Ok(Self {
            configuration,
            http,
            current: Mutex::new(None),
        })
    }

    fn subject_token(&self) -> Result<String> {
        let Source { file, format } = &self.configuration.credential_source;
        let text = fs::read_to_string(file).map_err(|e| failed(format!("{}: {e}", file.display())))?;
        match format {
            Format::Text => Ok(text.trim().to_owned()),
            Format::Json {
                subject_token_field_name,
            } => {
                let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
                let token = json
                    .get(subject_token_field_name)
                    .and_then(|token| token.as_str());
                token
                    .map(str::to_owned)
                    .ok_or_else(|| failed(format!("{}: no such field", file.display())))
            }
        }
    }

    /// The token and how long it lives.
    async fn exchange(&self) -> Result<(String, Duration)> {
        #[derive(Deserialize)]
        struct Answer {
            access_token: String,
            #[serde(default)]
            expires_in: u64,
        }
        let configuration = &self.configuration;
        let subject = self.subject_token()?;
        let fields = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            (
                "requested_token_type",
                "urn:ietf:params:oauth:token-type:access_token",
            ),
            ("audience", &configuration.audience),
            ("scope", SCOPE),
            ("subject_token_type", &configuration.subject_token_type),
            ("subject_token", &subject),
        ];
        let fields = fields.map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, QUERY)));
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        let answer = self
            .post(&configuration.token_url, form, None, fields.join("&"))
            .await?;
        let Answer {
            access_token,
            expires_in,
        } = answer;
        match &configuration.service_account_impersonation_url {
            None => Ok((access_token, Duration::from_secs(expires_in))),
            Some(url) => self.impersonate(url, &access_token).await,
        }
    }

    async fn impersonate(&self, url: &str, token: &str) -> Result<(String, Duration)> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Answer {
            access_token: String,
            expire_time: Timestamp,
        }
        let json = HeaderValue::from_static("application/json");
        let answer: Answer = self
            .post(url, json, Some(token), format!(r#"{{"scope":["{SCOPE}"]}}"#))
            .await?;
        let life = answer.expire_time.duration_since(Timestamp::now());
        Ok((answer.access_token, life.try_into().unwrap_or_default()))
    }

    async fn post<T: for<'de> Deserialize<'de>>(
        &self,
        url: &str,
        content_type: HeaderValue,
        token: Option<&str>,
        body: String,
    ) -> Result<T> {
        const ACTION: &str = "get a token of Google";
        let mut headers = HeaderMap::from_iter([(header::CONTENT_TYPE, content_type)]);
        headers.extend(token.and_then(bearer).map(|value| (header::AUTHORIZATION, value)));
        let call = Call {
            method: Method::POST,
            headers,
            body: body.into(),
            ..Call::default()
        };
        let request = call.request_to(url, ACTION)?;
        let answer = request::execute(&self.http, request, ACTION).await?;
        let answer = request::read(answer, ACTION).await?;
        serde_json::from_slice(&answer).map_err(|e| failed(format!("answer not understood: {e}")))
    }
}

#[async_trait]
impl CredentialProvider for ExternalAccount {
    type Credential = GcpCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<GcpCredential>> {
        let mut current = self.current.lock().await;
        match &*current {
            Some((credential, until)) if Instant::now() < *until => Ok(Arc::clone(credential)),
            _ => {
                let exchanged = self.exchange().await;
                let (bearer, life) = exchanged.map_err(|e| object_store::Error::Generic {
                    store: "GCS",
                    source: Box::new(e),
                })?;
                let credential = Arc::new(GcpCredential { bearer });
                *current = Some((
                    Arc::clone(&credential),
                    Instant::now() + life.saturating_sub(MARGIN),
                ));
                Ok(credential)
            }
        }
    }
}

/// Tokens are secret.
impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalAccount")
            .field("audience", &self.configuration.audience)
            .finish_non_exhaustive()
    }
}

/// A header that gives a token.
pub(super) fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn failed(detail: String) -> Error {
    Error::new(Class::CredentialsUnavailable, "get a token of Google", detail)
}
