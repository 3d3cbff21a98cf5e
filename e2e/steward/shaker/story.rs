//! What happens in a run: chosen by its seed alone, so that a seed tells the same story again.

use std::{fmt, time::Duration};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

use super::gate::Mode;

#[derive(Debug, Clone)]
pub(crate) struct Story {
    pub(crate) seed: u64,
    pub(crate) size: usize,
    /// Minor version of etcd.
    pub(crate) etcd: &'static str,
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
    /// All volumes are lost at once.
    LoseAll,
    /// What lies between a member and its peers.
    Network(usize, Mode, Duration),
    /// The store fails.
    StoreDown(Duration),
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
                | Self::LoseAll
        )
    }
}

impl Story {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let size = *[1, 3, 3, 3, 5].choose(&mut random).unwrap_or(&3);
        let etcd = *["3.5", "3.6", "3.7"].choose(&mut random).unwrap_or(&"3.6");
        let count = random.random_range(3..=6);
        let (mut steps, mut scaled): (Vec<Step>, bool) = (Vec::new(), size == 5);
        while steps.len() < count {
            let fault = choose(&mut random, size);
            if fault == Fault::ScaleOut {
                if scaled {
                    continue;
                }
                scaled = true;
            }
            let pause = Duration::from_millis(random.random_range(200..4000));
            steps.push(Step { pause, fault });
        }
        Self {
            seed,
            size,
            etcd,
            steps,
        }
    }
}

fn choose(random: &mut StdRng, size: usize) -> Fault {
    let member = random.random_range(0..size);
    let other = (member + random.random_range(1..size.max(2))) % size;
    let a_while = Duration::from_millis(random.random_range(500..8000));
    match random.random_range(0..30) {
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
        17 | 18 => Fault::LoseAll,
        19..=21 if size > 1 => {
            let slow = Mode::Slow(Duration::from_millis(random.random_range(20..1500)));
            let mode = [slow, Mode::HoldIn, Mode::HoldOut, Mode::Cut]
                .choose(random)
                .copied();
            Fault::Network(member, mode.unwrap_or(Mode::Cut), a_while)
        }
        22 => Fault::StoreDown(a_while),
        23 if size > 1 => Fault::MoveLeader,
        24 => Fault::Snapshot(member),
        25 => Fault::Defragment(member),
        26 => Fault::Compact(member),
        27 => Fault::ChangeOption(random.random_range(100..100_000)),
        28 => Fault::ScaleOut,
        29 => Fault::Recreate {
            lost: (size > 1 && random.random_bool(0.5)).then_some(member),
        },
        _ => Fault::KillEtcd(member),
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {} of etcd {}", self.seed, self.size, self.etcd)?;
        for step in &self.steps {
            writeln!(f, "  after {:?}: {:?}", step.pause, step.fault)?;
        }
        Ok(())
    }
}
