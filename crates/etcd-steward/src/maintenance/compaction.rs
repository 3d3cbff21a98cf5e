//! History compaction, at a revision at which etcd loses nothing.
//!
//! etcd drops the live value of a key that was deleted and put again in one transaction when the history is compacted at
//! exactly that revision (etcd-io/etcd#22376): the member ends, or goes on until its next start, and then comes up without
//! the key. So a compaction stays behind the head, and never stops at such a revision.

use std::{collections::HashSet, time::Duration};

use etcd_client::{Client, CompactionOptions, WatchOptions};
use steward_proto::v1::CompactResult;
use tracing::{info, warn};

use super::{Maintenance, MaintenanceError};
use crate::{
    backup,
    etcd::{CALL_TIMEOUT, call},
};

/// Physical compaction takes its time on a long history.
const COMPACTION_DEADLINE: Duration = Duration::from_mins(10);

/// How far back a revision is looked for that is safe.
const LOOK_BACK: i64 = 100;

/// etcd takes values of any size that its own limit allows.
const LARGEST_MESSAGE: usize = i32::MAX as usize;

/// What etcd calls a deletion: `mvccpb.Event.EventType`.
const DELETE: i32 = 1;

impl Maintenance {
    /// Drops history before `revision`; 0 means as much as is safe. The result says where it was compacted: the head and
    /// revisions at which etcd would lose keys are left out.
    pub async fn compact(&self, revision: i64) -> Result<CompactResult, MaintenanceError> {
        let mut client = self.connector.local().await?;
        let head = backup::revision(&mut client).await?;
        if revision > head {
            return Err(MaintenanceError::FutureRevision(revision));
        }
        let wanted = behind_head(revision, head);
        if wanted < 1 {
            info!(head, "there is no history to compact");
            return Ok(CompactResult { revision: 0 });
        }
        let Some(revision) = safe(&mut client, wanted).await? else {
            info!(revision = wanted, "the history was compacted before");
            return Ok(CompactResult { revision: wanted });
        };
        let options = Some(CompactionOptions::new().with_physical());
        let compacting = client.compact(revision, options);
        match call("compact the history", COMPACTION_DEADLINE, compacting).await {
            Ok(_) => info!(revision, head, "compacted the history"),
            // It is as was asked for: by an earlier call, or by etcd itself.
            Err(error) if error.is_compacted() => {
                info!(revision, "the history was compacted before");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(CompactResult { revision })
    }
}

/// The newest revision up to which history may be dropped that was asked for up to `revision`.
fn behind_head(revision: i64, head: i64) -> i64 {
    let newest = head - 1;
    if revision == 0 {
        newest
    } else {
        revision.min(newest)
    }
}

/// The newest safe revision up to `wanted`, which is behind the head; `None` when the history is compacted up to there
/// already.
async fn safe(client: &mut Client, wanted: i64) -> Result<Option<i64>, MaintenanceError> {
    for revision in (wanted - LOOK_BACK + 1..=wanted)
        .rev()
        .take_while(|revision| *revision > 0)
    {
        match recreates(client, revision).await? {
            None => return Ok(None),
            Some(false) => return Ok(Some(revision)),
            Some(true) => {
                warn!(
                    revision,
                    "a key was deleted and put again in this revision: not compacted there"
                );
            }
        }
    }
    Err(MaintenanceError::NoSafeRevision(wanted))
}

/// Whether a key was deleted and put again in this revision; `None` when it is compacted. There must be a later revision:
/// its events show that all of this one have come.
async fn recreates(client: &mut Client, revision: i64) -> Result<Option<bool>, MaintenanceError> {
    let options = WatchOptions::new()
        .with_all_keys()
        .with_start_revision(revision)
        .with_fragment();
    let mut watches = client.watch_client().max_decoding_message_size(LARGEST_MESSAGE);
    let watched = watches.watch("\0", Some(options));
    let mut stream = call("watch etcd", CALL_TIMEOUT, watched).await?;
    let mut seen = Recreated::default();
    loop {
        let Some(answer) = call("read the history", CALL_TIMEOUT, stream.message()).await? else {
            return Err(MaintenanceError::WatchEnded(
                "the connection was closed".to_owned(),
            ));
        };
        if answer.compact_revision() > 0 {
            return Ok(None);
        }
        if answer.canceled() {
            return Err(MaintenanceError::WatchEnded(answer.cancel_reason().to_owned()));
        }
        for event in answer.0.events {
            let Some(kv) = event.kv else { continue };
            if kv.mod_revision > revision {
                return Ok(Some(false));
            }
            if seen.event(event.r#type == DELETE, kv.key) {
                return Ok(Some(true));
            }
        }
    }
}

/// The keys that one revision deletes.
#[derive(Debug, Default)]
struct Recreated(HashSet<Vec<u8>>);

impl Recreated {
    /// Adds an event; whether it puts a key that was deleted.
    fn event(&mut self, is_delete: bool, key: Vec<u8>) -> bool {
        if is_delete {
            self.0.insert(key);
            return false;
        }
        self.0.contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_never_compacted() {
        for (revision, head, expected) in [
            (0, 10, 9),
            (10, 10, 9),
            (9, 10, 9),
            (3, 10, 3),
            (0, 1, 0),
            (1, 1, 0),
        ] {
            assert_eq!(behind_head(revision, head), expected, "{revision} of {head}");
        }
    }

    #[test]
    fn a_key_that_comes_back_is_seen() {
        let seen = |events: &[(bool, &str)]| {
            let mut seen = Recreated::default();
            events
                .iter()
                .any(|(is_delete, key)| seen.event(*is_delete, key.as_bytes().to_vec()))
        };
        assert!(seen(&[(true, "a"), (true, "b"), (false, "b")]));
        assert!(!seen(&[(true, "a"), (false, "b")]));
        assert!(!seen(&[(false, "a"), (true, "a")]), "it is gone in the end");
    }
}
