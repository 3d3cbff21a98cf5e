//! What is generated from the types is what is in the repository.

use std::process::Command;

/// A field that is added without `just generate` would be missing from the chart and from the docs.
#[test]
fn crds_and_reference_are_up_to_date() {
    for what in ["crds", "docs"] {
        let output = Command::new(env!("CARGO_BIN_EXE_crdgen"))
            .args([what, "--check"])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// A typo must not be taken for "write everything".
#[test]
fn unknown_arguments_are_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_crdgen"))
        .arg("--chek")
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("usage:"));
}
