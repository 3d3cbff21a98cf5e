//! Who the members of a new cluster are. etcd computes every id from names and URLs, so that all members that are
//! started with the same settings agree; the same is computed here.

use std::fmt;

use serde::Serialize;
use sha1::{Digest, Sha1};

use crate::raftpb::ConfState;

/// Id of a member or of a cluster; shown as etcd does, in hex without leading zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u64);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A member of a new cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    id: Id,
    name: String,
    peer_urls: Vec<String>,
}

impl Member {
    /// Its id.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Its name, as in `--name`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its peer URLs, sorted.
    pub fn peer_urls(&self) -> &[String] {
        &self.peer_urls
    }

    /// The JSON by which etcd keeps a member in its database and in its log.
    pub(crate) fn json(&self) -> Result<Vec<u8>, serde_json::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Json<'a> {
            id: u64,
            #[serde(rename = "peerURLs")]
            peer_urls: &'a [String],
            name: &'a str,
        }
        serde_json::to_vec(&Json {
            id: self.id.0,
            peer_urls: &self.peer_urls,
            name: &self.name,
        })
    }
}

/// A cluster as it is founded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCluster {
    id: Id,
    members: Vec<Member>,
}

/// Why a cluster can't be founded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A cluster has members.
    #[error("a cluster without members")]
    Empty,
    /// A member has a name.
    #[error("a member without a name")]
    Unnamed,
    /// A member has URLs.
    #[error("member {0:?} has no peer URL")]
    NoUrl(String),
    /// etcd takes `scheme://host:port`, with http, https, unix or unixs.
    #[error("peer URL {url:?} of member {member:?} is not scheme://host:port")]
    Url {
        /// Name of the member.
        member: String,
        /// The URL.
        url: String,
    },
    /// Names and URLs are each member's own.
    #[error("two members have the name or peer URL {0:?}")]
    Twice(String),
}

impl NewCluster {
    /// Computes the ids of a cluster of named members with their peer URLs. `token` is `--initial-cluster-token`.
    ///
    /// # Errors
    /// etcd would refuse to start with these settings.
    pub fn new<N, U>(token: &str, members: impl IntoIterator<Item = (N, Vec<U>)>) -> Result<Self, Error>
    where
        N: Into<String>,
        U: Into<String>,
    {
        let mut seen = Vec::new();
        let mut found = Vec::new();
        for (name, urls) in members {
            let member = member(token, name.into(), urls.into_iter().map(Into::into).collect())?;
            for unique in member.peer_urls.iter().chain([&member.name]) {
                if seen.contains(unique) {
                    return Err(Error::Twice(unique.clone()));
                }
                seen.push(unique.clone());
            }
            found.push(member);
        }
        if found.is_empty() {
            return Err(Error::Empty);
        }
        found.sort_by_key(|member| member.id);
        let ids: Vec<u8> = found
            .iter()
            .flat_map(|member| member.id.0.to_be_bytes())
            .collect();
        Ok(Self {
            id: first_eight(&ids),
            members: found,
        })
    }

    /// Id of the cluster.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Its members, in the order of their ids.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member of that name.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }

    pub(crate) fn conf_state(&self) -> ConfState {
        ConfState {
            voters: self.members.iter().map(|member| member.id.0).collect(),
            ..ConfState::default()
        }
    }
}

fn member(token: &str, name: String, mut peer_urls: Vec<String>) -> Result<Member, Error> {
    if name.is_empty() {
        return Err(Error::Unnamed);
    }
    if peer_urls.is_empty() {
        return Err(Error::NoUrl(name));
    }
    for url in &mut peer_urls {
        *url = url.trim().to_owned();
        if !is_peer_url(url) {
            return Err(Error::Url {
                member: name,
                url: url.clone(),
            });
        }
    }
    peer_urls.sort_unstable();
    let seed = [peer_urls.concat(), token.to_owned()].concat();
    Ok(Member {
        id: first_eight(seed.as_bytes()),
        name,
        peer_urls,
    })
}

fn is_peer_url(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else {
        return false;
    };
    match scheme {
        "unix" | "unixs" => !rest.is_empty(),
        "http" | "https" => {
            let port = rest.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            port.is_some_and(|(_, port)| port.parse::<u16>().is_ok()) && !rest.contains('/')
        }
        _ => false,
    }
}

fn first_eight(bytes: &[u8]) -> Id {
    let digest: [u8; 20] = Sha1::digest(bytes).into();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    Id(u64::from_be_bytes(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> NewCluster {
        let url = |port: u16| vec![format!("http://127.0.0.1:{port}")];
        NewCluster::new(
            "etcd-cluster",
            [("n0", url(2380)), ("n1", url(2381)), ("n2", url(2382))],
        )
        .unwrap()
    }

    /// The ids that etcdutl 3.6 computes for the same settings.
    #[test]
    fn ids_are_those_of_etcd() {
        let cluster = three();
        let ids: Vec<String> = cluster
            .members()
            .iter()
            .map(|member| member.id().to_string())
            .collect();
        assert_eq!(ids, ["9d3e65edfa29c46", "9e85cc091d4d15bb", "b71f75320dc06a6c"]);
        assert_eq!(cluster.id().to_string(), "9f887e148ee475d7");
        assert_eq!(cluster.member("n0").unwrap().id().to_string(), "b71f75320dc06a6c");
        let json = cluster.member("n1").unwrap().json().unwrap();
        assert_eq!(
            String::from_utf8(json).unwrap(),
            r#"{"id":708162861580590150,"peerURLs":["http://127.0.0.1:2381"],"name":"n1"}"#,
        );
    }

    #[test]
    fn what_etcd_refuses_is_refused() {
        let cluster = |members: &[(&str, &[&str])]| {
            NewCluster::new("t", members.iter().map(|(name, urls)| (*name, urls.to_vec())))
        };
        assert_eq!(cluster(&[]), Err(Error::Empty));
        assert_eq!(cluster(&[("", &["http://a:1"])]), Err(Error::Unnamed));
        assert_eq!(cluster(&[("a", &[])]), Err(Error::NoUrl("a".to_owned())));
        for url in [
            "a:1",
            "http://a",
            "http://a:1/path",
            "ftp://a:1",
            "http://:1",
            "http://a:99999",
        ] {
            assert!(
                matches!(cluster(&[("a", &[url])]), Err(Error::Url { .. })),
                "{url}"
            );
        }
        let same_url = cluster(&[("a", &["http://a:1"]), ("b", &["http://a:1"])]);
        assert_eq!(same_url, Err(Error::Twice("http://a:1".to_owned())));
        assert!(cluster(&[("a", &["http://a:1"]), ("a", &["http://b:1"])]).is_err());
    }
}
