//! A namespace for one scenario.

use std::{fmt::Debug, future::Future, time::Duration};

use anyhow::{Context as _, anyhow};
use api::v1alpha1::{Etcd, EtcdMember, MemberRole, find_condition};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope as Scoped,
    runtime::wait::await_condition,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

/// Long enough for a machine that does other things as well.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// A namespace of its own in the cluster under test.
#[derive(Clone)]
pub struct Lab {
    /// To the cluster.
    pub client: Client,
    /// The namespace.
    pub namespace: String,
}

impl Debug for Lab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lab")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// Runs a scenario in a fresh namespace. The namespace of one that fails stays for a look.
pub async fn run<F, Fut>(name: &str, scenario: F) -> anyhow::Result<()>
where
    F: FnOnce(Lab) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let client = Client::try_default()
        .await
        .context("KUBECONFIG must name a cluster with Druid: ./run e2e")?;
    let namespace = format!("e2e-{name}-{:04x}", rand::random::<u16>());
    let api = Api::<Namespace>::all(client.clone());
    let meta = ObjectMeta {
        name: Some(namespace.clone()),
        ..ObjectMeta::default()
    };
    api.create(
        &PostParams::default(),
        &Namespace {
            metadata: meta,
            ..Namespace::default()
        },
    )
    .await?;
    let lab = Lab {
        client,
        namespace: namespace.clone(),
    };
    scenario(lab)
        .await
        .with_context(|| format!("in namespace {namespace}, which is left for a look"))?;
    api.delete(&namespace, &DeleteParams::default()).await?;
    Ok(())
}

impl Lab {
    /// Objects of a kind in the namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = Scoped, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates or changes an object.
    pub async fn apply<K>(&self, manifest: &Value) -> anyhow::Result<K>
    where
        K: Resource<Scope = Scoped, DynamicType = ()> + DeserializeOwned + Clone + Debug + Serialize,
    {
        let name = manifest["metadata"]["name"]
            .as_str()
            .context("the manifest has no name")?;
        let params = PatchParams::apply("e2e").force();
        Ok(self
            .api::<K>()
            .patch(name, &params, &Patch::Apply(manifest))
            .await?)
    }

    /// Waits until an object is as it should be, and returns it.
    pub async fn until<K>(&self, name: &str, what: &str, is: impl Fn(&K) -> bool + Clone) -> anyhow::Result<K>
    where
        K: Resource<Scope = Scoped, DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + 'static,
    {
        let condition = |object: Option<&K>| object.is_some_and(&is);
        if let Ok(object) = timeout(PATIENCE, await_condition(self.api::<K>(), name, condition)).await {
            object?.context("it is gone")
        } else {
            let now = self.api::<K>().get_opt(name).await?;
            Err(anyhow!(
                "waited {PATIENCE:?} for {} {name} to {what}; it is {now:#?}",
                K::kind(&())
            ))
        }
    }

    /// Waits until an object is gone.
    pub async fn until_gone<K>(&self, name: &str) -> anyhow::Result<()>
    where
        K: Resource<Scope = Scoped, DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + 'static,
    {
        let gone = await_condition(self.api::<K>(), name, |object: Option<&K>| object.is_none());
        timeout(PATIENCE, gone)
            .await
            .map_err(|_| anyhow!("waited {PATIENCE:?} for {name} to go"))??;
        Ok(())
    }

    /// Waits until an Etcd has a quorum and all its members serve. Returns how long that took.
    pub async fn until_ready(&self, name: &str) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        self.until(name, "be ready", |etcd: &Etcd| {
            has(etcd, "Ready") && has(etcd, "AllMembersReady") && observed(etcd)
        })
        .await?;
        Ok(begun.elapsed())
    }

    /// The members of an Etcd by name.
    pub async fn members(&self, etcd: &str) -> anyhow::Result<Vec<EtcdMember>> {
        let owned = ListParams::default().labels(&format!("{}={etcd}", api::labels::OWNED_BY));
        let mut members = self.api::<EtcdMember>().list(&owned).await?.items;
        members.sort_by_key(ResourceExt::name_any);
        Ok(members)
    }

    /// The pods of an Etcd's members.
    pub async fn pods(&self, etcd: &str) -> anyhow::Result<Vec<Pod>> {
        let selector = format!(
            "{}={etcd},{}={}",
            api::labels::PART_OF,
            api::labels::COMPONENT,
            api::labels::component::STATEFUL_SET
        );
        Ok(self
            .api::<Pod>()
            .list(&ListParams::default().labels(&selector))
            .await?
            .items)
    }

    /// Checks what holds of every healthy cluster: one leader, the others follow, one cluster ID.
    pub async fn check_cluster(&self, etcd: &str, size: usize) -> anyhow::Result<()> {
        let members = self.members(etcd).await?;
        anyhow::ensure!(members.len() == size, "{} members, not {size}", members.len());
        let status = |member: &EtcdMember| member.status.clone().unwrap_or_default();
        let leaders = members
            .iter()
            .filter(|member| status(member).role == Some(MemberRole::Leader))
            .count();
        let followers = members
            .iter()
            .filter(|member| status(member).role == Some(MemberRole::Follower))
            .count();
        anyhow::ensure!(
            (leaders, followers) == (1, size - 1),
            "{leaders} leaders, {followers} followers"
        );
        let mut ids: Vec<_> = members.iter().map(|member| status(member).cluster_id).collect();
        ids.dedup();
        anyhow::ensure!(ids.len() == 1 && ids[0].is_some(), "cluster IDs {ids:?}");
        Ok(())
    }
}

/// An Etcd's manifest; `backup` goes under `spec.backup`.
pub fn etcd(name: &str, replicas: u32, backup: &Value) -> Value {
    json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1",
        "kind": "Etcd",
        "metadata": {"name": name},
        "spec": {
            "labels": {"app": name},
            "replicas": replicas,
            "etcd": {},
            "backup": backup,
            "storageCapacity": "1Gi",
        },
    })
}

/// Whether a condition of an Etcd is true.
pub fn has(etcd: &Etcd, condition: &str) -> bool {
    let conditions = etcd
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    find_condition(conditions, condition).is_some_and(api::v1alpha1::Condition::is_true)
}

/// Whether the newest spec of an Etcd was acted on.
pub fn observed(etcd: &Etcd) -> bool {
    etcd.status
        .as_ref()
        .is_some_and(|status| status.observed_generation == etcd.metadata.generation)
}
