//! What the members have recorded earlier: in their EtcdMembers where there is a Kubernetes API, otherwise on the volume.

use std::collections::BTreeSet;

use api::{
    conditions::member as condition,
    v1alpha1::{BootstrapDecision, EtcdMemberStatus, find_condition},
};
use operator::reconcile::chain;
use tracing::warn;

use super::{
    decision::{Formation, Waiting},
    evidence::Scene,
    origin::majority_of,
    volumes::Said,
};
use crate::{member::kubernetes::Kubernetes, volume::VolumeError};

/// What was recorded.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// The clusters that members were last seen in, without those that a restore has taken the place of.
    pub(super) clusters: BTreeSet<String>,
    /// Whether these are the records of all members: each has one, and all could be read.
    pub(super) shared: bool,
    /// Whether anything could be read.
    pub(super) readable: bool,
    /// This member has begun before.
    pub(super) begun: bool,
    /// It was made by a scale-out.
    pub(super) as_learner: bool,
    /// Other members that have recorded that they have no data.
    without_data: BTreeSet<String>,
    /// What the backups lacked when the member that took them last said so.
    pub(super) uncovered: Option<Uncovered>,
}

/// Revisions that no backup held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Uncovered {
    revisions: Option<i64>,
    covered_until: String,
}

impl std::fmt::Display for Uncovered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.revisions {
            Some(0) => f.write_str("no revision was uncovered when the backups were last reported")?,
            Some(count) => write!(
                f,
                "at least {count} revisions were uncovered when the backups were last reported"
            )?,
            None => f.write_str("how many revisions were uncovered isn't known")?,
        }
        write!(f, ", and they were complete up to {}", self.covered_until)
    }
}

impl Records {
    /// Whether this Etcd has ever formed a cluster, among so many wanted members. Without records of all members more of
    /// them must say that they have no data: one that is silent may be the only one that knows.
    pub(super) fn formation(&self, members: usize, said: &[Said]) -> Formation {
        if !self.clusters.is_empty() {
            return Formation::Formed;
        }
        if !self.readable {
            return Formation::Unknown;
        }
        if said.iter().any(|(_, contents)| contents.cluster().is_some()) {
            return Formation::Unproven;
        }
        let has_none = |(member, contents): &&Said| {
            let recorded =
                *contents == super::volumes::Contents::Unknown && self.without_data.contains(member);
            contents.is_none() || recorded
        };
        let without = said.iter().filter(has_none).count();
        if self.shared {
            Formation::never(members, without)
        } else if without >= majority_of(members.saturating_sub(1)) {
            Formation::Never
        } else {
            Formation::Unproven
        }
    }
}

impl Scene {
    /// Reads the records of all members.
    pub(super) async fn records(&self) -> Records {
        let Some(kubernetes) = &self.kubernetes else {
            return self.records_on_volume();
        };
        match kubernetes.own().await {
            Ok(own) => {
                let before = own.as_ref().and_then(|own| own.status.as_ref());
                let mut records = of_all(self, kubernetes).await;
                records.begun =
                    before.is_some_and(|before| before.bootstrap.is_some() || before.id.is_some());
                records.as_learner = own.as_ref().is_some_and(Kubernetes::as_learner);
                records
            }
            Err(error) => {
                let error = chain(&error);
                warn!(error, "failed to read this member's record");
                Records::default()
            }
        }
    }

    /// The only place for records without a Kubernetes API. When that is lost too, only the other members and the backups
    /// can tell.
    fn records_on_volume(&self) -> Records {
        match self.recorded_cluster() {
            Ok(cluster) => Records {
                begun: cluster.is_some(),
                clusters: cluster.into_iter().collect(),
                readable: true,
                ..Records::default()
            },
            Err(_) => Records::default(),
        }
    }

    /// The cluster that this member was last seen in, by its volume.
    pub(super) fn recorded_cluster(&self) -> Result<Option<String>, VolumeError> {
        let recorded = self.identity().recorded_cluster(&self.volume);
        recorded.inspect_err(|error| warn!(%error, "failed to read this member's record on the volume"))
    }
}

async fn of_all(scene: &Scene, kubernetes: &Kubernetes) -> Records {
    let mut statuses = Vec::new();
    let mut records = Records {
        shared: true,
        readable: true,
        ..Records::default()
    };
    for (name, record) in kubernetes.records().await {
        match record {
            // The feature may be switched off, or somebody has deleted it.
            Ok(None) => records.shared = false,
            Ok(Some(status)) => {
                if name != scene.member.name && is_without_data(&status) {
                    records.without_data.insert(name);
                }
                statuses.push(status);
            }
            Err(error) => {
                let error = chain(&error);
                warn!(member = name, error, "failed to read a member's record");
                (records.shared, records.readable) = (false, false);
            }
        }
    }
    records.clusters = clusters(&statuses);
    records.uncovered = uncovered(&statuses);
    records
}

/// Whether a member has told that it has no data that it could start on. Who has founded a cluster had none.
fn is_without_data(status: &EtcdMemberStatus) -> bool {
    let waits = find_condition(&status.conditions, condition::INITIALIZED).is_some_and(|known| {
        let mut reasons = Waiting::WITHOUT_DATA.iter().map(|waiting| waiting.reason());
        known.is_false() && reasons.any(|reason| reason == known.reason)
    });
    let founds = status.bootstrap.as_ref().is_some_and(|bootstrap| {
        matches!(
            bootstrap.decision,
            BootstrapDecision::NewCluster | BootstrapDecision::Restore
        )
    });
    waits || founds
}

/// The clusters that members are recorded in. A restore makes a new one, which the restored member alone records before the
/// others have joined it: what they still record is of before.
fn clusters(statuses: &[EtcdMemberStatus]) -> BTreeSet<String> {
    let restored = statuses.iter().filter_map(|status| {
        let restoration = status.last_restoration.as_ref()?;
        let made = restoration.cluster_id.clone()?;
        let still = status.cluster_id.as_ref() == Some(&made);
        still.then_some((restoration.start_time.as_ref()?.0, made))
    });
    match restored.max() {
        Some((_, newest)) => BTreeSet::from([newest]),
        None => statuses
            .iter()
            .filter_map(|status| status.cluster_id.clone())
            .collect(),
    }
}

/// By the member that has reported last how far the backups were.
fn uncovered(statuses: &[EtcdMemberStatus]) -> Option<Uncovered> {
    let snapshots = statuses.iter().map(|status| &status.snapshots);
    let newest = snapshots.max_by_key(|known| known.covered_until.as_ref().map(|until| until.0))?;
    Some(Uncovered {
        revisions: newest.uncovered_revisions,
        covered_until: newest.covered_until.as_ref()?.0.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use api::v1alpha1::{Condition, ConditionStatus, Restoration, RestorationStatus, RestorationType};
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::{super::volumes::Contents, *};

    /// Data is only told to be missing by who has looked for it.
    #[test]
    fn who_has_said_nothing_may_have_data() {
        let silent = EtcdMemberStatus::default();
        assert!(!is_without_data(&silent));
        let waits = |reason: &str, status| EtcdMemberStatus {
            conditions: vec![Condition::new(condition::INITIALIZED, status, reason, "")],
            ..EtcdMemberStatus::default()
        };
        for (reason, expected) in [
            ("MembersUnknown", true),
            ("FirstMemberRestoring", true),
            ("StoreUnreachable", true),
            ("DataDirLocked", false),
            ("DataOfOtherCluster", false),
            ("DataUnconfirmed", false),
            ("Validating", false),
            ("WrongVolume", false),
            ("CertificateMissing", false),
        ] {
            assert_eq!(
                is_without_data(&waits(reason, ConditionStatus::False)),
                expected,
                "{reason}"
            );
        }
        assert!(!is_without_data(&waits(
            "FirstMemberRestoring",
            ConditionStatus::True
        )));
    }

    fn status(cluster: &str, restored: Option<(i64, &str)>) -> EtcdMemberStatus {
        EtcdMemberStatus {
            cluster_id: Some(cluster.to_owned()).filter(|id| !id.is_empty()),
            last_restoration: restored.map(|(second, cluster)| Restoration {
                type_: RestorationType::FromSnapshot,
                status: RestorationStatus::Success,
                reason: None,
                message: None,
                start_time: Some(Time(Timestamp::from_second(second).unwrap())),
                end_time: None,
                snapshot: None,
                snapshot_sha256: None,
                deltas: None,
                covered_until: None,
                revision: None,
                raised_to: None,
                keys: None,
                cluster_id: Some(cluster.to_owned()),
            }),
            ..EtcdMemberStatus::default()
        }
    }

    #[test]
    fn a_restored_cluster_takes_the_place_of_what_was_recorded_before() {
        for (statuses, expected) in [
            (vec![status("", None), status("", None)], ""),
            (vec![status("a", None), status("a", None)], "a"),
            (vec![status("a", None), status("b", None)], "a b"),
            (vec![status("b", Some((1, "b"))), status("a", None)], "b"),
            (
                vec![status("b", Some((1, "b"))), status("c", Some((2, "c")))],
                "c",
            ),
            // Somebody has put older data back since, on purpose.
            (vec![status("a", Some((1, "b"))), status("a", None)], "a"),
        ] {
            let found: Vec<_> = clusters(&statuses).into_iter().collect();
            assert_eq!(found.join(" "), expected, "{statuses:?}");
        }
    }

    /// With records of all members a silent minority is no cluster; without them it may be the only one that knows of one.
    #[test]
    fn without_records_more_must_speak() {
        let said = |contents: &[Contents]| -> Vec<Said> {
            let named = contents.iter().enumerate();
            named.map(|(n, one)| (format!("t1-{n}"), one.clone())).collect()
        };
        let (empty, silent) = (Contents::Empty, Contents::Unknown);
        let data = Contents::Intact("a".into());
        for (shared, others, expected) in [
            (true, vec![empty.clone(), silent.clone()], Formation::Never),
            (true, vec![silent.clone(), silent.clone()], Formation::Unproven),
            (true, vec![empty.clone(), data.clone()], Formation::Unproven),
            (true, vec![], Formation::Never),
            (false, vec![], Formation::Never),
            (false, vec![empty.clone(), silent.clone()], Formation::Unproven),
            (false, vec![empty.clone(), Contents::Damaged], Formation::Unproven),
            (false, vec![empty.clone(), empty.clone()], Formation::Never),
            (false, vec![empty.clone(), Contents::Starting], Formation::Never),
            (
                false,
                vec![empty.clone(), empty.clone(), empty.clone(), silent.clone()],
                Formation::Never,
            ),
            (
                false,
                vec![empty.clone(), empty.clone(), silent.clone(), silent.clone()],
                Formation::Unproven,
            ),
        ] {
            let records = Records {
                shared,
                readable: true,
                ..Records::default()
            };
            let members = others.len() + 1;
            assert_eq!(
                records.formation(members, &said(&others)),
                expected,
                "{shared} {others:?}"
            );
        }
    }
}
