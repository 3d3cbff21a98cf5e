//! TLS between peers that is switched in the configuration of a formed cluster: no etcd is started like that.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::time::sleep;

use crate::{
    member::Member,
    rig::{Rig, Setup},
};

impl Rig {
    /// Has all members speak TLS with their peers, or not, as the next ConfigMap says. Stewards end when they see it.
    fn switch_peer_tls(&mut self, on: bool) -> anyhow::Result<()> {
        for member in &mut self.members {
            member.peer_tls = on;
        }
        self.reconfigure()?;
        self.members.iter_mut().try_for_each(|member| {
            member.kill_steward();
            member.start_steward()
        })
    }

    async fn until_refused(&self, member: usize, condition: &str) -> anyhow::Result<()> {
        self.until(&format!("{member} refuses the scheme"), async || {
            let (reason, message) = self.members[member].condition(condition).await?;
            ensure!(reason == "PeerTLSMismatch", "{reason}: {message}");
            ensure!(message.contains("spec.etcd.peerUrlTls"), "{message}");
            Ok(())
        })
        .await
    }
}

/// TLS-04: neither a restart of etcd nor one of the pod takes a member to where its peers don't find it, and the edit can be
/// taken back.
#[tokio::test]
async fn tls_04_a_member_never_starts_on_another_scheme() -> anyhow::Result<()> {
    for (size, etcd) in [(3, "3.6"), (3, "3.5"), (1, "3.7")] {
        for recorded in [false, true] {
            let mut rig = Rig::new(Setup {
                size,
                etcd,
                backup: serde_json::json!(null),
                ..Setup::default()
            })?;
            for member in &mut rig.members {
                member.peer_tls = recorded;
            }
            rig.reconfigure()?;
            rig.start_all()?;
            rig.until_ready().await?;
            rig.put("/kept/", 5).await?;
            let last = size - 1;
            let running = rig.members[last].etcd_pid().context("an etcd")?;

            rig.switch_peer_tls(!recorded)?;
            // Those that run go on.
            rig.until_refused(last, "Restarting").await?;
            sleep(Duration::from_secs(5)).await;
            ensure!(
                rig.members[last].etcd_pid() == Some(running),
                "etcd was restarted"
            );
            // One that is restarted waits.
            rig.members[last].kill();
            rig.members[last].start()?;
            rig.until_refused(last, "Initialized").await?;
            ensure!(rig.members[last].etcd_pid().is_none(), "etcd runs");
            if size > 1 {
                // Nor one whose data is gone: it isn't removed for that.
                rig.members[last].kill();
                rig.members[last].wipe()?;
                rig.members[last].start()?;
                rig.until_refused(last, "Initialized").await?;
                let listed = rig.members[0].client().await?.member_list().await?;
                ensure!(listed.members().len() == 3, "it was removed: {listed:?}");
                ensure!(rig.members[0].count("/kept/").await? == 5, "the quorum is lost");
            }
            ensure!(rig.members[last].etcd_pid().is_none(), "etcd runs");

            rig.switch_peer_tls(recorded)?;
            rig.until_ready().await?;
            ensure!(
                rig.client().await?.get("/kept/4", None).await?.count() == 1,
                "keys are missing"
            );
            eprintln!(
                "TLS-04: etcd {etcd}, {size} members, https {recorded}: refused, and back after the edit was taken back"
            );
            rig.members.iter_mut().for_each(Member::kill);
        }
    }
    Ok(())
}
