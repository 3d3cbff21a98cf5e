//! Deserialization that forgives what an older or newer writer may have stored.

use serde::{Deserialize, Deserializer};

/// Reads a `null` as the type's default, for lists, maps and structs that aren't wrapped in an `Option`.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Keeps defaults out of what is written, so that nobody owns a field they didn't set.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
