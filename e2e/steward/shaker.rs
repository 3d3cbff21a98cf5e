//! The shaker: clusters to which things happen that a seed chooses, while clients record what they do and see. After each
//! run judges look at what must hold whatever has happened.
//!
//! `just shake RUNS SEED` runs many. A seed that fails prints its story, and tells it again with
//! `just shake 1 SEED`.

mod api_server;
mod disk;
mod gate;
mod history;
mod judges;
mod load;
mod records;
mod run;
mod store;
mod story;
mod volume;

use std::{
    env,
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, stream};

use self::{api_server::ApiServer, story::Story};
use crate::recorded;

fn setting<T: FromStr>(variable: &str, default: T) -> anyhow::Result<T> {
    match env::var(variable) {
        Ok(text) => text.parse().ok().with_context(|| format!("{variable}={text}")),
        Err(_) => Ok(default),
    }
}

/// `SHAKE_RUNS` runs from `SHAKE_SEED` on, so many at a time, of which none begins after `SHAKE_SECONDS`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "`just shake` runs it"]
async fn shaker() -> anyhow::Result<()> {
    let (runs, seed) = (setting("SHAKE_RUNS", u64::MAX)?, setting("SHAKE_SEED", 1)?);
    let (seconds, at_once) = (setting("SHAKE_SECONDS", 240)?, setting("SHAKE_PARALLEL", 3)?);
    let api = Arc::new(ApiServer::start().await?);
    recorded::install(&api.client().await?).await?;
    let (begin, limit) = (Instant::now(), Duration::from_secs(seconds));
    let mut results = stream::iter(0..runs)
        .take_while(|_| std::future::ready(begin.elapsed() < limit))
        .map(|number| one(seed + number, &api))
        .buffer_unordered(at_once);
    let (mut done, mut failed) = (0, Vec::new());
    while let Some((seed, well)) = results.next().await {
        done += 1;
        if !well {
            failed.push(seed);
        }
    }
    println!("{done} runs in {:?}, violations in {failed:?}", begin.elapsed());
    ensure!(failed.is_empty(), "violations with the seeds {failed:?}");
    Ok(())
}

async fn one(seed: u64, api: &Arc<ApiServer>) -> (u64, bool) {
    let story = Story::of(seed);
    match run::run(&story, api).await {
        Ok(report) => {
            println!(
                "seed {seed}: {} of etcd {}, {} steps, {} answers, healed after {:.1?}: ok",
                story.size,
                story.etcd,
                story.steps.len(),
                report.operations,
                report.healed_after
            );
            (seed, true)
        }
        Err(error) => {
            println!("{story}seed {seed}: violation: {error:#}");
            (seed, false)
        }
    }
}

/// A seed tells one story.
#[test]
fn a_seed_tells_the_same_story() {
    for seed in 0..100 {
        assert_eq!(Story::of(seed).to_string(), Story::of(seed).to_string());
    }
}
