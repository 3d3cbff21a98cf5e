//! What is configured under `controller`.

use kube::core::Duration;
use serde::{Deserialize, Serialize};

/// Settings of the custodian.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    /// How old a member's last heartbeat may be before it can't be told whether the member serves.
    pub unknown_threshold: Duration,
    /// How long that may last before the member counts as not ready.
    pub not_ready_threshold: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            unknown_threshold: std::time::Duration::from_mins(1).into(),
            not_ready_threshold: std::time::Duration::from_mins(5).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_text_and_unknown_keys_are_refused() {
        let config: Config = serde_saphyr::from_str("unknownThreshold: 90s\n").unwrap();
        assert_eq!(config.unknown_threshold, std::time::Duration::from_secs(90));
        assert_eq!(config.not_ready_threshold, Config::default().not_ready_threshold);
        assert!(serde_saphyr::from_str::<Config>("threshold: 1m\n").is_err());
    }
}
