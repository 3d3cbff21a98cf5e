//! Whether clients reach the members as the spec says. Members that serve clients without TLS where the spec wants it, or the
//! other way round, follow one after the other; if they can't, a client that goes by the spec finds nobody. Pure.

use api::conditions::member as says;

use crate::{cluster::Cluster, member::Assessed};

/// What is wrong: members that serve serve clients otherwise than the spec wants, and something keeps them from following.
pub fn mismatch(cluster: &Cluster, members: &[Assessed<'_>]) -> Option<String> {
    let wanted = cluster.etcd.spec.etcd.client_url_tls.is_some();
    let serve = |member: &&Assessed<'_>| {
        member.is_ready() && member.told.and_then(|told| told.client_tls_enabled) == Some(!wanted)
    };
    let names: Vec<_> = members
        .iter()
        .filter(serve)
        .map(|member| member.member.name.as_str())
        .collect();
    if names.is_empty() {
        return None;
    }
    let why = refused(cluster).or_else(|| members.iter().find_map(cannot_follow))?;
    let (are, want) = if wanted {
        ("without", "with")
    } else {
        ("with", "without")
    };
    Some(format!(
        "clients are served {are} TLS by {}, and the spec wants it {want}: {why}",
        names.join(", ")
    ))
}

/// Why the etcd-controller hasn't carried out the newest spec, if it says so.
fn refused(cluster: &Cluster) -> Option<String> {
    let status = cluster.etcd.status.as_ref()?;
    let error = status.last_errors.first().filter(|_| !cluster.carried_out())?;
    Some(format!(
        "the newest spec isn't carried out: {}",
        error.description
    ))
}

/// Why a member can't run with its newest configuration, if it says so.
fn cannot_follow(member: &Assessed<'_>) -> Option<String> {
    let refusal = [says::RESTARTING, says::INITIALIZED]
        .into_iter()
        .filter_map(|type_| member.condition(type_))
        .find(|condition| condition.reason == says::PEER_TLS_MISMATCH && !condition.is_true())?;
    Some(format!("{}: {}", member.member.name, refusal.message))
}
