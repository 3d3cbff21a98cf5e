//! What the controllers refuse, and what they do with objects that they can't decode.

use anyhow::{Context as _, ensure};
use api::v1alpha1::{Etcd, EtcdMember, find_condition};
use e2e::{
    Lab,
    lab::{etcd, observed, run},
};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Event, Pod},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

fn tls(surface: &str) -> Value {
    json!({
        "tlsCASecretRef": {"name": format!("{surface}-ca"), "dataKey": "ca.crt"},
        "serverTLSSecretRef": {"name": format!("{surface}-server")},
        "clientTLSSecretRef": {"name": format!("{surface}-server")},
    })
}

fn refused(etcd: &Etcd, code: &str) -> bool {
    let mut errors = etcd.status.iter().flat_map(|status| &status.last_errors);
    errors.any(|error| error.code == code)
}

/// Versions of what the pods come from: nothing may be written.
async fn versions(lab: &Lab) -> anyhow::Result<[Option<String>; 2]> {
    let set = lab.api::<StatefulSet>().get("t1").await?;
    let config = lab.api::<ConfigMap>().get("t1-config").await?;
    Ok([
        set.metadata.generation.map(|g| g.to_string()),
        config.resource_version(),
    ])
}

/// Peer TLS that is switched on in a running cluster, with everything else that may be in the same edit: nothing is carried
/// out, a pod that is restarted comes back as it was, and the edit can be taken back.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story")]
async fn e2e_peer_tls_stays_once_formed() -> anyhow::Result<()> {
    run("peer-tls", |lab| async move {
        lab.certificates("client", "t1").await?;
        lab.certificates("peer", "t1").await?;
        let plain = etcd("t1", 3, &json!({}));
        lab.apply::<Etcd>(&plain).await?;
        lab.until_ready("t1").await?;
        lab.put_keys("t1-0", "/kept/", 3).await?;
        let before = versions(&lab).await?;

        let mut edited = plain.clone();
        edited["spec"]["annotations"] = json!({"a-new": "template"});
        edited["spec"]["etcd"] = json!({"clientUrlTls": tls("client"), "peerUrlTls": tls("peer")});
        lab.apply::<Etcd>(&edited).await?;
        let etcd = lab
            .until("t1", "be refused", |etcd: &Etcd| refused(etcd, "InvalidSpec"))
            .await?;
        let status = etcd.status.context("a status")?;
        ensure!(
            status
                .last_operation
                .is_some_and(|last| last.state.as_str() == "Error")
        );
        lab.until("t1", "say that clients aren't served as wanted", |etcd: &Etcd| {
            let conditions = etcd
                .status
                .iter()
                .flat_map(|status| &status.conditions)
                .cloned()
                .collect::<Vec<_>>();
            find_condition(&conditions, "Ready").is_some_and(|ready| ready.reason == "ClientTLSMismatch")
        })
        .await?;
        let events = lab.api::<Event>().list(&ListParams::default()).await?;
        ensure!(
            events
                .iter()
                .any(|event| event.reason.as_deref() == Some("InvalidSpec")),
            "no Event"
        );
        // A restart meanwhile.
        lab.api::<Pod>()
            .delete("t1-2", &DeleteParams::default().grace_period(1))
            .await?;
        lab.until("t1", "notice the restart", |etcd: &Etcd| {
            etcd.status
                .as_ref()
                .and_then(|status| status.members_ready.as_deref())
                == Some("2/3")
        })
        .await?;
        lab.until("t1", "have three members again", |etcd: &Etcd| {
            etcd.status
                .as_ref()
                .and_then(|status| status.members_ready.as_deref())
                == Some("3/3")
        })
        .await?;
        ensure!(versions(&lab).await? == before, "something was written");
        for member in lab.members("t1").await? {
            let status = member.status.clone().context("a status")?;
            ensure!(
                status.peer_tls_enabled == Some(false),
                "{}: {status:?}",
                member.name_any()
            );
            ensure!(
                status.client_tls_enabled == Some(false),
                "{}: {status:?}",
                member.name_any()
            );
        }

        edited["spec"]["etcd"] = json!({});
        lab.apply::<Etcd>(&edited).await?;
        lab.until_ready("t1").await?;
        lab.until("t1", "have nothing to complain of", |etcd: &Etcd| {
            observed(etcd)
                && etcd
                    .status
                    .as_ref()
                    .is_some_and(|status| status.last_errors.is_empty())
        })
        .await?;
        lab.check_cluster("t1", 3).await
    })
    .await
}

/// Takes every rule out of a schema, but for the field that tasks are selected by.
fn anything_goes(crd: &mut Value) {
    for version in crd["spec"]["versions"].as_array_mut().into_iter().flatten() {
        let anything = || json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let (mut schema, mut spec) = (anything(), anything());
        spec["properties"] = json!({"etcdName": {"type": "string"}});
        schema["properties"] = json!({"spec": spec});
        version["schema"] = json!({"openAPIV3Schema": schema});
    }
}

/// An EtcdMember and a task as another schema has stored them hold up nobody else, and are told of.
#[tokio::test]
async fn e2e_undecodable_objects_hold_up_nobody() -> anyhow::Result<()> {
    run("undecodable", |lab| async move {
        lab.apply::<Etcd>(&etcd("bad", 1, &json!({}))).await?;
        lab.until_ready("bad").await?;
        let crds = Api::<CustomResourceDefinition>::all(lab.client.clone());
        let kinds = [
            "etcdmembers.druid.gardener.cloud",
            "etcdopstasks.druid.gardener.cloud",
        ];
        let force = PatchParams::apply("e2e-undecodable").force();
        let mut before = Vec::new();
        for name in kinds {
            let crd = crds.get(name).await?;
            let mut lax = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": name}, "spec": crd.spec,
            });
            before.push(lax.clone());
            anything_goes(&mut lax);
            crds.patch(name, &force, &Patch::Apply(&lax)).await?;
        }
        let result = with_undecodable(&lab).await;
        for (name, strict) in kinds.into_iter().zip(before) {
            crds.patch(name, &force, &Patch::Apply(&strict)).await?;
        }
        result
    })
    .await
}

async fn with_undecodable(lab: &Lab) -> anyhow::Result<()> {
    let of = |kind: &str, plural: &str| {
        let resource = ApiResource {
            group: "druid.gardener.cloud".into(),
            version: "v1alpha1".into(),
            api_version: "druid.gardener.cloud/v1alpha1".into(),
            kind: kind.into(),
            plural: plural.into(),
        };
        Api::<DynamicObject>::namespaced_with(lab.client.clone(), &lab.namespace, &resource)
    };
    let (members, tasks) = (of("EtcdMember", "etcdmembers"), of("EtcdOpsTask", "etcdopstasks"));
    let label = |etcd: &str| json!({"app.kubernetes.io/managed-by": "etcd-druid", "gardener.cloud/owned-by": etcd, "app.kubernetes.io/part-of": etcd});
    let stray = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdMember",
        "metadata": {"name": "bad-7", "labels": label("bad")}, "status": {"id": 7, "conditions": "none"},
    });
    let params = PatchParams::apply("e2e-undecodable").force();
    members.patch("bad-7", &params, &Patch::Apply(&stray)).await?;
    members
        .patch_status("bad-7", &params, &Patch::Apply(&stray))
        .await?;
    let task = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdOpsTask",
        "metadata": {"name": "broken"}, "spec": {"etcdName": "bad", "config": 7},
    });
    tasks.patch("broken", &params, &Patch::Apply(&task)).await?;

    // The controllers begin anew, and list what they can't decode.
    let pods = Api::<Pod>::namespaced(lab.client.clone(), "druid-system");
    for pod in pods.list(&ListParams::default()).await? {
        pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0))
            .await?;
    }
    lab.apply::<Etcd>(&etcd("good", 1, &json!({}))).await?;
    lab.until_ready("good").await?;
    lab.put_keys("good-0", "/k/", 1).await?;
    lab.until("bad", "tell of its member", |etcd: &Etcd| {
        refused(etcd, "Undecodable")
    })
    .await?;
    let snapshot = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdOpsTask", "metadata": {"name": "works"},
        "spec": {"etcdName": "bad", "config": {"onDemandSnapshot": {"type": "full"}}},
    });
    tasks.patch("works", &params, &Patch::Apply(&snapshot)).await?;
    // Without a store it is rejected, which is an answer.
    lab.until("works", "be answered", |task: &api::v1alpha1::EtcdOpsTask| {
        task.status.as_ref().is_some_and(|status| status.state.is_some())
    })
    .await?;
    let events = lab.api::<Event>().list(&ListParams::default()).await?;
    let told = events.iter().any(|event| {
        event.reason.as_deref() == Some("Undecodable")
            && event.involved_object.name.as_deref() == Some("broken")
    });
    ensure!(told, "no Event at the task");

    members.delete("bad-7", &DeleteParams::default()).await?;
    tasks.delete("broken", &DeleteParams::default()).await?;
    lab.until("bad", "be as it was", |etcd: &Etcd| {
        observed(etcd)
            && etcd
                .status
                .as_ref()
                .is_some_and(|status| status.last_errors.is_empty())
    })
    .await?;
    let members: Vec<EtcdMember> = lab.members("bad").await?;
    ensure!(members.len() == 1, "{members:?}");
    Ok(())
}
