//! Members that record what they do in their EtcdMembers, with a real API server and without a kubelet: what the records
//! tell those that have lost their data, and what they show.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use api::v1alpha1::{EtcdMember, EtcdMemberStatus, MemberState, find_condition};
use e2e::lab::{self, Lab};
use k8s_openapi::{
    api::core::v1::Event, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, CustomResourceExt as _, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    runtime::{conditions::is_crd_established, wait::await_condition},
};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::{
    member::Member,
    rig::{Rig, Setup},
};

/// Has the API server know EtcdMembers, whether or not Druid is installed there.
pub(crate) async fn install(client: &Client) -> anyhow::Result<()> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let name = EtcdMember::crd_name();
    let crds = api::crd::all();
    let crd = crds
        .iter()
        .find(|crd| crd.name_any() == name)
        .context("the CRD")?;
    let params = PatchParams::apply("e2e").force();
    api.patch(name, &params, &Patch::Apply(crd)).await?;
    let established = await_condition(api, name, is_crd_established());
    timeout(Duration::from_secs(30), established).await??;
    Ok(())
}

/// The object of each member, as the etcd-controller makes it.
async fn make_members(lab: &Lab) -> anyhow::Result<()> {
    for ordinal in 0..3 {
        let name = format!("t1-{ordinal}");
        let manifest = json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdMember", "metadata": {"name": name},
        });
        lab.apply::<EtcdMember>(&manifest).await?;
    }
    Ok(())
}

async fn status(lab: &Lab, ordinal: usize) -> anyhow::Result<EtcdMemberStatus> {
    let member = lab.api::<EtcdMember>().get(&format!("t1-{ordinal}")).await?;
    Ok(member.status.unwrap_or_default())
}

/// The most revisions that a member says are in no backup.
async fn uncovered(lab: &Lab) -> anyhow::Result<Option<i64>> {
    let mut most = None;
    for ordinal in 0..3 {
        most = most.max(status(lab, ordinal).await?.snapshots.uncovered_revisions);
    }
    Ok(most)
}

/// Three members with ten keys that the backups hold and five that they lack, and with records of all that.
async fn recorded(lab: &Lab) -> anyhow::Result<Rig> {
    install(&lab.client).await?;
    make_members(lab).await?;
    let mut rig = Rig::new(Setup::default())?;
    rig.record_in(&lab.namespace)?;
    rig.start_all()?;
    rig.until_ready().await?;
    let revision = rig.put("/kept/", 10).await?;
    rig.until_covered(revision).await?;
    rig.until("nothing is said to be uncovered", async || {
        let uncovered = uncovered(lab).await?;
        ensure!(uncovered == Some(0), "{uncovered:?}");
        Ok(())
    })
    .await?;
    rig.block_store()?;
    rig.put("/late/", 5).await?;
    rig.until("it is recorded", async || {
        for ordinal in 0..3 {
            let status = status(lab, ordinal).await?;
            ensure!(status.cluster_id.is_some(), "t1-{ordinal} records no cluster");
            ensure!(status.state == Some(MemberState::Started), "{:?}", status.state);
        }
        let uncovered = uncovered(lab).await?;
        ensure!(uncovered > Some(0), "{uncovered:?}");
        Ok(())
    })
    .await?;
    Ok(rig)
}

/// Waits until an EtcdMember shows what its member waits for.
async fn until_shown(rig: &Rig, lab: &Lab, ordinal: usize, reason: &str) -> anyhow::Result<()> {
    rig.until(&format!("t1-{ordinal} shows {reason}"), async || {
        let status = status(lab, ordinal).await?;
        let ready = find_condition(&status.conditions, "Ready").context("no condition")?;
        ensure!(ready.is_false() && ready.reason == reason, "{ready:?}");
        ensure!(
            status.state != Some(MemberState::Started),
            "it is shown as started"
        );
        Ok(())
    })
    .await
}

/// QUO-07: all volumes of a cluster with records are gone. Who waits shows it; when all say that they have nothing, the
/// backups are restored, and what they lacked is told.
#[tokio::test]
async fn cluster_quo_07_nothing_left_is_restored_by_itself() -> anyhow::Result<()> {
    lab::run("quo-07", |lab| async move {
        let mut rig = recorded(&lab).await?;
        rig.kill_all();
        rig.unblock_store()?;
        rig.members.iter().try_for_each(Member::wipe)?;
        rig.members[0].start()?;
        rig.members[1].start()?;
        for ordinal in 0..2 {
            until_shown(&rig, &lab, ordinal, "PeersUnreachable").await?;
        }
        sleep(Duration::from_secs(8)).await;
        ensure!(!rig.members[0].data_dir().exists(), "it began without t1-2");
        rig.members[2].start()?;
        rig.until_ready().await?;
        for member in &rig.members {
            ensure!(member.count("/kept/").await? == 10, "{} lacks keys", member.name);
        }
        rig.until("the loss is told", async || {
            let restoration = status(&lab, 0)
                .await?
                .last_restoration
                .context("no restoration")?;
            ensure!(
                restoration.reason.as_deref() == Some("AllDataLost"),
                "{restoration:?}"
            );
            let message = restoration.message.unwrap_or_default();
            ensure!(message.contains("revisions were uncovered"), "{message}");
            ensure!(restoration.cluster_id == status(&lab, 0).await?.cluster_id);
            let events = lab.api::<Event>().list(&ListParams::default()).await?;
            let told = events.items.iter().any(|event| {
                event.reason.as_deref() == Some("AllDataLost")
                    && event.involved_object.name.as_deref() == Some("t1-0")
            });
            ensure!(told, "no Event");
            Ok(())
        })
        .await?;
        rig.until_all_vote().await
    })
    .await
}

/// BOOT-10: the Etcd is made anew, its records are gone with the old one, and so is the first claim: the first member joins
/// what the other two hold, which is more than the backups hold.
#[tokio::test]
async fn cluster_boot_10_an_etcd_made_anew_without_its_first_claim() -> anyhow::Result<()> {
    lab::run("boot-10", |lab| async move {
        let mut rig = recorded(&lab).await?;
        let cluster = rig.members[0].cluster_id().await?;
        rig.kill_all();
        rig.unblock_store()?;
        for ordinal in 0..3 {
            let members = lab.api::<EtcdMember>();
            members
                .delete(&format!("t1-{ordinal}"), &DeleteParams::default())
                .await?;
        }
        make_members(&lab).await?;
        rig.make_anew("u-2")?;
        rig.members[0].wipe()?;
        rig.members[0].start()?;
        until_shown(&rig, &lab, 0, "MembersUnknown").await?;
        rig.start_all()?;
        rig.until_ready().await?;
        ensure!(
            rig.members[0].cluster_id().await? == cluster,
            "it is another cluster"
        );
        ensure!(rig.members[0].count("/late/").await? == 5, "keys are missing");
        rig.until_all_vote().await
    })
    .await
}

/// An old volume of before a restore comes back: the records of the restored cluster outweigh its own.
#[tokio::test]
async fn cluster_a_volume_of_before_a_restore_joins_the_restored_cluster() -> anyhow::Result<()> {
    lab::run("restored", |lab| async move {
        let mut rig = recorded(&lab).await?;
        let old = rig.members[0].cluster_id().await?;
        rig.kill_all();
        rig.unblock_store()?;
        let aside = rig.members[1].volume().with_file_name("older");
        std::fs::rename(rig.members[1].volume(), &aside)?;
        std::fs::create_dir(rig.members[1].volume())?;
        rig.members[0].wipe()?;
        rig.members[2].wipe()?;
        rig.start_all()?;
        rig.until_ready().await?;
        rig.until_all_vote().await?;
        let restored = rig.members[0].cluster_id().await?;
        ensure!(restored != old, "the restored cluster has the old ID");
        rig.put("/kept/after/", 3).await?;
        rig.kill_all();
        std::fs::remove_dir_all(rig.members[1].volume())?;
        std::fs::rename(&aside, rig.members[1].volume())?;
        // Before anybody else: only the records can tell.
        rig.members[1].start()?;
        until_shown(&rig, &lab, 1, "DataOfOtherCluster").await?;
        ensure!(rig.members[1].etcd_pid().is_none(), "etcd runs");
        rig.start_all()?;
        rig.until_ready().await?;
        ensure!(
            rig.members[1].cluster_id().await? == restored,
            "it is another cluster"
        );
        ensure!(
            rig.members[1].count("/kept/after/").await? == 3,
            "keys are missing"
        );
        Ok(())
    })
    .await
}
