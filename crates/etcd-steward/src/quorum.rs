//! How many voters Raft needs. Pure.

use std::fmt;

/// The voters of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Voters {
    /// How many there are.
    pub total: usize,
    /// How many of them answer and have a leader.
    pub serving: usize,
}

impl Voters {
    /// Whether those that serve are a majority of all.
    pub fn have_quorum(self) -> bool {
        self.serving >= self.quorum()
    }

    fn quorum(self) -> usize {
        self.total / 2 + 1
    }
}

impl fmt::Display for Voters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, serving, quorum) = (self.total, self.serving, self.quorum());
        write!(f, "of {total} voters {serving} serve, and {quorum} are needed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever doesn't run is no part of a quorum: a cluster that has one keeps it without any of those.
    #[test]
    fn a_voter_that_does_not_run_can_be_removed() {
        for total in 1..=9 {
            for serving in 0..total {
                let (before, after) = (
                    Voters { total, serving },
                    Voters {
                        total: total - 1,
                        serving,
                    },
                );
                assert!(!before.have_quorum() || after.have_quorum(), "{before}: {after}");
            }
        }
    }

    #[test]
    fn a_majority_is_needed() {
        for (total, serving, expected) in [
            (0, 0, false),
            (1, 0, false),
            (1, 1, true),
            (2, 1, false),
            (2, 2, true),
            (3, 2, true),
            (4, 2, false),
            (4, 3, true),
            (5, 3, true),
        ] {
            assert_eq!(
                Voters { total, serving }.have_quorum(),
                expected,
                "{serving} of {total}"
            );
        }
        let text = Voters { total: 4, serving: 2 }.to_string();
        assert_eq!(text, "of 4 voters 2 serve, and 3 are needed");
    }
}
