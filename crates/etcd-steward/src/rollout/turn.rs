//! Whose turn it is to restart. Pure: how the others are, in; what to do, out.

/// This member's place among all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) ordinal: usize,
    pub(super) leads: bool,
}

/// Another wanted member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) ordinal: usize,
    pub(super) name: String,
    pub(super) id: u64,
    /// It votes, answers, and knows its leader.
    pub(super) serves: bool,
    pub(super) leads: bool,
    /// It runs with its newest configuration; `None`: it can't be told.
    pub(super) updated: Option<bool>,
    /// It says that it restarts.
    pub(super) restarting: bool,
}

/// What this member is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Turn {
    /// Restart.
    Go,
    /// Have the leadership moved to this one first.
    HandOver(Peer),
    /// Look again later; the text says for what.
    Wait(String),
}

/// Decides. All others must serve; those before this member must be done.
pub(super) fn turn(own: Place, peers: &[Peer]) -> Turn {
    let wait = |peer: &Peer, what: &str| Turn::Wait(format!("member {} {what}", peer.name));
    if let Some(down) = peers.iter().find(|peer| !peer.serves) {
        return wait(down, "doesn't serve: only one member may be missing at a time");
    }
    if let Some(other) = peers.iter().find(|peer| peer.restarting) {
        return wait(other, "is restarting");
    }
    let comes_first = |peer: &&Peer| own.leads || (!peer.leads && peer.ordinal < own.ordinal);
    for first in peers.iter().filter(comes_first) {
        match first.updated {
            Some(true) => {}
            Some(false) => return wait(first, "comes first"),
            None => return wait(first, "doesn't tell whether it runs with its new configuration"),
        }
    }
    match peers.first() {
        Some(successor) if own.leads => Turn::HandOver(successor.clone()),
        _ => Turn::Go,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(ordinal: usize) -> Peer {
        Peer {
            ordinal,
            name: format!("t1-{ordinal}"),
            id: 1,
            serves: true,
            leads: false,
            updated: Some(false),
            restarting: false,
        }
    }

    fn updated(ordinal: usize) -> Peer {
        Peer {
            updated: Some(true),
            ..peer(ordinal)
        }
    }

    fn leader(peer: Peer) -> Peer {
        Peer { leads: true, ..peer }
    }

    fn decided(ordinal: usize, leads: bool, peers: &[Peer]) -> String {
        match turn(Place { ordinal, leads }, peers) {
            Turn::Go => "go".to_owned(),
            Turn::HandOver(to) => format!("hand over to {}", to.name),
            Turn::Wait(why) => why,
        }
    }

    #[test]
    fn followers_come_by_ordinal_and_the_leader_last() {
        // The leader is t1-0: t1-1 begins.
        assert_eq!(decided(1, false, &[leader(peer(0)), peer(2)]), "go");
        assert_eq!(
            decided(2, false, &[leader(peer(0)), peer(1)]),
            "member t1-1 comes first"
        );
        assert_eq!(decided(0, true, &[peer(1), peer(2)]), "member t1-1 comes first");
        assert_eq!(
            decided(0, true, &[updated(1), peer(2)]),
            "member t1-2 comes first"
        );
        assert_eq!(decided(0, true, &[updated(1), updated(2)]), "hand over to t1-1");
        assert_eq!(decided(0, false, &[leader(updated(1)), updated(2)]), "go");
    }

    /// Whatever else is so: nobody goes while another one is missing.
    #[test]
    fn nobody_goes_while_another_is_missing() {
        for bits in 0..16_u32 {
            let mut missing = updated(1);
            (missing.serves, missing.restarting) =
                [(false, false), (false, true), (true, true)][bits as usize % 3];
            let mut other = updated(2);
            other.leads = bits & 1 != 0;
            other.updated = [None, Some(false), Some(true), Some(true)][(bits >> 1) as usize & 3];
            for (ordinal, leads) in [(0, false), (0, true), (3, false)] {
                let text = decided(ordinal, leads, &[missing.clone(), other.clone()]);
                assert!(text.starts_with("member "), "{missing:?} {other:?}: {text}");
            }
        }
    }

    /// Without a Kubernetes API members don't know each other's configurations.
    #[test]
    fn what_is_not_known_is_waited_for() {
        let silent = Peer {
            updated: None,
            ..peer(0)
        };
        assert!(decided(1, false, std::slice::from_ref(&silent)).contains("doesn't tell"));
        assert_eq!(decided(0, false, &[Peer { ordinal: 1, ..silent }]), "go");
    }

    /// Two members that look at the same moment must not both go, whoever leads.
    #[test]
    fn of_two_that_see_the_same_only_one_goes() {
        for leads in [None, Some(0), Some(1), Some(2)] {
            for done in 0..8_u32 {
                let all: Vec<Peer> = (0..3)
                    .map(|ordinal| Peer {
                        leads: leads == Some(ordinal),
                        updated: Some(done & (1 << ordinal) != 0),
                        ..peer(ordinal)
                    })
                    .collect();
                let goes = |own: &&Peer| {
                    let others: Vec<_> = all
                        .iter()
                        .filter(|other| other.ordinal != own.ordinal)
                        .cloned()
                        .collect();
                    let place = Place {
                        ordinal: own.ordinal,
                        leads: own.leads,
                    };
                    own.updated == Some(false) && !matches!(turn(place, &others), Turn::Wait(_))
                };
                assert!(all.iter().filter(goes).count() <= 1, "{all:?}");
            }
        }
    }
}
