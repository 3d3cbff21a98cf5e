//! Who may call a steward.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use steward_proto::v1::{
    CancelOperationRequest, CompactRequest, CreateSnapshotRequest, DefragmentRequest, GetBackupStatusRequest,
    GetLatestSnapshotsRequest, GetMemberRequest, GetOperationRequest, ListMembersRequest,
    ListOperationsRequest, ListSnapshotsRequest, SnapshotType, WaitOperationRequest, WatchOperationRequest,
    maintenance_service_client::MaintenanceServiceClient, members_service_client::MembersServiceClient,
    operations_service_client::OperationsServiceClient, snapshots_service_client::SnapshotsServiceClient,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;
use tonic::{
    Code, Status,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::{
    member::Member,
    pki::{Authority, CLIENT, Leaf},
    rig::{Rig, Setup},
};

/// Somebody who calls a steward: whom he trusts, and who he is.
struct Caller {
    ca: String,
    identity: Option<Leaf>,
}

impl Caller {
    fn new(ca: &Authority, identity: Option<Leaf>) -> Self {
        Self {
            ca: ca.certificate.clone(),
            identity,
        }
    }

    async fn grpc(&self, member: &Member) -> anyhow::Result<Channel> {
        let mut tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.ca))
            .domain_name("localhost");
        if let Some(leaf) = &self.identity {
            tls = tls.identity(Identity::from_pem(&leaf.certificate, &leaf.key));
        }
        Ok(Endpoint::from_shared(member.api_url())?
            .tls_config(tls)?
            .connect()
            .await?)
    }

    /// Status, content type and body of one request.
    async fn http(&self, member: &Member, method: &str, path: &str) -> anyhow::Result<(u16, String, String)> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.ca.as_bytes()) {
            roots.add(certificate?)?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(leaf) => builder.with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(leaf.certificate.as_bytes())?],
                PrivateKeyDer::from_pem_slice(leaf.key.as_bytes())?,
            )?,
        };
        let stream = TcpStream::connect(("127.0.0.1", member.api_port())).await?;
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream = connector
            .connect(ServerName::try_from("localhost")?, stream)
            .await?;
        let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        // Some servers close without a TLS notice.
        let read = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer)?;
        let Some((head, body)) = answer.split_once("\r\n\r\n") else {
            read?;
            anyhow::bail!("no answer: {answer}");
        };
        let status = head.split(' ').nth(1).context("a status")?.parse()?;
        let type_ = head.lines().find_map(|line| line.strip_prefix("content-type: "));
        Ok((status, type_.unwrap_or_default().to_owned(), body.to_owned()))
    }
}

/// What a call was answered.
type Answer = (&'static str, Result<(), Status>);

/// What became of a call, without what it answered.
fn told<T>(call: &'static str, answer: Result<T, Status>) -> Answer {
    (call, answer.map(|_| ()))
}

/// Makes every documented call, and returns what each answered.
async fn all_calls(channel: &Channel) -> Vec<Answer> {
    let mut snapshots = SnapshotsServiceClient::new(channel.clone());
    let full = CreateSnapshotRequest {
        r#type: SnapshotType::Full.into(),
        request_id: "sec-01".to_owned(),
        ..CreateSnapshotRequest::default()
    };
    let created = snapshots.create_snapshot(full).await;
    let id = match &created {
        Ok(created) => created.get_ref().operation.clone().unwrap_or_default().id,
        Err(_) => "any".to_owned(),
    };
    let latest = snapshots.get_latest_snapshots(GetLatestSnapshotsRequest {}).await;
    let listed = snapshots.list_snapshots(ListSnapshotsRequest {}).await;
    let status = snapshots.get_backup_status(GetBackupStatusRequest {}).await;
    let mut answers = vec![
        told("CreateSnapshot", created),
        told("GetLatestSnapshots", latest),
        told("ListSnapshots", listed),
        told("GetBackupStatus", status),
    ];
    let mut members = MembersServiceClient::new(channel.clone());
    let own = members.get_member(GetMemberRequest {}).await;
    answers.push(told("GetMember", own));
    let all = members.list_members(ListMembersRequest {}).await;
    answers.push(told("ListMembers", all));
    let mut maintenance = MaintenanceServiceClient::new(channel.clone());
    let defragmented = maintenance.defragment(DefragmentRequest::default()).await;
    answers.push(told("Defragment", defragmented));
    let compacted = maintenance.compact(CompactRequest::default()).await;
    answers.push(told("Compact", compacted));
    answers.extend(operation_calls(channel, id).await);
    answers
}

async fn operation_calls(channel: &Channel, id: String) -> Vec<Answer> {
    let mut operations = OperationsServiceClient::new(channel.clone());
    let listed = operations.list_operations(ListOperationsRequest {}).await;
    let got = operations
        .get_operation(GetOperationRequest { id: id.clone() })
        .await;
    let wait = WaitOperationRequest {
        id: id.clone(),
        timeout: None,
    };
    let waited = operations.wait_operation(wait).await;
    let watched = operations
        .watch_operation(WatchOperationRequest { id: id.clone() })
        .await;
    let cancelled = operations.cancel_operation(CancelOperationRequest { id }).await;
    vec![
        told("ListOperations", listed),
        told("GetOperation", got),
        told("WaitOperation", waited),
        told("WatchOperation", watched),
        told("CancelOperation", cancelled),
    ]
}

/// Every documented path, but for one operation's.
const PATHS: [(&str, &str); 10] = [
    ("POST", "/snapshot/full"),
    ("GET", "/snapshot/full"),
    ("POST", "/snapshot/delta"),
    ("GET", "/snapshot/delta"),
    ("GET", "/snapshot/latest"),
    ("GET", "/member"),
    ("POST", "/maintenance/defrag"),
    ("POST", "/maintenance/compact"),
    ("GET", "/operations"),
    ("DELETE", "/operations/any"),
];

async fn secured() -> anyhow::Result<(Rig, Authority)> {
    let authority = Authority::new()?;
    let mut rig = Rig::new(Setup::single())?;
    rig.members[0].secure(&authority.certificate, &authority.server()?)?;
    rig.reconfigure()?;
    rig.start_all()?;
    rig.until_ready().await?;
    Ok((rig, authority))
}

async fn until_owner(rig: &Rig, caller: &Caller) -> anyhow::Result<()> {
    rig.until("the steward owns the backups", async || {
        let mut snapshots = SnapshotsServiceClient::new(caller.grpc(&rig.members[0]).await?);
        let status = snapshots
            .get_backup_status(GetBackupStatusRequest {})
            .await?
            .into_inner();
        ensure!(status.owner && status.last_full.is_some(), "{status:?}");
        Ok(())
    })
    .await
}

/// SEC-01: with this Etcd's client certificate every documented call works; without one none does, and nothing has
/// happened. Health and metrics are open.
#[tokio::test]
async fn sec_01_calls_need_a_client_certificate() -> anyhow::Result<()> {
    let (rig, authority) = secured().await?;
    let member = &rig.members[0];
    let known = Caller::new(&authority, Some(authority.client(CLIENT)?));
    until_owner(&rig, &known).await?;
    rig.put("/kept/", 5).await?;
    let before = rig.stored()?;
    let nobody = Caller::new(&authority, None);
    let stranger = Caller::new(&authority, Some(authority.client("druid://etcd/lab/other")?));
    for caller in [&nobody, &stranger] {
        for (call, answer) in all_calls(&caller.grpc(member).await?).await {
            let refused = matches!(&answer, Err(status) if status.code() == Code::Unauthenticated);
            ensure!(refused, "{call}: {answer:?}");
        }
        for (method, path) in PATHS {
            let (status, type_, body) = caller.http(member, method, path).await?;
            ensure!(
                status == 401 && type_ == "application/problem+json",
                "{method} {path}: {status} {type_}: {body}"
            );
        }
        let (status, _, body) = caller.http(member, "GET", "/healthz").await?;
        ensure!(status == 200 && body.contains("true"), "{status}: {body}");
        let mut health = HealthClient::new(caller.grpc(member).await?);
        health.check(HealthCheckRequest::default()).await?;
    }
    let fulls = |stored: &[String]| stored.iter().filter(|name| name.starts_with("Full-")).count();
    ensure!(
        fulls(&rig.stored()?) == fulls(&before),
        "a snapshot was taken for somebody unknown"
    );
    member.metric("etcdbr_cluster_size").await?;
    // Another authority's certificate doesn't even get through the handshake.
    let foreign = Caller::new(&authority, Some(Authority::new()?.client(CLIENT)?));
    ensure!(
        foreign.http(member, "GET", "/operations").await.is_err(),
        "a foreign certificate was taken"
    );
    // A controller is known as well.
    let controller = Caller::new(
        &authority,
        Some(authority.client("druid://controller/opstask-controller")?),
    );
    for caller in [&known, &controller] {
        // There must be something to compact.
        rig.put("/kept/", 1).await?;
        for (call, answer) in all_calls(&caller.grpc(member).await?).await {
            ensure!(answer.is_ok(), "{call}: {answer:?}");
        }
        rig.put("/kept/", 1).await?;
        for (method, path) in PATHS {
            let (status, _, body) = caller.http(member, method, path).await?;
            let expected = if path == "/operations/any" { 404 } else { 200 };
            ensure!(status == expected, "{method} {path}: {status}: {body}");
        }
    }
    Ok(())
}

/// SEC-01: a controller may do what it is for, and no more.
#[tokio::test]
async fn sec_01_controllers_have_the_rights_that_they_need() -> anyhow::Result<()> {
    let (rig, authority) = secured().await?;
    let member = &rig.members[0];
    until_owner(&rig, &Caller::new(&authority, Some(authority.client(CLIENT)?))).await?;
    for (controller, refused) in [
        (
            "compaction-controller",
            &["Defragment", "Compact", "CancelOperation"][..],
        ),
        (
            "custodian",
            &["CreateSnapshot", "Defragment", "Compact", "CancelOperation"],
        ),
    ] {
        let certificate = authority.client(&format!("druid://controller/{controller}"))?;
        let caller = Caller::new(&authority, Some(certificate));
        for (call, answer) in all_calls(&caller.grpc(member).await?).await {
            let is_refused = matches!(&answer, Err(status) if status.code() == Code::PermissionDenied);
            ensure!(
                is_refused == refused.contains(&call),
                "{controller}: {call}: {answer:?}"
            );
        }
        let (status, _, body) = caller.http(member, "POST", "/maintenance/defrag").await?;
        ensure!(
            status == 403 && body.contains("PermissionDenied"),
            "{controller}: {status}: {body}"
        );
        let (status, _, body) = caller.http(member, "GET", "/member").await?;
        ensure!(status == 200, "{controller}: {status}: {body}");
    }
    Ok(())
}

/// SEC-01: certificates and authorities are replaced while the steward serves, and what isn't whole isn't used.
#[tokio::test]
async fn sec_01_certificates_are_rotated_while_serving() -> anyhow::Result<()> {
    let (mut rig, old) = secured().await?;
    let new = Authority::new()?;
    let old_caller = Caller::new(&old, Some(old.client(CLIENT)?));
    let works = async |rig: &Rig, caller: &Caller| -> anyhow::Result<()> {
        let (status, _, body) = caller.http(&rig.members[0], "GET", "/operations").await?;
        ensure!(status == 200, "{status}: {body}");
        Ok(())
    };
    works(&rig, &old_caller).await?;
    let open = old_caller.grpc(&rig.members[0]).await?;
    let process = rig.members[0].steward_pid().context("a steward")?;
    // Both authorities are trusted, then the server's certificate is replaced, then the old authority goes.
    let both = format!("{}{}", old.certificate, new.certificate);
    rig.members[0].secure(&both, &old.server()?)?;
    let new_identity = Some(new.client(CLIENT)?);
    let crossing = Caller {
        ca: both.clone(),
        identity: new_identity.clone(),
    };
    works(&rig, &crossing).await?;
    works(&rig, &old_caller).await?;
    rig.members[0].secure(&both, &new.server()?)?;
    let new_caller = Caller::new(&new, new_identity);
    works(&rig, &new_caller).await?;
    ensure!(
        works(&rig, &old_caller).await.is_err(),
        "the old server certificate is still served"
    );
    rig.members[0].secure(&new.certificate, &new.server()?)?;
    works(&rig, &new_caller).await?;
    let outdated = Caller {
        ca: both,
        identity: Some(old.client(CLIENT)?),
    };
    ensure!(
        works(&rig, &outdated).await.is_err(),
        "the old authority is still trusted"
    );
    // A key that doesn't belong to the certificate: the steward stays with what it has.
    let mixed = Leaf {
        key: new.server()?.key,
        ..new.server()?
    };
    rig.members[0].secure(&new.certificate, &mixed)?;
    works(&rig, &new_caller).await?;
    ensure!(
        rig.members[0].log().contains("staying with the old ones"),
        "it isn't told"
    );
    // Whoever was connected all the time still is, to the same process.
    MembersServiceClient::new(open)
        .get_member(GetMemberRequest {})
        .await?;
    ensure!(
        rig.members[0].steward_pid() == Some(process),
        "the steward was restarted"
    );
    Ok(())
}
