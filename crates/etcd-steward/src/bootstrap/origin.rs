//! Whether data in good order is this Etcd's. Pure: what was recorded, what runs, and what the others hold, in; a verdict
//! out.
//!
//! - What a quorum of the other members runs is the Etcd's cluster.
//! - Without that the records tell. Data of a cluster that isn't recorded isn't the Etcd's.
//! - Without records the members' volumes tell: the cluster that most of them hold. Who could serve without the others says
//!   nothing before they have spoken.

use std::collections::BTreeSet;

use super::volumes::Contents;

/// Whose data it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// This Etcd's, as far as anything says.
    Ours,
    /// Another cluster's.
    OtherCluster,
    /// It can't be told yet.
    Unconfirmed,
}

/// What it is told by.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    /// The cluster of the data.
    pub(super) cluster: &'a str,
    /// Members that vote by the data, if it says so.
    pub(super) voters: Option<usize>,
    /// The cluster that a quorum runs, if one answers.
    pub(super) live: Option<&'a str>,
    /// The clusters that were recorded.
    pub(super) recorded: &'a BTreeSet<String>,
    /// Whether all members' records were read, and not only the one on this volume.
    pub(super) shared: bool,
    /// What the others say of their volumes, each wanted member once.
    pub(super) others: Vec<&'a Contents>,
}

impl Claim<'_> {
    /// The verdict.
    pub(super) fn origin(&self) -> Origin {
        if let Some(live) = self.live {
            return if live == self.cluster {
                Origin::Ours
            } else {
                Origin::OtherCluster
            };
        }
        match (self.recorded.contains(self.cluster), self.recorded.len()) {
            (false, 0) => self.by_volumes(),
            (false, _) => Origin::OtherCluster,
            (true, 1) if self.shared => Origin::Ours,
            (true, 1) => self.by_volumes(),
            (true, _) => self.of_several(),
        }
    }

    /// For people.
    pub(super) fn told(&self, others: &str) -> String {
        let recorded: Vec<_> = self.recorded.iter().map(String::as_str).collect();
        let own = match (self.live, recorded.as_slice()) {
            (Some(live), _) => format!("the other members run cluster {live}"),
            (None, []) => "no cluster of this Etcd is recorded".to_owned(),
            (None, recorded) => format!("this Etcd has recorded cluster {}", recorded.join(" and ")),
        };
        let others = if others.is_empty() {
            String::new()
        } else {
            format!(", {others}")
        };
        format!("the data is of cluster {}, {own}{others}", self.cluster)
    }

    /// Members have recorded different clusters.
    fn of_several(&self) -> Origin {
        let may_hold_another = |contents: &&&Contents| match contents {
            Contents::Unknown | Contents::Starting => true,
            _ => contents.cluster().is_some_and(|cluster| cluster != self.cluster),
        };
        match self.others.iter().find(may_hold_another) {
            Some(_) => Origin::Unconfirmed,
            None => Origin::Ours,
        }
    }

    /// Nothing, or nothing but this volume, records the cluster.
    fn by_volumes(&self) -> Origin {
        let wanted = majority(self.others.len() + 1);
        let clusters = || self.others.iter().filter_map(|contents| contents.cluster());
        let holders = |cluster: &str| clusters().filter(|other| *other == cluster).count();
        let rivals: BTreeSet<_> = clusters().filter(|other| *other != self.cluster).collect();
        let runs =
            |contents: &&&Contents| matches!(contents, Contents::Running(cluster) if cluster != self.cluster);
        if self.others.iter().any(|contents| runs(&contents)) {
            // It may be serving, and just not answer.
            return Origin::Unconfirmed;
        }
        if rivals.iter().any(|rival| holders(rival) >= wanted) {
            return Origin::OtherCluster;
        }
        if !rivals.is_empty() {
            return if 1 + holders(self.cluster) >= wanted {
                Origin::Ours
            } else {
                Origin::Unconfirmed
            };
        }
        let needs_others = self.voters.is_some_and(|voters| majority(voters) >= wanted);
        let said = self
            .others
            .iter()
            .filter(|contents| ***contents != Contents::Unknown);
        if needs_others || said.count() >= majority_of(self.others.len()) {
            Origin::Ours
        } else {
            Origin::Unconfirmed
        }
    }
}

fn majority(members: usize) -> usize {
    members / 2 + 1
}

/// As [`majority`]; of nobody nobody is needed.
pub(super) fn majority_of(others: usize) -> usize {
    if others == 0 { 0 } else { majority(others) }
}

#[cfg(test)]
mod tests {
    use super::{Origin::*, *};

    /// The data is of `a`. What each other member says is a letter: `-` for nothing, `e` for no data, `s` for a start without,
    /// `d` for damaged data, `A`, `B` for data of these clusters, `a`, `b` for running in them.
    #[test]
    fn whose_data_it_is() {
        let contents = |letter: char| match letter {
            'e' => Contents::Empty,
            's' => Contents::Starting,
            'd' => Contents::Damaged,
            'A' | 'B' => Contents::Intact(letter.to_lowercase().to_string()),
            'a' | 'b' => Contents::Running(letter.to_string()),
            _ => Contents::Unknown,
        };
        for (live, recorded, shared, voters, others, expected) in [
            // A quorum answers.
            ("a", "", true, 3, "--", Ours),
            ("b", "", true, 3, "AA", OtherCluster),
            ("a", "b", true, 3, "--", Ours),
            ("b", "a", true, 3, "A-", OtherCluster),
            // It is recorded where all can read it: good data needs nobody.
            ("", "a", true, 3, "--", Ours),
            ("", "a", true, 1, "--", Ours),
            ("", "a", true, 1, "", Ours),
            // Another one is.
            ("", "b", true, 3, "AA", OtherCluster),
            ("", "b", true, 3, "--", OtherCluster),
            ("", "b", false, 1, "", OtherCluster),
            // More than one is.
            ("", "a b", true, 3, "A-", Unconfirmed),
            ("", "a b", true, 3, "AB", Unconfirmed),
            ("", "a b", true, 3, "Ae", Ours),
            ("", "a b", true, 1, "ee", Ours),
            ("", "a b", true, 1, "se", Unconfirmed),
            ("", "b c", true, 1, "ee", OtherCluster),
            // The Etcd was made anew over volumes that were kept, or was never recorded.
            ("", "", true, 3, "--", Ours),
            ("", "", true, 3, "A-", Ours),
            ("", "", true, 3, "AB", Ours),
            ("", "", true, 3, "BB", OtherCluster),
            ("", "", true, 3, "B-", Unconfirmed),
            ("", "", true, 3, "Bd", Unconfirmed),
            ("", "", true, 1, "", Ours),
            // It has fewer voters than members are wanted, and could serve without them.
            ("", "", true, 1, "--", Unconfirmed),
            ("", "", true, 1, "e-", Unconfirmed),
            ("", "", true, 1, "ee", Ours),
            ("", "", true, 1, "es", Ours),
            ("", "", true, 1, "AA", Ours),
            ("", "", true, 1, "BB", OtherCluster),
            ("", "", true, 3, "AA--", Unconfirmed),
            ("", "", true, 3, "AAe-", Ours),
            ("", "", true, 4, "----", Ours),
            // Only this volume records it.
            ("", "a", false, 3, "--", Ours),
            ("", "a", false, 1, "--", Unconfirmed),
            ("", "a", false, 1, "ee", Ours),
            ("", "a", false, 3, "BB", OtherCluster),
            // Somebody runs in another cluster, which may be serving.
            ("", "a", false, 3, "Ab", Unconfirmed),
            ("", "", true, 3, "Ab", Unconfirmed),
            ("", "a", false, 3, "a-", Ours),
        ] {
            let recorded: BTreeSet<_> = recorded.split_whitespace().map(str::to_owned).collect();
            let said: Vec<_> = others.chars().map(contents).collect();
            let claim = Claim {
                cluster: "a",
                voters: Some(voters),
                live: Some(live).filter(|live| !live.is_empty()),
                recorded: &recorded,
                shared,
                others: said.iter().collect(),
            };
            assert_eq!(claim.origin(), expected, "{claim:?}");
        }
    }

    #[test]
    fn who_does_not_know_the_voters_asks() {
        let recorded = BTreeSet::new();
        let silent = Contents::Unknown;
        let claim = Claim {
            cluster: "a",
            voters: None,
            live: None,
            recorded: &recorded,
            shared: true,
            others: vec![&silent, &silent],
        };
        assert_eq!(claim.origin(), Unconfirmed);
    }
}
