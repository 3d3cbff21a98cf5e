//! The registry of a process, and the metrics that every controller has. Names and label values are API: they are listed in
//! docs/reference/metrics.md.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::{
    collector::Collector,
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Metric, Registry},
};

pub mod reference;

/// Seconds that a reconcile may take.
const RECONCILE_BUCKETS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// The process's registry, to which its parts add their metrics through [`Metrics::register`].
#[derive(Debug, Clone)]
pub struct Metrics {
    registered: Arc<Mutex<Registered>>,
    reconciles: Family<Outcome, Counter>,
    durations: Family<Controller, Histogram, fn() -> Histogram>,
    leader: Gauge,
}

#[derive(Debug, Default)]
struct Registered {
    registry: Registry,
    names: Vec<String>,
}

/// Takes metrics into the registry, and remembers which there are.
#[derive(Debug)]
pub struct Registrar<'a>(&'a mut Registered);

impl Registrar<'_> {
    /// Adds a metric. The help text is also what the reference tells of it.
    pub fn register(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.0.names.push(name.to_owned());
        self.0.registry.register(name, help, metric);
    }

    /// Adds metrics that are read at each scrape.
    pub fn register_collector(&mut self, collector: Box<dyn Collector>) {
        self.0.registry.register_collector(collector);
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    controller: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    component: &'static str,
    version: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Controller {
    controller: &'static str,
}

impl Default for Metrics {
    /// A registry without metrics.
    fn default() -> Self {
        Self {
            registered: Arc::default(),
            reconciles: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(RECONCILE_BUCKETS)),
            leader: Gauge::default(),
        }
    }
}

impl Metrics {
    /// With what every controller measures.
    pub fn of_controller() -> Self {
        let metrics = Self::default();
        metrics.register(|registry| {
            registry.register(
                "etcddruid_reconciles",
                "Reconciles by outcome: `ok`, or the reason of the error",
                metrics.reconciles.clone(),
            );
            registry.register(
                "etcddruid_reconcile_duration_seconds",
                "Duration of reconciles",
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

    /// Adds which build this is: `<namespace>_build_info`, 1.
    pub fn build_info(&self, namespace: &str, component: &'static str, version: &'static str) {
        let info = Family::<Build, Gauge>::default();
        info.get_or_create(&Build { component, version }).set(1);
        let name = format!("{namespace}_build_info");
        let help = "1; which component this is, of which version";
        self.register(|registry| registry.register(&name, help, info));
    }

    /// What a controller counts is there from the start, so that the first increase shows.
    pub fn expect(&self, controller: &'static str) {
        let outcome = "ok";
        drop(self.reconciles.get_or_create(&Outcome { controller, outcome }));
        drop(self.durations.get_or_create(&Controller { controller }));
    }

    /// Adds metrics to the registry.
    pub fn register(&self, add: impl FnOnce(&mut Registrar<'_>)) {
        add(&mut Registrar(&mut self.registered()));
    }

    fn registered(&self) -> MutexGuard<'_, Registered> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
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
        prometheus_client::encoding::text::encode(&mut text, &self.registered().registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docs_tell_of_every_metric() {
        let metrics = Metrics::of_controller();
        metrics.build_info("etcddruid", "etcd-controller", "1.2.3");
        metrics.expect("etcd");
        reference::check("all controllers", &metrics);
        let text = metrics.encode().unwrap();
        for line in [
            "etcddruid_build_info{component=\"etcd-controller\",version=\"1.2.3\"} 1",
            "etcddruid_reconciles_total{controller=\"etcd\",outcome=\"ok\"} 0",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is missing in\n{text}"
            );
        }
    }
}
