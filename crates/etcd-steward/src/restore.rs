//! Fills the data directory from the backups.

use crate::bootstrap::evidence::Scene;

/// Why the backups weren't restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Pending.
    #[error("not there yet")]
    Pending,
}

impl RestoreError {
    /// The reason in the member's condition.
    pub fn reason(&self) -> &'static str {
        "Restore"
    }
}

/// Restores.
pub async fn run(_scene: &Scene) -> Result<(), RestoreError> {
    Err(RestoreError::Pending)
}
