//! A cluster's life: made, written to, backed up, repaired, deleted. Of one and of three members, with each store.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use api::v1alpha1::{Condition, ConditionStatus, Etcd, EtcdMember};
use e2e::{
    Lab,
    lab::{etcd, has, run},
    store::Store,
};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount},
};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use snapstore::Kind;

async fn life(lab: Lab, size: u32, store: Store) -> anyhow::Result<()> {
    let backup = lab.backup(store).await?;
    life_with(lab, size, store, &backup).await
}

async fn life_with(lab: Lab, size: u32, store: Store, backup: &Value) -> anyhow::Result<()> {
    lab.apply::<Etcd>(&etcd("t1", size, backup)).await?;
    let took = lab.until_ready("t1").await?;
    eprintln!("{size} members with {store:?} ready after {took:.1?}");
    lab.check_cluster("t1", usize::try_from(size)?).await?;

    lab.put_keys("t1-0", "/life/", 5).await?;
    let backed_up = lab
        .until("t1", "have its backups ready", |etcd: &Etcd| {
            has(etcd, "BackupReady")
        })
        .await?;
    ensure!(
        backed_up.status.unwrap_or_default().last_backup_time.is_some(),
        "no backup time in the status"
    );
    until_stored(&lab, store, 6).await?;

    lose_a_pod(&lab, size).await?;
    lose_a_record(&lab, size).await?;
    lose_a_service(&lab).await?;
    delete_and_find_the_data(&lab, store).await
}

/// Full and delta snapshots cover a revision.
async fn until_stored(lab: &Lab, store: Store, revision: i64) -> anyhow::Result<()> {
    let deadline = Instant::now() + e2e::lab::PATIENCE;
    loop {
        let listing = lab.stored(store).await?;
        let of = |kind| {
            listing
                .snapshots
                .iter()
                .filter(move |snapshot| snapshot.name.kind == kind)
        };
        let covered = listing
            .snapshots
            .iter()
            .map(|snapshot| snapshot.name.last_revision)
            .max()
            .unwrap_or(0);
        if of(Kind::Full).next().is_some() && of(Kind::Delta).next().is_some() && covered >= revision {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the store holds {listing:#?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// A deleted pod comes back as the same member, on the same volume, with its data.
async fn lose_a_pod(lab: &Lab, size: u32) -> anyhow::Result<()> {
    let pod = format!("t1-{}", size - 1);
    let id = |member: &EtcdMember| member.status.as_ref().and_then(|status| status.id.clone());
    let before = lab.api::<EtcdMember>().get(&pod).await?;
    let uid = lab.api::<Pod>().get(&pod).await?.uid();
    lab.api::<Pod>().delete(&pod, &DeleteParams::default()).await?;
    lab.until(&pod, "come back", move |pod: &Pod| pod.uid() != uid && ready(pod))
        .await?;
    lab.until_ready("t1").await?;
    let after = lab.api::<EtcdMember>().get(&pod).await?;
    ensure!(
        id(&before).is_some() && id(&before) == id(&after),
        "the member's ID changed"
    );
    ensure!(
        lab.count_keys(&pod, "/life/").await? == 5,
        "keys are missing after the loss of a pod"
    );
    lab.check_cluster("t1", usize::try_from(size)?).await
}

/// What a member has told of itself is told again when somebody has deleted its EtcdMember, though nothing has changed.
async fn lose_a_record(lab: &Lab, size: u32) -> anyhow::Result<()> {
    let name = format!("t1-{}", size - 1);
    let members = lab.api::<EtcdMember>();
    let before = members.get(&name).await?;
    members.delete(&name, &DeleteParams::default()).await?;
    let (uid, cluster) = (before.uid(), cluster_id(&before));
    lab.until(&name, "be told anew", move |member: &EtcdMember| {
        member.uid() != uid && cluster_id(member) == cluster
    })
    .await?;
    Ok(())
}

fn cluster_id(member: &EtcdMember) -> Option<String> {
    member
        .status
        .as_ref()
        .and_then(|status| status.cluster_id.clone())
}

fn ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.clone())
        .unwrap_or_default();
    conditions
        .iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// What somebody deletes by mistake is back within seconds.
async fn lose_a_service(lab: &Lab) -> anyhow::Result<()> {
    let uid = lab.api::<Service>().get("t1-client").await?.uid();
    let begun = Instant::now();
    lab.api::<Service>()
        .delete("t1-client", &DeleteParams::default())
        .await?;
    lab.until("t1-client", "come back", move |service: &Service| {
        service.uid() != uid
    })
    .await?;
    let took = begun.elapsed();
    eprintln!("a deleted Service was back after {took:.2?}");
    ensure!(
        took < Duration::from_secs(5),
        "the Service was back only after {took:?}"
    );
    Ok(())
}

/// Deleting an Etcd leaves its volumes and its backups, and the Etcd that is made again finds its data. If the volume of
/// ordinal 0 is lost meanwhile, the others are the cluster all the same, and nothing is restored beside them.
async fn delete_and_find_the_data(lab: &Lab, store: Store) -> anyhow::Result<()> {
    let manifest = lab.api::<Etcd>().get("t1").await?;
    let replicas = manifest.spec.replicas;
    let cluster = cluster_id(&lab.api::<EtcdMember>().get("t1-0").await?);
    let stored = lab.stored(store).await?.snapshots.len();
    lab.api::<Etcd>().delete("t1", &DeleteParams::default()).await?;
    lab.until_gone::<Etcd>("t1").await?;
    ensure!(
        lab.api::<StatefulSet>().get_opt("t1").await?.is_none(),
        "the StatefulSet is still there"
    );
    let claims = lab.api::<PersistentVolumeClaim>();
    let left = claims.list(&ListParams::default()).await?.items;
    ensure!(
        left.len() == usize::try_from(replicas)?,
        "{} volume claims are left",
        left.len()
    );
    if replicas > 1 {
        let name = left
            .iter()
            .map(ResourceExt::name_any)
            .find(|name| name.ends_with("-t1-0"));
        let name = name.context("no claim of t1-0")?;
        claims.delete(&name, &DeleteParams::default()).await?;
        lab.until_gone::<PersistentVolumeClaim>(&name).await?;
    }
    ensure!(
        lab.stored(store).await?.snapshots.len() >= stored,
        "backups are gone"
    );

    let again = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd", "metadata": {"name": "t1"}, "spec": manifest.spec,
    });
    lab.apply::<Etcd>(&again).await?;
    lab.until_ready("t1").await?;
    ensure!(
        lab.count_keys("t1-0", "/life/").await? == 5,
        "the Etcd made again lacks keys"
    );
    let first = lab.api::<EtcdMember>().get("t1-0").await?;
    ensure!(
        cluster_id(&first) == cluster && first.status.unwrap_or_default().last_restoration.is_none(),
        "it isn't the cluster that it was"
    );
    Ok(())
}

/// With signed snapshots: what is stored is read back, and found to be signed.
#[tokio::test]
async fn e2e_one_member_with_s3() -> anyhow::Result<()> {
    run("one-s3", |lab| async move {
        let key = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "signing"},
            "stringData": {"2026-01": "a key that has at least thirty-two bytes"},
        });
        lab.apply::<Secret>(&key).await?;
        let mut backup = lab.backup(Store::S3).await?;
        backup["signing"] = json!({"secretRef": {"name": "signing"}});
        let watched = lab.clone();
        life_with(lab, 1, Store::S3, &backup).await?;
        let signed = |member: &EtcdMember| {
            let conditions = member.status.iter().flat_map(|status| &status.conditions);
            let verified = |known: &&Condition| known.type_ == "BackupVerified";
            conditions
                .filter(verified)
                .any(|known| known.status == ConditionStatus::True)
        };
        watched.until("t1-0", "have its backups verified", signed).await?;
        let listing = watched.stored(Store::S3).await?;
        ensure!(
            listing
                .snapshots
                .iter()
                .all(|snapshot| snapshot.manifest.is_some()),
            "{listing:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn e2e_three_members_with_s3() -> anyhow::Result<()> {
    run("three-s3", |lab| life(lab, 3, Store::S3)).await
}

#[tokio::test]
async fn e2e_one_member_with_a_local_folder() -> anyhow::Result<()> {
    run("one-local", |lab| life(lab, 1, Store::Local)).await
}

#[tokio::test]
async fn e2e_three_members_with_a_local_folder() -> anyhow::Result<()> {
    run("three-local", |lab| life(lab, 3, Store::Local)).await
}

/// Each namespace has a ServiceAccount `default`: it must not become the Etcd's, to be deleted with it.
#[tokio::test]
async fn e2e_what_is_somebody_elses_is_left_alone() -> anyhow::Result<()> {
    run("not-ours", |lab| async move {
        lab.apply::<Etcd>(&etcd("default", 1, &json!({}))).await?;
        let refused = |etcd: &Etcd| {
            let mut errors = etcd.status.iter().flat_map(|status| &status.last_errors);
            errors.any(|error| error.code == "NotOurs")
        };
        lab.until("default", "be refused", refused).await?;
        lab.api::<Etcd>()
            .delete("default", &DeleteParams::default())
            .await?;
        lab.until_gone::<Etcd>("default").await?;
        let account = lab.api::<ServiceAccount>().get("default").await?;
        ensure!(account.owner_references().is_empty(), "{account:#?}");
        Ok(())
    })
    .await
}

/// TLS for clients and peers, with certificates that the user brings.
#[tokio::test]
async fn e2e_three_members_with_tls() -> anyhow::Result<()> {
    run("three-tls", |lab| async move {
        lab.certificates("client", "t1").await?;
        lab.certificates("peer", "t1").await?;
        let tls = |surface: &str| {
            json!({
                "tlsCASecretRef": {"name": format!("{surface}-ca"), "dataKey": "ca.crt"},
                "serverTLSSecretRef": {"name": format!("{surface}-server")},
            })
        };
        let mut client = tls("client");
        client["clientTLSSecretRef"] = json!({"name": "client-server"});
        let mut manifest = etcd("t1", 3, &json!({}));
        manifest["spec"]["etcd"] = json!({"clientUrlTls": client, "peerUrlTls": tls("peer")});
        lab.apply::<Etcd>(&manifest).await?;
        lab.until_ready("t1").await?;
        lab.check_cluster("t1", 3).await?;
        let members = lab.members("t1").await?;
        let secure = |member: &EtcdMember| member.status.as_ref().and_then(|status| status.peer_tls_enabled);
        ensure!(
            members.iter().all(|member| secure(member) == Some(true)),
            "peers don't use TLS"
        );
        Ok(())
    })
    .await
}
