//! How a pod gets at an object store: volumes, mounts and environment, by provider. Used for the members' pods and for
//! the Jobs that work on backups; pure.

use api::v1alpha1::{SignaturePolicy, SigningSpec, StoreProvider, StoreSpec, UnknownStoreProvider};
use k8s_openapi::api::core::v1::{
    EnvVar, EnvVarSource, HostPathVolumeSource, SecretKeySelector, SecretVolumeSource, Volume, VolumeMount,
};

/// Where buckets of provider Local lie on the node when the Secret doesn't say.
const LOCAL_BUCKETS: &str = "/etc/gardener/local-backupbuckets";
/// Home of the user that the steward runs as.
const HOME: &str = "/home/nonroot";
const CREDENTIALS_MODE: i32 = 0o640;
/// Where the keys that snapshots are signed with are mounted.
const SIGNING_KEYS: &str = "/var/etcd-signing-keys";

/// Which of a pod's stores this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Where snapshots go, or where a copy goes.
    Primary,
    /// Where a second copy of the snapshots is kept.
    Secondary,
    /// Where a copy comes from.
    Source,
}

/// What a container needs to use a store.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Access {
    /// Volumes of the pod.
    pub volumes: Vec<Volume>,
    /// Mounts of the container.
    pub mounts: Vec<VolumeMount>,
    /// Environment of the container.
    pub env: Vec<EnvVar>,
    /// The folders of Local stores, which start out owned by root.
    pub local_folders: Vec<String>,
}

impl Access {
    /// To both stores.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.volumes.extend(other.volumes);
        self.mounts.extend(other.mounts);
        self.local_folders.extend(other.local_folders);
        for variable in other.env {
            // Two Local stores have one home.
            if !self.env.iter().any(|known| known.name == variable.name) {
                self.env.push(variable);
            }
        }
        self
    }
}

/// Access to a store; empty when none is configured. `host_path` is what the Secret of a Local store says.
pub fn access(
    store: &StoreSpec,
    role: Role,
    host_path: Option<&str>,
) -> Result<Access, UnknownStoreProvider> {
    let Some(provider) = store.provider()? else {
        return Ok(Access::default());
    };
    let mut access = Access::default();
    let container = store.container().unwrap_or_default().to_owned();
    access.env.push(plain(role, "STORAGE_CONTAINER", &container));
    let secret = store.secret_name();
    match provider {
        StoreProvider::Local => local(&mut access, role, &container, host_path),
        StoreProvider::Ecs => {
            let variables = [
                ("ECS_ENDPOINT", "endpoint"),
                ("ECS_ACCESS_KEY_ID", "accessKeyID"),
                ("ECS_SECRET_ACCESS_KEY", "secretAccessKey"),
            ];
            if let Some(secret) = secret {
                access
                    .env
                    .extend(variables.map(|(name, key)| of_secret(role, name, secret, key)));
            }
        }
        StoreProvider::S3 => credentials(&mut access, role, secret, "AWS_APPLICATION_CREDENTIALS", None),
        StoreProvider::Abs => credentials(&mut access, role, secret, "AZURE_APPLICATION_CREDENTIALS", None),
        StoreProvider::Gcs => {
            credentials(
                &mut access,
                role,
                secret,
                "GOOGLE_APPLICATION_CREDENTIALS",
                Some("serviceaccount.json"),
            );
        }
        StoreProvider::Swift => credentials(
            &mut access,
            role,
            secret,
            "OPENSTACK_APPLICATION_CREDENTIALS",
            None,
        ),
        StoreProvider::Oss => credentials(
            &mut access,
            role,
            secret,
            "ALICLOUD_APPLICATION_CREDENTIALS",
            None,
        ),
        StoreProvider::Ocs => credentials(
            &mut access,
            role,
            secret,
            "OPENSHIFT_APPLICATION_CREDENTIALS",
            None,
        ),
    }
    Ok(access)
}

/// The keys that snapshots are signed with, and which signatures are asked for.
pub fn signing(spec: &SigningSpec) -> Access {
    let mut access = Access::default();
    if let Some(secret) = spec.secret_name() {
        mount_secret(&mut access, secret, "signing-keys", SIGNING_KEYS);
        access
            .env
            .push(plain(Role::Primary, "SNAPSHOT_SIGNING_KEYS", SIGNING_KEYS));
    }
    let policy = spec.policy.as_ref().map(SignaturePolicy::as_str);
    access
        .env
        .extend(policy.map(|policy| plain(Role::Primary, "SNAPSHOT_SIGNATURES", policy)));
    access
}

/// A folder of the node, as etcd-druid mounts it.
fn local(access: &mut Access, role: Role, container: &str, host_path: Option<&str>) {
    let name = match role {
        Role::Primary => "local-backup",
        Role::Secondary => "secondary-local-backup",
        Role::Source => "source-local-backup",
    };
    let folder = format!("{HOME}/{container}");
    access.volumes.push(Volume {
        name: name.to_owned(),
        host_path: Some(HostPathVolumeSource {
            path: format!(
                "{}/{container}",
                host_path.unwrap_or(LOCAL_BUCKETS).trim_end_matches('/')
            ),
            type_: Some("DirectoryOrCreate".to_owned()),
        }),
        ..Volume::default()
    });
    access.mounts.push(mount(name, &folder, false));
    access.env.push(EnvVar {
        name: "HOME".to_owned(),
        value: Some(HOME.to_owned()),
        ..EnvVar::default()
    });
    access.local_folders.push(folder);
}

/// A Secret as files, and the variable that says where. Without a Secret the provider's own identity is used.
fn credentials(access: &mut Access, role: Role, secret: Option<&str>, variable: &str, file: Option<&str>) {
    let Some(secret) = secret else { return };
    let (volume, folder) = match (role, file) {
        (Role::Primary, None) => ("etcd-backup-secret", "/var/etcd-backup"),
        (Role::Primary, Some(_)) => ("etcd-backup-secret", "/var/.gcp"),
        (Role::Secondary, None) => ("secondary-etcd-backup-secret", "/var/secondary-etcd-backup"),
        (Role::Secondary, Some(_)) => ("secondary-etcd-backup-secret", "/var/.secondary-gcp"),
        (Role::Source, None) => ("source-etcd-backup-secret", "/var/source-etcd-backup"),
        (Role::Source, Some(_)) => ("source-etcd-backup-secret", "/var/.source-gcp"),
    };
    mount_secret(access, secret, volume, folder);
    let value = file.map_or_else(|| folder.to_owned(), |file| format!("{folder}/{file}"));
    access.env.push(plain(role, variable, &value));
}

fn mount_secret(access: &mut Access, secret: &str, volume: &str, folder: &str) {
    access.volumes.push(Volume {
        name: volume.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            default_mode: Some(CREDENTIALS_MODE),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    });
    access.mounts.push(mount(volume, folder, true));
}

fn plain(role: Role, name: &str, value: &str) -> EnvVar {
    EnvVar {
        name: prefixed(role, name),
        value: Some(value.to_owned()),
        ..EnvVar::default()
    }
}

fn of_secret(role: Role, name: &str, secret: &str, key: &str) -> EnvVar {
    EnvVar {
        name: prefixed(role, name),
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: secret.to_owned(),
                key: key.to_owned(),
                optional: None,
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

fn prefixed(role: Role, name: &str) -> String {
    match role {
        Role::Primary => name.to_owned(),
        Role::Secondary => format!("SECONDARY_{name}"),
        Role::Source => format!("SOURCE_{name}"),
    }
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(provider: &str, secret: Option<&str>) -> StoreSpec {
        let secret = secret.map_or(
            serde_json::Value::Null,
            |name| serde_json::json!({"name": name, "namespace": "x"}),
        );
        serde_json::from_value(serde_json::json!({
            "provider": provider, "container": "bkp", "prefix": "p", "secretRef": secret,
        }))
        .unwrap()
    }

    fn env(access: &Access) -> Vec<(String, String)> {
        access
            .env
            .iter()
            .filter_map(|env| Some((env.name.clone(), env.value.clone()?)))
            .collect()
    }

    #[test]
    fn credentials_lie_where_etcd_backup_restore_looked_for_them() {
        let s3 = access(&store("aws", Some("keys")), Role::Primary, None).unwrap();
        assert!(env(&s3).contains(&("AWS_APPLICATION_CREDENTIALS".into(), "/var/etcd-backup".into())));
        let gcs = access(&store("gcp", Some("keys")), Role::Source, None).unwrap();
        let variable = "SOURCE_GOOGLE_APPLICATION_CREDENTIALS";
        assert!(env(&gcs).contains(&(variable.into(), "/var/.source-gcp/serviceaccount.json".into())));
        let ecs = access(&store("dell", Some("keys")), Role::Primary, None).unwrap();
        assert_eq!((ecs.volumes.len(), ecs.env.len()), (0, 4));
    }

    /// Workload identity: no Secret, so no mount that would keep the pod from starting.
    #[test]
    fn without_a_secret_nothing_is_mounted() {
        let s3 = access(&store("S3", None), Role::Primary, None).unwrap();
        assert!(s3.volumes.is_empty());
        assert_eq!(env(&s3), [("STORAGE_CONTAINER".to_owned(), "bkp".to_owned())]);
    }

    #[test]
    fn a_local_store_is_a_folder_of_the_node() {
        let local = access(&store("Local", None), Role::Primary, Some("/data/")).unwrap();
        let path = &local.volumes[0].host_path.as_ref().unwrap().path;
        assert_eq!(
            (path.as_str(), local.local_folders.as_slice()),
            ("/data/bkp", ["/home/nonroot/bkp".to_owned()].as_slice())
        );
        assert!(access(&store("tape", None), Role::Primary, None).is_err());
    }

    /// The names are those that the steward reads.
    #[test]
    fn keys_are_mounted_and_the_policy_is_told() {
        let spec = |value| serde_json::from_value::<SigningSpec>(value).unwrap();
        let with_keys = signing(&spec(serde_json::json!({"secretRef": {"name": "keys"}})));
        assert_eq!(
            with_keys.volumes[0]
                .secret
                .as_ref()
                .unwrap()
                .secret_name
                .as_deref(),
            Some("keys")
        );
        assert_eq!(
            env(&with_keys),
            [(
                "SNAPSHOT_SIGNING_KEYS".to_owned(),
                with_keys.mounts[0].mount_path.clone()
            )]
        );
        let without = signing(&spec(serde_json::json!({"policy": "Ignore"})));
        assert!(without.volumes.is_empty());
        assert_eq!(
            env(&without),
            [("SNAPSHOT_SIGNATURES".to_owned(), "Ignore".to_owned())]
        );
    }

    /// Both with their own credentials, whatever they are.
    #[test]
    fn two_stores_dont_get_in_each_others_way() {
        let one = access(&store("Local", None), Role::Primary, Some("/data")).unwrap();
        let both = one.and(access(&store("S3", Some("keys")), Role::Secondary, None).unwrap());
        assert_eq!((both.volumes.len(), both.local_folders.len()), (2, 1));
        let env = env(&both);
        for (name, value) in [
            ("STORAGE_CONTAINER", "bkp"),
            ("SECONDARY_STORAGE_CONTAINER", "bkp"),
            (
                "SECONDARY_AWS_APPLICATION_CREDENTIALS",
                "/var/secondary-etcd-backup",
            ),
        ] {
            assert!(env.contains(&(name.into(), value.into())), "{name} in {env:?}");
        }
        let mut other = store("Local", None);
        other.container = Some("other".to_owned());
        let local = || access(&store("Local", None), Role::Primary, None).unwrap();
        let two = local().and(access(&other, Role::Secondary, None).unwrap());
        let homes = two.env.iter().filter(|variable| variable.name == "HOME").count();
        assert_eq!((two.local_folders.len(), homes), (2, 1));
    }

    /// What is mounted, and what the steward looks for, are one folder, and that of etcd-druid.
    #[test]
    fn a_local_store_without_a_name_is_the_default_folder() {
        let mut unnamed = store("Local", None);
        unnamed.container = None;
        let local = access(&unnamed, Role::Primary, None).unwrap();
        let path = &local.volumes[0].host_path.as_ref().unwrap().path;
        assert_eq!(path, "/etc/gardener/local-backupbuckets/default.bkp");
        assert_eq!(local.mounts[0].mount_path, "/home/nonroot/default.bkp");
        assert!(env(&local).contains(&("STORAGE_CONTAINER".into(), unnamed.container().unwrap().into())));
    }
}
