//! Real backups whose content is known: the fixtures of the storage engine.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

/// A case of the fixtures.
pub(crate) struct Case {
    pub(crate) path: PathBuf,
    facts: HashMap<String, String>,
}

pub(crate) fn all() -> Vec<Case> {
    let entries = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    let mut cases: Vec<Case> = entries.filter(|path| path.is_dir()).map(Case::read).collect();
    assert_eq!(cases.len(), 16, "all cases are there");
    cases.sort_by(|one, other| one.path.cmp(&other.path));
    cases
}

pub(crate) fn case(name: &str) -> Case {
    Case::read(root().join(name))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../etcd-storage/tests/fixtures")
}

impl Case {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(path.join("case.md")).unwrap();
        let block = text.split("```").nth(1).unwrap();
        let facts = block.lines().filter_map(|line| line.split_once(": "));
        Self {
            facts: facts
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            path,
        }
    }

    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap().to_string_lossy().into_owned()
    }

    pub(crate) fn fact(&self, name: &str) -> &str {
        &self.facts[name]
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path.join("store")
    }

    pub(crate) fn expected(&self) -> String {
        fs::read_to_string(self.path.join("expected.jsonl")).unwrap()
    }
}
