//! Keeps a second store like the first one while this steward owns the backups: what it lacks is copied and checked on its
//! way, and old backups go there by the same policy. Whatever is wrong with it, the first store's backups go on.

use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};

use api::{
    conditions::{backup_ready, member as condition},
    v1alpha1::ConditionStatus,
};
use jiff::Timestamp;
use operator::reconcile::chain;
use snapstore::{
    Error, Kind, SnapStore, StoredSnapshot,
    copy::{self, Compared, CopyEvent, CopyOptions},
    retention::collect,
};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{fence::Fence, owner::Owner, retention::Fenced, told::Told, verification::Proven};

const FIRST_RETRY: Duration = Duration::from_secs(10);

/// A second place for the backups.
#[derive(Debug, Clone)]
pub struct Secondary {
    /// The store.
    pub store: Arc<dyn SnapStore>,
    /// Time between two looks for what it lacks.
    pub period: Duration,
}

/// Copies again and again, for as long as the term lasts.
pub(super) async fn run(owner: &Owner, fence: &Fence) -> Infallible {
    let Some(secondary) = &owner.secondary else {
        return pending().await;
    };
    // Before there is a full snapshot there is nothing to copy. The sender lives as long as the owner.
    let _ = owner.follow().wait_for(|known| known.full.is_some()).await;
    let pass = Pass::default();
    let mut retry = FIRST_RETRY;
    loop {
        let begun = Instant::now();
        let outcome = pass.run(owner, fence, secondary).await;
        owner.metrics.secondary_synced(outcome.is_ok(), begun.elapsed());
        let pause = if outcome.is_ok() {
            retry = FIRST_RETRY;
            secondary.period
        } else {
            let pause = retry.min(secondary.period);
            retry = (pause * 2).min(secondary.period);
            pause
        };
        pass.tell(owner, outcome).await;
        sleep(pause.mul_f64(0.9 + rand::random::<f64>() * 0.2)).await;
    }
}

/// What went wrong: the reason, and what people are to know.
type Fault = (&'static str, String);

#[derive(Default)]
struct Pass {
    /// Full snapshots that were read from the first byte to the hash when they were copied.
    checked: Proven,
    compared: Compared,
    told: Told,
}

impl Pass {
    async fn run(&self, owner: &Owner, fence: &Fence, secondary: &Secondary) -> Result<(), Fault> {
        self.copy(owner, secondary).await?;
        if owner.settings.retention_period.is_none() {
            return Ok(());
        }
        let store = Fenced::new(owner, secondary.store.as_ref(), fence);
        let (proven, checked) = (owner.proven.names(), self.checked.names());
        let is_proven = |full: &StoredSnapshot| {
            (proven.contains(&full.name) || checked.contains(&full.name))
                && owner.key_counts.is_plausible(&full.name)
        };
        let collected = collect(&store, &owner.settings.retention, is_proven, Timestamp::now())
            .await
            .map_err(|error| fault("look for old backups in the second store", &error))?;
        match collected.failed.first() {
            Some(failed) if !store.is_lost() => {
                let action = format!("delete {} in the second store", failed.key);
                Err(fault(&action, &failed.error))
            }
            _ => Ok(()),
        }
    }

    async fn copy(&self, owner: &Owner, secondary: &Secondary) -> Result<(), Fault> {
        let options = CopyOptions {
            // Without it nothing is ever deleted.
            policy: owner
                .settings
                .retention_period
                .map(|_| owner.settings.retention.clone()),
            doubtful: owner.key_counts.doubtful(),
            // It is looked at every few seconds; what has a manifest is compared by it, once.
            sizes_suffice: true,
            compared: self.compared.clone(),
            ..CopyOptions::default()
        };
        let checked = self.checked.clone();
        let observer = Arc::new(move |event: CopyEvent<'_>| match event {
            CopyEvent::Copied(name) if name.kind == Kind::Full => checked.add(name.clone().with_final(false)),
            _ => {}
        });
        let copied = copy::copy(owner.store.as_ref(), secondary.store.as_ref(), &options, observer)
            .await
            .map_err(|error| fault("copy to the second store", &error))?;
        if copied.snapshots > 0 {
            info!(
                snapshots = copied.snapshots,
                bytes = copied.bytes,
                "copied to the second store"
            );
        }
        match copied.failed.first() {
            None => Ok(()),
            Some((name, error)) => {
                let others = copied.failed.len() - 1;
                let action = format!("copy {name} and {others} others to the second store");
                Err(fault(&action, error))
            }
        }
    }

    async fn tell(&self, owner: &Owner, outcome: Result<(), Fault>) {
        let (status, reason, message) = match outcome {
            Ok(()) => {
                let message = "the second store has all backups of the first one".to_owned();
                (ConditionStatus::True, backup_ready::SUCCEEDED, message)
            }
            Err((reason, message)) => (ConditionStatus::False, reason, message),
        };
        let is_bad = status == ConditionStatus::False;
        owner
            .status
            .condition(condition::SECONDARY_BACKUP_READY, status, reason, &message);
        let is_news = if is_bad {
            self.told.fails(reason)
        } else {
            self.told.works()
        };
        if !is_news {
            return;
        }
        if is_bad {
            warn!(reason, message, "the second store doesn't follow, trying again");
        }
        let Some(kubernetes) = &owner.kubernetes else {
            return;
        };
        if is_bad {
            kubernetes.warn("CopyBackups", reason, &message).await;
        } else {
            kubernetes
                .tell("CopyBackups", "SecondaryBackupRecovered", &message)
                .await;
        }
    }
}

fn fault(action: &str, error: &Error) -> Fault {
    (error.reason(), format!("{action}: {}", chain(error)))
}
