//! The configuration that etcd is started with: what the etcd-controller wrote for this member, and what only this
//! moment can tell.

use std::path::{Path, PathBuf};

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
    /// Hash of what the etcd-controller wrote.
    pub hash: String,
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
    let text = std::fs::read_to_string(file).map_err(|source| ConfigError::Read {
        path: file.to_owned(),
        source,
    })?;
    let mut config: Map<String, Value> =
        serde_saphyr::from_str(&text).map_err(|error| ConfigError::Yaml {
            path: file.to_owned(),
            message: error.to_string(),
        })?;
    require_certificates(&config)?;
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
    Ok(EtcdConfig {
        text,
        hash: hash_of(file)?,
    })
}

/// Hash of what the etcd-controller wrote for a member.
pub fn hash_of(file: &Path) -> Result<String, ConfigError> {
    let text = std::fs::read(file).map_err(|source| ConfigError::Read {
        path: file.to_owned(),
        source,
    })?;
    Ok(hex::encode(&Sha256::digest(text)[..8]))
}

/// etcd ends at once when a certificate is missing; a volume that isn't filled yet is worth waiting for.
fn require_certificates(config: &Map<String, Value>) -> Result<(), ConfigError> {
    for section in ["client-transport-security", "peer-transport-security"] {
        let Some(Value::Object(section)) = config.get(section) else {
            continue;
        };
        for key in ["cert-file", "key-file", "trusted-ca-file"] {
            if let Some(path) = section.get(key).and_then(Value::as_str).map(PathBuf::from)
                && !path.exists()
            {
                return Err(ConfigError::CertificateMissing(path));
            }
        }
    }
    Ok(())
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

    fn completed(text: &str, entry: &Entry) -> Result<(Map<String, Value>, String), ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("etcd.yaml");
        std::fs::write(&file, text).unwrap();
        let config = complete(&file, Path::new("/data"), entry)?;
        Ok((serde_saphyr::from_str(&config.text).unwrap(), config.hash))
    }

    #[test]
    fn the_moment_is_added_and_the_rest_is_kept() {
        let text = "name: t1-0\nquota-backend-bytes: 8589934592\ninitial-cluster: t1-0=http://a:1\n";
        let (founding, hash) = completed(text, &Entry::Founding).unwrap();
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
        assert_eq!(hash, same, "the hash is of what the controller wrote");
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
