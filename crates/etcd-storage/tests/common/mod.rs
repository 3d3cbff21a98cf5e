//! What the tests share: cases of real backups, read from a folder as a store would give them.
#![allow(dead_code, reason = "each test uses a part")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "in a test that is how an error is shown"
)]

pub(crate) mod dice;
pub(crate) mod server;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use etcd_storage::assemble::Error;
use etcd_storage::chain::{self, Kind, Link};
use etcd_storage::cluster::NewCluster;
use etcd_storage::compression::Compression;
use etcd_storage::object::{Chain, Object, Target};
use etcd_storage::restore::{Consent, Options, Restored, restore};

pub(crate) fn cases() -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut cases: Vec<Case> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(Case::read)
        .collect();
    assert_eq!(cases.len(), 16, "all cases are there");
    cases.sort_by(|one, other| one.path.cmp(&other.path));
    cases
}

pub(crate) fn case(name: &str) -> Case {
    Case::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(name),
    )
}

/// A case of the fixtures.
pub(crate) struct Case {
    pub(crate) path: PathBuf,
    facts: HashMap<String, String>,
}

impl Case {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(path.join("case.md")).unwrap();
        let facts = text
            .split("```")
            .nth(1)
            .unwrap()
            .lines()
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Self { path, facts }
    }

    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap().to_string_lossy().into_owned()
    }

    pub(crate) fn fact(&self, name: &str) -> &str {
        &self.facts[name]
    }

    pub(crate) fn expected(&self) -> String {
        fs::read_to_string(self.path.join("expected.jsonl")).unwrap()
    }

    /// The objects of the store, wherever they lie in it.
    pub(crate) fn objects(&self) -> Vec<Stored> {
        let mut found = Vec::new();
        collect(&self.path.join("store"), &mut found);
        found.sort_by(|one, other| one.name.cmp(&other.name));
        found
    }
}

fn collect(dir: &Path, found: &mut Vec<Stored>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else {
            found.push(Stored::parse(path));
        }
    }
}

/// An object in a folder.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) start: i64,
    pub(crate) last: i64,
    pub(crate) created_on: i64,
    pub(crate) compression: Compression,
}

impl Stored {
    pub(crate) fn parse(path: PathBuf) -> Self {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut parts = name.splitn(4, '-');
        let kind = if parts.next() == Some("Full") {
            Kind::Full
        } else {
            Kind::Delta
        };
        let mut number = || parts.next().unwrap().parse().unwrap();
        let (start, last) = (number(), number());
        let rest = parts.next().unwrap().trim_end_matches(".final");
        let (time, suffix) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
        let compression = Compression::from_suffix(suffix).unwrap();
        let created_on = time.parse().unwrap();
        Self {
            name,
            path,
            kind,
            start,
            last,
            created_on,
            compression,
        }
    }

    pub(crate) fn object(&self) -> Object {
        let path = self.path.clone();
        Object {
            name: self.name.clone(),
            compression: self.compression,
            start: self.start,
            last: self.last,
            open: Box::new(move || Ok(Box::new(File::open(&path)?) as Box<dyn Read + Send>)),
        }
    }
}

pub(crate) fn plan(objects: &[Stored], target: Option<i64>) -> Result<Chain, chain::Error> {
    let links: Vec<Link> = objects
        .iter()
        .enumerate()
        .map(|(index, one)| Link {
            kind: one.kind,
            start: one.start,
            last: one.last,
            created_on: one.created_on,
            cluster: None,
            index,
        })
        .collect();
    let plan = chain::plan(&links, target)?;
    Ok(Chain {
        base: objects[plan.base.index].object(),
        deltas: plan
            .deltas
            .iter()
            .map(|delta| objects[delta.index].object())
            .collect(),
    })
}

pub(crate) fn options(data_dir: &Path) -> Options {
    let cluster = NewCluster::new("etcd-cluster", [("default", vec!["http://localhost:2380"])]).unwrap();
    Options {
        data_dir: data_dir.to_owned(),
        cluster,
        member: "default".to_owned(),
        target: Target::Latest,
        minor: None,
        bump_revision: None,
        unknown_lease_ttl: None,
        consent: Consent::default(),
    }
}

pub(crate) fn restore_to(chain: &Chain, data_dir: &Path) -> Result<Restored, Error> {
    restore(chain, &options(data_dir), &mut |_| ControlFlow::Continue(()))
}
