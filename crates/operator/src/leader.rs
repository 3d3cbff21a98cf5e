//! Election of one active replica by a Lease.
//!
//! Whether another holder's lease has run out is judged by the local monotonic clock since the record was last seen to
//! change, never by comparing wall clocks. Every write carries the resource version that it is based on, so of two
//! replicas that try at once one loses. The holder's right to write ends [`LeaderElection::renew_deadline`] after its last
//! renewal was *sent*, which is before anyone else may take over.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{config::LeaderElection, fence::Fence};

/// The lease was lost: someone else may act by now, so this process must stop.
#[derive(Debug, thiserror::Error)]
#[error("lost the leader lease {lease}: not renewed within {deadline:?}")]
pub struct LostLease {
    lease: String,
    deadline: Duration,
}

/// Takes part in the election for one Lease.
#[derive(Debug)]
pub struct Elector {
    api: Api<Lease>,
    name: String,
    identity: String,
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
    fence: Fence,
    leading: watch::Sender<bool>,
    observed: Option<Observed>,
}

/// The record that was last seen in the Lease, and when it was seen to change.
#[derive(Debug)]
struct Observed {
    holder: String,
    renew_time: Option<Timestamp>,
    at: Instant,
}

/// What one try came to.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Held,
    HeldByOther,
    LostRace,
}

impl Elector {
    /// An elector for the Lease `namespace/name`; `identity` must differ between replicas.
    pub fn new(
        client: Client,
        namespace: &str,
        name: &str,
        identity: &str,
        config: &LeaderElection,
        fence: Fence,
    ) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity: identity.to_owned(),
            lease_duration: config.lease_duration.into(),
            renew_deadline: config.renew_deadline.into(),
            retry_period: config.retry_period.into(),
            fence,
            leading: watch::Sender::new(false),
            observed: None,
        }
    }

    /// Turns true when this replica leads, and never back: losing the lease ends [`Elector::run`].
    pub fn leading(&self) -> watch::Receiver<bool> {
        self.leading.subscribe()
    }

    /// Acquires the lease and keeps it until `shutdown`, then releases it.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), LostLease> {
        let mut last_renewal: Option<Instant> = None;
        loop {
            let sent = Instant::now();
            match timeout(self.renew_deadline, self.attempt()).await {
                Ok(Ok(Outcome::Held)) => {
                    self.fence.extend(sent, self.renew_deadline);
                    if last_renewal.replace(sent).is_none() {
                        info!(lease = self.name, identity = self.identity, "leading");
                        self.leading.send_replace(true);
                    }
                }
                Ok(Ok(outcome)) => {
                    debug!(lease = self.name, ?outcome, "not leading");
                    if last_renewal.is_some() && outcome == Outcome::HeldByOther {
                        return Err(self.lost());
                    }
                }
                Ok(Err(error)) => {
                    warn!(lease = self.name, %error, "failed to acquire or renew the leader lease");
                }
                Err(_) => warn!(
                    lease = self.name,
                    "acquiring or renewing the leader lease timed out"
                ),
            }
            if last_renewal.is_some_and(|at| at.elapsed() >= self.renew_deadline) {
                return Err(self.lost());
            }
            // Jitter keeps standbys from racing in step.
            let pause = self.retry_period.mul_f64(1.0 + rand::random::<f64>() * 0.2);
            tokio::select! {
                () = sleep(pause) => {}
                () = shutdown.cancelled() => {
                    if last_renewal.is_some() {
                        self.release().await;
                    }
                    return Ok(());
                }
            }
        }
    }

    fn lost(&self) -> LostLease {
        self.fence.close();
        LostLease {
            lease: self.name.clone(),
            deadline: self.renew_deadline,
        }
    }

    async fn attempt(&mut self) -> kube::Result<Outcome> {
        let Some(lease) = self.api.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.record(None)),
            };
            return self.write(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder != self.identity && !holder.is_empty() && !self.expired(&holder, &spec) {
            return Ok(Outcome::HeldByOther);
        }
        let renewed = Lease {
            spec: Some(self.record(Some(&spec))),
            ..lease
        };
        self.write(
            self.api
                .replace(&self.name, &PostParams::default(), &renewed)
                .await,
        )
    }

    fn write(&mut self, result: kube::Result<Lease>) -> kube::Result<Outcome> {
        match result {
            Ok(_) => {
                self.observed = None;
                Ok(Outcome::Held)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Outcome::LostRace),
            Err(error) => Err(error),
        }
    }

    /// Whether another holder's record has been unchanged for as long as that holder said.
    fn expired(&mut self, holder: &str, spec: &LeaseSpec) -> bool {
        let renew_time = spec.renew_time.as_ref().map(|t| t.0);
        match &self.observed {
            Some(seen) if seen.holder == holder && seen.renew_time == renew_time => {
                let stated = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok());
                seen.at.elapsed() >= stated.map_or(self.lease_duration, Duration::from_secs)
            }
            _ => {
                self.observed = Some(Observed {
                    holder: holder.to_owned(),
                    renew_time,
                    at: Instant::now(),
                });
                false
            }
        }
    }

    fn record(&self, old: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let kept = old.filter(|old| old.holder_identity.as_deref() == Some(&self.identity));
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.lease_duration.as_secs()).ok(),
            acquire_time: kept
                .and_then(|old| old.acquire_time.clone())
                .or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: match (kept, old) {
                (Some(kept), _) => kept.lease_transitions,
                (None, Some(old)) => Some(old.lease_transitions.unwrap_or(0).saturating_add(1)),
                (None, None) => Some(0),
            },
            ..LeaseSpec::default()
        }
    }

    /// Lets another replica take over at once.
    async fn release(&self) {
        self.fence.close();
        let released = async {
            let Some(mut lease) = self.api.get_opt(&self.name).await? else {
                return Ok(());
            };
            let Some(spec) = lease.spec.as_mut() else {
                return Ok(());
            };
            if spec.holder_identity.as_deref() == Some(&self.identity) {
                spec.holder_identity = Some(String::new());
                self.api
                    .replace(&self.name, &PostParams::default(), &lease)
                    .await?;
            }
            Ok::<_, kube::Error>(())
        };
        match timeout(self.retry_period, released).await {
            Ok(Ok(())) => info!(lease = self.name, "released"),
            Ok(Err(error)) => warn!(lease = self.name, %error, "failed to release the leader lease"),
            Err(_) => warn!(lease = self.name, "releasing the leader lease timed out"),
        }
    }
}

#[cfg(test)]
mod tests;
