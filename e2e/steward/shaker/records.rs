//! The EtcdMembers and Leases of a run, in a namespace of its own. What the etcd-controller would do with them is done here.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use api::{
    labels,
    v1alpha1::{Condition, EtcdMember, MemberState, find_condition},
};
use e2e::lab::Lab;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use super::{
    api_server::ApiServer,
    gate::{Gate, Mode},
};
use crate::rig::Rig;

/// The objects of a run's members.
pub(crate) struct Records {
    lab: Lab,
    api: Arc<ApiServer>,
    /// By which stewards get to the API server.
    gate: Gate,
}

impl Records {
    /// A namespace in which the members of a rig record what they do, from their first start on.
    pub(crate) async fn open(api: &Arc<ApiServer>, rig: &mut Rig, seed: u64) -> anyhow::Result<Self> {
        let client = api.client().await?;
        let namespace = format!("shaker-{seed}");
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("namespace {namespace}"))?;
        let records = Self {
            lab: Lab { client, namespace },
            api: Arc::clone(api),
            gate: Gate::open(api.port).await?,
        };
        records.admit(rig, 0, false).await?;
        Ok(records)
    }

    /// Makes the objects of the members from an ordinal on, and leads all stewards to the API server. Members that are made
    /// after their cluster has formed are marked as such.
    pub(crate) async fn admit(&self, rig: &mut Rig, from: usize, formed: bool) -> anyhow::Result<()> {
        for member in &rig.members[from..] {
            self.make(&member.name, formed).await?;
        }
        let file = rig.store().with_file_name("kubeconfig");
        self.api.write_kubeconfig(self.gate.port, &file)?;
        rig.record_by(&file, &self.lab.namespace)
    }

    async fn make(&self, name: &str, formed: bool) -> anyhow::Result<()> {
        let learner = labels::annotation::CREATE_AS_LEARNER;
        let annotations = if formed { json!({learner: ""}) } else { json!({}) };
        let metadata = json!({"name": name, "annotations": annotations});
        self.lab
            .apply::<EtcdMember>(&json!({
                "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdMember", "metadata": metadata,
            }))
            .await?;
        self.lab
            .apply::<Lease>(&json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
            }))
            .await?;
        Ok(())
    }

    /// Somebody deletes a member's EtcdMember, and it is made anew.
    pub(crate) async fn make_anew(&self, name: &str) -> anyhow::Result<()> {
        let members = self.lab.api::<EtcdMember>();
        members.delete(name, &DeleteParams::default()).await?;
        self.make(name, false).await
    }

    /// The objects of all members go with their Etcd, and those of the next one are made.
    pub(crate) async fn make_all_anew(&self, rig: &Rig) -> anyhow::Result<()> {
        for member in &rig.members {
            let leases = self.lab.api::<Lease>();
            leases.delete(&member.name, &DeleteParams::default()).await?;
            self.make_anew(&member.name).await?;
        }
        Ok(())
    }

    pub(crate) fn lead(&self, mode: Mode) {
        self.gate.set(mode);
    }

    /// Whether all members record that they serve this cluster.
    pub(crate) async fn tell(&self, rig: &Rig, cluster: u64) -> anyhow::Result<()> {
        for member in &rig.members {
            let object = self.lab.api::<EtcdMember>().get(&member.name).await?;
            let learns = object
                .annotations()
                .contains_key(labels::annotation::CREATE_AS_LEARNER);
            let status = object.status.unwrap_or_default();
            let recorded = status.cluster_id.as_deref();
            ensure!(
                recorded.and_then(|id| u64::from_str_radix(id, 16).ok()) == Some(cluster),
                "{} records the cluster {recorded:?}, and serves {cluster:x}",
                member.name
            );
            let ready = find_condition(&status.conditions, "Ready");
            ensure!(
                ready.is_some_and(Condition::is_true) && status.state == Some(MemberState::Started),
                "{} serves, and records {:?} and {ready:?}",
                member.name,
                status.state
            );
            ensure!(!learns, "{} votes, and is marked as a learner", member.name);
        }
        Ok(())
    }
}
