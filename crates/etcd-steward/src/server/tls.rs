//! TLS of the API: certificates that are read anew when their files change, and the callers' identities.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier},
    sign::CertifiedKey,
};
use tracing::{info, warn};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// Files of the certificate that the etcd-controller made, and of the one that a user brought.
const MANAGED: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];
const BROUGHT: [&str; 3] = ["brought-ca.crt", "brought-tls.crt", "brought-tls.key"];

/// Why the certificates can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read.
    #[error("read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file isn't what it should be.
    #[error("{path}: {message}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
}

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Without a certificate that this steward accepts.
    Anonymous,
    /// Somebody with this Etcd's client certificate, or one of the authority that its user brought.
    Owner(String),
    /// A controller of Druid, by its name.
    Controller(String),
}

/// Serves with what lies in a folder at the moment.
#[derive(Debug)]
pub struct Certificates {
    folder: PathBuf,
    /// Start of the URIs in client certificates of this Etcd.
    own_uri: String,
    current: Mutex<Option<(Fingerprint, Arc<Loaded>)>>,
}

type Fingerprint = BTreeMap<&'static str, (Option<SystemTime>, u64)>;

/// One state of the folder.
#[derive(Debug)]
pub struct Loaded {
    /// For the handshake.
    pub server: Arc<ServerConfig>,
    brought_ca: Option<Arc<dyn rustls::server::danger::ClientCertVerifier>>,
}

/// The URI that the client certificates of an Etcd carry.
pub fn etcd_uri(namespace: &str, etcd: &str) -> String {
    format!("druid://etcd/{namespace}/{etcd}")
}

/// What the URIs of Druid's controllers begin with.
pub const CONTROLLER_URI: &str = "druid://controller/";

impl Certificates {
    /// Certificates of one Etcd's stewards in `folder`.
    pub fn new(folder: PathBuf, namespace: &str, etcd: &str) -> Self {
        Self {
            folder,
            own_uri: etcd_uri(namespace, etcd),
            current: Mutex::default(),
        }
    }

    /// The certificates as they are now. When new ones can't be used, the old ones stay in use.
    pub fn load(&self) -> Result<Arc<Loaded>, TlsError> {
        let fingerprint = self.fingerprint();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, loaded)) = &*current
            && *known == fingerprint
        {
            return Ok(Arc::clone(loaded));
        }
        match (read(&self.folder), &*current) {
            (Ok(loaded), known) => {
                info!(folder = %self.folder.display(), renewed = known.is_some(), "using the certificates");
                let loaded = Arc::new(loaded);
                *current = Some((fingerprint, Arc::clone(&loaded)));
                Ok(loaded)
            }
            (Err(error), Some((_, loaded))) => {
                warn!(%error, "the new certificates can't be used, staying with the old ones");
                Ok(Arc::clone(loaded))
            }
            (Err(error), None) => Err(error),
        }
    }

    fn fingerprint(&self) -> Fingerprint {
        let of = |file: &'static str| {
            let meta = std::fs::metadata(self.folder.join(file)).ok();
            (
                file,
                (
                    meta.as_ref().and_then(|m| m.modified().ok()),
                    meta.map_or(0, |m| m.len()),
                ),
            )
        };
        MANAGED.into_iter().chain(BROUGHT).map(of).collect()
    }

    /// Who presented a chain in the handshake.
    pub fn caller(&self, loaded: &Loaded, chain: Option<&[CertificateDer<'_>]>) -> Caller {
        let Some((leaf, intermediates)) = chain.and_then(|chain| chain.split_first()) else {
            return Caller::Anonymous;
        };
        for uri in uris(leaf) {
            if uri == self.own_uri {
                return Caller::Owner(uri);
            }
            if let Some(name) = uri.strip_prefix(CONTROLLER_URI) {
                return Caller::Controller(name.to_owned());
            }
        }
        let now = rustls::pki_types::UnixTime::now();
        match &loaded.brought_ca {
            Some(ca) if ca.verify_client_cert(leaf, intermediates, now).is_ok() => {
                Caller::Owner(subject(leaf))
            }
            _ => Caller::Anonymous,
        }
    }
}

fn read(folder: &Path) -> Result<Loaded, TlsError> {
    let [ca, cert, key] = MANAGED.map(|file| folder.join(file));
    let managed = Arc::new(certified(&cert, &key)?);
    let mut roots = RootCertStore::empty();
    add_roots(&mut roots, &ca)?;
    let [brought_ca, brought_cert, brought_key] = BROUGHT.map(|file| folder.join(file));
    let (mut brought, mut brought_verifier) = (None, None);
    if brought_cert.exists() {
        brought = Some(Arc::new(certified(&brought_cert, &brought_key)?));
        let mut own_roots = RootCertStore::empty();
        add_roots(&mut roots, &brought_ca)?;
        add_roots(&mut own_roots, &brought_ca)?;
        brought_verifier = Some(verifier(own_roots, &brought_ca)?);
    }
    // A caller without a certificate gets an answer that says so, instead of a failed handshake.
    let mut server = ServerConfig::builder()
        .with_client_cert_verifier(verifier(roots, &ca)?)
        .with_cert_resolver(Arc::new(Resolver { managed, brought }));
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Loaded {
        server: Arc::new(server),
        brought_ca: brought_verifier,
    })
}

fn verifier(
    roots: RootCertStore,
    ca: &Path,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .allow_unauthenticated()
        .build()
        .map_err(|error| invalid(ca, &error))
}

fn certified(cert: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let chain = pem_certificates(cert)?;
    let private = PrivateKeyDer::from_pem_slice(&content(key)?).map_err(|error| invalid(key, &error))?;
    let signing = aws_lc_rs::sign::any_supported_type(&private).map_err(|error| invalid(key, &error))?;
    let certified = CertifiedKey::new(chain, signing);
    certified.keys_match().map_err(|error| invalid(cert, &error))?;
    Ok(certified)
}

fn add_roots(roots: &mut RootCertStore, ca: &Path) -> Result<(), TlsError> {
    for certificate in pem_certificates(ca)? {
        roots.add(certificate).map_err(|error| invalid(ca, &error))?;
    }
    Ok(())
}

fn pem_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content(path)?).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(invalid(path, &"no certificate in it")),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(invalid(path, &error)),
    }
}

fn content(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read {
        path: path.to_owned(),
        source,
    })
}

fn invalid(path: &Path, message: &impl ToString) -> TlsError {
    TlsError::Invalid {
        path: path.to_owned(),
        message: message.to_string(),
    }
}

/// Chooses by the name that the client asks for: Druid's own clients ask for the managed one.
#[derive(Debug)]
struct Resolver {
    managed: Arc<CertifiedKey>,
    brought: Option<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let druid = hello
            .server_name()
            .is_some_and(|name| name.ends_with(".steward.druid.gardener.cloud"));
        match &self.brought {
            Some(brought) if !druid => Some(Arc::clone(brought)),
            _ => Some(Arc::clone(&self.managed)),
        }
    }
}

fn uris(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let Ok(Some(names)) = parsed.subject_alternative_name() else {
        return Vec::new();
    };
    let names = names.value.general_names.iter();
    names
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            _ => None,
        })
        .collect()
}

fn subject(certificate: &CertificateDer<'_>) -> String {
    X509Certificate::from_der(certificate)
        .map(|(_, parsed)| parsed.subject().to_string())
        .unwrap_or_default()
}
