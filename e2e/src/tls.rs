//! Certificates as a user would bring them.

use k8s_openapi::api::core::v1::Secret;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::json;

use crate::Lab;

impl Lab {
    /// Makes the Secrets `<name>-ca` and `<name>-server`, with all names that an Etcd's members have.
    pub async fn certificates(&self, name: &str, etcd: &str) -> anyhow::Result<()> {
        let ca_key = KeyPair::generate()?;
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let ca_cert = ca.self_signed(&ca_key)?;
        let namespace = &self.namespace;
        let names = vec![
            format!("{etcd}-local"),
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            format!("*.{etcd}-peer.{namespace}.svc"),
            format!("*.{etcd}-peer.{namespace}.svc.cluster.local"),
            format!("{etcd}-client.{namespace}.svc"),
        ];
        let mut leaf = CertificateParams::new(names)?;
        leaf.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let leaf_key = KeyPair::generate()?;
        let issuer = Issuer::from_params(&ca, &ca_key);
        let leaf = leaf.signed_by(&leaf_key, &issuer)?;
        self.apply::<Secret>(&json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{name}-ca")},
            "stringData": {"ca.crt": ca_cert.pem()},
        }))
        .await?;
        self.apply::<Secret>(&json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{name}-server")},
            "stringData": {"tls.crt": leaf.pem(), "tls.key": leaf_key.serialize_pem()},
        }))
        .await?;
        Ok(())
    }
}
