//! What a steward tells a collector of traces.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, ensure};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    trace::v1::Span,
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

use crate::rig::{Rig, Setup};

/// A collector that keeps what it is sent.
#[derive(Debug, Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

impl Collector {
    /// Its URL.
    async fn serve(&self) -> anyhow::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let service = TraceServiceServer::new(self.clone());
        tokio::spawn(
            Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        Ok(url)
    }

    /// The spans of the trace that begins with a span of this name, by their names.
    fn trace_of(&self, name: &str) -> anyhow::Result<BTreeMap<String, Span>> {
        let spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let root = spans.iter().find(|span| span.name == name);
        let root = root.with_context(|| format!("no span {name:?}"))?;
        let same = spans.iter().filter(|span| span.trace_id == root.trace_id);
        Ok(same.map(|span| (span.name.clone(), span.clone())).collect())
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(scopes.flat_map(|scope| scope.spans));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// One trace holds a snapshot from its fetching to its upload, another one a restore with what it was made from.
#[tokio::test]
async fn traces_follow_snapshots_and_restores() -> anyhow::Result<()> {
    let collector = Collector::default();
    let mut rig = Rig::new(Setup::single())?;
    rig.members[0].set_env("DRUID_OTLP_ENDPOINT", collector.serve().await?);
    rig.start_all()?;
    rig.until_ready().await?;
    let last = rig.put("/kept/", 5).await?;
    rig.full_snapshot().await?;
    rig.until_covered(last).await?;
    rig.until("the snapshot's trace is there", async || {
        let trace = collector.trace_of("full snapshot")?;
        let whole = &trace["full snapshot"];
        for part in ["fetch", "upload"] {
            let part = trace.get(part).with_context(|| format!("no {part}: {trace:?}"))?;
            ensure!(part.parent_span_id == whole.span_id, "{part:?}");
            ensure!(
                whole.start_time_unix_nano <= part.start_time_unix_nano
                    && part.end_time_unix_nano <= whole.end_time_unix_nano
            );
        }
        Ok(())
    })
    .await?;
    rig.lose_all().await?;
    rig.until("the restore's trace is there", async || {
        let trace = collector.trace_of("restore")?;
        let engine = trace.get("assemble").context("no span of the engine")?;
        ensure!(engine.parent_span_id == trace["restore"].span_id, "{engine:?}");
        let of_what = engine.attributes.iter().find(|attribute| attribute.key == "full");
        ensure!(of_what.is_some(), "{engine:?}");
        Ok(())
    })
    .await
}
