//! What a member's steward tells over its API.

use anyhow::Context as _;
use serde_json::Value;
use steward_proto::v1::{
    self as proto, members_service_client::MembersServiceClient,
    snapshots_service_client::SnapshotsServiceClient,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::transport::Channel;

use super::Member;
use crate::rig::PATIENCE;

impl Member {
    /// A call of the steward's HTTP API.
    pub(crate) async fn call(&self, method: &str, path: &str) -> anyhow::Result<(u16, Value)> {
        let (status, body) = ask(self.ports.api, method, path).await?;
        Ok((status, serde_json::from_str(&body).unwrap_or(Value::String(body))))
    }

    /// The value of a steward's metric, by its name and labels as they are exposed.
    pub(crate) async fn metric(&self, series: &str) -> anyhow::Result<f64> {
        metric(self.ports.health, series).await
    }

    /// The same of etcd's own metrics.
    pub(crate) async fn etcd_metric(&self, series: &str) -> anyhow::Result<f64> {
        metric(self.ports.metrics, series).await
    }

    /// The member, as its own steward tells it.
    pub(crate) async fn told(&self) -> anyhow::Result<proto::Member> {
        let mut members = MembersServiceClient::connect(self.api_url()).await?;
        let answer = members.get_member(proto::GetMemberRequest {}).await?;
        answer.into_inner().member.context("a member")
    }

    /// All members, as its steward tells them.
    pub(crate) async fn told_of_all(&self) -> anyhow::Result<Vec<proto::Member>> {
        let mut members = MembersServiceClient::connect(self.api_url()).await?;
        let answer = members.list_members(proto::ListMembersRequest {}).await?;
        Ok(answer.into_inner().members)
    }

    /// Reason and message of a condition, as its steward tells it.
    pub(crate) async fn condition(&self, type_: &str) -> anyhow::Result<(String, String)> {
        let told = self.told().await?;
        let found = told.conditions.iter().find(|condition| condition.r#type == type_);
        let found = found.with_context(|| format!("a condition {type_} among {:?}", told.conditions))?;
        Ok((found.reason.clone(), found.message.clone()))
    }

    /// What the steward knows of the backups.
    pub(crate) async fn backup_status(&self) -> anyhow::Result<proto::GetBackupStatusResponse> {
        let request = proto::GetBackupStatusRequest {};
        let answer = self.snapshots().await?.get_backup_status(request).await?;
        Ok(answer.into_inner())
    }

    pub(crate) async fn snapshots(&self) -> anyhow::Result<SnapshotsServiceClient<Channel>> {
        Ok(SnapshotsServiceClient::connect(self.api_url()).await?)
    }
}

async fn metric(port: u16, series: &str) -> anyhow::Result<f64> {
    let (_, text) = ask(port, "GET", "/metrics").await?;
    let mut values = text
        .lines()
        .filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(values
        .next()
        .with_context(|| format!("no metric {series}"))?
        .parse()?)
}

/// One request over plain HTTP.
async fn ask(port: u16, method: &str, path: &str) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await??;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer")?;
    let status = head.split(' ').nth(1).context("a status")?.parse()?;
    Ok((status, body.to_owned()))
}
