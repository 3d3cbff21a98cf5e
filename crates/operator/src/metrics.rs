//! Metrics that every controller has. Names and label values are API: they are listed in docs/reference/metrics.md.

use std::sync::{Arc, Mutex};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Seconds that a reconcile may take.
const RECONCILE_BUCKETS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// The process's registry; a controller adds its own metrics through [`Metrics::register`].
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    reconciles: Family<Outcome, Counter>,
    durations: Family<Controller, Histogram, fn() -> Histogram>,
    leader: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    controller: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Controller {
    controller: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Arc::default(),
            reconciles: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(RECONCILE_BUCKETS)),
            leader: Gauge::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "etcddruid_reconciles",
                "Reconciles by outcome: \"ok\" or the CamelCase reason of the error",
                metrics.reconciles.clone(),
            );
            registry.register(
                "etcddruid_reconcile_duration_seconds",
                "Duration of reconciles in seconds",
                metrics.durations.clone(),
            );
            registry.register(
                "etcddruid_leader",
                "1 while this replica is the active one",
                metrics.leader.clone(),
            );
        });
        metrics
    }
}

impl Metrics {
    /// Adds metrics to the registry.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self
            .registry
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    /// Notes the end of a reconcile.
    pub fn reconciled(&self, controller: &'static str, outcome: &'static str, seconds: f64) {
        self.reconciles
            .get_or_create(&Outcome { controller, outcome })
            .inc();
        self.durations
            .get_or_create(&Controller { controller })
            .observe(seconds);
    }

    /// Notes whether this replica is the active one.
    pub fn set_leader(&self, leading: bool) {
        self.leader.set(i64::from(leading));
    }

    /// All metrics in OpenMetrics text.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let registry = self
            .registry
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}
