//! The program under test.

use std::{
    ffi::OsStr,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

/// What a run of the program came to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// The program with arguments, ready to run; its environment says nothing about stores.
pub(crate) fn steward<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_etcd-steward"));
    command
        .args(args)
        .env_clear()
        .env("HOME", "/nonexistent")
        .stdin(Stdio::null());
    command
}

pub(crate) fn finish(mut command: Command) -> Ran {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

pub(crate) fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    finish(steward(args))
}

/// Runs a command on a folder as its store.
pub(crate) fn on(folder: &Path, command: &str, args: &[&str]) -> Ran {
    let folder = folder.to_str().unwrap();
    let store = [command, "--store-provider=Local", "--store-container", folder];
    run(store.iter().chain(args))
}

/// Restores to a new directory.
pub(crate) fn restore(folder: &Path, data_dir: &Path, args: &[&str]) -> Ran {
    let to = ["--data-dir", data_dir.to_str().unwrap()];
    on(folder, "restore", &[&to, args].concat())
}

/// The records of a data directory, one a line.
pub(crate) fn dump(data_dir: &Path) -> String {
    run(["dump", "--data-dir", data_dir.to_str().unwrap()]).ok().out
}

impl Ran {
    pub(crate) fn ok(self) -> Self {
        self.exits(0)
    }

    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// Standard output as what it must be: one document.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Both streams and all that is said in either.
    pub(crate) fn says(self, texts: &[&str]) -> Self {
        for text in texts {
            let said = self.out.contains(text) || self.err.contains(text);
            assert!(said, "{text:?} is not in {self:?}");
        }
        self
    }
}
