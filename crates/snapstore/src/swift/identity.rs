//! Who calls Swift: a token of Keystone (Identity API v3), <https://docs.openstack.org/api-ref/identity/v3/>, and the
//! address of the object store out of its catalog.

use std::fmt;

use http::{HeaderMap, HeaderValue, Method, header};
use jiff::{SignedDuration, Timestamp};
use object_store::client::HttpClient;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    config::StoreConfig,
    credentials::{Fields, Place},
    error::{Class, Error, Result},
    request::{self, Call, text},
};

pub(super) const VARIABLE: &str = "OPENSTACK_APPLICATION_CREDENTIALS";

const ACTION: &str = "get a token of Keystone";

/// A token isn't used in the last part of its life.
const MARGIN: SignedDuration = SignedDuration::from_mins(5);

/// What Keystone is told.
pub(super) struct Identity {
    auth_url: String,
    region: Option<String>,
    login: Login,
}

enum Login {
    Password {
        user: String,
        password: String,
        domain: String,
        project: String,
    },
    ApplicationCredential(Value),
}

/// A token and where it is of use.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub token: HeaderValue,
    /// Without a slash at its end.
    pub storage_url: String,
    until: Timestamp,
}

impl Session {
    pub(super) fn is_fresh(&self) -> bool {
        Timestamp::now() < self.until
    }
}

impl Identity {
    /// From the credential files, else from the variables of OpenStack's own tools.
    pub(super) fn read(config: &StoreConfig) -> Result<Self> {
        let fields = Place::find(config, VARIABLE)
            .map(|place| place.read())
            .transpose()?;
        let source = Source {
            config,
            fields: fields.as_ref(),
        };
        let region = source.get("region", &["OS_REGION_NAME"]);
        let login = match source.application_credential()? {
            Some(credential) => Login::ApplicationCredential(credential),
            None => Login::Password {
                user: source.require("username", &["OS_USERNAME"])?,
                password: source.require("password", &["OS_PASSWORD"])?,
                domain: source.domain()?,
                project: source.require("tenantName", &["OS_TENANT_NAME", "OS_PROJECT_NAME"])?,
            },
        };
        let auth_url = source.require("authURL", &["OS_AUTH_URL"])?;
        config.check_scheme(&auth_url)?;
        let auth_url = auth_url.trim_end_matches('/');
        let auth_url = auth_url.strip_suffix("/v3").unwrap_or(auth_url);
        Ok(Self {
            auth_url: format!("{auth_url}/v3/auth/tokens"),
            region,
            login,
        })
    }

    fn request(&self) -> Value {
        match &self.login {
            Login::ApplicationCredential(credential) => json!({ "auth": { "identity": {
                "methods": ["application_credential"],
                "application_credential": credential,
            } } }),
            Login::Password {
                user,
                password,
                domain,
                project,
            } => json!({ "auth": {
                "identity": {
                    "methods": ["password"],
                    "password": {
                        "user": { "name": user, "password": password, "domain": { "name": domain } },
                    },
                },
                "scope": { "project": { "name": project, "domain": { "name": domain } } },
            } }),
        }
    }

    pub(super) async fn log_in(&self, http: &HttpClient) -> Result<Session> {
        let json = HeaderValue::from_static("application/json");
        let call = Call {
            method: Method::POST,
            headers: HeaderMap::from_iter([(header::CONTENT_TYPE, json)]),
            body: self.request().to_string().into(),
            ..Call::default()
        };
        let answer = request::execute(http, call.request_to(&self.auth_url, ACTION)?, ACTION).await?;
        let token = text(answer.headers(), "x-subject-token").map(HeaderValue::from_str);
        let Some(Ok(mut token)) = token else {
            return Err(failed("the answer has no token"));
        };
        token.set_sensitive(true);
        let body = request::read(answer, ACTION).await?;
        let Answer {
            token: Token { expires_at, catalog },
        } = serde_json::from_slice(&body).map_err(|e| failed(format!("answer not understood: {e}")))?;
        let storage_url = self.find(&catalog)?.trim_end_matches('/').to_owned();
        let until = expires_at.saturating_sub(MARGIN).unwrap_or(expires_at);
        Ok(Session {
            token,
            storage_url,
            until,
        })
    }

    /// The public address of the object store in the region.
    fn find<'a>(&self, catalog: &'a [Service]) -> Result<&'a str> {
        let services = catalog.iter().filter(|service| service.r#type == "object-store");
        let is_here = |endpoint: &&Endpoint| {
            let region = endpoint.region.as_ref().or(endpoint.region_id.as_ref());
            endpoint.interface == "public" && (self.region.is_none() || region == self.region.as_ref())
        };
        let endpoint = services.flat_map(|service| &service.endpoints).find(is_here);
        endpoint.map(|endpoint| endpoint.url.as_str()).ok_or_else(|| {
            let region = self.region.as_deref().unwrap_or("any");
            Error::new(
                Class::InvalidConfig,
                ACTION,
                format!("the catalog has no object store in region {region}"),
            )
        })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { auth_url, region, .. } = self;
        f.debug_struct("Identity")
            .field("auth_url", auth_url)
            .field("region", region)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Answer {
    token: Token,
}

#[derive(Deserialize)]
struct Token {
    expires_at: Timestamp,
    #[serde(default)]
    catalog: Vec<Service>,
}

#[derive(Deserialize)]
struct Service {
    r#type: String,
    endpoints: Vec<Endpoint>,
}

#[derive(Deserialize)]
struct Endpoint {
    interface: String,
    region: Option<String>,
    region_id: Option<String>,
    url: String,
}

/// Fields of files, or variables when there are no files.
struct Source<'a> {
    config: &'a StoreConfig,
    fields: Option<&'a Fields>,
}

impl Source<'_> {
    fn get(&self, field: &str, variables: &[&str]) -> Option<String> {
        let of_file = self.fields.and_then(|fields| fields.get(field));
        let is_region = field == "region";
        let of_variable = || variables.iter().find_map(|variable| self.config.env(variable));
        // The region is no secret and may be given beside the files.
        let value = of_file.or_else(|| {
            if self.fields.is_none() || is_region {
                of_variable()
            } else {
                None
            }
        });
        value.map(str::to_owned)
    }

    fn require(&self, field: &str, variables: &[&str]) -> Result<String> {
        let missing = || match self.fields {
            Some(_) => failed(format!("field {field} is missing")),
            None => failed(format!(
                "neither {VARIABLE} nor {} is set",
                variables.join(" or ")
            )),
        };
        self.get(field, variables).ok_or_else(missing)
    }

    fn domain(&self) -> Result<String> {
        self.require(
            "domainName",
            &["OS_DOMAIN_NAME", "OS_USER_DOMAIN_NAME", "OS_PROJECT_DOMAIN_NAME"],
        )
    }

    /// By its id, or by its name and whose it is.
    fn application_credential(&self) -> Result<Option<Value>> {
        let get = |field, variable| self.get(field, &[variable]);
        let Some(secret) = get("applicationCredentialSecret", "OS_APPLICATION_CREDENTIAL_SECRET") else {
            return Ok(None);
        };
        if let Some(id) = get("applicationCredentialID", "OS_APPLICATION_CREDENTIAL_ID") {
            return Ok(Some(json!({ "id": id, "secret": secret })));
        }
        let name = self.require("applicationCredentialName", &["OS_APPLICATION_CREDENTIAL_NAME"])?;
        let user = self.require("username", &["OS_USERNAME"])?;
        let user = json!({ "name": user, "domain": { "name": self.domain()? } });
        Ok(Some(json!({ "name": name, "secret": secret, "user": user })))
    }
}

fn failed(detail: impl Into<String>) -> Error {
    Error::new(Class::CredentialsUnavailable, ACTION, detail)
}
