//! What running a program takes, as the system counts it.

use std::{
    array, env,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};
use serde::{Deserialize, Serialize};

/// The first argument of this program when it runs another one.
pub(crate) const WORD: &str = "measure";

/// What a run of a program took.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Usage {
    pub(crate) wall_s: f64,
    pub(crate) cpu_s: f64,
    /// The most memory of a single process.
    pub(crate) rss_mib: f64,
}

/// Runs a program through a process of its own: the system counts all children of a process together, and counts the
/// memory of the one that starts a program as the program's.
pub(crate) fn measure<'a>(program: &str, args: impl IntoIterator<Item = &'a str>) -> Result<Usage> {
    let output = Command::new(env::current_exe()?)
        .args([WORD, program])
        .args(args)
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "{program} failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Runs a program, and prints what it took.
pub(crate) fn run(program: &[String]) -> Result<()> {
    let (program, args) = program.split_first().context("no program")?;
    let begun = Instant::now();
    let output = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("run {program}"))?;
    let wall = begun.elapsed();
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {text}");
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    #[expect(clippy::cast_precision_loss, reason = "far from the limit")]
    let usage = Usage {
        wall_s: wall.as_secs_f64(),
        cpu_s: seconds(usage.user_time()) + seconds(usage.system_time()),
        rss_mib: usage.max_rss() as f64 / 1024.0,
    };
    println!("{}", serde_json::to_string(&usage)?);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "far from the limit")]
fn seconds(time: TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}

/// The fastest run of each program, with the most memory that any of its runs took.
pub(crate) fn best_of_each<const N: usize>(rounds: &[[Usage; N]]) -> [Usage; N] {
    array::from_fn(|program| {
        let runs = || rounds.iter().map(|round| round[program]);
        let fastest = runs().min_by(|one, other| one.wall_s.total_cmp(&other.wall_s));
        let rss_mib = runs().map(|run| run.rss_mib).fold(0.0, f64::max);
        Usage {
            rss_mib,
            ..fastest.unwrap()
        }
    })
}
