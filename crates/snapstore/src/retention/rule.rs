//! The rules of retention, with the words in which they are explained.

use std::fmt;

use serde::Serialize;

/// Why an object is kept or deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Rule {
    NewestChain,
    NoProvenChain,
    EarlierHistory,
    CurrentHour,
    LastOfHour,
    LastOfDay,
    LastOfWeek,
    WithinLimit,
    WithinDeltaRetention,
    NeededByLater,
    AfterUnknownFull,
    UploadInProgress,
    NotUnderstood,
    NewerInSameHour,
    NewerInSameDay,
    NewerInSameWeek,
    OlderThanFiveWeeks,
    OverLimit,
    DeltaRetentionOver,
    NoFullBefore,
    Unusable,
    Leftover,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NewestChain => "needed to restore the newest proven state, or newer than it",
            Self::NoProvenChain => "no chain is proven to be restorable, so that nothing is deleted",
            Self::EarlierHistory => "of an earlier cluster with the same prefix",
            Self::CurrentHour => "full snapshot of the current hour",
            Self::LastOfHour => "last full snapshot of its hour, today",
            Self::LastOfDay => "last full snapshot of its day, in the last 7 days",
            Self::LastOfWeek => "last full snapshot of its week, in the last 5 weeks",
            Self::WithinLimit => "within the number of full snapshots to keep",
            Self::WithinDeltaRetention => "its chain has deltas within the delta retention",
            Self::NeededByLater => "a later delta that stays needs it",
            Self::AfterUnknownFull => "may follow a full snapshot whose name is not understood",
            Self::UploadInProgress => "may belong to an upload in progress",
            Self::NotUnderstood => "not a known snapshot name",
            Self::NewerInSameHour => "there is a newer full snapshot of the same hour",
            Self::NewerInSameDay => "there is a newer full snapshot of the same day",
            Self::NewerInSameWeek => "there is a newer full snapshot of the same week",
            Self::OlderThanFiveWeeks => "full snapshot older than 5 weeks",
            Self::OverLimit => "beyond the number of full snapshots to keep",
            Self::DeltaRetentionOver => "delta of an older chain, past the delta retention",
            Self::NoFullBefore => "delta without a full snapshot before it",
            Self::Unusable => "excluded or empty, and superseded",
            Self::Leftover => "left by an upload that never finished",
        })
    }
}
