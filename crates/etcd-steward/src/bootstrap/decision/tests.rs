//! The table: every combination of the inputs. A row lists the values that it is about of each input, without a
//! wildcard; a combination that no row or more than one row lists fails the test. So neither the table nor the function
//! can grow a hole, and a new value of an input doesn't compile before it has its place here.

use std::iter::successors;

use super::{Backups::*, Data::*, Decision::*, Formation::*, Live::*, Place::*, *};

/// Some values of every input, and what is decided for all their combinations.
struct Row {
    data: &'static [Data],
    live: &'static [Live],
    formation: &'static [Formation],
    place: &'static [Place],
    backups: &'static [Backups],
    begun: &'static [bool],
    as_learner: &'static [bool],
    decision: Decision,
}

/// In the order of the columns of [`TABLE`].
macro_rules! table {
    ($([$($data:path),*] [$($live:path),*] [$($formation:path),*] [$($place:path),*] [$($backups:path),*] [$($begun:literal),*] [$($learner:literal),*] => $decision:expr;)*) => {
        &[$(Row {
            data: &[$($data),*],
            live: &[$($live),*],
            formation: &[$($formation),*],
            place: &[$($place),*],
            backups: &[$($backups),*],
            begun: &[$($begun),*],
            as_learner: &[$($learner),*],
            decision: $decision,
        }),*]
    };
}

#[rustfmt::skip]
const TABLE: &[Row] = table! {
    // The data directory decides alone.
    [Foreign] [Unreachable, OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Refuse(Refusal::WrongVolume);
    [Locked] [Unreachable, OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Wait(Waiting::DataDirLocked);
    [Data::Unknown] [Unreachable, OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Wait(Waiting::DataDirUnreadable);
    [Valid] [Unreachable, OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Start;
    [Removed] [Unreachable, OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Join;
    // Damaged data of the only member: the backups decide.
    [Invalid] [Unreachable, OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only] [Present] [false, true] [false, true]
        => Restore;
    [Invalid] [Unreachable, OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only] [NoStore, Absent] [false, true] [false, true]
        => Refuse(Refusal::DataCorrupt);
    [Invalid] [Unreachable, OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only] [Backups::Unknown] [false, true] [false, true]
        => Wait(Waiting::StoreUnreachable);
    // Damaged data of one of several: the running cluster decides.
    [Invalid] [Unreachable] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Wait(Waiting::PeersUnreachable);
    [Invalid] [OtherCluster] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Refuse(Refusal::WrongCluster);
    [Invalid] [NotListed] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Join;
    [Invalid] [Unstarted, Started] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Rejoin;
    [Invalid] [UnstartedLearner] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => StartAsLearner;
    // No data, and a running cluster to ask.
    [Missing] [OtherCluster] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Refuse(Refusal::WrongCluster);
    [Missing] [NotListed] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Join;
    [Missing] [UnstartedLearner] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => StartAsLearner;
    [Missing] [Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Rejoin;
    [Missing] [Unstarted] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [NoStore, Absent, Present, Backups::Unknown] [true] [false, true]
        => Rejoin;
    [Missing] [Unstarted] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [NoStore, Absent, Present, Backups::Unknown] [false] [false, true]
        => Form;
    // No data, and nobody to ask.
    [Missing] [Unreachable] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [true]
        => Wait(Waiting::NoClusterToJoin);
    [Missing] [Unreachable] [Formation::Unknown] [Only, First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false]
        => Wait(Waiting::RecordUnreadable);
    [Missing] [Unreachable] [Unproven] [Only, First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false]
        => Wait(Waiting::MembersUnknown);
    [Missing] [Unreachable] [Formed] [Only] [Present] [false, true] [false]
        => Restore;
    [Missing] [Unreachable] [Formed] [Only] [NoStore, Absent] [false, true] [false]
        => Refuse(Refusal::DataLost);
    [Missing] [Unreachable] [Formed] [Only] [Backups::Unknown] [false, true] [false]
        => Wait(Waiting::StoreUnreachable);
    [Missing] [Unreachable] [Formed] [First, Other] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false]
        => Wait(Waiting::PeersUnreachable);
    [Missing] [Unreachable] [Never] [Only, First, Other] [NoStore, Absent] [false, true] [false]
        => Form;
    [Missing] [Unreachable] [Never] [Only, First, Other] [Backups::Unknown] [false, true] [false]
        => Wait(Waiting::StoreUnreachable);
    [Missing] [Unreachable] [Never] [Only, First] [Present] [false, true] [false]
        => Restore;
    [Missing] [Unreachable] [Never] [Other] [Present] [false, true] [false]
        => Wait(Waiting::FirstMemberRestoring);
};

/// Every value of an input. The chain's links are a `match` without a default: a new value has to be put into it.
fn all_of<T: Copy>(first: T, next: fn(T) -> Option<T>) -> Vec<T> {
    successors(Some(first), |value| next(*value)).collect()
}

fn all() -> Vec<Evidence> {
    let datas = all_of(Missing, |data| match data {
        Missing => Some(Valid),
        Valid => Some(Invalid),
        Invalid => Some(Removed),
        Removed => Some(Locked),
        Locked => Some(Foreign),
        Foreign => Some(Data::Unknown),
        Data::Unknown => None,
    });
    let formations = all_of(Never, |formation| match formation {
        Never => Some(Unproven),
        Unproven => Some(Formed),
        Formed => Some(Formation::Unknown),
        Formation::Unknown => None,
    });
    let lives = all_of(Unreachable, |live| match live {
        Unreachable => Some(OtherCluster),
        OtherCluster => Some(NotListed),
        NotListed => Some(Unstarted),
        Unstarted => Some(UnstartedLearner),
        UnstartedLearner => Some(Started),
        Started => None,
    });
    let backups = all_of(NoStore, |backups| match backups {
        NoStore => Some(Absent),
        Absent => Some(Present),
        Present => Some(Backups::Unknown),
        Backups::Unknown => None,
    });
    let places = all_of(Only, |place| match place {
        Only => Some(First),
        First => Some(Other),
        Other => None,
    });
    let flags = [(false, false), (false, true), (true, false), (true, true)];
    let mut all = Vec::new();
    for data in datas {
        for &formation in &formations {
            for &live in &lives {
                for &backups in &backups {
                    for &place in &places {
                        for (begun, as_learner) in flags {
                            all.push(Evidence {
                                data,
                                formation,
                                begun,
                                live,
                                backups,
                                place,
                                as_learner,
                            });
                        }
                    }
                }
            }
        }
    }
    all
}

impl Row {
    fn lists(&self, e: &Evidence) -> bool {
        self.data.contains(&e.data)
            && self.live.contains(&e.live)
            && self.formation.contains(&e.formation)
            && self.place.contains(&e.place)
            && self.backups.contains(&e.backups)
            && self.begun.contains(&e.begun)
            && self.as_learner.contains(&e.as_learner)
    }

    /// How many combinations it lists.
    fn len(&self) -> usize {
        self.data.len()
            * self.live.len()
            * self.formation.len()
            * self.place.len()
            * self.backups.len()
            * self.begun.len()
            * self.as_learner.len()
    }
}

#[test]
fn every_combination_is_in_the_table_once() {
    let all = all();
    assert_eq!(all.len(), 7 * 4 * 6 * 4 * 3 * 4);
    for evidence in &all {
        let rows: Vec<_> = TABLE.iter().filter(|row| row.lists(evidence)).collect();
        assert_eq!(rows.len(), 1, "{evidence:?} is listed by {} rows", rows.len());
        assert_eq!(decide(evidence), rows[0].decision, "{evidence:?}");
    }
    // Nothing is listed that there isn't.
    assert_eq!(TABLE.iter().map(Row::len).sum::<usize>(), all.len());
}

/// The rules that no change of the table may break, said on their own.
#[test]
fn hard_rules() {
    for e in &all() {
        let decision = decide(e);
        if decision == Form {
            assert!(e.data == Missing, "nothing is formed over data: {e:?}");
            let asked_to_found = e.live == Unstarted && !e.begun;
            assert!(
                e.formation == Never || asked_to_found,
                "a formed cluster is never formed anew: {e:?}"
            );
            assert!(
                asked_to_found || matches!(e.backups, Absent | NoStore),
                "backups are not ignored: {e:?}"
            );
        }
        if decision == Restore {
            assert!(
                e.backups == Present && e.place != Other && e.data != Valid,
                "{e:?}"
            );
            assert!(
                e.place == Only || e.live == Unreachable,
                "no restore beside a running cluster: {e:?}"
            );
        }
        if let Wait(waiting) = decision {
            assert_eq!(
                Waiting::WITHOUT_DATA.contains(&waiting),
                matches!(e.data, Missing | Invalid),
                "others rely on it: {e:?}"
            );
        }
        if matches!(decision, Form | Restore) && e.place != Only && e.live == Unreachable {
            assert_eq!(e.formation, Never, "who says nothing may have the data: {e:?}");
        }
        if e.data == Valid {
            assert_eq!(decision, Start, "good data is used: {e:?}");
        }
        if e.data == Removed {
            assert_eq!(
                decision, Join,
                "a removed member's data is never started on: {e:?}"
            );
        }
        if e.live == OtherCluster && matches!(e.data, Missing | Invalid) {
            let own = e.data == Invalid && e.place == Only;
            assert!(
                own || decision == Refuse(Refusal::WrongCluster),
                "strangers are left alone: {e:?}"
            );
        }
        if e.data == Foreign {
            assert!(matches!(decision, Refuse(_)), "{e:?}");
        }
    }
}

/// Together with this one they must be more than a quorum of all leaves.
#[test]
fn so_many_must_have_no_data() {
    for (members, others, expected) in [
        (1, 0, Never),
        (2, 0, Never),
        (3, 0, Unproven),
        (3, 1, Never),
        (5, 1, Unproven),
        (5, 2, Never),
        (7, 2, Unproven),
        (7, 3, Never),
    ] {
        assert_eq!(
            Formation::never(members, others),
            expected,
            "{others} of {members}"
        );
    }
}
