//! Bytes that went through the pod's network interfaces, as the kernel counts them at the time of the scrape.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};

/// One line for each interface: name, then eight fields of what was received and eight of what was sent.
const TABLE: &str = "/proc/self/net/dev";
const SENT: usize = 8;

/// The two metrics. Gauges that only grow: their names have no `_total`, which counters would get.
#[derive(Debug)]
pub(super) struct Traffic;

impl Collector for Traffic {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Ok(table) = std::fs::read_to_string(TABLE) else {
            return Ok(());
        };
        let (received, sent) = sums(&table);
        let metrics = [
            (
                "etcdbr_network_received_bytes",
                "Bytes that the whole pod has received; only grows",
                received,
            ),
            (
                "etcdbr_network_transmitted_bytes",
                "Bytes that the whole pod has sent; only grows",
                sent,
            ),
        ];
        for (name, help, bytes) in metrics {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(bytes).unwrap_or(i64::MAX)).encode(encoder)?;
        }
        Ok(())
    }
}

fn sums(table: &str) -> (u64, u64) {
    let of_interface = |line: &str| {
        let fields: Vec<u64> = line
            .split_once(':')?
            .1
            .split_whitespace()
            .filter_map(|field| field.parse().ok())
            .collect();
        Some((*fields.first()?, *fields.get(SENT)?))
    };
    table
        .lines()
        .filter_map(of_interface)
        .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_added_up() {
        let table = "Inter-|   Receive                            |  Transmit\n \
                     face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n    \
                     lo: 100 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0\n  \
                     eth0:5000 9 0 0 0 0 0 0 7000 8 0 0 0 0 0 0\n";
        assert_eq!(sums(table), (5100, 7100));
    }
}
