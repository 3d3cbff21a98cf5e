//! What happens in a run: chosen by its seed alone, so that a seed tells the same story again.

use std::{collections::BTreeSet, fmt, time::Duration};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

use super::gate::Mode;
use crate::s3_stub::Fault as Answer;

#[derive(Debug, Clone)]
pub(crate) struct Story {
    pub(crate) seed: u64,
    pub(crate) size: usize,
    /// Minor version of etcd.
    pub(crate) etcd: &'static str,
    pub(crate) store: StoreKind,
    /// Whether the members record what they do in EtcdMembers.
    pub(crate) recorded: bool,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone)]
pub(crate) struct Step {
    /// Time since the step before.
    pub(crate) pause: Duration,
    pub(crate) fault: Fault,
}

/// One thing that goes wrong, or that somebody does. Members by ordinal.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fault {
    KillMember(usize),
    KillEtcd(usize),
    KillSteward(usize),
    /// The process stands still for a while.
    PauseEtcd(usize, Duration),
    PauseSteward(usize, Duration),
    /// All processes end at once, as at a loss of power.
    KillAll,
    /// The volume is empty when the member comes back.
    Wipe(usize),
    /// Two volumes of five are.
    WipeTwo(usize, usize),
    /// The volume is as it was a while ago.
    PutBack(usize, Duration),
    Corrupt(usize, Part),
    /// All volumes are lost at once, and the store may fail for a while when the backups are needed.
    LoseAll {
        store: Option<(StoreFault, Duration)>,
    },
    /// There is no room on the volume.
    FullDisk(usize, Duration),
    /// What lies between a member and its peers.
    Network(usize, Mode, Duration),
    /// The store fails.
    Store(StoreFault, Duration),
    /// What lies between the stewards and the Kubernetes API.
    Api(Mode, Duration),
    /// Somebody deletes an EtcdMember.
    DeleteRecord(usize),
    MoveLeader,
    Snapshot(usize),
    Defragment(usize),
    Compact(usize),
    /// A new option for all etcds.
    ChangeOption(u32),
    ScaleOut,
    /// The Etcd is made anew over its old volumes, of which one may be lost.
    Recreate {
        lost: Option<usize>,
    },
}

/// What the backups are stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Folder,
    /// An S3 server.
    Server,
}

/// How a store fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreFault {
    /// It isn't there.
    Gone,
    /// What lies between the members and the server.
    Network(Mode),
    /// What the server does and says.
    Answers(Answer),
}

/// What of a data directory is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Page,
    Meta,
    Log,
}

impl Fault {
    /// Whether the member's data is lost or old when the step is done.
    pub(crate) fn destroys(&self) -> bool {
        matches!(
            self,
            Self::Wipe(_)
                | Self::WipeTwo(..)
                | Self::PutBack(..)
                | Self::Corrupt(..)
                | Self::Recreate { lost: Some(_) }
                | Self::LoseAll { .. }
        )
    }
}

impl Story {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let size = *[1, 3, 3, 3, 5].choose(&mut random).unwrap_or(&3);
        let mut story = Self {
            seed,
            size,
            etcd: ["3.5", "3.6", "3.7"].choose(&mut random).unwrap_or(&"3.6"),
            store: *[StoreKind::Folder, StoreKind::Server]
                .choose(&mut random)
                .unwrap_or(&StoreKind::Folder),
            recorded: random.random_bool(0.5),
            steps: Vec::new(),
        };
        let count = random.random_range(3..=6);
        let mut scaled = size == 5;
        while story.steps.len() < count {
            let fault = story.choose(&mut random);
            if fault == Fault::ScaleOut {
                if scaled {
                    continue;
                }
                scaled = true;
            }
            let pause = Duration::from_millis(random.random_range(200..4000));
            story.steps.push(Step { pause, fault });
        }
        story
    }

    /// Members whose volumes will be full.
    pub(crate) fn full_disks(&self) -> BTreeSet<usize> {
        let full = |step: &Step| match step.fault {
            Fault::FullDisk(member, _) => Some(member),
            _ => None,
        };
        self.steps.iter().filter_map(full).collect()
    }

    fn choose(&self, random: &mut StdRng) -> Fault {
        let size = self.size;
        let member = random.random_range(0..size);
        let other = (member + random.random_range(1..size.max(2))) % size;
        let a_while = a_while(random);
        match random.random_range(0..42) {
            0 | 1 => Fault::KillMember(member),
            4 | 5 => Fault::KillSteward(member),
            6 => Fault::PauseEtcd(member, a_while),
            7 => Fault::PauseSteward(member, a_while),
            8 => Fault::KillAll,
            9..=11 if size > 1 => Fault::Wipe(member),
            12 if size == 5 => Fault::WipeTwo(member, other),
            13 | 14 if size > 1 => Fault::PutBack(member, a_while),
            15 | 16 if size > 1 => {
                let part = [Part::Page, Part::Meta, Part::Log].choose(random);
                Fault::Corrupt(member, part.copied().unwrap_or(Part::Page))
            }
            17..=19 => Fault::LoseAll {
                store: random
                    .random_bool(0.5)
                    .then(|| (self.unreadable(random), a_while)),
            },
            20..=22 if size > 1 => Fault::Network(member, mode(random), a_while),
            23..=26 => Fault::Store(self.unreliable(random), a_while),
            27 if size > 1 => Fault::MoveLeader,
            28 => Fault::Snapshot(member),
            29 => Fault::Defragment(member),
            30 => Fault::Compact(member),
            31 => Fault::ChangeOption(random.random_range(100..100_000)),
            32 => Fault::ScaleOut,
            33 | 34 => Fault::Recreate {
                lost: (size > 1 && random.random_bool(0.5)).then_some(member),
            },
            35..=37 => Fault::FullDisk(member, Duration::from_secs(3) + a_while),
            38 | 39 if self.recorded => Fault::Api(mode(random), a_while),
            40 | 41 if self.recorded => Fault::DeleteRecord(member),
            _ => Fault::KillEtcd(member),
        }
    }

    /// A fault of the store that anybody who reads sees as one.
    fn unreadable(&self, random: &mut StdRng) -> StoreFault {
        if self.store == StoreKind::Folder {
            return StoreFault::Gone;
        }
        let answers =
            [Answer::Unavailable, Answer::ShortBody, Answer::EndlessListing].map(StoreFault::Answers);
        let network = [StoreFault::Gone, StoreFault::Network(mode(random))];
        let all = [&answers[..], &network[..]].concat();
        all.choose(random).copied().unwrap_or(StoreFault::Gone)
    }

    /// Any fault of the store.
    fn unreliable(&self, random: &mut StdRng) -> StoreFault {
        let uploads = [
            Answer::HalfAndError,
            Answer::HalfAndErrorAgain,
            Answer::HalfAndSuccess,
            Answer::HalfButAllIsTold,
            Answer::HalfForGood,
            Answer::StaleListing,
        ];
        if self.store == StoreKind::Folder || random.random_bool(0.5) {
            return self.unreadable(random);
        }
        let answer = uploads.choose(random).copied();
        StoreFault::Answers(answer.unwrap_or(Answer::HalfAndError))
    }
}

fn a_while(random: &mut StdRng) -> Duration {
    Duration::from_millis(random.random_range(500..8000))
}

fn mode(random: &mut StdRng) -> Mode {
    let slow = Mode::Slow(Duration::from_millis(random.random_range(20..1500)));
    let modes = [slow, Mode::HoldIn, Mode::HoldOut, Mode::Cut];
    modes.choose(random).copied().unwrap_or(Mode::Cut)
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {} of etcd {}, backups in a {:?}, {} EtcdMembers",
            self.seed,
            self.size,
            self.etcd,
            self.store,
            if self.recorded { "with" } else { "without" }
        )?;
        for step in &self.steps {
            writeln!(f, "  after {:?}: {:?}", step.pause, step.fault)?;
        }
        Ok(())
    }
}
