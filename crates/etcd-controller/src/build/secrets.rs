//! Secrets with certificates, under keys that never change.

use std::collections::BTreeMap;

use api::{labels::component, names};
use k8s_openapi::{ByteString, api::core::v1::Secret};

use super::meta;
use crate::{pki::Pair, validate::Cluster};

/// etcd's certificates, copied from the Secrets that the Etcd names, so that the pods mount one Secret whose name and
/// keys don't depend on the Etcd.
pub fn etcd_tls(cluster: &Cluster) -> Option<Secret> {
    (!cluster.etcd_keys.is_empty()).then(|| Secret {
        metadata: meta(
            cluster,
            component::ETCD_TLS,
            names::etcd_tls_secret(&cluster.name),
        ),
        data: Some(cluster.etcd_keys.clone()),
        ..Secret::default()
    })
}

/// The certificate that the stewards serve with.
pub fn steward_tls(cluster: &Cluster, ca: &str, pair: &Pair) -> Secret {
    let mut data = keys(ca, pair);
    data.extend(cluster.steward_keys.clone());
    Secret {
        metadata: meta(
            cluster,
            component::STEWARD_TLS,
            names::steward_tls_secret(&cluster.name),
        ),
        data: Some(data),
        ..Secret::default()
    }
}

/// The certificate with which people call the stewards.
pub fn steward_client(cluster: &Cluster, ca: &str, pair: &Pair) -> Secret {
    Secret {
        metadata: meta(
            cluster,
            component::STEWARD_TLS,
            names::steward_client_secret(&cluster.name),
        ),
        data: Some(keys(ca, pair)),
        ..Secret::default()
    }
}

/// A pair and its authority under the usual keys.
pub fn keys(ca: &str, pair: &Pair) -> BTreeMap<String, ByteString> {
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    BTreeMap::from([
        ("ca.crt".to_owned(), bytes(ca)),
        ("tls.crt".to_owned(), bytes(&pair.certificate)),
        ("tls.key".to_owned(), bytes(&pair.key)),
    ])
}
