//! The scheme by which a cluster reaches a member. It is recorded with the member's peer URLs; an etcd that is started with
//! another one is reached by nobody, and one after the other they lose the quorum. Pure.

use etcd_storage::{cluster::Id, validate::DataDir};

use super::{config::scheme_of, decision::Decision, evidence::Findings};

/// A configuration is for another scheme than the cluster has recorded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the cluster has recorded {recorded} for the peer URLs of its members, and the configuration is for {wanted}: TLS between the \
     peers of a formed cluster can't be switched on or off. etcd isn't started like that; {} spec.etcd.peerUrlTls",
    if recorded == "https" { "put back" } else { "remove" }
)]
pub struct PeerSchemeMismatch {
    recorded: String,
    wanted: String,
}

/// Compares the recorded peer URLs with the scheme of a configuration.
pub fn matches<'a>(
    recorded: impl IntoIterator<Item = &'a String>,
    wanted: Option<&str>,
) -> Result<(), PeerSchemeMismatch> {
    let Some(wanted) = wanted else {
        return Ok(());
    };
    let mut schemes = recorded.into_iter().filter_map(|url| scheme_of(url)).peekable();
    match schemes.peek().copied() {
        Some(first) if !schemes.any(|scheme| scheme == wanted) => Err(PeerSchemeMismatch {
            recorded: first.to_owned(),
            wanted: wanted.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// The peer URLs that a decision is bound to: for a start those that its data has for this member, else those that the running
/// cluster has, of the others while this member isn't listed. A restore makes a new cluster, which records what is wanted.
pub(super) fn recorded(decision: Decision, findings: &Findings) -> Vec<String> {
    match decision {
        Decision::Restore | Decision::Wait(_) | Decision::Refuse(_) => Vec::new(),
        Decision::Start => findings.found.iter().flat_map(own_peer_urls).cloned().collect(),
        Decision::Form | Decision::StartAsLearner | Decision::Join | Decision::Rejoin => {
            let members = findings.cluster.iter().flat_map(|cluster| &cluster.members);
            members.flat_map(|member| member.peer_urls().to_vec()).collect()
        }
    }
}

/// The URLs by which the cluster of a data directory reaches its member; none while the database doesn't list it.
pub(super) fn own_peer_urls(found: &DataDir) -> impl Iterator<Item = &String> {
    let own = found.members.iter();
    own.filter(|member| Some(Id(member.id)) == found.member_id)
        .flat_map(|member| &member.peer_urls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_scheme_than_the_recorded_one_is_refused() {
        for (recorded, wanted, expected) in [
            (vec![], Some("https"), true),
            (vec!["http://a:1"], None, true),
            (vec!["http://a:1"], Some("http"), true),
            (vec!["http://a:1"], Some("https"), false),
            (vec!["https://a:1", "https://b:1"], Some("http"), false),
            (vec!["https://a:1"], Some("https"), true),
            // A cluster that was half switched by hand.
            (vec!["http://a:1", "https://b:1"], Some("https"), true),
        ] {
            let urls: Vec<_> = recorded.iter().map(|url| (*url).to_owned()).collect();
            let found = matches(&urls, wanted);
            assert_eq!(found.is_ok(), expected, "{recorded:?} {wanted:?}");
            if let Err(mismatch) = found {
                let text = mismatch.to_string();
                assert!(
                    text.contains("recorded http") && text.contains("peerUrlTls"),
                    "{text}"
                );
            }
        }
    }
}
