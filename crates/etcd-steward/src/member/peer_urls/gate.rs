//! Whether the cluster may be told new peer URLs of a member. Pure. The versions are those of etcd's changelogs: until
//! 3.5.31 and 3.6.12 `MemberUpdate` made a cluster forget that a learner is one (etcd-io/etcd#21694); it could never be
//! promoted then, and a second learner got in.

use std::fmt;

use semver::Version;

/// First versions, by minor, that keep a learner a learner.
const FIXED: [Version; 3] = [
    Version::new(3, 5, 31),
    Version::new(3, 6, 12),
    Version::new(3, 7, 0),
];

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// They are the same.
    None,
    /// Tell the cluster.
    Update,
    /// Don't.
    Refuse(Refusal),
}

/// Why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// This version would make a voter of the learner in name only.
    Learner(String),
    /// Peers that speak TLS and peers that don't can't be reached at the same time.
    Scheme,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Learner(version) if version.is_empty() => f.write_str(
                "a member doesn't answer, and its etcd may forget that a learner is one when its peer URLs are updated: not \
                 done before it answers, or this member votes",
            ),
            Self::Learner(version) => write!(
                f,
                "etcd {version:?} forgets that a learner is one when its peer URLs are updated (fixed in 3.5.31 and 3.6.12): \
                 not done before the member votes; or remove the member, and it joins anew with the new URLs"
            ),
            Self::Scheme => f.write_str(
                "the cluster knows this member's peer URLs with another scheme: TLS between the peers of a running \
                 cluster can't be switched this way",
            ),
        }
    }
}

/// Compares what the cluster lists with what is wanted.
pub(super) fn change(listed: &[String], wanted: &[String]) -> Change {
    let sorted = |urls: &[String]| {
        let mut urls = urls.to_vec();
        urls.sort();
        urls
    };
    let schemes = |urls: &[String]| {
        let scheme = |url: &String| url.split("://").next().unwrap_or_default().to_owned();
        let mut schemes: Vec<_> = urls.iter().map(scheme).collect();
        schemes.sort();
        schemes.dedup();
        schemes
    };
    if sorted(listed) == sorted(wanted) {
        Change::None
    } else if schemes(listed) == schemes(wanted) {
        Change::Update
    } else {
        Change::Refuse(Refusal::Scheme)
    }
}

/// Refuses the change of a learner if one of the members runs a version that would forget that it is one.
pub(super) fn allowed(change: Change, versions: &[String]) -> Change {
    let affected = versions.iter().find(|version| forgets_learners(version));
    match (change, affected) {
        (Change::Update, Some(version)) => Change::Refuse(Refusal::Learner(version.clone())),
        (change, _) => change,
    }
}

/// A version that can't be understood is taken for an affected one.
fn forgets_learners(version: &str) -> bool {
    let Ok(version) = Version::parse(version) else {
        return true;
    };
    let minor = (version.major, version.minor);
    match FIXED.iter().find(|fixed| (fixed.major, fixed.minor) == minor) {
        Some(fixed) => version < *fixed,
        None => FIXED.iter().all(|fixed| version < *fixed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SCL-05: on versions with the fault a learner's URLs are never updated.
    #[test]
    fn scl_05_versions_that_forget_learners_are_known() {
        for (version, forgets) in [
            ("3.4.23", true),
            ("3.5.0", true),
            ("3.5.16", true),
            ("3.5.30", true),
            ("3.5.31", false),
            ("3.5.35", false),
            ("3.6.0", true),
            ("3.6.11", true),
            ("3.6.12", false),
            ("3.6.16", false),
            ("3.7.0", false),
            ("3.7.3", false),
            ("4.0.0", false),
            ("3.6.0-rc.1", true),
            ("3.7.0-beta.0", true),
            ("", true),
            ("3.6", true),
            ("main", true),
        ] {
            let expected = if forgets {
                Change::Refuse(Refusal::Learner(version.to_owned()))
            } else {
                Change::Update
            };
            // One such member is enough: each carries out the change itself.
            let versions = ["3.6.16".to_owned(), version.to_owned()];
            assert_eq!(allowed(Change::Update, &versions), expected, "{version:?}");
            assert_eq!(allowed(Change::None, &versions), Change::None);
        }
        // A voter's change doesn't depend on versions.
        assert_eq!(allowed(Change::Update, &[]), Change::Update);
    }

    #[test]
    fn only_what_differs_is_changed_and_never_the_scheme() {
        let urls = |urls: &[&str]| urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>();
        for (listed, wanted, expected) in [
            (urls(&["http://a:1"]), urls(&["http://a:1"]), Change::None),
            (
                urls(&["http://a:1", "http://b:1"]),
                urls(&["http://b:1", "http://a:1"]),
                Change::None,
            ),
            (
                urls(&["http://a:1"]),
                urls(&["http://a:1", "http://b:1"]),
                Change::Update,
            ),
            (
                urls(&["http://a:1"]),
                urls(&["https://a:1"]),
                Change::Refuse(Refusal::Scheme),
            ),
        ] {
            assert_eq!(change(&listed, &wanted), expected, "{listed:?} {wanted:?}");
        }
    }
}
