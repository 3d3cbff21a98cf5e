//! The configuration that etcd is started with: what the etcd-controller wrote for this member, and what only this
//! moment can tell.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use api::steward::ClusterMember;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// Name of the file in the launcher's folder that the running etcd was started with.
pub const RUNNING: &str = "etcd.conf.yaml";

/// Why etcd's configuration can't be made.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no mapping.
    #[error("{path} is not a YAML mapping: {message}")]
    Yaml {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// A certificate that the configuration names isn't there.
    #[error("{0} is missing: does the Etcd name an existing Secret for it?")]
    CertificateMissing(PathBuf),
}

/// etcd's configuration, ready for the launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// The YAML text.
    pub text: String,
    /// What a running etcd can be told by whether it runs with this.
    pub version: Version,
}

/// What a process of etcd was started with, or should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Hash of the configuration.
    pub config: String,
    /// Hash of the authorities that it trusts; certificates and keys are read anew by etcd itself. Empty without TLS.
    pub authorities: String,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.config, self.authorities)
    }
}

impl From<&str> for Version {
    fn from(text: &str) -> Self {
        let (config, authorities) = text.split_once('.').unwrap_or((text, ""));
        Self {
            config: config.to_owned(),
            authorities: authorities.to_owned(),
        }
    }
}

/// How the member comes into its cluster. etcd heeds it only for an empty data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// With all the members that the configuration names.
    Founding,
    /// Into a running cluster, whose members are given by name and URL.
    Joining(Vec<(String, String)>),
}

/// Reads the member's configuration and completes it.
pub fn complete(file: &Path, data_dir: &Path, entry: &Entry) -> Result<EtcdConfig, ConfigError> {
    let mut config = read(file)?;
    require_certificates(&config)?;
    let version = version_of(&config)?;
    config.insert("data-dir".to_owned(), Value::from(data_dir.to_string_lossy()));
    let state = match entry {
        Entry::Founding => "new",
        Entry::Joining(members) => {
            let members: Vec<_> = members
                .iter()
                .map(|(name, url)| format!("{name}={url}"))
                .collect();
            config.insert("initial-cluster".to_owned(), Value::from(members.join(",")));
            "existing"
        }
    };
    config.insert("initial-cluster-state".to_owned(), Value::from(state));
    let text =
        serde_saphyr::to_string(&Value::Object(config.clone())).map_err(|error| ConfigError::Yaml {
            path: file.to_owned(),
            message: error.to_string(),
        })?;
    Ok(EtcdConfig { text, version })
}

/// What the etcd-controller wrote for a member.
pub fn read(file: &Path) -> Result<Map<String, Value>, ConfigError> {
    let text = std::fs::read_to_string(file).map_err(|source| ConfigError::Read {
        path: file.to_owned(),
        source,
    })?;
    parse(&text, file)
}

/// The options in the text of a file.
pub fn parse(text: &str, file: &Path) -> Result<Map<String, Value>, ConfigError> {
    serde_saphyr::from_str(text).map_err(|error| ConfigError::Yaml {
        path: file.to_owned(),
        message: error.to_string(),
    })
}

/// The scheme by which an etcd with a configuration serves its peers.
pub fn peer_scheme(config: &Map<String, Value>) -> Option<&str> {
    scheme_under(config, "listen-peer-urls")
}

/// The scheme by which an etcd with a configuration serves its clients.
pub fn client_scheme(config: &Map<String, Value>) -> Option<&str> {
    scheme_under(config, "listen-client-urls")
}

fn scheme_under<'a>(config: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    config.get(key).and_then(Value::as_str).and_then(scheme_of)
}

/// The scheme of a URL.
pub fn scheme_of(url: &str) -> Option<&str> {
    url.split_once("://").map(|(scheme, _)| scheme)
}

/// What an etcd is that runs with a configuration as it is now.
pub fn version_of(config: &Map<String, Value>) -> Result<Version, ConfigError> {
    let mut authorities = Sha256::new();
    let mut some = false;
    for path in files(config, &["trusted-ca-file"]) {
        let content = std::fs::read(&path).map_err(|source| ConfigError::Read { path, source })?;
        authorities.update(Sha256::digest(content));
        some = true;
    }
    let short = |digest: &[u8]| hex::encode(&digest[..8]);
    Ok(Version {
        config: api::steward::etcd_config_hash(config),
        authorities: if some {
            short(&authorities.finalize())
        } else {
            String::new()
        },
    })
}

/// etcd ends at once when a certificate is missing; a volume that isn't filled yet is worth waiting for.
fn require_certificates(config: &Map<String, Value>) -> Result<(), ConfigError> {
    match files(config, &["cert-file", "key-file", "trusted-ca-file"]).find(|path| !path.exists()) {
        Some(missing) => Err(ConfigError::CertificateMissing(missing)),
        None => Ok(()),
    }
}

/// The files that the sections on TLS name under some keys.
fn files<'a>(config: &'a Map<String, Value>, keys: &'a [&str]) -> impl Iterator<Item = PathBuf> + 'a {
    let sections = ["client-transport-security", "peer-transport-security"];
    let sections = sections
        .into_iter()
        .filter_map(|section| config.get(section)?.as_object());
    sections.flat_map(move |section| {
        keys.iter()
            .filter_map(|key| section.get(*key)?.as_str().map(PathBuf::from))
    })
}

/// The `name=url` pairs of a member, one for each URL.
pub fn pairs(member: &ClusterMember) -> impl Iterator<Item = (String, String)> + '_ {
    member
        .peer_urls
        .iter()
        .map(|url| (member.name.clone(), url.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(text: &str, entry: &Entry) -> Result<(Map<String, Value>, Version), ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("etcd.yaml");
        std::fs::write(&file, text).unwrap();
        let config = complete(&file, Path::new("/data"), entry)?;
        Ok((serde_saphyr::from_str(&config.text).unwrap(), config.version))
    }

    #[test]
    fn the_moment_is_added_and_the_rest_is_kept() {
        let text = "name: t1-0\nquota-backend-bytes: 8589934592\ninitial-cluster: t1-0=http://a:1\n";
        let (founding, version) = completed(text, &Entry::Founding).unwrap();
        assert_eq!(founding["initial-cluster-state"], "new");
        assert_eq!(founding["quota-backend-bytes"], 8_589_934_592_u64);
        assert_eq!(founding["data-dir"], "/data");

        let members = vec![
            ("t1-0".to_owned(), "http://a:1".to_owned()),
            ("t1-1".to_owned(), "http://b:1".to_owned()),
        ];
        let (joining, same) = completed(text, &Entry::Joining(members)).unwrap();
        assert_eq!(joining["initial-cluster"], "t1-0=http://a:1,t1-1=http://b:1");
        assert_eq!(joining["initial-cluster-state"], "existing");
        assert_eq!(version, same, "the version is that of what the controller wrote");
    }

    /// A running etcd must be told from one that runs with other options or trusts another authority.
    #[test]
    fn options_and_authorities_make_the_version() {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca.crt");
        std::fs::write(&ca, "old").unwrap();
        let config = |quota: u32| {
            let config = serde_json::json!({
                "quota-backend-bytes": quota, "client-transport-security": {"trusted-ca-file": ca},
            });
            version_of(config.as_object().unwrap()).unwrap()
        };
        let first = config(1);
        assert_eq!(Version::from(first.to_string().as_str()), first);
        let other = config(2);
        assert!(other.config != first.config && other.authorities == first.authorities);
        std::fs::write(&ca, "old and new").unwrap();
        let rotated = config(1);
        assert!(rotated.config == first.config && rotated.authorities != first.authorities);
        let plain = version_of(&Map::new()).unwrap();
        assert_eq!(Version::from(plain.to_string().as_str()), plain);
    }

    #[test]
    fn a_missing_certificate_is_named() {
        let text = "client-transport-security: {cert-file: /nowhere/tls.crt}";
        assert!(
            completed(text, &Entry::Founding)
                .unwrap_err()
                .to_string()
                .contains("/nowhere/tls.crt")
        );
    }
}
