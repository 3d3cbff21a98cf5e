//! Logs to standard output as JSON or text, and traces to an OTLP endpoint when one is configured.

use std::io::IsTerminal as _;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::WithExportConfig as _;
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::config::{LogFormat, Telemetry};

/// Why telemetry can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter directives can't be parsed.
    #[error("telemetry.logFilter {filter:?}")]
    Filter {
        /// The directives.
        filter: String,
        /// Why.
        source: tracing_subscriber::filter::ParseError,
    },
    /// The OTLP exporter can't be built.
    #[error("telemetry.otlpEndpoint {endpoint:?}")]
    Exporter {
        /// The endpoint.
        endpoint: String,
        /// Why.
        source: opentelemetry_otlp::ExporterBuildError,
    },
    /// Another subscriber is already installed.
    #[error("install the log subscriber")]
    Install(#[from] tracing_subscriber::util::TryInitError),
}

/// Flushes the traces that are still buffered when it is dropped.
#[derive(Debug)]
pub struct Guard {
    provider: Option<SdkTracerProvider>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(provider) = &self.provider {
            let _ = provider.shutdown();
        }
    }
}

/// Installs the process-wide subscriber. Call it once, inside a Tokio runtime.
pub fn init(service: &'static str, config: &Telemetry) -> Result<Guard, TelemetryError> {
    let filter = EnvFilter::try_new(&config.log_filter).map_err(|source| TelemetryError::Filter {
        filter: config.log_filter.clone(),
        source,
    })?;
    let logs = tracing_subscriber::fmt::layer()
        .with_target(true)
        .with_ansi(std::io::stdout().is_terminal());
    let logs = match config.log_format {
        LogFormat::Json => logs
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .boxed(),
        LogFormat::Text => logs.compact().boxed(),
    };
    let provider = config
        .otlp_endpoint
        .as_deref()
        .map(|endpoint| exporter(service, endpoint))
        .transpose()?;
    let traces = provider
        .as_ref()
        .map(|p| tracing_opentelemetry::layer().with_tracer(p.tracer(service)));
    tracing_subscriber::registry()
        .with(filter)
        .with(logs)
        .with(traces)
        .try_init()?;
    Ok(Guard { provider })
}

fn exporter(service: &'static str, endpoint: &str) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()
        .map_err(|source| TelemetryError::Exporter {
            endpoint: endpoint.to_owned(),
            source,
        })?;
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name(service).build())
        .build())
}
