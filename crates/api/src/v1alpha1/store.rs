//! Where backups are kept.

use std::str::FromStr;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{open_enum::open_enum, tolerant::null_as_default};

/// A Secret, by name.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.name) && self.name != ''").message("set the name of the Secret"))]
pub struct SecretReference {
    /// Name of the Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// Ignored: the Secret is looked up in the namespace of the object that refers to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub namespace: Option<String>,
}

/// An object store, and the place in it.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.provider) || self.provider == '' || (has(self.prefix) && self.prefix != '')")
        .field_path(".prefix")
        .message("set a prefix: backups of two clusters must not lie in the same place"),
    validation = Rule::new("!has(self.provider) || self.provider in ['', 'Local', 'local'] || has(self.container)")
        .field_path(".container")
        .message("set the name of the bucket or container"),
    validation = Rule::new("!has(self.provider) || !(self.provider in ['ECS', 'ecs', 'dell']) || has(self.secretRef)")
        .field_path(".secretRef")
        .message("provider ECS needs a Secret with endpoint, accessKeyID and secretAccessKey"),
    validation = Rule::new(
        "!has(self.immutability) || !has(self.provider) || !(self.provider in ['Local', 'local', 'Swift', 'swift', 'openstack'])"
    ).field_path(".immutability").message(
        "providers Local and Swift can't protect objects from deletion: remove immutability"
    )
)]
pub struct StoreSpec {
    /// Name of the bucket or container; for provider `Local` a directory below the host path, by default
    /// `default.bkp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9][-a-zA-Z0-9._]+[a-zA-Z0-9]$')").message(
        "must be 3 to 63 letters, digits, dots, dashes or underscores, and start and end with a letter or digit"
    ))]
    pub container: Option<String>,
    /// URL of the store's API in place of the provider's own, for example of an S3-compatible server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = Rule::new("isURL(self)").message("must be a URL, like https://s3.example.org:9000"))]
    pub endpoint_override: Option<String>,
    /// Path in the container below which all snapshots lie. No two clusters may share one.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    #[schemars(length(max = 512))]
    pub prefix: String,
    /// Kind of the store: `S3` (or `aws`, `stackit`), `ABS` (`azure`), `GCS` (`gcp`), `Swift` (`openstack`), `OSS`
    /// (`alicloud`), `ECS` (`dell`), `OCS` (`openshift`) or `Local`; lower case is accepted too. Backups are off
    /// while it is unset or empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new(
        "self in ['', 'S3', 's3', 'aws', 'stackit', 'ABS', 'abs', 'azure', 'GCS', 'gcs', 'gcp', 'Swift', 'swift', \
          'openstack', 'OSS', 'oss', 'alicloud', 'ECS', 'ecs', 'dell', 'OCS', 'ocs', 'openshift', 'Local', 'local']"
    ).message("unknown provider: use S3, ABS, GCS, Swift, OSS, ECS, OCS or Local"))]
    pub provider: Option<String>,
    /// Secret with the store's credentials. Without one the pod's own identity is used (workload identity); provider
    /// `ECS` needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Says that objects in the container can't be changed or deleted for some time after their upload. Unset means
    /// that they can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub immutability: Option<ImmutabilitySpec>,
}

/// How objects are protected from change and deletion.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImmutabilitySpec {
    /// What the retention period is set on. Only `bucket`: the whole container has one, set by its owner.
    pub retention_type: RetentionType,
}

open_enum! {
    /// What a retention period is set on.
    pub enum RetentionType {
        /// The whole bucket or container.
        Bucket = "bucket",
    }
}

/// A kind of object store.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum StoreProvider {
    S3,
    Abs,
    Gcs,
    Swift,
    Oss,
    Ecs,
    Ocs,
    Local,
}

/// A provider that nothing here can talk to.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("unsupported storage provider {0:?}: use S3, ABS, GCS, Swift, OSS, ECS, OCS or Local")]
pub struct UnknownStoreProvider(pub String);

/// Every accepted spelling.
const PROVIDERS: [(StoreProvider, &[&str]); 8] = [
    (StoreProvider::S3, &["S3", "s3", "aws", "stackit"]),
    (StoreProvider::Abs, &["ABS", "abs", "azure"]),
    (StoreProvider::Gcs, &["GCS", "gcs", "gcp"]),
    (StoreProvider::Swift, &["Swift", "swift", "openstack"]),
    (StoreProvider::Oss, &["OSS", "oss", "alicloud"]),
    (StoreProvider::Ecs, &["ECS", "ecs", "dell"]),
    (StoreProvider::Ocs, &["OCS", "ocs", "openshift"]),
    (StoreProvider::Local, &["Local", "local"]),
];

impl FromStr for StoreProvider {
    type Err = UnknownStoreProvider;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = PROVIDERS.iter().find(|(_, spellings)| spellings.contains(&text));
        known
            .map(|(provider, _)| *provider)
            .ok_or_else(|| UnknownStoreProvider(text.to_owned()))
    }
}

impl StoreProvider {
    /// The provider's canonical spelling, which the steward's `--store-provider` takes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::S3 => "S3",
            Self::Abs => "ABS",
            Self::Gcs => "GCS",
            Self::Swift => "Swift",
            Self::Oss => "OSS",
            Self::Ecs => "ECS",
            Self::Ocs => "OCS",
            Self::Local => "Local",
        }
    }
}

impl std::fmt::Display for StoreProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl StoreSpec {
    /// The provider, or `None` when backups are off.
    pub fn provider(&self) -> Result<Option<StoreProvider>, UnknownStoreProvider> {
        match self.provider.as_deref() {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some),
        }
    }

    /// The name of the bucket, container or directory.
    pub fn container(&self) -> Option<&str> {
        let local = || matches!(self.provider(), Ok(Some(StoreProvider::Local))).then_some("default.bkp");
        self.container
            .as_deref()
            .filter(|name| !name.is_empty())
            .or_else(local)
    }

    /// Whether backups travel unencrypted: whoever writes `http://` into the Etcd has said so.
    pub fn is_plain_http(&self) -> bool {
        self.endpoint_override
            .as_deref()
            .is_some_and(|url| url.starts_with("http://"))
    }

    /// The name of the Secret with the credentials, if there is one.
    pub fn secret_name(&self) -> Option<&str> {
        self.secret_ref
            .as_ref()?
            .name
            .as_deref()
            .filter(|name| !name.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A provider that the schema lets in and the controllers can't read, or the other way round, helps nobody.
    #[test]
    fn schema_and_reader_know_the_same_providers() {
        let schema = serde_json::to_value(schemars::schema_for!(StoreSpec)).unwrap();
        let rule = schema["properties"]["provider"]["x-kubernetes-validations"][0]["rule"]
            .as_str()
            .unwrap();
        let in_schema: BTreeSet<&str> = rule
            .split('\'')
            .skip(1)
            .step_by(2)
            .filter(|text| !text.is_empty())
            .collect();
        let in_reader: BTreeSet<&str> = PROVIDERS
            .iter()
            .flat_map(|(_, spellings)| *spellings)
            .copied()
            .collect();
        assert_eq!(in_schema, in_reader);
        for (provider, spellings) in PROVIDERS {
            assert!(spellings.contains(&provider.as_str()), "{provider}");
            assert!(
                spellings.iter().all(|text| text.parse() == Ok(provider)),
                "{provider}"
            );
        }
    }

    #[test]
    fn backups_are_off_without_a_provider() {
        let with = |provider: Option<&str>| StoreSpec {
            provider: provider.map(str::to_owned),
            ..StoreSpec::default()
        };
        assert_eq!(with(None).provider(), Ok(None));
        assert_eq!(with(Some("")).provider(), Ok(None));
        assert_eq!(with(Some("gcp")).provider(), Ok(Some(StoreProvider::Gcs)));
        assert_eq!(
            with(Some("s4")).provider(),
            Err(UnknownStoreProvider("s4".to_owned()))
        );
    }

    #[test]
    fn only_local_stores_have_a_default_container() {
        let with = |provider: &str| StoreSpec {
            provider: Some(provider.to_owned()),
            ..StoreSpec::default()
        };
        assert_eq!(with("local").container(), Some("default.bkp"));
        assert_eq!(with("S3").container(), None);
    }
}
