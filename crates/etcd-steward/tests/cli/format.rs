//! Format checks.
