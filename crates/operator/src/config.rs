//! One configuration out of defaults, a YAML file, the environment and flags, each overriding the one before.
//! Unknown keys are refused wherever they come from.

use std::{collections::BTreeMap, fs, path::PathBuf};

use kube::core::Duration;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

/// Environment variables of the form `DRUID__SERVER__PORT=8080` override `server.port`.
const ENV_PREFIX: &str = "DRUID__";

/// Words in a key that mark its value as not for printing.
const SECRET_WORDS: [&str; 4] = ["password", "token", "secretkey", "credential"];

/// The configuration of a controller: what all of them share, and its own part under `controller`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "camelCase",
    bound(deserialize = "T: DeserializeOwned + Default")
)]
pub struct Config<T> {
    /// Election among the replicas of this controller.
    pub leader_election: LeaderElection,
    /// Health and metrics endpoint.
    pub server: Server,
    /// Logs and traces.
    pub telemetry: Telemetry,
    /// What only this controller has.
    pub controller: T,
}

/// Election of one active replica by a Lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct LeaderElection {
    /// Off means that this replica is always active: only for a single replica.
    pub enabled: bool,
    /// How long the others wait after the last renewal before one of them takes over.
    pub lease_duration: Duration,
    /// How long the leader tries to renew before it stops itself. Less than `leaseDuration`.
    pub renew_deadline: Duration,
    /// Pause between two tries. Less than `renewDeadline`.
    pub retry_period: Duration,
}

impl Default for LeaderElection {
    fn default() -> Self {
        let seconds = |s| Duration::from(std::time::Duration::from_secs(s));
        Self {
            enabled: true,
            lease_duration: seconds(15),
            renew_deadline: seconds(10),
            retry_period: seconds(2),
        }
    }
}

/// The endpoint for probes and scrapes. It is plain HTTP and shows no object's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Server {
    /// Address to listen on.
    pub bind_address: String,
    /// Port to listen on.
    pub port: u16,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            bind_address: "0.0.0.0".to_owned(),
            port: 8080,
        }
    }
}

/// Logs and traces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Telemetry {
    /// `json` for machines, `text` for people.
    pub log_format: LogFormat,
    /// Filter directives, for example `info` or `info,operator=debug`.
    pub log_filter: String,
    /// OTLP gRPC endpoint for traces; no traces are sent when it is unset.
    pub otlp_endpoint: Option<String>,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            log_format: LogFormat::Json,
            log_filter: "info".to_owned(),
            otlp_endpoint: None,
        }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// Lines for people.
    Text,
}

impl LeaderElection {
    /// The others may take over only after the leader has given up, and it needs time for more than one try.
    fn check(&self) -> Result<(), ConfigError> {
        let times =
            [self.lease_duration, self.renew_deadline, self.retry_period].map(std::time::Duration::from);
        let [lease, renew, retry] = times;
        if !self.enabled || (lease > renew && renew > retry && !retry.is_zero()) {
            return Ok(());
        }
        Err(ConfigError::Election { lease, renew, retry })
    }
}

/// Command-line flags of every controller.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Flags {
    /// Configuration file (YAML). Without it, defaults, environment and flags apply.
    #[arg(long, env = "DRUID_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Override one value of the configuration; may be repeated, for example `--set server.port=9090`.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// Why a configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("read configuration file {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A text is not YAML.
    #[error("{origin} is not valid YAML: {message}")]
    Yaml {
        /// The file, variable or flag.
        origin: String,
        /// The parser's message.
        message: String,
    },
    /// An override doesn't have the form KEY=VALUE.
    #[error("--set {0:?}: expected KEY=VALUE, for example --set server.port=9090")]
    Override(String),
    /// The leader could still act when another one takes over.
    #[error(
        "leaderElection: leaseDuration ({lease:?}) must be longer than renewDeadline ({renew:?}), that longer than \
         retryPeriod ({retry:?}), and that longer than 0"
    )]
    Election {
        /// How long the others wait.
        lease: std::time::Duration,
        /// How long the leader tries.
        renew: std::time::Duration,
        /// Pause between two tries.
        retry: std::time::Duration,
    },
    /// A key is unknown, or a value has the wrong type.
    #[error("configuration key {path:?}: {message}")]
    Key {
        /// Dotted path of the key.
        path: String,
        /// What is wrong with it.
        message: String,
    },
}

/// Reads the configuration of this process.
pub fn load<T: DeserializeOwned + Default>(flags: &Flags) -> Result<Config<T>, ConfigError> {
    let environment = std::env::vars()
        .filter(|(name, _)| name.starts_with(ENV_PREFIX))
        .collect();
    layered(flags, &environment)
}

fn layered<T: DeserializeOwned + Default>(
    flags: &Flags,
    environment: &BTreeMap<String, String>,
) -> Result<Config<T>, ConfigError> {
    let mut root = match &flags.config {
        Some(path) => {
            let text = fs::read_to_string(path).map_err(|source| ConfigError::Read {
                path: path.clone(),
                source,
            })?;
            match yaml(&text, || path.display().to_string())? {
                Value::Null => Map::new(),
                Value::Object(map) => map,
                _ => {
                    return Err(ConfigError::Yaml {
                        origin: path.display().to_string(),
                        message: "expected a mapping".to_owned(),
                    });
                }
            }
        }
        None => Map::new(),
    };
    for (name, text) in environment {
        let path: Vec<_> = name
            .trim_start_matches(ENV_PREFIX)
            .split("__")
            .map(camel_case)
            .collect();
        insert(&mut root, &path, yaml(text, || name.clone())?);
    }
    for set in &flags.set {
        let (key, text) = set
            .split_once('=')
            .ok_or_else(|| ConfigError::Override(set.clone()))?;
        let path: Vec<_> = key.split('.').map(str::to_owned).collect();
        insert(&mut root, &path, yaml(text, || format!("--set {key}"))?);
    }
    let config: Config<T> =
        serde_path_to_error::deserialize(Value::Object(root)).map_err(|e| ConfigError::Key {
            path: e.path().to_string(),
            message: e.inner().to_string(),
        })?;
    config.leader_election.check()?;
    Ok(config)
}

/// The configuration as YAML for the log, with the values of secret-looking keys masked.
pub fn redacted<C: Serialize>(config: &C) -> String {
    let mut value = serde_json::to_value(config).unwrap_or_default();
    redact(&mut value);
    serde_saphyr::to_string(&value).unwrap_or_default()
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let key = key.to_lowercase();
                if SECRET_WORDS.iter().any(|word| key.contains(word)) && value.is_string() {
                    *value = Value::from("***");
                } else {
                    redact(value);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(redact),
        _ => {}
    }
}

fn yaml(text: &str, origin: impl Fn() -> String) -> Result<Value, ConfigError> {
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_saphyr::from_str(text).map_err(|e| ConfigError::Yaml {
        origin: origin(),
        message: e.to_string(),
    })
}

fn insert(root: &mut Map<String, Value>, path: &[String], value: Value) {
    let Some((last, parents)) = path.split_last() else {
        return;
    };
    let mut map = root;
    for parent in parents {
        let entry = map
            .entry(parent.clone())
            .or_insert_with(|| Value::Object(Map::new()));
        if !entry.is_object() {
            *entry = Value::Object(Map::new());
        }
        let Value::Object(next) = entry else { return };
        map = next;
    }
    map.insert(last.clone(), value);
}

/// `LEADER_ELECTION` → `leaderElection`.
fn camel_case(segment: &str) -> String {
    let mut out = String::with_capacity(segment.len());
    for (i, word) in segment.split('_').enumerate() {
        let word = word.to_lowercase();
        let mut chars = word.chars();
        match chars.next() {
            Some(first) if i > 0 => {
                out.extend(first.to_uppercase());
                out.push_str(chars.as_str());
            }
            _ => out.push_str(&word),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields, rename_all = "camelCase")]
    struct Own {
        workers: u16,
        api_token: String,
    }

    fn read(file: &str, env: &[(&str, &str)], set: &[&str]) -> Result<Config<Own>, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        fs::write(&path, file).unwrap();
        let flags = Flags {
            config: Some(path),
            set: set.iter().map(|s| (*s).to_owned()).collect(),
        };
        layered(
            &flags,
            &env.iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn nothing_given_means_defaults() {
        assert_eq!(read("", &[], &[]).unwrap(), Config::default());
    }

    #[test]
    fn later_layers_win() {
        let file = "controller: {workers: 1}\nserver: {port: 1}\nleaderElection: {leaseDuration: 20s}\n";
        let env = [
            ("DRUID__CONTROLLER__WORKERS", "2"),
            ("DRUID__LEADER_ELECTION__ENABLED", "false"),
        ];
        let config = read(file, &env, &["controller.workers=3"]).unwrap();
        assert_eq!(config.controller.workers, 3);
        assert_eq!(config.server.port, 1);
        assert!(!config.leader_election.enabled);
        assert_eq!(
            std::time::Duration::from(config.leader_election.lease_duration).as_secs(),
            20
        );
    }

    #[test]
    fn unknown_keys_are_refused_with_their_path() {
        for (file, set, want) in [
            ("servr: {port: 1}", vec![], "servr"),
            ("server: {prot: 1}", vec![], "server"),
            ("", vec!["controller.worker=1"], "controller"),
            ("server: {port: many}", vec![], "server.port"),
        ] {
            let error = read(file, &[], &set).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
        assert!(matches!(
            read("", &[], &["server.port"]),
            Err(ConfigError::Override(_))
        ));
        assert!(matches!(read("- a", &[], &[]), Err(ConfigError::Yaml { .. })));
    }

    /// With a deadline beyond the lease two replicas could act at once.
    #[test]
    fn a_leader_gives_up_before_another_takes_over() {
        for (set, allowed) in [
            ("leaderElection.leaseDuration=11s", true),
            ("leaderElection.leaseDuration=10s", false),
            ("leaderElection.renewDeadline=2s", false),
            ("leaderElection.retryPeriod=0s", false),
        ] {
            let read = read("", &[], &[set]);
            assert_eq!(read.is_ok(), allowed, "{set}: {read:?}");
        }
        let error = read("", &[], &["leaderElection.leaseDuration=5s"])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("leaseDuration (5s) must be longer than renewDeadline (10s)"),
            "{error}"
        );
        let alone = ["leaderElection.leaseDuration=5s", "leaderElection.enabled=false"];
        assert!(read("", &[], &alone).is_ok());
    }

    #[test]
    fn secrets_are_not_printed() {
        let mut config = Config::<Own>::default();
        config.controller.api_token = "hunter2".to_owned();
        let printed = redacted(&config);
        assert!(
            printed.contains("***") && !printed.contains("hunter2"),
            "{printed}"
        );
    }
}
