//! Certificates that the user brings.

#![expect(clippy::struct_field_names, reason = "the names of the API")]

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::v1alpha1::SecretReference;

/// Certificates of the client port.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.clientTLSSecretRef)").message(
    "set clientTLSSecretRef: the server asks for client certificates, so Druid needs one to connect"
))]
pub struct TlsConfig {
    /// Secret with the bundle of CA certificates that both sides are checked against.
    #[serde(rename = "tlsCASecretRef")]
    pub tls_ca_secret_ref: SecretKeyReference,
    /// Secret with the server's certificate (keys `tls.crt` and `tls.key`).
    #[serde(rename = "serverTLSSecretRef")]
    pub server_tls_secret_ref: SecretReference,
    /// Secret with the certificate that Druid presents as a client (keys `tls.crt` and `tls.key`).
    #[serde(
        rename = "clientTLSSecretRef",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub client_tls_secret_ref: Option<SecretReference>,
}

/// Certificates of the steward's port.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StewardTlsConfig {
    /// Secret with the bundle of CA certificates that both sides are checked against.
    #[serde(rename = "tlsCASecretRef")]
    pub tls_ca_secret_ref: SecretKeyReference,
    /// Secret with the server's certificate (keys `tls.crt` and `tls.key`).
    #[serde(rename = "serverTLSSecretRef")]
    pub server_tls_secret_ref: SecretReference,
    /// Ignored: Druid's controllers present certificates of their own.
    #[serde(
        rename = "clientTLSSecretRef",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub client_tls_secret_ref: Option<UnusedSecretReference>,
}

/// Certificates of the peer port.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerTlsConfig {
    /// Secret with the bundle of CA certificates that both sides are checked against.
    #[serde(rename = "tlsCASecretRef")]
    pub tls_ca_secret_ref: SecretKeyReference,
    /// Secret with the member's certificate (keys `tls.crt` and `tls.key`), used as server and as client.
    #[serde(rename = "serverTLSSecretRef")]
    pub server_tls_secret_ref: SecretReference,
    /// Ignored: peers present their server certificate.
    #[serde(
        rename = "clientTLSSecretRef",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub client_tls_secret_ref: Option<UnusedSecretReference>,
    /// Doesn't check that a peer's certificate names the address that it dials from. Default: false.
    #[serde(
        rename = "skipClientSANVerification",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub skip_client_san_verification: Option<bool>,
}

/// A reference to a Secret that nothing reads. Clients generated from etcd-druid's types send it without a name.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnusedSecretReference {
    /// Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub namespace: Option<String>,
}

/// A key in a Secret.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.name) && self.name != ''").message("set the name of the Secret"))]
pub struct SecretKeyReference {
    /// Name of the Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// Ignored: the Secret is looked up in the namespace of the object that refers to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub namespace: Option<String>,
    /// The key. Default: `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub data_key: Option<String>,
}

impl SecretKeyReference {
    /// The key that holds the CA bundle.
    pub fn data_key(&self) -> &str {
        self.data_key
            .as_deref()
            .filter(|key| !key.is_empty())
            .unwrap_or("ca.crt")
    }
}
