//! A gauge that has no series while its value isn't known: a time of zero would be one in 1970.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder},
    metrics::{MetricType, gauge::ConstGauge},
};

/// The gauge.
#[derive(Debug, Clone, Default)]
pub(super) struct OptionalGauge(Arc<Mutex<Option<i64>>>);

impl OptionalGauge {
    pub(super) fn set(&self, value: Option<i64>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }
}

impl EncodeMetric for OptionalGauge {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let value = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        value.map_or(Ok(()), |value| ConstGauge::new(value).encode(encoder))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}
