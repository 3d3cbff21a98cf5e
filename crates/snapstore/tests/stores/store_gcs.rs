//! The contract on a server for Google's API.

use crate::rig::Rig;

contract!(((), Rig::gcs().config()));
