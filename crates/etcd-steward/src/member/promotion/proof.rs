//! Whether a member is proven to be a voter. Pure: what each member says, in; what is in doubt, out.

use std::fmt;

/// What a member says of the promoted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    /// It votes.
    Voter,
    /// It learns.
    Learner,
    /// There is no such member.
    NotListed,
    /// No answer.
    Nothing,
}

/// Why it isn't proven.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Doubt<'a> {
    /// This one says otherwise.
    Contradicted(&'a str, Says),
    /// So many of all say so, which is no majority.
    TooFew(usize, usize),
}

impl fmt::Display for Doubt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contradicted(member, says) => write!(f, "member {member} says {says:?}"),
            Self::TooFew(voters, all) => write!(f, "only {voters} of {all} members say so"),
        }
    }
}

/// Nobody may contradict, and a majority must say so: one that doesn't answer can't hold it up.
pub(super) fn prove(said: &[(String, Says)]) -> Result<(), Doubt<'_>> {
    let mut voters = 0;
    for (member, says) in said {
        match says {
            Says::Voter => voters += 1,
            Says::Learner | Says::NotListed => return Err(Doubt::Contradicted(member, *says)),
            Says::Nothing => {}
        }
    }
    if voters > said.len() / 2 {
        Ok(())
    } else {
        Err(Doubt::TooFew(voters, said.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Says::*, *};

    #[test]
    fn a_promotion_is_proven_by_all_that_answer() {
        for (said, expected) in [
            ([Voter, Voter, Voter], Ok(())),
            ([Voter, Nothing, Voter], Ok(())),
            ([Voter, Nothing, Nothing], Err(Doubt::TooFew(1, 3))),
            ([Learner, Voter, Voter], Err(Doubt::Contradicted("a", Learner))),
            ([Voter, Voter, Learner], Err(Doubt::Contradicted("c", Learner))),
            (
                [Voter, NotListed, Voter],
                Err(Doubt::Contradicted("b", NotListed)),
            ),
            ([Nothing, Nothing, Nothing], Err(Doubt::TooFew(0, 3))),
        ] {
            let said: Vec<_> = ["a", "b", "c"].map(str::to_owned).into_iter().zip(said).collect();
            assert_eq!(prove(&said), expected, "{said:?}");
        }
        assert_eq!(prove(&[]), Err(Doubt::TooFew(0, 0)));
    }
}
