//! A store that keeps half of an upload: whatever it answers, the half never counts as stored.

use std::fs;

use anyhow::{Context as _, ensure};

use crate::{
    backups::check_chain,
    rig::{Rig, Setup, last_revision},
    s3_stub::{Fault, Stub},
};

const WHOLE: &str = "etcdbr_backup_chain_verified";

async fn with_stub() -> anyhow::Result<(Rig, Stub)> {
    let mut rig = Rig::new(Setup::single())?;
    let stub = Stub::serve(&mut rig, Setup::default().backup).await?;
    rig.start_all()?;
    rig.until_ready().await?;
    let revision = rig.put("/kept/", 5).await?;
    rig.until_covered(revision).await?;
    rig.until("all of it is verified", async || {
        let told = rig.members[0].backup_status().await?;
        ensure!(told.uncovered_revisions == 0, "{told:?}");
        let whole = rig.members[0].metric(WHOLE).await?;
        ensure!(whole > 0.0, "{whole}");
        Ok(())
    })
    .await?;
    Ok((rig, stub))
}

/// The steward says what is wrong, several tries long, and counts nothing of it as stored.
async fn is_noticed(rig: &Rig, stub: &Stub, fault: Fault, reason: &str) -> anyhow::Result<i64> {
    let stored = rig.members[0].backup_status().await?;
    let covered = stored.last_delta.or(stored.last_full).context("a snapshot")?;
    stub.set(fault);
    let revision = rig.put(&format!("/{fault:?}/"), 5).await?;
    rig.until("the half is noticed", async || {
        let error = rig.members[0].backup_status().await?.error.context("no error")?;
        ensure!(error.reason == reason, "{error:?}");
        ensure!(stub.torn() >= 3, "{} uploads were torn", stub.torn());
        Ok(())
    })
    .await?;
    let told = rig.members[0].backup_status().await?;
    ensure!(told.uncovered_revisions > 0, "{told:?}");
    let newest = told.last_delta.or(told.last_full).context("a snapshot")?;
    ensure!(newest.name == covered.name, "{} counts as stored", newest.name);
    let ready = rig.members[0].condition("BackupReady").await?;
    ensure!(ready.0 == reason, "{ready:?}");
    println!("{fault:?}: BackupReady {}: {}", ready.0, ready.1);
    Ok(revision)
}

/// OBJ-25: it is removed, and once the store is well again the chain is whole, without a gap and without a second delta
/// for any revision.
#[tokio::test]
async fn obj_25_half_an_upload_never_counts() -> anyhow::Result<()> {
    let (rig, stub) = with_stub().await?;
    for (fault, reason) in [
        (Fault::HalfAndError, "Corrupt"),
        (Fault::HalfAndSuccess, "Corrupt"),
        (Fault::HalfButAllIsTold, "Corrupt"),
        (Fault::HalfAndErrorAgain, "StoreUnavailable"),
    ] {
        let revision = is_noticed(&rig, &stub, fault, reason).await?;
        stub.set(Fault::None);
        rig.until("backups work again", async || {
            let told = rig.members[0].backup_status().await?;
            ensure!(told.error.is_none() && told.uncovered_revisions == 0, "{told:?}");
            Ok(())
        })
        .await?;
        check_chain(&rig, revision).await?;
    }
    let log = rig.members[0].log();
    ensure!(log.contains("it was removed"), "{log}");
    Ok(())
}

/// What can't be removed is named, another name is used, and the chain is whole in spite of it.
#[tokio::test]
async fn a_half_that_stays_is_named_and_gone_around() -> anyhow::Result<()> {
    let (rig, stub) = with_stub().await?;
    let revision = is_noticed(&rig, &stub, Fault::HalfForGood, "Corrupt").await?;
    let ready = rig.members[0].condition("BackupReady").await?;
    let names_half = ["Incr-", "Full-"].iter().any(|kind| ready.1.contains(kind));
    ensure!(names_half && ready.1.contains("remove it by hand"), "{ready:?}");
    rig.until("the newest chain isn't said to be whole", async || {
        let verified = rig.members[0].condition("BackupVerified").await?;
        ensure!(verified.0 == "ChainDamaged", "{verified:?}");
        Ok(())
    })
    .await?;
    stub.set(Fault::None);
    rig.until("backups work again", async || {
        let told = rig.members[0].backup_status().await?;
        ensure!(told.error.is_none() && told.uncovered_revisions == 0, "{told:?}");
        let whole = rig.members[0].metric(WHOLE).await?;
        ensure!(whole > 0.0, "{whole}");
        Ok(())
    })
    .await?;
    let reached = last_revision(&rig.restored()?);
    ensure!(
        reached >= Some(revision),
        "restored up to {reached:?}, written up to {revision}"
    );
    Ok(())
}

/// An earlier try arrived although its answer was lost, or what answers now was put there by hand: only its bytes decide.
#[tokio::test]
async fn an_object_of_the_same_name_counts_by_its_bytes() -> anyhow::Result<()> {
    let rig = Rig::start(Setup::single()).await?;
    let revision = rig.put("/kept/", 5).await?;
    rig.until_covered(revision).await?;
    // Names have whole seconds: the next delta's is one of these.
    let begin = revision + 1;
    let last = begin + 2;
    let now = jiff::Timestamp::now().as_second();
    let of_second = |second| (begin..=last).map(move |end| format!("Incr-{begin:08}-{end:08}-{second}.gz"));
    let names: Vec<_> = (now..now + 30).flat_map(of_second).collect();
    for name in &names {
        fs::write(rig.store().join("v2").join(name), "half of it")?;
    }
    rig.put("/next/", 3).await?;
    rig.until("the other object is noticed", async || {
        let error = rig.members[0].backup_status().await?.error.context("no error")?;
        ensure!(error.reason == "AlreadyExists", "{error:?}");
        Ok(())
    })
    .await?;
    for name in &names {
        let path = rig.store().join("v2").join(name);
        if fs::read(&path).is_ok_and(|content| content == b"half of it") {
            fs::remove_file(path)?;
        }
    }
    check_chain(&rig, last).await
}
