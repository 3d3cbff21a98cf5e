//! A client for one container. Reads, credentials and signatures are the library's; the other calls are our own, since
//! the library has no immutability, tags in listings or conditional commit of blocks.

use std::path::PathBuf;

use bytes::Bytes;
use object_store::{
    azure::{AzureAuthorizer, AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder},
    client::{HttpClient, HttpResponse},
};

use crate::{
    config::StoreConfig,
    credentials::{Fields, Place},
    error::{Class, Error, Result},
    rate::MinimumRate,
    request::{self, Call, credentials_failed},
    transport::{Connector, client_options, resume},
};

const VARIABLE: &str = "AZURE_APPLICATION_CREDENTIALS";

#[derive(Debug)]
pub(super) struct Client {
    pub(super) store: MicrosoftAzure,
    http: HttpClient,
    account: String,
    /// Address of the container, without a slash at its end.
    container_url: String,
    pub(super) rate: MinimumRate,
}

/// Files whose change calls for a new client.
pub(super) fn files(config: &StoreConfig) -> Vec<PathBuf> {
    Place::find(config, VARIABLE)
        .map(|place| place.path().to_owned())
        .into_iter()
        .collect()
}

impl Client {
    /// With the account's key if there is one, else with what the environment offers: workload identity, a service
    /// principal or a managed identity.
    pub(super) fn new(config: &StoreConfig) -> Result<Self> {
        let fields = Place::find(config, VARIABLE)
            .map(|place| place.read())
            .transpose()?;
        let field = |name: &str| fields.as_ref().and_then(|fields| fields.get(name));
        let mut builder = match field("storageKey") {
            Some(key) => MicrosoftAzureBuilder::new().with_access_key(key),
            None => MicrosoftAzureBuilder::from_env(),
        };
        let account = field("storageAccount").map(str::to_owned);
        let account = account.or_else(|| builder.get_config_value(&AzureConfigKey::AccountName));
        let account = account.ok_or_else(|| {
            Error::new(
                Class::CredentialsUnavailable,
                "open the store",
                "no storageAccount is given",
            )
        })?;
        let container = config.container()?;
        let endpoint = endpoint(config, fields.as_ref(), &account)?;
        let connector = Connector::new(config);
        let http = connector.client()?;
        builder = builder
            .with_account(&account)
            .with_container_name(container)
            .with_endpoint(endpoint.clone())
            .with_http_connector(connector)
            .with_retry(resume())
            .with_client_options(client_options());
        let unusable = |e: object_store::Error| {
            Error::new(Class::CredentialsUnavailable, "open the store", e.to_string())
        };
        let store = builder.build().map_err(unusable)?;
        Ok(Self {
            store,
            http,
            account,
            container_url: format!("{endpoint}/{container}"),
            rate: config.retry.rate,
        })
    }

    pub(super) async fn send(&self, call: Call<'_>, action: &str) -> Result<HttpResponse> {
        let mut request = call.request(&self.container_url, action)?;
        let credential = self.store.credentials().get_credential().await;
        let credential = credential.map_err(|e| credentials_failed(&e, action))?;
        AzureAuthorizer::new(&credential, &self.account)
            .try_authorize(&mut request)
            .map_err(|e| Error::new(Class::CredentialsUnavailable, action, e.to_string()))?;
        request::execute(&self.http, request, action).await
    }

    pub(super) async fn fetch(&self, call: Call<'_>, action: &str) -> Result<Bytes> {
        request::read(self.send(call, action).await?, action).await
    }
}

/// The configured one, or that of the account in Azure's public or another cloud.
fn endpoint(config: &StoreConfig, fields: Option<&Fields>, account: &str) -> Result<String> {
    let domain = fields
        .and_then(|fields| fields.get("domain"))
        .unwrap_or("blob.core.windows.net");
    let endpoint = config
        .endpoint
        .clone()
        .unwrap_or_else(|| format!("https://{account}.{domain}"));
    config.check_scheme(&endpoint)?;
    Ok(endpoint.trim_end_matches('/').to_owned())
}
