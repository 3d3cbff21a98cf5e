//! The certificates by which Druid's own parts know each other. One authority, whose key never leaves the controllers'
//! namespace; for each Etcd a server certificate of its stewards and a client certificate for people; one client
//! certificate for the controllers. Users bring certificates of etcd themselves; those have nothing to do with these.

use std::time::Duration;

use api::steward::server_name;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

const CA_LIFE: Duration = Duration::from_hours(10 * 365 * 24);
const LEAF_LIFE: Duration = Duration::from_hours(365 * 24);
/// Clocks differ: a certificate is good a little before it is made.
const BACKDATED: Duration = Duration::from_mins(5);

/// Why a certificate can't be made or read.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// Making failed.
    #[error("make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// A name can't be in a certificate.
    #[error("{0:?} can't be a name in a certificate")]
    Name(String),
}

/// A certificate and its key, PEM.
#[derive(Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// Keys are not for logs.
impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").finish_non_exhaustive()
    }
}

/// What a certificate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// To serve, and to be a client of one's own kind.
    Server,
    /// To be a client.
    Client,
}

/// A certificate that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// For people.
    pub common_name: String,
    /// DNS names, IP addresses and URIs, as they are written.
    pub names: Vec<String>,
    /// What for.
    pub usage: Usage,
}

impl Wanted {
    /// The certificate that the stewards of an Etcd serve with.
    pub fn steward(etcd: &str, namespace: &str) -> Self {
        let (peer, client) = (api::names::peer_service(etcd), api::names::client_service(etcd));
        let mut names = vec![
            server_name(etcd, namespace),
            api::names::local_host(etcd),
            client.clone(),
            format!("{client}.{namespace}"),
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
        ];
        for domain in ["svc", "svc.cluster.local"] {
            names.push(format!("{client}.{namespace}.{domain}"));
            names.push(format!("*.{peer}.{namespace}.{domain}"));
        }
        names.push(etcd_uri(etcd, namespace));
        Self {
            common_name: format!("steward of {etcd}"),
            names,
            usage: Usage::Server,
        }
    }

    /// The certificate for people who call the stewards of an Etcd.
    pub fn client(etcd: &str, namespace: &str) -> Self {
        Self {
            common_name: format!("client of {etcd}"),
            names: vec![etcd_uri(etcd, namespace)],
            usage: Usage::Client,
        }
    }

    /// The certificate of a controller.
    pub fn controller(name: &str) -> Self {
        Self {
            common_name: name.to_owned(),
            names: vec![format!("druid://controller/{name}")],
            usage: Usage::Client,
        }
    }
}

fn etcd_uri(etcd: &str, namespace: &str) -> String {
    format!("druid://etcd/{namespace}/{etcd}")
}

/// The authority.
#[derive(Debug, Clone)]
pub struct Authority {
    pair: Pair,
}

impl Authority {
    /// Makes a new one.
    pub fn make() -> Result<Self, PkiError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = params("druid", CA_LIFE);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self {
            pair: Pair {
                certificate,
                key: key.serialize_pem(),
            },
        })
    }

    /// Takes up one that was made before.
    pub fn load(pair: Pair) -> Result<Self, PkiError> {
        Issuer::from_ca_cert_pem(&pair.certificate, KeyPair::from_pem(&pair.key)?)?;
        Ok(Self { pair })
    }

    /// Its certificate and key.
    pub fn pair(&self) -> &Pair {
        &self.pair
    }

    /// Makes a certificate.
    pub fn issue(&self, wanted: &Wanted) -> Result<Pair, PkiError> {
        let issuer = Issuer::from_ca_cert_pem(&self.pair.certificate, KeyPair::from_pem(&self.pair.key)?)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = params(&wanted.common_name, LEAF_LIFE);
        params.subject_alt_names = wanted
            .names
            .iter()
            .map(|name| alternative(name))
            .collect::<Result<Vec<_>, _>>()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match wanted.usage {
            Usage::Server => vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ],
            Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        let certificate = params.signed_by(&key, &issuer)?.pem();
        Ok(Pair {
            certificate,
            key: key.serialize_pem(),
        })
    }

    /// Whether a certificate is still good: signed by this authority, with the wanted names, and young enough.
    pub fn is_current(&self, certificate: &str, wanted: &Wanted, now: i64) -> bool {
        let (Some(der), Some(ca)) = (der(certificate), der(&self.pair.certificate)) else {
            return false;
        };
        let (Ok((_, leaf)), Ok((_, ca))) = (X509Certificate::from_der(&der), X509Certificate::from_der(&ca))
        else {
            return false;
        };
        let validity = leaf.validity();
        let (begin, end) = (validity.not_before.timestamp(), validity.not_after.timestamp());
        let renew_at = begin + (end - begin) / 3 * 2;
        let mut names = names_of(&leaf);
        let mut wanted = wanted.names.clone();
        names.sort();
        wanted.sort();
        begin <= now
            && now < renew_at
            && names == wanted
            && leaf.verify_signature(Some(ca.public_key())).is_ok()
    }
}

fn params(common_name: &str, life: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    let now = OffsetDateTime::now_utc();
    params.not_before = now - BACKDATED;
    params.not_after = now + life;
    params
}

fn alternative(name: &str) -> Result<SanType, PkiError> {
    let text = || name.try_into().map_err(|_| PkiError::Name(name.to_owned()));
    Ok(match name.parse() {
        Ok(address) => SanType::IpAddress(address),
        Err(_) if name.contains("://") => SanType::URI(text()?),
        Err(_) => SanType::DnsName(text()?),
    })
}

fn names_of(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let names = extension.value.general_names.iter();
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::URI(name) => Some((*name).to_owned()),
            GeneralName::IPAddress([a, b, c, d]) => Some(format!("{a}.{b}.{c}.{d}")),
            _ => None,
        })
        .collect()
}

fn der(pem: &str) -> Option<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> i64 {
        jiff::Timestamp::now().as_second()
    }

    #[test]
    fn a_certificate_is_current_until_two_thirds_of_its_life() {
        let authority = Authority::make().unwrap();
        let wanted = Wanted::steward("t1", "lab");
        let pair = authority.issue(&wanted).unwrap();
        assert!(authority.is_current(&pair.certificate, &wanted, now()));
        let days = |n: i64| now() + n * 86_400;
        assert!(authority.is_current(&pair.certificate, &wanted, days(240)));
        assert!(!authority.is_current(&pair.certificate, &wanted, days(250)));
    }

    #[test]
    fn another_authority_or_other_names_make_it_stale() {
        let authority = Authority::make().unwrap();
        let pair = authority.issue(&Wanted::client("t1", "lab")).unwrap();
        assert!(!authority.is_current(&pair.certificate, &Wanted::client("t2", "lab"), now()));
        assert!(!Authority::make().unwrap().is_current(
            &pair.certificate,
            &Wanted::client("t1", "lab"),
            now()
        ));
        assert!(!authority.is_current("no pem", &Wanted::client("t1", "lab"), now()));
        let loaded = Authority::load(authority.pair().clone()).unwrap();
        assert!(loaded.is_current(&pair.certificate, &Wanted::client("t1", "lab"), now()));
    }
}
