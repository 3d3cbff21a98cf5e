//! A client for one bucket. Credentials, signatures and resumed reads are the library's; the calls are our own, since
//! it lacks versions, object lock, tags, conditional completion of parts and unfinished uploads.

use std::net::IpAddr;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use md5::{Digest as _, Md5};
use object_store::{
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsAuthorizer},
    client::{HttpClient, HttpResponse},
};
use sha2::Sha256;

use super::{
    partition,
    settings::{Encryption, Keys, Settings},
};
use crate::{
    config::{StoreConfig, invalid},
    error::{Class, Error, Result},
    rate::MinimumRate,
    request::{self, Call, credentials_failed},
    transport::{Connector, client_options, resume},
};

const CHECKSUM: HeaderName = HeaderName::from_static("x-amz-checksum-sha256");
const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

#[derive(Debug)]
pub(super) struct Client {
    pub(super) store: AmazonS3,
    http: HttpClient,
    region: String,
    /// Address of the bucket, without a slash at its end.
    bucket_url: String,
    /// What requests about an object's content must carry.
    pub(super) customer_key: HeaderMap,
    /// What requests that make an object must carry: the same, or the managed key to use.
    pub(super) encryption: HeaderMap,
    /// Whether uploads carry a checksum that the store checks and keeps.
    pub(super) checksums: bool,
    pub(super) rate: MinimumRate,
}

impl Client {
    pub(super) fn new(config: &StoreConfig, settings: &Settings) -> Result<Self> {
        let bucket = config.container()?;
        let mut builder = match &settings.keys {
            Keys::Ambient => AmazonS3Builder::from_env(),
            Keys::Static { id, secret } => AmazonS3Builder::new()
                .with_access_key_id(id)
                .with_secret_access_key(secret),
            Keys::Role { arn, token_file } => AmazonS3Builder::new()
                .with_config(AmazonS3ConfigKey::RoleArn, arn)
                .with_config(
                    AmazonS3ConfigKey::WebIdentityTokenFile,
                    token_file.to_string_lossy(),
                ),
        };
        let known = |key| builder.get_config_value(&key);
        let region = settings
            .region
            .clone()
            .or_else(|| known(AmazonS3ConfigKey::Region));
        let region = region.unwrap_or_else(|| "us-east-1".to_owned());
        let endpoint = settings
            .endpoint
            .clone()
            .or_else(|| known(AmazonS3ConfigKey::Endpoint));
        let address = Address::new(endpoint.as_deref(), &region, bucket, settings.path_style)?;
        let connector = Connector::new(config)
            .with_region(&region)
            .with_allow_http(settings.allow_http)
            .with_trust(settings.ca.clone(), settings.skip_verify);
        builder = builder
            .with_bucket_name(bucket)
            .with_region(&region)
            .with_endpoint(&address.endpoint)
            .with_virtual_hosted_style_request(address.virtual_hosted)
            .with_http_connector(connector.clone())
            .with_retry(resume())
            .with_client_options(client_options());
        if let Some(domain) = partition::domain(&region) {
            let sts = format!("https://sts.{region}.{domain}");
            builder = builder.with_config(AmazonS3ConfigKey::StsEndpoint, sts);
        }
        if let Encryption::CustomerKey(key) = &settings.encryption {
            builder = builder.with_ssec_encryption(key);
        }
        let store = builder.build().map_err(|e| invalid(e.to_string()))?;
        let http = connector.client()?;
        let (customer_key, encryption) = encryption_headers(&settings.encryption)?;
        Ok(Self {
            store,
            http,
            region,
            bucket_url: address.bucket_url,
            customer_key,
            encryption,
            checksums: settings.checksums,
            rate: config.retry.rate,
        })
    }

    /// Sends a signed request about the bucket (`path` empty) or an object.
    pub(super) async fn send(&self, call: Call<'_>, action: &str) -> Result<HttpResponse> {
        self.send_signed(call, None, action).await
    }

    /// The same with `digest`, that of the body, which is content of an object.
    pub(super) async fn send_content(
        &self,
        mut call: Call<'_>,
        digest: Digest,
        action: &str,
    ) -> Result<HttpResponse> {
        let (name, value) = if self.checksums {
            (CHECKSUM, digest.base64())
        } else {
            // Every server knows it, and a bucket with a default retention wants one of the two.
            (CONTENT_MD5, BASE64_STANDARD.encode(Md5::digest(&call.body)))
        };
        let value = HeaderValue::try_from(value);
        call.headers.extend(value.ok().map(|value| (name, value)));
        self.send_signed(call, Some(digest), action).await
    }

    async fn send_signed(
        &self,
        call: Call<'_>,
        digest: Option<Digest>,
        action: &str,
    ) -> Result<HttpResponse> {
        let mut request = call.request(&self.bucket_url, action)?;
        let credential = self.store.credentials().get_credential().await;
        let credential = credential.map_err(|e| credentials_failed(&e, action))?;
        AwsAuthorizer::new(&credential, "s3", &self.region)
            .try_authorize(&mut request, digest.as_ref().map(|digest| &digest.0[..]))
            .map_err(|e| Error::new(Class::CredentialsUnavailable, action, e.to_string()))?;
        request::execute(&self.http, request, action).await
    }

    /// As [`send`](Self::send), with the whole answer's body.
    pub(super) async fn fetch(&self, call: Call<'_>, action: &str) -> Result<Bytes> {
        request::read(self.send(call, action).await?, action).await
    }
}

/// A SHA-256 value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Digest([u8; 32]);

impl Digest {
    pub(super) fn of(content: &[u8]) -> Self {
        Self(Sha256::digest(content).into())
    }

    pub(super) fn base64(self) -> String {
        BASE64_STANDARD.encode(self.0)
    }
}

struct Address {
    /// As the library wants it: with the bucket when virtual-hosted.
    endpoint: String,
    virtual_hosted: bool,
    bucket_url: String,
}

impl Address {
    fn new(endpoint: Option<&str>, region: &str, bucket: &str, path_style: bool) -> Result<Self> {
        let endpoint =
            endpoint.map_or_else(|| partition::endpoint(region), |endpoint| Ok(endpoint.to_owned()))?;
        let endpoint = endpoint.as_str();
        let (scheme, host) = endpoint
            .split_once("://")
            .ok_or_else(|| invalid("the endpoint is no http or https URL"))?;
        let name = host.split('/').next().unwrap_or_default();
        let name = name.rsplit_once(':').map_or(name, |(name, _)| name);
        // A dotted bucket doesn't match the wildcard of the server's certificate, an address has no subdomains.
        let no_subdomain = bucket.contains('.') || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let virtual_hosted = !path_style && !no_subdomain && name != "localhost";
        let bucket_url = if virtual_hosted {
            format!("{scheme}://{bucket}.{host}")
        } else {
            format!("{endpoint}/{bucket}")
        };
        let endpoint = if virtual_hosted {
            bucket_url.clone()
        } else {
            endpoint.to_owned()
        };
        Ok(Self {
            endpoint,
            virtual_hosted,
            bucket_url,
        })
    }
}

/// The headers for all requests about content, and those for requests that make an object.
fn encryption_headers(encryption: &Encryption) -> Result<(HeaderMap, HeaderMap)> {
    let headers = |fields: &[(&'static str, &str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let mut value = HeaderValue::try_from(*value)
                .map_err(|_| invalid("the encryption key's id holds forbidden characters"))?;
            value.set_sensitive(true);
            headers.insert(*name, value);
        }
        Ok(headers)
    };
    match encryption {
        Encryption::None => Ok((HeaderMap::new(), HeaderMap::new())),
        Encryption::Kms(id) => {
            let fields = [
                ("x-amz-server-side-encryption", "aws:kms"),
                ("x-amz-server-side-encryption-aws-kms-key-id", id),
            ];
            Ok((HeaderMap::new(), headers(&fields)?))
        }
        Encryption::CustomerKey(key) => {
            let raw = BASE64_STANDARD
                .decode(key)
                .map_err(|_| invalid("sseCustomerKey is not base64"))?;
            let md5 = BASE64_STANDARD.encode(Md5::digest(raw));
            let fields = [
                ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
                ("x-amz-server-side-encryption-customer-key", key),
                ("x-amz-server-side-encryption-customer-key-md5", &md5),
            ];
            Ok((headers(&fields)?, headers(&fields)?))
        }
    }
}
