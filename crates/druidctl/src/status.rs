//! `druidctl status`: how Etcds are.

use api::{
    labels,
    v1alpha1::{Etcd, EtcdMember},
};
use jiff::Timestamp;
use kube::{Api, Client, api::ListParams};

use crate::{
    CtlError, Verdict,
    cluster::Connection,
    output::{self, Format},
    report::{Report, details, table},
};

/// Flags of `status`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// One Etcd, at length. Without it: all of the namespace.
    pub name: Option<String>,
    /// All namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["name", "namespace"])]
    pub all_namespaces: bool,
    /// How to print it.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// Prints how Etcds are; well if all are.
pub async fn run(connection: &Connection, args: &Args) -> Result<Verdict, CtlError> {
    let (client, namespace) = connection.open().await?;
    let scope = (!args.all_namespaces).then_some(namespace.as_str());
    let etcds = match &args.name {
        Some(name) => vec![named(client.clone(), &namespace, name).await?],
        None => list(client.clone(), scope, "list Etcds", &ListParams::default()).await?,
    };
    let of_etcds = match &args.name {
        Some(name) => ListParams::default().labels(&format!("{}={name}", labels::OWNED_BY)),
        None => ListParams::default(),
    };
    let members: Vec<EtcdMember> = if etcds.is_empty() {
        Vec::new()
    } else {
        list(client, scope, "list EtcdMembers", &of_etcds).await?
    };
    let reports: Vec<_> = etcds.iter().map(|etcd| Report::new(etcd, &members)).collect();
    print(&reports, args, &namespace)?;
    Ok(if reports.iter().all(|report| report.healthy) {
        Verdict::Well
    } else {
        Verdict::Unwell
    })
}

fn print(reports: &[Report], args: &Args, namespace: &str) -> Result<(), CtlError> {
    let now = Timestamp::now();
    match (args.output, reports) {
        (Format::Table, []) if args.all_namespaces => output::note("No Etcds found."),
        (Format::Table, []) => output::note(&format!("No Etcds found in namespace {namespace}.")),
        (Format::Table, [report]) if args.name.is_some() => output::print(&details(report, now))?,
        (Format::Table, reports) => output::print(&table(reports, args.all_namespaces, now))?,
        (format, [report]) if args.name.is_some() => output::print(&format.encode(report)?)?,
        (format, reports) => output::print(&format.encode(&serde_json::json!({"items": reports}))?)?,
    }
    Ok(())
}

/// One Etcd.
pub(crate) async fn named(client: Client, namespace: &str, name: &str) -> Result<Etcd, CtlError> {
    let found = Api::<Etcd>::namespaced(client, namespace).get_opt(name).await;
    let found = found.map_err(|source| CtlError::Request {
        action: format!("read Etcd {name}"),
        source: Box::new(source),
    })?;
    found.ok_or_else(|| CtlError::NotFound {
        kind: "Etcd",
        name: name.to_owned(),
        namespace: namespace.to_owned(),
    })
}

async fn list<K>(
    client: Client,
    namespace: Option<&str>,
    action: &str,
    params: &ListParams,
) -> Result<Vec<K>, CtlError>
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api = namespace.map_or_else(
        || Api::<K>::all(client.clone()),
        |namespace| Api::namespaced(client.clone(), namespace),
    );
    let listed = api.list(params).await;
    listed.map(|list| list.items).map_err(|source| CtlError::Request {
        action: action.to_owned(),
        source: Box::new(source),
    })
}
