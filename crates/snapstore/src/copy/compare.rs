//! Whether what the target has under a snapshot's name is that snapshot.

use futures::TryStreamExt as _;

use super::CopyOptions;
use crate::{
    error::{Class, Error, Result},
    listing::StoredSnapshot,
    manifest::{Attestation, Digest, Manifest},
    store::SnapStore,
};

/// Fails if the target has something else than the source under one name: by size, then by what manifests say, and where
/// there is none by the bytes.
pub(super) async fn same(
    source: &dyn SnapStore,
    here: &StoredSnapshot,
    target: &dyn SnapStore,
    there: &StoredSnapshot,
    options: &CopyOptions,
) -> Result<()> {
    let refuse = |detail: String| {
        let action = format!("copy {}", here.name);
        Err(Error::new(Class::AlreadyExists, action, detail))
    };
    let (own, others) = (here.object.size, there.object.size);
    if own != others {
        return refuse(format!(
            "the target has {others} bytes under this name, the source {own}"
        ));
    }
    if options.compared.lock().contains(&here.name) {
        return Ok(());
    }
    let (stated, found) = (stated(source, here).await?, stated(target, there).await?);
    // A manifest that is missing at the target is about to be written: it must fit.
    if stated.is_some() || !options.sizes_suffice {
        let stated = match stated {
            Some(manifest) => manifest.sha256,
            None => digest(source, here).await?,
        };
        let found = match found {
            Some(manifest) => manifest.sha256,
            None => digest(target, there).await?,
        };
        if stated != found {
            return refuse("the target has other bytes under this name".to_owned());
        }
    }
    options.compared.lock().insert(here.name.clone());
    Ok(())
}

/// What a snapshot's manifest says, whoever has signed it.
async fn stated(store: &dyn SnapStore, stored: &StoredSnapshot) -> Result<Option<Manifest>> {
    let envelope = store.envelope(stored).await?;
    Ok(match store.judge(envelope.as_deref(), &stored.name)? {
        Attestation::Unsigned(manifest)
        | Attestation::Signed(manifest)
        | Attestation::UnknownKey { manifest, .. } => Some(manifest),
        Attestation::Absent | Attestation::Bad(_) => None,
    })
}

/// SHA-256 of a stored object.
async fn digest(store: &dyn SnapStore, stored: &StoredSnapshot) -> Result<String> {
    let mut stream = store.get(&stored.object, None).await?;
    let mut digest = Digest::default();
    while let Some(piece) = stream.try_next().await? {
        digest.update(&piece);
    }
    Ok(digest.finish().1)
}
