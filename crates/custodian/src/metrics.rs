//! What the Etcds' statuses say, as metrics. They are read out of the cache at each scrape, so that a series lives
//! exactly as long as its Etcd.

use api::{
    conditions::ready,
    v1alpha1::{ConditionStatus, Etcd, EtcdStatus, find_condition},
};
use kube::{ResourceExt as _, runtime::reflector::Store};
use operator::reconcile::Guarded;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};

/// A gauge: its name, its meaning, and its value for an Etcd, if it has one.
type Gauge = (&'static str, &'static str, fn(&Etcd) -> Option<i64>);

const GAUGES: [Gauge; 4] = [
    (
        "etcddruid_etcd_quorate",
        "1 if a majority of the members serves, 0 if not; no series while it can't be told",
        |etcd| quorate(etcd.status.as_ref()?),
    ),
    (
        "etcddruid_etcd_members",
        "Members that the spec asks for",
        |etcd| Some(etcd.spec.replicas.into()),
    ),
    (
        "etcddruid_etcd_members_ready",
        "Members that serve, of those asked for",
        |etcd| {
            let (ready, _) = etcd.status.as_ref()?.members_ready.as_deref()?.split_once('/')?;
            ready.parse().ok()
        },
    ),
    (
        "etcddruid_etcd_backup_covered_timestamp_seconds",
        "Time up to which backups hold everything, in seconds since 1970",
        |etcd| Some(etcd.status.as_ref()?.last_backup_time.as_ref()?.0.as_second()),
    ),
];

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Labels {
    namespace: String,
    etcd: String,
}

/// Collects [`GAUGES`] from the cache.
#[derive(Debug)]
pub struct Statuses(pub Store<Guarded<Etcd>>);

impl Collector for Statuses {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let etcds = self.0.state();
        for (name, help, value) in GAUGES {
            let mut gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for etcd in etcds.iter().filter_map(|guard| guard.0.as_ref().ok()) {
                let Some(value) = value(etcd) else { continue };
                let labels = Labels {
                    namespace: etcd.namespace().unwrap_or_default(),
                    etcd: etcd.name_any(),
                };
                ConstGauge::new(value).encode(gauge.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

fn quorate(status: &EtcdStatus) -> Option<i64> {
    match find_condition(&status.conditions, ready::TYPE)?.status {
        ConditionStatus::True => Some(1),
        ConditionStatus::False => Some(0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::{reflector, watcher};
    use operator::metrics::Metrics;
    use serde_json::json;

    use super::*;

    /// A series must go with its Etcd, and no value may be made up while something can't be told.
    #[test]
    fn series_live_as_long_as_their_etcd() {
        let etcd = |name: &str, ready: &str| {
            let etcd = json!({
                "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd",
                "metadata": {"name": name, "namespace": "ns"}, "spec": {"replicas": 3},
                "status": {
                    "membersReady": "2/3", "lastBackupTime": "1970-01-01T00:01:00Z",
                    "conditions": [{"type": "Ready", "status": ready}],
                },
            });
            serde_json::from_value::<Guarded<Etcd>>(etcd).unwrap()
        };
        let (store, mut writer) = reflector::store();
        let metrics = Metrics::default();
        metrics.register(|registry| registry.register_collector(Box::new(Statuses(store))));
        writer.apply_watcher_event(&watcher::Event::Apply(etcd("a", "True")));
        writer.apply_watcher_event(&watcher::Event::Apply(etcd("b", "Unknown")));
        let text = metrics.encode().unwrap();
        for line in [
            r#"etcddruid_etcd_quorate{namespace="ns",etcd="a"} 1"#,
            r#"etcddruid_etcd_members{namespace="ns",etcd="b"} 3"#,
            r#"etcddruid_etcd_members_ready{namespace="ns",etcd="b"} 2"#,
            r#"etcddruid_etcd_backup_covered_timestamp_seconds{namespace="ns",etcd="b"} 60"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        assert!(!text.contains(r#"quorate{namespace="ns",etcd="b"}"#), "{text}");
        operator::metrics::reference::check("custodian", &metrics);
        writer.apply_watcher_event(&watcher::Event::Delete(etcd("a", "True")));
        assert!(!metrics.encode().unwrap().contains(r#"etcd="a""#));
    }
}
