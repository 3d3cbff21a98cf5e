//! How an S3 bucket is reached: the files and variables of S3, OSS, ECS and OCS, each brought to one form.

use std::{fmt, path::PathBuf};

use base64::{Engine as _, prelude::BASE64_STANDARD};

use crate::{
    config::{StoreConfig, invalid},
    credentials::{Place, is_true},
    error::{Class, Error, Result},
};

/// Stores that speak the S3 API, by the way that they are configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavor {
    Aws,
    Oss,
    Ecs,
    Ocs,
}

/// Who calls.
pub(crate) enum Keys {
    Static {
        id: String,
        secret: String,
    },
    /// A role that is assumed with a token from a file (workload identity).
    Role {
        arn: String,
        token_file: PathBuf,
    },
    /// What the environment offers: variables, web identity, container or instance metadata.
    Ambient,
}

/// How objects are encrypted by the server.
pub(crate) enum Encryption {
    None,
    /// With our key, base64.
    CustomerKey(String),
    /// With a key of the key management service, by its id.
    Kms(String),
}

pub(crate) struct Settings {
    pub keys: Keys,
    pub region: Option<String>,
    /// Without the bucket. None: AWS.
    pub endpoint: Option<String>,
    pub path_style: bool,
    pub allow_http: bool,
    pub skip_verify: bool,
    pub ca: Option<String>,
    pub encryption: Encryption,
    /// Whether uploads carry a checksum besides their signature.
    pub checksums: bool,
}

/// Secrets are left out.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("region", &self.region)
            .field("endpoint", &self.endpoint)
            .field("path_style", &self.path_style)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// Files whose change calls for new settings.
    pub(crate) fn files(config: &StoreConfig, flavor: Flavor) -> Vec<PathBuf> {
        flavor
            .variable()
            .and_then(|variable| Place::find(config, variable))
            .map(|place| place.path().to_owned())
            .into_iter()
            .collect()
    }

    pub(crate) fn read(config: &StoreConfig, flavor: Flavor) -> Result<Self> {
        let place = flavor
            .variable()
            .and_then(|variable| Place::find(config, variable));
        let mut settings = match (flavor, place) {
            (Flavor::Aws, Some(place)) => Self::aws(&place)?,
            (Flavor::Aws, None) => Self::plain(Keys::Ambient),
            (Flavor::Oss, Some(place)) => Self::oss(&place)?,
            (Flavor::Ocs, Some(place)) => Self::ocs(&place)?,
            (Flavor::Ecs, _) => Self::ecs(config)?,
            (Flavor::Oss | Flavor::Ocs, None) => {
                let variable = flavor.variable().unwrap_or_default();
                let detail = format!("variable {}{variable} is not set", config.role.env_prefix());
                return Err(Error::new(
                    Class::CredentialsUnavailable,
                    "open the store",
                    detail,
                ));
            }
        };
        if let Some(endpoint) = &config.endpoint {
            settings.endpoint = Some(endpoint.clone());
        }
        settings.endpoint = settings.endpoint.map(|e| e.trim_end_matches('/').to_owned());
        settings.allow_http |= config.allow_http;
        settings.check()?;
        Ok(settings)
    }

    fn check(&self) -> Result<()> {
        match self.endpoint.as_deref().map(|e| e.split_once("://")) {
            Some(Some(("http", _))) if !self.allow_http => Err(invalid(
                "the endpoint is plain http, which needs to be allowed explicitly: --allow-http, or in an Etcd an endpointOverride that begins with http://",
            )),
            Some(Some(("http" | "https", _))) | None => Ok(()),
            _ => Err(invalid("the endpoint is no http or https URL")),
        }
    }

    fn plain(keys: Keys) -> Self {
        Self {
            keys,
            region: None,
            endpoint: None,
            path_style: false,
            allow_http: false,
            skip_verify: false,
            ca: None,
            encryption: Encryption::None,
            checksums: true,
        }
    }

    fn aws(place: &Place) -> Result<Self> {
        let fields = place.read()?;
        let text = |name: &str| fields.get(name).map(str::to_owned);
        let keys = if let Some(arn) = text("roleARN") {
            let token_file = text("tokenPath")
                .map(PathBuf::from)
                .or_else(|| fields.file("token"));
            let token_file = token_file.map_or_else(|| fields.require("token").map(PathBuf::from), Ok)?;
            Keys::Role { arn, token_file }
        } else {
            Keys::Static {
                id: fields.require("accessKeyID")?.to_owned(),
                secret: fields.require("secretAccessKey")?.to_owned(),
            }
        };
        Ok(Self {
            region: Some(fields.require("region")?.to_owned()),
            endpoint: text("endpoint").map(with_scheme),
            path_style: fields.flag("s3ForcePathStyle"),
            skip_verify: fields.flag("insecureSkipVerify"),
            ca: text("trustedCaCert"),
            encryption: encryption(fields.get("sseCustomerKey"), fields.get("sseKmsKeyID"))?,
            checksums: fields.get("requestChecksumCalculation") != Some("when_required"),
            ..Self::plain(keys)
        })
    }

    fn oss(place: &Place) -> Result<Self> {
        let fields = place.read()?;
        let endpoint = with_scheme(fields.require("storageEndpoint")?.to_owned());
        Ok(Self {
            region: oss_region(&endpoint),
            endpoint: Some(endpoint),
            // OSS knows neither path style nor the newer checksum headers.
            checksums: false,
            ..Self::plain(Keys::Static {
                id: fields.require("accessKeyID")?.to_owned(),
                secret: fields.require("accessKeySecret")?.to_owned(),
            })
        })
    }

    fn ocs(place: &Place) -> Result<Self> {
        let fields = place.read()?;
        let plain = fields.flag("disableSSL");
        Ok(Self {
            region: Some(fields.require("region")?.to_owned()),
            endpoint: Some(scheme(fields.require("endpoint")?, plain)),
            path_style: true,
            allow_http: plain,
            skip_verify: fields.flag("insecureSkipVerify"),
            ..Self::plain(Keys::Static {
                id: fields.require("accessKeyID")?.to_owned(),
                secret: fields.require("secretAccessKey")?.to_owned(),
            })
        })
    }

    /// ECS has variables only. Those of the role are taken first, then the plain ones, which etcd-backup-restore
    /// uses whatever the role.
    fn ecs(config: &StoreConfig) -> Result<Self> {
        let get = |name: &str| config.env(name).or_else(|| config.environment.get(name));
        let require = |name: &str| {
            let missing = || {
                let detail = format!("variable {name} is not set");
                Error::new(Class::CredentialsUnavailable, "open the store", detail)
            };
            get(name).map(str::to_owned).ok_or_else(missing)
        };
        let plain = is_true(get("ECS_DISABLE_SSL"));
        Ok(Self {
            region: Some("US-Standard".to_owned()),
            endpoint: Some(scheme(&require("ECS_ENDPOINT")?, plain)),
            path_style: true,
            allow_http: plain,
            skip_verify: is_true(get("ECS_INSECURE_SKIP_VERIFY")),
            ..Self::plain(Keys::Static {
                id: require("ECS_ACCESS_KEY_ID")?,
                secret: require("ECS_SECRET_ACCESS_KEY")?,
            })
        })
    }
}

impl Flavor {
    fn variable(self) -> Option<&'static str> {
        match self {
            Self::Aws => Some("AWS_APPLICATION_CREDENTIALS"),
            Self::Oss => Some("ALICLOUD_APPLICATION_CREDENTIALS"),
            Self::Ocs => Some("OPENSHIFT_APPLICATION_CREDENTIALS"),
            Self::Ecs => None,
        }
    }
}

fn with_scheme(endpoint: String) -> String {
    if endpoint.contains("://") {
        endpoint
    } else {
        format!("https://{endpoint}")
    }
}

fn scheme(endpoint: &str, plain: bool) -> String {
    match (endpoint.contains("://"), plain) {
        (true, _) => endpoint.to_owned(),
        (false, true) => format!("http://{endpoint}"),
        (false, false) => format!("https://{endpoint}"),
    }
}

/// `https://oss-eu-central-1.aliyuncs.com` and its internal twin lie in `oss-eu-central-1`.
fn oss_region(endpoint: &str) -> Option<String> {
    let host = endpoint.split("://").nth(1)?.split(['.', ':', '/']).next()?;
    host.starts_with("oss-")
        .then(|| host.trim_end_matches("-internal").to_owned())
}

/// The customer key is 32 bytes, given as such or in base64.
fn encryption(customer_key: Option<&str>, kms_key: Option<&str>) -> Result<Encryption> {
    match (customer_key, kms_key) {
        (Some(key), _) if BASE64_STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == 32) => {
            Ok(Encryption::CustomerKey(key.to_owned()))
        }
        (Some(key), _) if key.len() == 32 => Ok(Encryption::CustomerKey(BASE64_STANDARD.encode(key))),
        (Some(_), _) => Err(invalid(
            "sseCustomerKey is not 32 bytes, neither as such nor in base64",
        )),
        (None, Some(id)) => Ok(Encryption::Kms(id.to_owned())),
        (None, None) => Ok(Encryption::None),
    }
}
