//! The table: every combination of the inputs, with the rows written down as patterns. A combination that no row or
//! more than one row covers fails the test, so that neither the table nor the function can grow a hole.

use super::{Backups::*, Data::*, Decision::*, Formation::*, Live::*, Place::*, *};

type Row = (fn(&Evidence) -> bool, Decision);

/// Each row: which evidence it is about, and what is decided.
const TABLE: &[Row] = &[
    // The data directory decides alone.
    (|e| e.data == Foreign, Refuse(Refusal::WrongVolume)),
    (|e| e.data == Locked, Wait(Waiting::DataDirLocked)),
    (|e| e.data == Data::Unknown, Wait(Waiting::DataDirUnreadable)),
    (|e| e.data == Valid, Start),
    // Damaged data.
    (
        |e| e.data == Invalid && e.place == Only && e.backups == Present,
        Restore,
    ),
    (
        |e| e.data == Invalid && e.place == Only && e.backups == Absent,
        Refuse(Refusal::DataCorrupt),
    ),
    (
        |e| e.data == Invalid && e.place == Only && e.backups == NoStore,
        Refuse(Refusal::DataCorrupt),
    ),
    (
        |e| e.data == Invalid && e.place == Only && e.backups == Backups::Unknown,
        Wait(Waiting::StoreUnreachable),
    ),
    (
        |e| e.data == Invalid && e.place != Only && e.live == Unreachable,
        Wait(Waiting::PeersUnreachable),
    ),
    (
        |e| e.data == Invalid && e.place != Only && e.live == NotListed,
        Join,
    ),
    (
        |e| e.data == Invalid && e.place != Only && e.live == Unstarted,
        Rejoin,
    ),
    (
        |e| e.data == Invalid && e.place != Only && e.live == UnstartedLearner,
        StartAsLearner,
    ),
    (
        |e| e.data == Invalid && e.place != Only && e.live == Started,
        Rejoin,
    ),
    // No data, and a running cluster to ask.
    (|e| e.data == Missing && e.live == NotListed, Join),
    (
        |e| e.data == Missing && e.live == UnstartedLearner,
        StartAsLearner,
    ),
    (|e| e.data == Missing && e.live == Started, Rejoin),
    (|e| e.data == Missing && e.live == Unstarted && e.begun, Rejoin),
    (|e| e.data == Missing && e.live == Unstarted && !e.begun, Form),
    // No data, and nobody to ask.
    (|e| alone(e) && e.as_learner, Wait(Waiting::NoClusterToJoin)),
    (
        |e| alone(e) && !e.as_learner && e.formation == Formation::Unknown,
        Wait(Waiting::RecordUnreadable),
    ),
    (|e| formed(e) && e.place == Only && e.backups == Present, Restore),
    (
        |e| formed(e) && e.place == Only && e.backups == Absent,
        Refuse(Refusal::DataLost),
    ),
    (
        |e| formed(e) && e.place == Only && e.backups == NoStore,
        Refuse(Refusal::DataLost),
    ),
    (
        |e| formed(e) && e.place == Only && e.backups == Backups::Unknown,
        Wait(Waiting::StoreUnreachable),
    ),
    (|e| formed(e) && e.place != Only, Wait(Waiting::PeersUnreachable)),
    (|e| fresh(e) && e.backups == Absent, Form),
    (|e| fresh(e) && e.backups == NoStore, Form),
    (
        |e| fresh(e) && e.backups == Backups::Unknown,
        Wait(Waiting::StoreUnreachable),
    ),
    (|e| fresh(e) && e.place != Other && e.backups == Present, Restore),
    (
        |e| fresh(e) && e.place == Other && e.backups == Present,
        Wait(Waiting::FirstMemberRestoring),
    ),
];

fn alone(e: &Evidence) -> bool {
    e.data == Missing && e.live == Unreachable
}

fn formed(e: &Evidence) -> bool {
    alone(e) && !e.as_learner && e.formation == Formed
}

fn fresh(e: &Evidence) -> bool {
    alone(e) && !e.as_learner && e.formation == Never
}

fn all() -> Vec<Evidence> {
    let mut all = Vec::new();
    for data in [Missing, Valid, Invalid, Locked, Foreign, Data::Unknown] {
        for formation in [Never, Formed, Formation::Unknown] {
            for live in [Unreachable, NotListed, Unstarted, UnstartedLearner, Started] {
                for backups in [NoStore, Absent, Present, Backups::Unknown] {
                    for place in [Only, First, Other] {
                        for (begun, as_learner) in
                            [(false, false), (false, true), (true, false), (true, true)]
                        {
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

#[test]
fn every_combination_is_in_the_table_once() {
    let all = all();
    assert_eq!(all.len(), 6 * 3 * 5 * 4 * 3 * 4);
    for evidence in &all {
        let rows: Vec<_> = TABLE.iter().filter(|(covers, _)| covers(evidence)).collect();
        assert_eq!(rows.len(), 1, "{evidence:?} is covered by {} rows", rows.len());
        assert_eq!(decide(evidence), rows[0].1, "{evidence:?}");
    }
    for (i, (covers, decision)) in TABLE.iter().enumerate() {
        assert!(all.iter().any(covers), "row {i} ({decision:?}) covers nothing");
    }
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
        if e.data == Valid {
            assert_eq!(decision, Start, "good data is used: {e:?}");
        }
        if e.data == Foreign {
            assert!(matches!(decision, Refuse(_)), "{e:?}");
        }
    }
}
