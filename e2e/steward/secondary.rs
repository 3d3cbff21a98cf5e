//! A second copy of the backups.

use std::{fs, time::Duration};

use anyhow::ensure;
use serde_json::json;
use tokio::time::sleep;

use crate::rig::{Rig, Setup, restored_from, stored_in};

/// The second store follows the first one, old backups go there too, and it can be restored from alone. While it can't be
/// had, the first store's backups go on.
#[tokio::test]
async fn a_second_store_follows_the_first_one() -> anyhow::Result<()> {
    let rig = Rig::start(Setup {
        size: 1,
        backup: json!({
            "fullSnapshotSchedule": "0 0 1 1 *", "deltaSnapshotPeriod": "1s", "maxBackupsLimitBasedGC": 1,
            "garbageCollectionPeriod": "1s", "secondary": {"syncPeriod": "1s"},
        }),
        ..Setup::default()
    })
    .await?;
    // Its folder isn't there yet.
    let first = rig.put("/first/", 3).await?;
    rig.until_covered(first).await?;
    let failed = "etcdbr_secondary_sync_duration_seconds_count{succeeded=\"false\"}";
    rig.until("the missing store is told", async || {
        ensure!(rig.members[0].log().contains("the second store doesn't follow"));
        ensure!(rig.members[0].metric(failed).await? >= 1.0);
        Ok(())
    })
    .await?;
    fs::create_dir(rig.second_store())?;
    let second = rig.put("/second/", 3).await?;
    rig.until_covered(second).await?;
    // What was stored in the same second as the newest full snapshot stays with it.
    sleep(Duration::from_secs(1)).await;
    rig.full_snapshot().await?;
    let last = rig.put("/third/", 3).await?;
    rig.until_covered(last).await?;
    rig.until("both stores hold the same", async || {
        let (one, other) = (rig.stored()?, stored_in(&rig.second_store())?);
        ensure!(one == other && !one.is_empty(), "{one:?}, {other:?}");
        let fulls = one.iter().filter(|name| name.starts_with("Full-")).count();
        ensure!(fulls == 1, "{one:?}");
        Ok(())
    })
    .await?;
    ensure!(restored_from(&rig.second_store())? == rig.restored()?);
    Ok(())
}
