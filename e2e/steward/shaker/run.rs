//! One run: a cluster under load, a story that happens to it, and the time in which it has to heal.

use std::{
    collections::BTreeMap,
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::time::sleep;

use super::{
    api_server::ApiServer,
    disk::Disk,
    gate::{Gate, Mode},
    history::{History, Loss},
    judges,
    load::Load,
    records::Records,
    store::Store,
    story::{Fault, StoreFault, Story},
    volume,
};
use crate::{
    member::Member,
    rig::{Rig, Setup},
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
pub(crate) struct Run {
    /// Volumes that can be full, by member. They are unmounted before the rig's folder is removed.
    disks: BTreeMap<usize, Disk>,
    pub(crate) rig: Rig,
    pub(crate) history: Arc<History>,
    pub(crate) losses: Vec<Loss>,
    gates: Vec<Gate>,
    pub(crate) store: Store,
    records: Option<Records>,
    /// How often the Etcd was made.
    generation: u32,
}

/// Lets a story happen, and judges what came of it.
pub(crate) async fn run(story: &Story, api: &Arc<ApiServer>) -> anyhow::Result<Report> {
    let mut run = Run::start(story, api).await?;
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
        Err(error) => Err(error.context(format!("kept: {}", run.keep()?))),
    }
}

impl Run {
    async fn start(story: &Story, api: &Arc<ApiServer>) -> anyhow::Result<Self> {
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
        let store = Store::open(story.store, &mut rig).await?;
        let records = if story.recorded {
            Some(Records::open(api, &mut rig, story.seed).await?)
        } else {
            None
        };
        let mut run = Self {
            rig,
            history: Arc::new(History::new()),
            losses: Vec::new(),
            gates,
            store,
            records,
            disks: BTreeMap::new(),
            generation: 1,
        };
        for member in story.full_disks() {
            match Disk::mount(&run.rig.members[member].volume())? {
                Some(disk) => drop(run.disks.insert(member, disk)),
                None => println!(
                    "seed {}: no full disk, for nothing can be mounted here",
                    story.seed
                ),
            }
        }
        run.rig.start_all()?;
        run.rig.until_ready().await?;
        Ok(run)
    }

    /// Leaves everything for somebody to look at, and says where.
    fn keep(&mut self) -> anyhow::Result<String> {
        self.rig.kill_all();
        std::mem::take(&mut self.disks)
            .into_values()
            .try_for_each(Disk::keep)?;
        Ok(self.rig.keep().display().to_string())
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
        match &self.records {
            Some(records) => records.tell(&self.rig, clusters[0]).await,
            None => Ok(()),
        }
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
            Fault::LoseAll { store } => self.lose_all(*store).await?,
            Fault::FullDisk(member, time) => self.fill_disk(*member, *time).await?,
            Fault::Network(member, mode, time) => {
                self.gates[*member].set(*mode);
                self.rest(*time).await?;
                self.gates[*member].set(Mode::Pass);
            }
            Fault::Store(fault, time) => self.fail_store(*fault, *time).await?,
            Fault::Api(mode, time) => {
                let records = self.records.as_ref().context("an API")?;
                records.lead(*mode);
                self.rest(*time).await?;
                self.records.as_ref().context("an API")?.lead(Mode::Pass);
            }
            Fault::DeleteRecord(member) => {
                let records = self.records.as_ref().context("an API")?;
                records.make_anew(&self.rig.members[*member].name).await?;
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
                if let Some(records) = &self.records {
                    records.make_all_anew(&self.rig).await?;
                }
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
        self.rig.members[member].wipe()?;
        volume::copy(&aside.join("."), &volume)?;
        Ok(fs::remove_dir_all(aside)?)
    }

    async fn lose_all(&mut self, store: Option<(StoreFault, Duration)>) -> anyhow::Result<()> {
        let before = self.store.covered(&self.rig).await?;
        self.rig.kill_all();
        let covered = self.store.covered(&self.rig).await?.max(before);
        self.losses.push(Loss {
            since: self.history.now(),
            covered,
        });
        self.rig.members.iter().try_for_each(Member::wipe)?;
        match store {
            Some((fault, time)) => self.fail_store(fault, time).await,
            None => Ok(()),
        }
    }

    async fn fail_store(&mut self, fault: StoreFault, time: Duration) -> anyhow::Result<()> {
        self.store.fail(fault, &self.rig)?;
        self.rest(time).await?;
        self.store.mend(&self.rig)
    }

    async fn fill_disk(&mut self, member: usize, time: Duration) -> anyhow::Result<()> {
        if !self.disks.contains_key(&member) {
            return Ok(());
        }
        self.disks[&member].fill()?;
        self.rest(time).await?;
        self.disks[&member].make_room()
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
            self.store.admit(member);
            self.gates.push(gate);
        }
        self.rig.reconfigure()?;
        if let Some(records) = &self.records {
            records.admit(&mut self.rig, before, true).await?;
        }
        load.turn_to(self.urls());
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Nothing may use a volume that is to be unmounted.
        self.rig.kill_all();
    }
}
