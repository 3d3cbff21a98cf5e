//! The members as the API tells them: what the cluster lists, what each says itself, and what the steward knows of its
//! own one, which doesn't always answer.

use std::time::Duration;

use api::v1alpha1::{self, EtcdMemberStatus, MemberState};
use etcd_client::{MemberListResponse, StatusResponse};
use futures::future::join_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use operator::reconcile::chain;
use steward_proto::v1::{Condition, Member, MemberRole, Progress, Volume, VolumeData};
use tokio::time::timeout;

use super::Api;
use crate::{
    bootstrap::volumes::Contents,
    etcd::{CALL_TIMEOUT, Consistency, EtcdError, call, hex_id, list_members},
};

/// A learner takes calls, and answers them when it has caught up: it isn't waited for.
const LEARNER_PATIENCE: Duration = Duration::from_millis(300);
const NEVER_STARTED: &str = "it has never started";
const CATCHES_UP: &str = "a learner that catches up and doesn't answer yet, or has never started";

impl Api {
    /// All members that the cluster lists, each asked for its state.
    pub(super) async fn members(&self) -> Result<Vec<Member>, EtcdError> {
        let listed = self.listed().await?;
        let cluster = hex_id(listed.header().map_or(0, etcd_client::ResponseHeader::cluster_id));
        let asked = listed.members().iter().map(|member| self.member_state(member));
        let mut members = join_all(asked).await;
        let newest = members.iter().map(|member| member.raft_index).max().unwrap_or(0);
        for member in &mut members {
            member.cluster_id.clone_from(&cluster);
            if member.error.is_empty() || member.role() == MemberRole::Learner {
                member.behind = newest.saturating_sub(member.raft_applied_index);
            }
            if member.name == self.member {
                self.add_known(member);
            }
        }
        members.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(members)
    }

    /// The list of the member beside us; one that is yet to join doesn't answer for long, so the others are asked first.
    async fn listed(&self) -> Result<MemberListResponse, EtcdError> {
        let votes = |status: &EtcdMemberStatus| status.state == Some(MemberState::Started);
        if !self.status.read(votes) {
            let members = self.cluster.members.iter();
            let others = members.filter(|member| member.name != self.member);
            let has_own = |listed: &MemberListResponse| {
                let mut members = listed.members().iter();
                members.any(|member| self.name_of(member) == self.member)
            };
            let listed = self
                .connector
                .listed_by_others(others, Consistency::Local, has_own)
                .await;
            if let Ok(Some((_, listed))) = listed {
                return Ok(listed);
            }
        }
        let mut client = self.connector.local().await?;
        list_members(&mut client, Consistency::Local).await
    }

    /// What the steward has found on the volume since it was started.
    pub(super) fn own_volume(&self) -> Volume {
        let (data, cluster_id) = match self.contents.get() {
            Contents::Unknown => (VolumeData::Unspecified, String::new()),
            Contents::Empty => (VolumeData::Empty, String::new()),
            Contents::Starting => (VolumeData::Starting, String::new()),
            Contents::Damaged => (VolumeData::Damaged, String::new()),
            Contents::Intact(cluster) => (VolumeData::Intact, cluster),
            Contents::Running(cluster) => (VolumeData::Running, cluster),
        };
        Volume {
            etcd_uid: self.cluster.uid.clone(),
            member: self.member.clone(),
            data: data.into(),
            cluster_id,
        }
    }

    async fn member_state(&self, listed: &etcd_client::Member) -> Member {
        let mut member = Member {
            name: self.name_of(listed),
            id: hex_id(listed.id()),
            peer_urls: listed.peer_urls().to_vec(),
            client_urls: listed.client_urls().to_vec(),
            ..Member::default()
        };
        if listed.is_learner() {
            member.set_role(MemberRole::Learner);
        }
        if listed.client_urls().is_empty() {
            let what = if listed.is_learner() {
                CATCHES_UP
            } else {
                NEVER_STARTED
            };
            what.clone_into(&mut member.error);
            return member;
        }
        let answer = async {
            let mut client = self.connector.remote(listed.client_urls()).await?;
            call("status", CALL_TIMEOUT, client.status()).await
        };
        let patience = if listed.is_learner() {
            LEARNER_PATIENCE
        } else {
            CALL_TIMEOUT
        };
        match timeout(patience, answer).await {
            Ok(Ok(status)) => add_answer(&mut member, &status, listed.id()),
            _ if listed.is_learner() => CATCHES_UP.clone_into(&mut member.error),
            Ok(Err(error)) => member.error = chain(&error),
            Err(_) => member.error = format!("no answer within {patience:?}"),
        }
        member
    }

    /// One that has never started has told the cluster no name; its peer URLs say which of the wanted ones it is.
    fn name_of(&self, listed: &etcd_client::Member) -> String {
        let is_it = |url: &String| listed.peer_urls().contains(url);
        let mut wanted = self.cluster.members.iter();
        match wanted.find(|wanted| wanted.peer_urls.iter().any(is_it)) {
            Some(wanted) if listed.name().is_empty() => wanted.name.clone(),
            _ => listed.name().to_owned(),
        }
    }

    /// The steward's own member, whether etcd answers or not.
    pub(super) async fn own_member(&self) -> Member {
        let error = match self.members().await {
            Ok(members) => {
                let mut members = members.into_iter();
                match members.find(|member| member.name == self.member) {
                    Some(own) => return own,
                    None => "the cluster doesn't list this member".to_owned(),
                }
            }
            Err(error) => chain(&error),
        };
        let mut member = self.status.read(|status| remembered(&self.member, status));
        member.error = error;
        self.add_known(&mut member);
        member
    }

    fn add_known(&self, member: &mut Member) {
        self.status.read(|status| {
            member.progress = status.initialization.as_ref().map(|at| Progress {
                message: at.message.clone(),
                done: i64::from(at.progress_percent),
                total: 100,
                unit: "percent".to_owned(),
            });
            member.conditions = status.conditions.iter().map(condition).collect();
        });
    }
}

fn add_answer(member: &mut Member, status: &StatusResponse, id: u64) {
    let role = match (status.is_learner(), status.leader() == id) {
        (true, _) => MemberRole::Learner,
        (false, true) => MemberRole::Leader,
        (false, false) => MemberRole::Follower,
    };
    member.set_role(role);
    status.version().clone_into(&mut member.etcd_version);
    member.db_size_bytes = status.db_size();
    member.db_size_in_use_bytes = status.raft_used_db_size();
    member.raft_term = status.raft_term();
    member.raft_index = status.raft_index();
    member.raft_applied_index = status.raft_applied_index();
    member.alarms = status.errors().to_vec();
    member.revision = status.header().map_or(0, etcd_client::ResponseHeader::revision);
}

/// What the steward knows while nobody answers.
fn remembered(name: &str, status: &EtcdMemberStatus) -> Member {
    let mut member = Member {
        name: name.to_owned(),
        id: status.id.clone().unwrap_or_default(),
        cluster_id: status.cluster_id.clone().unwrap_or_default(),
        etcd_version: status.etcd_version.clone().unwrap_or_default(),
        ..Member::default()
    };
    if status.role == Some(v1alpha1::MemberRole::Learner) {
        member.set_role(MemberRole::Learner);
    }
    member
}

fn condition(known: &v1alpha1::Condition) -> Condition {
    let time = |time: &Time| std::time::SystemTime::from(time.0).into();
    Condition {
        r#type: known.type_.clone(),
        status: known.status.to_string(),
        reason: known.reason.clone(),
        message: known.message.clone(),
        last_transition_time: known.last_transition_time.as_ref().map(time),
    }
}
