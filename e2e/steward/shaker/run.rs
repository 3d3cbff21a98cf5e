//! One run: a cluster under load, a story that happens to it, and the time in which it has to heal.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::time::sleep;

use super::{
    gate::{Gate, Mode},
    history::History,
    judges,
    load::Load,
    story::{Fault, Story},
    volume,
};
use crate::{
    member::Member,
    rig::{Rig, Setup, revisions},
};

/// In which a cluster heals without a hand.
const HEAL_TIMEOUT: Duration = Duration::from_mins(2);
const PAUSE: Duration = Duration::from_millis(200);

/// What a run has come to.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) operations: usize,
    pub(crate) healed_after: Duration,
}

/// A run under way.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) rig: Rig,
    pub(crate) history: Arc<History>,
    /// Since when, and up to which revision the backups then went, whenever all volumes were lost.
    pub(crate) losses: Vec<(u64, i64)>,
    gates: Vec<Gate>,
    /// How often the Etcd was made.
    generation: u32,
}

/// Lets a story happen, and judges what came of it.
pub(crate) async fn run(story: &Story) -> anyhow::Result<Report> {
    let mut run = Run::start(story).await?;
    let load = Load::start(&run.history, run.urls(), story.seed);
    let happened = run.happens(story, &load).await;
    let healed = match happened {
        Ok(()) => run.heals("after the last step").await,
        Err(error) => Err(error),
    };
    // A moment of peace under load, so that what is wrong now is seen.
    sleep(Duration::from_secs(2)).await;
    let watched = load.stop().await;
    let judged = match healed {
        Ok(after) => judges::judge(&run).await.and(watched).map(|()| after),
        Err(error) => Err(error),
    };
    let operations = run.history.records().answers.len();
    match judged {
        Ok(healed_after) => Ok(Report {
            operations,
            healed_after,
        }),
        Err(error) => Err(error.context(format!("kept: {}", run.rig.keep().display()))),
    }
}

impl Run {
    async fn start(story: &Story) -> anyhow::Result<Self> {
        let mut rig = Rig::new(Setup {
            size: story.size,
            etcd: story.etcd,
            ..Setup::default()
        })?;
        let mut gates = Vec::new();
        for member in &mut rig.members {
            let gate = Gate::open(member.peer_port()).await?;
            member.reached_by(gate.port);
            gates.push(gate);
        }
        rig.reconfigure()?;
        rig.start_all()?;
        rig.until_ready().await?;
        Ok(Self {
            rig,
            history: Arc::new(History::new()),
            losses: Vec::new(),
            gates,
            generation: 1,
        })
    }

    fn urls(&self) -> Vec<String> {
        self.rig.members.iter().map(Member::client_url).collect()
    }

    async fn happens(&mut self, story: &Story, load: &Load) -> anyhow::Result<()> {
        let mut damaged = false;
        for (number, step) in story.steps.iter().enumerate() {
            self.rest(step.pause).await?;
            // Destroyed data comes back from the others: who destroys more before it has, destroys a majority.
            if damaged || step.fault.destroys() {
                self.heals(&format!("before step {number}")).await?;
            }
            damaged = step.fault.destroys();
            self.happen(&step.fault, load)
                .await
                .with_context(|| format!("step {number}, {:?}", step.fault))?;
        }
        Ok(())
    }

    /// Lets time pass, in which what has ended is started again, as by kubelet.
    async fn rest(&mut self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        loop {
            self.rig.members.iter_mut().try_for_each(Member::revive)?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            sleep(left.min(PAUSE)).await;
        }
    }

    /// Waits until all members vote and serve, and belong to one cluster.
    async fn heals(&mut self, when: &str) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        loop {
            self.rest(PAUSE).await?;
            match self.is_well().await {
                Ok(()) => return Ok(begin.elapsed()),
                Err(error) if begin.elapsed() > HEAL_TIMEOUT => {
                    let logs: String = self.rig.members.iter().map(Member::last_words).collect();
                    return Err(error.context(format!("not healed {HEAL_TIMEOUT:?} {when}\n{logs}")));
                }
                Err(_) => {}
            }
        }
    }

    async fn is_well(&self) -> anyhow::Result<()> {
        let mut clusters = Vec::new();
        for member in &self.rig.members {
            clusters.push(member.cluster_id().await?);
        }
        clusters.dedup();
        ensure!(clusters.len() == 1, "the members serve clusters {clusters:x?}");
        let listed = self.rig.members[0].client().await?.member_list().await?;
        let voters = listed
            .members()
            .iter()
            .filter(|member| !member.is_learner())
            .count();
        let (all, wanted) = (listed.members().len(), self.rig.members.len());
        ensure!(
            voters == wanted && all == wanted,
            "{voters} voters among {all} members, {wanted} wanted"
        );
        Ok(())
    }

    async fn happen(&mut self, fault: &Fault, load: &Load) -> anyhow::Result<()> {
        match fault {
            Fault::KillMember(member) => self.rig.members[*member].kill(),
            Fault::KillEtcd(member) => drop(self.rig.members[*member].kill_etcd()),
            Fault::KillSteward(member) => self.rig.members[*member].kill_steward(),
            Fault::KillAll => self.rig.kill_all(),
            Fault::PauseEtcd(member, time) => {
                let resume = self.rig.members[*member].pause_etcd();
                self.rest(*time).await?;
                drop(resume);
            }
            Fault::PauseSteward(member, time) => {
                let resume = self.rig.members[*member].pause_steward();
                self.rest(*time).await?;
                drop(resume);
            }
            Fault::Wipe(member) => self.wipe(*member)?,
            Fault::WipeTwo(one, other) => {
                self.wipe(*one)?;
                self.wipe(*other)?;
            }
            Fault::PutBack(member, time) => self.put_back(*member, *time).await?,
            Fault::Corrupt(member, part) => {
                self.rig.members[*member].kill();
                volume::corrupt(&self.rig.members[*member].data_dir(), *part)?;
            }
            Fault::LoseAll => self.lose_all()?,
            Fault::Network(member, mode, time) => {
                self.gates[*member].set(*mode);
                self.rest(*time).await?;
                self.gates[*member].set(Mode::Pass);
            }
            Fault::StoreDown(time) => {
                self.rig.block_store()?;
                self.rest(*time).await?;
                self.rig.unblock_store()?;
            }
            Fault::MoveLeader => self.move_leader().await,
            // Refused where the member doesn't own the backups or doesn't serve.
            Fault::Snapshot(member) => self.ask(*member, "/snapshot/full").await,
            Fault::Defragment(member) => self.ask(*member, "/maintenance/defrag").await,
            Fault::Compact(member) => self.ask(*member, "/maintenance/compact").await,
            Fault::ChangeOption(count) => self.rig.change_options(json!({"snapshot-count": count}))?,
            Fault::ScaleOut => self.scale_out(load).await?,
            Fault::Recreate { lost } => {
                self.rig.kill_all();
                if let Some(member) = lost {
                    self.rig.members[*member].wipe()?;
                }
                self.generation += 1;
                self.rig.make_anew(&format!("u-{}", self.generation))?;
            }
        }
        Ok(())
    }

    fn wipe(&mut self, member: usize) -> anyhow::Result<()> {
        self.rig.members[member].kill();
        self.rig.members[member].wipe()
    }

    async fn put_back(&mut self, member: usize, age: Duration) -> anyhow::Result<()> {
        let aside = self.rig.members[member].temp().join("put-back");
        let volume = self.rig.members[member].volume();
        self.rig.members[member].kill();
        volume::copy(&volume, &aside)?;
        self.rest(age).await?;
        self.rig.members[member].kill();
        fs::remove_dir_all(&volume)?;
        Ok(fs::rename(aside, volume)?)
    }

    fn lose_all(&mut self) -> anyhow::Result<()> {
        self.rig.kill_all();
        let stored = self.rig.stored()?;
        let covered = stored.iter().map(|name| revisions(name).1).max().unwrap_or(0);
        self.losses.push((self.history.now(), covered));
        self.rig.members.iter().try_for_each(Member::wipe)
    }

    async fn move_leader(&self) {
        let moved = async {
            let leader = self.rig.leader().await?;
            let mut client = self.rig.members[leader].client().await?;
            let next = (leader + 1) % self.rig.members.len();
            let id = self.rig.members[next].id().await?;
            client.move_leader(id).await?;
            anyhow::Ok(())
        };
        // It may just be lost, or change hands by itself.
        let _ = tokio::time::timeout(Duration::from_secs(5), moved).await;
    }

    async fn ask(&self, member: usize, path: &str) {
        let asked = self.rig.members[member].call("POST", path);
        let _ = tokio::time::timeout(Duration::from_secs(5), asked).await;
    }

    async fn scale_out(&mut self, load: &Load) -> anyhow::Result<()> {
        let (before, after) = (self.rig.members.len(), self.rig.members.len() + 2);
        self.rig.resize(after)?;
        for member in &mut self.rig.members[before..] {
            let gate = Gate::open(member.peer_port()).await?;
            member.reached_by(gate.port);
            self.gates.push(gate);
        }
        self.rig.reconfigure()?;
        load.turn_to(self.urls());
        Ok(())
    }
}
