//! The contract on a server for Azure's API.

use crate::rig::Rig;

contract!(((), Rig::azure().config()));
