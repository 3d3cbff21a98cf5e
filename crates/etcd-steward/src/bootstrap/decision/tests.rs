//! The table: every combination of the inputs. A row lists the values that it is about of each input, without a
//! wildcard; a combination that no row or more than one row lists fails the test. So neither the table nor the function
//! can grow a hole, and a new value of an input doesn't compile before it has its place here.

use std::iter::successors;

use super::{
    Backups::{Absent, NoStore, Present},
    Data::{Ahead, Behind, Foreign, Invalid, Locked, Missing, Removed, Stale, Unconfirmed, Valid},
    Decision::*,
    Formation::{Formed, Never, Unproven},
    Live::{NotListed, Started, Unreachable, Unstarted, UnstartedLearner},
    Others::{Damaged, Empty},
    Place::*,
    *,
};

/// Some values of every input, and what is decided for all their combinations.
struct Row {
    data: &'static [Data],
    live: &'static [Live],
    formation: &'static [Formation],
    place: &'static [Place],
    others: &'static [Others],
    backups: &'static [Backups],
    begun: &'static [bool],
    as_learner: &'static [bool],
    decision: Decision,
}

/// In the order of the columns of [`TABLE`].
macro_rules! table {
    ($([$($data:path),*] [$($live:path),*] [$($formation:path),*] [$($place:path),*] [$($others:path),*] [$($backups:path),*] [$($begun:literal),*] [$($learner:literal),*] => $decision:expr;)*) => {
        &[$(Row {
            data: &[$($data),*],
            live: &[$($live),*],
            formation: &[$($formation),*],
            place: &[$($place),*],
            others: &[$($others),*],
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
    [Foreign] [Unreachable, Live::OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Refuse(Refusal::WrongVolume);
    [Locked] [Unreachable, Live::OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Wait(Waiting::DataDirLocked);
    [Data::Unknown] [Unreachable, Live::OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Wait(Waiting::DataDirUnreadable);
    [Valid] [Unreachable, Live::OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Start;
    [Unconfirmed] [Unreachable, Live::OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Wait(Waiting::Unconfirmed);
    [Behind] [Unreachable, Live::OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Rejoin;
    [Stale] [Unreachable, Live::OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Refuse(Refusal::DataStale);
    [Ahead] [Unreachable, Live::OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Refuse(Refusal::DataAhead);
    [Removed] [Unreachable, Live::OtherCluster, NotListed] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Join;
    [Removed] [Unstarted, Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Rejoin;
    [Removed] [UnstartedLearner] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => StartAsLearner;
    // Data of another cluster than this Etcd's: a running cluster of its members is joined.
    [Data::OtherCluster] [Unreachable, Live::OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Refuse(Refusal::OtherCluster);
    [Data::OtherCluster] [Unreachable] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Wait(Waiting::OtherCluster);
    [Data::OtherCluster] [Live::OtherCluster] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Refuse(Refusal::WrongCluster);
    [Data::OtherCluster] [NotListed] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Join;
    [Data::OtherCluster] [Unstarted, Started] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Rejoin;
    [Data::OtherCluster] [UnstartedLearner] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => StartAsLearner;
    // Damaged data of the only member: the backups decide.
    [Invalid] [Unreachable, Live::OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only] [Empty, Damaged, Others::Data, Others::Unknown] [Present] [false, true] [false, true]
        => Restore;
    [Invalid] [Unreachable, Live::OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent] [false, true] [false, true]
        => Refuse(Refusal::DataCorrupt);
    [Invalid] [Unreachable, Live::OtherCluster, NotListed, Unstarted, UnstartedLearner, Started] [Never, Unproven, Formed, Formation::Unknown] [Only] [Empty, Damaged, Others::Data, Others::Unknown] [Backups::Unknown] [false, true] [false, true]
        => Wait(Waiting::StoreUnreachable);
    // Damaged data of one of several: the running cluster decides, or, if nobody has anything, the backups.
    [Invalid] [Unreachable] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Wait(Waiting::PeersUnreachable);
    [Invalid] [Unreachable] [Never, Unproven, Formed, Formation::Unknown] [First] [Empty, Damaged] [Present] [false, true] [false, true]
        => Restore;
    [Invalid] [Unreachable] [Never, Unproven, Formed, Formation::Unknown] [Other] [Empty, Damaged] [Present] [false, true] [false, true]
        => Wait(Waiting::FirstMemberRestoring);
    [Invalid] [Unreachable] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [Empty, Damaged] [NoStore, Absent] [false, true] [false, true]
        => Refuse(Refusal::DataCorrupt);
    [Invalid] [Unreachable] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [Empty, Damaged] [Backups::Unknown] [false, true] [false, true]
        => Wait(Waiting::StoreUnreachable);
    [Invalid] [Live::OtherCluster] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Refuse(Refusal::WrongCluster);
    [Invalid] [NotListed] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Join;
    [Invalid] [Unstarted, Started] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Rejoin;
    [Invalid] [UnstartedLearner] [Never, Unproven, Formed, Formation::Unknown] [First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => StartAsLearner;
    // No data, and a running cluster to ask.
    [Missing] [Live::OtherCluster] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Refuse(Refusal::WrongCluster);
    [Missing] [NotListed] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Join;
    [Missing] [UnstartedLearner] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => StartAsLearner;
    [Missing] [Started] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false, true]
        => Rejoin;
    [Missing] [Unstarted] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [true] [false, true]
        => Rejoin;
    [Missing] [Unstarted] [Never, Unproven, Formed, Formation::Unknown] [Only, First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false] [false, true]
        => Form;
    // No data, and no other member.
    [Missing] [Unreachable] [Never, Unproven, Formed, Formation::Unknown] [Only] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [true]
        => Wait(Waiting::NoClusterToJoin);
    [Missing] [Unreachable] [Formation::Unknown] [Only] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false]
        => Wait(Waiting::RecordUnreadable);
    [Missing] [Unreachable] [Unproven] [Only] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false]
        => Wait(Waiting::MembersUnknown);
    [Missing] [Unreachable] [Formed] [Only] [Empty, Damaged, Others::Data, Others::Unknown] [Present] [false, true] [false]
        => Restore;
    [Missing] [Unreachable] [Formed] [Only] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent] [false, true] [false]
        => Refuse(Refusal::DataLost);
    [Missing] [Unreachable] [Never] [Only] [Empty, Damaged, Others::Data, Others::Unknown] [Present] [false, true] [false]
        => Restore;
    [Missing] [Unreachable] [Never] [Only] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent] [false, true] [false]
        => Form;
    [Missing] [Unreachable] [Never, Formed] [Only] [Empty, Damaged, Others::Data, Others::Unknown] [Backups::Unknown] [false, true] [false]
        => Wait(Waiting::StoreUnreachable);
    // No data, and no quorum of the others. Nobody has anything left: one member restores.
    [Missing] [Unreachable] [Formed] [First] [Empty, Damaged] [Present] [false, true] [false, true]
        => Restore;
    [Missing] [Unreachable] [Formed] [First] [Empty] [NoStore, Absent] [false, true] [false, true]
        => Refuse(Refusal::DataLost);
    [Missing] [Unreachable] [Formed] [First] [Damaged] [NoStore, Absent] [false, true] [false, true]
        => Refuse(Refusal::DataCorrupt);
    [Missing] [Unreachable] [Formed] [First] [Empty, Damaged] [Backups::Unknown] [false, true] [false, true]
        => Wait(Waiting::StoreUnreachable);
    [Missing] [Unreachable] [Formed] [Other] [Empty, Damaged] [Present] [false, true] [false]
        => Wait(Waiting::FirstMemberRestoring);
    [Missing] [Unreachable] [Formed] [Other] [Empty] [NoStore, Absent] [false, true] [false]
        => Refuse(Refusal::DataLost);
    [Missing] [Unreachable] [Formed] [Other] [Damaged] [NoStore, Absent] [false, true] [false]
        => Refuse(Refusal::DataCorrupt);
    [Missing] [Unreachable] [Formed] [Other] [Empty, Damaged] [Backups::Unknown] [false, true] [false]
        => Wait(Waiting::StoreUnreachable);
    [Missing] [Unreachable] [Formed] [Other] [Empty, Damaged] [NoStore, Absent, Present, Backups::Unknown] [false, true] [true]
        => Wait(Waiting::NoClusterToJoin);
    // Somebody has something, or may have it.
    [Missing] [Unreachable] [Formed] [First, Other] [Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [true]
        => Wait(Waiting::NoClusterToJoin);
    [Missing] [Unreachable] [Formed] [First, Other] [Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false]
        => Wait(Waiting::PeersUnreachable);
    [Missing] [Unreachable] [Never, Unproven, Formation::Unknown] [First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [true]
        => Wait(Waiting::NoClusterToJoin);
    [Missing] [Unreachable] [Formation::Unknown] [First, Other] [Empty, Damaged, Others::Data, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false]
        => Wait(Waiting::RecordUnreadable);
    [Missing] [Unreachable] [Never, Unproven] [First, Other] [Others::Data] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false]
        => Wait(Waiting::PeersUnreachable);
    [Missing] [Unreachable] [Unproven] [First, Other] [Empty, Damaged, Others::Unknown] [NoStore, Absent, Present, Backups::Unknown] [false, true] [false]
        => Wait(Waiting::MembersUnknown);
    // The Etcd has never formed a cluster.
    [Missing] [Unreachable] [Never] [First, Other] [Damaged] [NoStore, Absent] [false, true] [false]
        => Refuse(Refusal::DataCorrupt);
    [Missing] [Unreachable] [Never] [First, Other] [Empty, Others::Unknown] [NoStore, Absent] [false, true] [false]
        => Form;
    [Missing] [Unreachable] [Never] [First, Other] [Empty, Damaged, Others::Unknown] [Backups::Unknown] [false, true] [false]
        => Wait(Waiting::StoreUnreachable);
    [Missing] [Unreachable] [Never] [First] [Empty, Damaged, Others::Unknown] [Present] [false, true] [false]
        => Restore;
    [Missing] [Unreachable] [Never] [Other] [Empty, Damaged, Others::Unknown] [Present] [false, true] [false]
        => Wait(Waiting::FirstMemberRestoring);
};

/// Every value of an input. The chain's links are a `match` without a default: a new value has to be put into it.
fn all_of<T: Copy>(first: T, next: fn(T) -> Option<T>) -> Vec<T> {
    successors(Some(first), |value| next(*value)).collect()
}

fn all() -> Vec<Evidence> {
    let datas = all_of(Missing, |data| match data {
        Missing => Some(Valid),
        Valid => Some(Data::OtherCluster),
        Data::OtherCluster => Some(Unconfirmed),
        Unconfirmed => Some(Invalid),
        Invalid => Some(Removed),
        Removed => Some(Behind),
        Behind => Some(Stale),
        Stale => Some(Ahead),
        Ahead => Some(Locked),
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
        Unreachable => Some(Live::OtherCluster),
        Live::OtherCluster => Some(NotListed),
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
    let others = all_of(Empty, |others| match others {
        Empty => Some(Damaged),
        Damaged => Some(Others::Data),
        Others::Data => Some(Others::Unknown),
        Others::Unknown => None,
    });
    let flags = [(false, false), (false, true), (true, false), (true, true)];
    let mut all = Vec::new();
    for (&data, &formation) in pairs(&datas, &formations) {
        for (&live, &backups) in pairs(&lives, &backups) {
            for (&place, &others) in pairs(&places, &others) {
                all.extend(flags.map(|(begun, as_learner)| Evidence {
                    data,
                    formation,
                    begun,
                    live,
                    others,
                    backups,
                    place,
                    as_learner,
                }));
            }
        }
    }
    all
}

/// All pairs.
fn pairs<'a, A, B>(first: &'a [A], second: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    first.iter().flat_map(move |a| second.iter().map(move |b| (a, b)))
}

impl Row {
    fn lists(&self, e: &Evidence) -> bool {
        self.data.contains(&e.data)
            && self.live.contains(&e.live)
            && self.formation.contains(&e.formation)
            && self.place.contains(&e.place)
            && self.others.contains(&e.others)
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
            * self.others.len()
            * self.backups.len()
            * self.begun.len()
            * self.as_learner.len()
    }
}

#[test]
fn every_combination_is_in_the_table_once() {
    let all = all();
    assert_eq!(all.len(), 12 * 4 * 6 * 4 * 4 * 3 * 4);
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
            assert!(
                asked_to_found || e.place == Only || matches!(e.others, Empty | Others::Unknown),
                "another member's data is not ignored: {e:?}"
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
            assert!(
                e.place == Only || e.others != Others::Data,
                "no restore beside data: {e:?}"
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
            assert!(
                e.formation == Never || matches!(e.others, Empty | Damaged),
                "who says nothing may have the data: {e:?}"
            );
        }
        if e.data == Valid {
            assert_eq!(decision, Start, "good data is used: {e:?}");
        }
        if matches!(e.data, Ahead | Stale) {
            assert!(matches!(decision, Refuse(_)), "the only copy is kept: {e:?}");
        }
        if e.data == Removed {
            assert!(
                matches!(decision, Join | Rejoin | StartAsLearner),
                "a removed member's data is never started on: {e:?}"
            );
        }
        if matches!(e.data, Data::OtherCluster | Unconfirmed) {
            let is_used = matches!(decision, Start | Form | Restore);
            assert!(!is_used, "data of another cluster is never started: {e:?}");
        }
        if e.live == Live::OtherCluster && matches!(e.data, Missing | Invalid) {
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
