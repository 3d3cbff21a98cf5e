//! The contract on a server for Azure's API.

use crate::{contract::follows_rotated_secrets, rig::Rig};

contract!(((), Rig::azure().config()));

#[tokio::test]
async fn follows_rotated_keys() {
    let (folder, config) = Rig::azure().config_with_own_secret();
    // A key is base64.
    follows_rotated_secrets(&config, &folder.path().join("storageKey"), "bm90IHlldCB2YWxpZA==").await;
}
