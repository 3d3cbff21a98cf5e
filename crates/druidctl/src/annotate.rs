//! `druidctl reconcile`, `suspend` and `resume`: annotations that the etcd-controller heeds.

use api::{labels::annotation, v1alpha1::Etcd};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{CtlError, Verdict, cluster::Connection, output, status::named};

/// Flags of these commands.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The Etcd.
    pub name: String,
}

/// Asks for one reconcile.
pub async fn reconcile(connection: &Connection, args: &Args) -> Result<Verdict, CtlError> {
    let refusal = |etcd: &Etcd| {
        let suspended = etcd
            .annotations()
            .contains_key(annotation::SUSPEND_SPEC_RECONCILE);
        let name = &args.name;
        suspended.then(|| format!("Etcd {name} is suspended: run `druidctl resume {name}` first"))
    };
    let annotations = json!({annotation::OPERATION: annotation::OPERATION_RECONCILE});
    annotate(connection, args, annotations, "reconcile asked for", refusal).await
}

/// Stops reconciles of the spec.
pub async fn suspend(connection: &Connection, args: &Args) -> Result<Verdict, CtlError> {
    let annotations = json!({annotation::SUSPEND_SPEC_RECONCILE: "true"});
    annotate(connection, args, annotations, "suspended", |_| None).await
}

/// Lets reconciles of the spec go on.
pub async fn resume(connection: &Connection, args: &Args) -> Result<Verdict, CtlError> {
    let annotations = json!({annotation::SUSPEND_SPEC_RECONCILE: null});
    annotate(connection, args, annotations, "resumed", |_| None).await
}

async fn annotate(
    connection: &Connection,
    args: &Args,
    annotations: Value,
    done: &str,
    refusal: impl Fn(&Etcd) -> Option<String>,
) -> Result<Verdict, CtlError> {
    let (client, namespace) = connection.open().await?;
    let etcd = named(client.clone(), &namespace, &args.name).await?;
    if let Some(why) = refusal(&etcd) {
        return Err(CtlError::Refused(why));
    }
    let patch = json!({"metadata": {"annotations": annotations}});
    let patched = Api::<Etcd>::namespaced(client, &namespace)
        .patch(&args.name, &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    patched.map_err(|source| CtlError::Request {
        action: format!("annotate Etcd {}", args.name),
        source: Box::new(source),
    })?;
    output::print(&format!("etcd/{} {done}\n", args.name))?;
    Ok(Verdict::Well)
}
