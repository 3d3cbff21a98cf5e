//! One judge: whatever is wrong with a snapshot, everything that reads it says the same. The table of what was tried goes
//! into the documentation.

use std::{env, fmt::Write as _, fs, io::Write as _, path::Path};

use etcd_storage::{
    compression::{Compression, Decoder, Encoder},
    full::Scanner,
    verify,
};

use crate::{
    image::{Image, PAGE, REVISION, delta, record, sealed},
    program::{Ran, on, restore},
};

/// The page of the documentation that holds the table.
const PAGE_OF_DOCS: &str = "../../docs/reference/damage.md";

/// What is said of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It is used.
    Whole,
    /// It is used, with a warning.
    Warning,
    /// It is refused.
    Damaged,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Warning => "warning",
            Self::Damaged => "damaged",
        }
    }
}

/// What is damaged.
enum Damage {
    /// The bytes of the full snapshot, uncompressed.
    Full(Vec<u8>),
    /// The bytes of the full snapshot as they are stored.
    Stored(Vec<u8>),
    /// The bytes of the only delta.
    Delta(Vec<u8>),
}

struct Row {
    what: &'static str,
    damage: Damage,
    verdict: Verdict,
    /// The flag of `restore` that takes it all the same, and the revision that it then has.
    flag: Option<(&'static str, i64)>,
}

fn full(what: &'static str, verdict: Verdict, change: impl FnOnce(&mut Image)) -> Row {
    let mut image = Image::new();
    change(&mut image);
    let damage = Damage::Full(image.sealed());
    Row {
        what,
        damage,
        verdict,
        flag: None,
    }
}

fn stored(what: &'static str, change: impl FnOnce(&mut Vec<u8>)) -> Row {
    let mut bytes = gzip(&Image::new().sealed());
    change(&mut bytes);
    let (damage, verdict) = (Damage::Stored(bytes), Verdict::Damaged);
    Row {
        what,
        damage,
        verdict,
        flag: None,
    }
}

fn of_delta(what: &'static str, bytes: Vec<u8>) -> Row {
    let (damage, verdict) = (Damage::Delta(bytes), Verdict::Damaged);
    Row {
        what,
        damage,
        verdict,
        flag: None,
    }
}

fn with_flag(row: Row, flag: &'static str) -> Row {
    let flag = Some((flag, REVISION));
    Row { flag, ..row }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = Encoder::new(Compression::Gzip, Vec::new(), 1).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn rows() -> Vec<Row> {
    let mut rows = vec![full("nothing", Verdict::Whole, |_| {})];
    rows.extend(of_objects());
    rows.extend(of_trees());
    rows.extend(of_metas());
    rows.extend(of_buckets());
    rows.extend(of_deltas());
    rows
}

fn of_objects() -> Vec<Row> {
    let flipped = |bytes: &mut Vec<u8>| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    };
    let mut flipped_inside = Image::new().sealed();
    flipped(&mut flipped_inside);
    vec![
        stored("the object is empty", Vec::clear),
        stored("the object is cut", |bytes| bytes.truncate(bytes.len() / 2)),
        stored("a bit of the object is flipped", flipped),
        stored("the object goes on behind its end", |bytes| {
            bytes.extend([7; 100]);
        }),
        with_flag(
            Row {
                what: "a bit of a value is flipped",
                damage: Damage::Full({
                    let mut bytes = Image::new().sealed();
                    let at = bytes
                        .windows(10)
                        .position(|bytes| bytes == b"some value")
                        .unwrap();
                    bytes[at] ^= 1;
                    bytes
                }),
                verdict: Verdict::Damaged,
                flag: None,
            },
            "--skip-hash-check",
        ),
        with_flag(
            Row {
                what: "there is no hash, as in a data directory",
                damage: Damage::Full(Image::new().0),
                verdict: Verdict::Damaged,
                flag: None,
            },
            "--skip-hash-check",
        ),
    ]
}

/// The hash fits in all of these: it was made of what is damaged.
fn of_trees() -> Vec<Row> {
    let damaged = |what, change: fn(&mut Image)| full(what, Verdict::Damaged, change);
    vec![
        damaged("a leaf in the middle is zeroed", |image| {
            image.put(image.leaf(), &[0; PAGE]);
        }),
        damaged("a branch is zeroed", |image| {
            image.put(image.branch(), &[0; PAGE]);
        }),
        damaged("the root of the buckets is zeroed", |image| {
            image.put(image.root(), &[0; PAGE]);
        }),
        damaged("a leaf has the bytes of another one", |image| {
            let (from, to) = (image.leaf(), image.leaf() + PAGE);
            image.0.copy_within(from..from + PAGE, to);
        }),
        damaged("a page is used twice", |image| {
            let (from, to) = (
                Image::element(image.branch(), 1),
                Image::element(image.branch(), 2),
            );
            image.0.copy_within(from + 8..from + 16, to + 8);
        }),
        damaged("a branch leads out of the file", |image| {
            image.put(
                Image::element(image.branch(), 1) + 8,
                &u64::from(u32::MAX).to_le_bytes(),
            );
        }),
        damaged("a branch leads back to itself", |image| {
            let own = (image.branch() / PAGE) as u64;
            image.put(Image::element(image.branch(), 1) + 8, &own.to_le_bytes());
        }),
        damaged("keys of a leaf are not in order", |image| {
            let leaf = image.leaf();
            let key = leaf
                + u32::from_le_bytes(image.0[Image::element(leaf, 1) + 4..][..4].try_into().unwrap())
                    as usize;
            image.put(key + ELEMENT_OF_SECOND, &[0; 8]);
        }),
        damaged("an element reaches over the end of its page", |image| {
            image.put(Image::element(image.leaf(), 1) + 12, &100_000_u32.to_le_bytes());
        }),
        damaged("a page run reaches over the end of the file", |image| {
            image.put(image.leaf() + 12, &9999_u32.to_le_bytes());
        }),
        damaged("the database ends before its last page", |image| {
            image.0.truncate(image.0.len() - PAGE);
        }),
        full(
            "the list of free pages has a page that is in use",
            Verdict::Warning,
            |image| {
                image.put(2 * PAGE + 10, &1_u16.to_le_bytes());
                image.put(2 * PAGE + 16, &5_u64.to_le_bytes());
            },
        ),
        full("the list of free pages is zeroed", Verdict::Warning, |image| {
            image.put(2 * PAGE, &[0; PAGE]);
        }),
    ]
}

/// Where the key of a leaf's second element begins, from its element's place.
const ELEMENT_OF_SECOND: usize = 32;

fn of_metas() -> Vec<Row> {
    let damaged = |what, change: fn(&mut Image)| full(what, Verdict::Damaged, change);
    vec![
        with_flag(
            damaged("the newest meta page is zeroed", |image| {
                image.put(PAGE, &[0; PAGE]);
            }),
            "--use-previous-meta",
        ),
        with_flag(
            damaged("the newest meta page leads to a page that isn't one", |image| {
                image.set_meta(1, 2, 9);
            }),
            "--use-previous-meta",
        ),
        damaged("both meta pages are zeroed", |image| image.put(0, &[0; 2 * PAGE])),
    ]
}

fn of_buckets() -> Vec<Row> {
    let of = |what, buckets: &[&str]| Row {
        what,
        damage: Damage::Full(Image::of(buckets, REVISION, |main| record(main, b"")).sealed()),
        verdict: Verdict::Damaged,
        flag: None,
    };
    let no_records = Image::of(&["key", "meta"], REVISION, |_| b"no record".to_vec());
    let shorter = Image::of(&["key", "meta"], REVISION - 1, |main| record(main, b""));
    vec![
        of("a database without buckets", &[]),
        of("a database of something else", &["other"]),
        of("a database without `key`", &["cluster", "meta"]),
        of("a database without `meta`", &["cluster", "key"]),
        Row {
            what: "what `key` holds are no records",
            damage: Damage::Full(no_records.sealed()),
            verdict: Verdict::Damaged,
            flag: None,
        },
        Row {
            what: "the name says more than is in it",
            damage: Damage::Full(shorter.sealed()),
            verdict: Verdict::Damaged,
            flag: None,
        },
    ]
}

fn of_deltas() -> Vec<Row> {
    let (first, last) = (REVISION + 1, REVISION + 5);
    let mut altered = delta(first..=last);
    let middle = altered.len() / 2;
    altered[middle] ^= 1;
    let mut cut = delta(first..=last);
    cut.truncate(cut.len() - 1);
    vec![
        of_delta("a delta with a flipped bit", altered),
        of_delta("a delta that is cut", cut),
        of_delta(
            "a delta that is no JSON, with its hash",
            sealed(b"[nothing]".to_vec()),
        ),
        of_delta(
            "a delta with a hole",
            delta((first..=last).filter(|revision| *revision != first + 2)),
        ),
        of_delta("a delta that ends before its name says", delta(first..last)),
        of_delta("a delta that begins after its name says", delta(first + 1..=last)),
    ]
}

fn by_exit(ran: &Ran) -> Verdict {
    match ran.code {
        0 if format!("{}{}", ran.out, ran.err).contains("the list of free pages") => Verdict::Warning,
        0 => Verdict::Whole,
        3 => Verdict::Damaged,
        _ => panic!("neither whole nor damaged: {ran:?}"),
    }
}

/// What is uploaded is checked by this before, and read back by it afterwards.
fn by_read_back(full: &[u8], delta: &[u8]) -> Verdict {
    let full = Decoder::new(Compression::Gzip, full).unwrap();
    let warnings = verify::full(full, Scanner::new(), REVISION).map(|found| found.warnings.text());
    let delta = verify::delta(delta, REVISION + 1, REVISION + 5);
    match (warnings, delta) {
        (Ok(None), Ok(_)) => Verdict::Whole,
        (Ok(Some(_)), Ok(_)) => Verdict::Warning,
        _ => Verdict::Damaged,
    }
}

/// Tries a row with everything that reads snapshots; what each says, in the order of the table's columns.
fn judge(row: &Row) -> [Verdict; 5] {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let folder = store.join("v2");
    fs::create_dir_all(&folder).unwrap();
    let (mut object, mut events) = (gzip(&Image::new().sealed()), delta(REVISION + 1..=REVISION + 5));
    match &row.damage {
        Damage::Full(bytes) => object = gzip(bytes),
        Damage::Stored(bytes) => object.clone_from(bytes),
        Damage::Delta(bytes) => events.clone_from(bytes),
    }
    fs::write(
        folder.join(format!("Full-00000000-{REVISION:08}-1700000000.gz")),
        &object,
    )
    .unwrap();
    let (first, last) = (REVISION + 1, REVISION + 5);
    fs::write(
        folder.join(format!("Incr-{first:08}-{last:08}-1700000001")),
        &events,
    )
    .unwrap();

    let verified = by_exit(&on(&store, "verify", &[]));
    let data_dir = dir.path().join("restored");
    let restored = by_exit(&restore(&store, &data_dir, &[]));
    assert_eq!(data_dir.exists(), restored != Verdict::Damaged, "{}", row.what);
    let copy = dir.path().join("copy");
    fs::create_dir(&copy).unwrap();
    let from = [
        "--source-store-provider=Local",
        "--source-store-container",
        store.to_str().unwrap(),
    ];
    let copied = by_exit(&on(&copy, "copy", &from));
    with_consent(row, &store, dir.path());
    let temp = dir.path().join("temp");
    let compacted = by_exit(&on(&store, "compact", &["--temp-dir", temp.to_str().unwrap()]));
    [
        verified,
        restored,
        compacted,
        copied,
        by_read_back(&object, &events),
    ]
}

/// What a flag lets through has the revision that it should, and says what is wrong.
fn with_consent(row: &Row, store: &Path, dir: &Path) {
    let data_dir = dir.join("with-consent");
    let both = ["--use-previous-meta", "--skip-hash-check"];
    let refused_with = both
        .iter()
        .find(|flag| row.flag.is_none_or(|(own, _)| own != **flag));
    if let (Some(other), Verdict::Damaged) = (refused_with, row.verdict) {
        restore(store, &data_dir, &[other]).exits(3);
    }
    let Some((flag, revision)) = row.flag else { return };
    let refused = restore(store, &data_dir, &[]).exits(3);
    let names_flag = refused.err.contains(flag) || row.what == "a bit of a value is flipped";
    assert!(names_flag, "{}: {refused:?}", row.what);
    let full = format!("Full-00000000-{REVISION:08}-1700000000.gz");
    let done = restore(store, &data_dir, &[flag, "--snapshot", &full, "-o", "json"])
        .ok()
        .json();
    assert_eq!(done["revision"], revision, "{}", row.what);
    assert!(done["warning"].is_string(), "{}: {done}", row.what);
}

fn page(table: &str) -> String {
    format!(
        "# Damage, and what is said of it\n\n\
        Whatever reads a snapshot judges it by one walk over all of it: its hash, every page of the tree, the buckets, the records, \
        the revisions. So `verify`, `restore`, `compact`, `copy`, the check before an upload and the reading back afterwards say \
        the same. This table is made by the test that tries them all; in each row the hash is right where it isn't the hash that is \
        damaged.\n\n\
        | what is damaged | verify | restore | compact | copy | upload, read-back | what takes it all the same |\n\
        |---|---|---|---|---|---|---|\n{table}\n\
        - *warning*: the data is whole. A restore leaves the list of free pages out, and etcd makes it anew.\n\
        - `--use-previous-meta` restores the state before the newest transaction. What was written later is lost.\n\
        - `--skip-hash-check` restores what has no SHA-256, or another one. The tree is checked, what is in values can't be.\n\
        - Where another full snapshot and its deltas have all revisions, `restore` and the steward take those and name what they left out.\n"
    )
}

#[test]
fn everything_that_reads_snapshots_says_the_same() {
    let mut table = String::new();
    let mut differing = Vec::new();
    let rows = rows();
    assert!(rows.len() > 20);
    for row in &rows {
        let said = judge(row);
        let words = said.map(Verdict::word).join(" | ");
        let flag = row.flag.map_or(String::new(), |(flag, _)| format!("`{flag}`"));
        writeln!(table, "| {} | {words} | {flag} |", row.what).unwrap();
        if said.iter().any(|said| *said != row.verdict) {
            differing.push(format!("{}: {words} instead of {}", row.what, row.verdict.word()));
        }
    }
    println!("{table}");
    assert!(differing.is_empty(), "{differing:#?}");
    let page = page(&table);
    if env::var_os("DRUID_GENERATE").is_some() {
        fs::write(PAGE_OF_DOCS, &page).unwrap();
    }
    let known = fs::read_to_string(PAGE_OF_DOCS).unwrap_or_default();
    assert!(
        known == page,
        "{PAGE_OF_DOCS} isn't up to date: run this test with DRUID_GENERATE=1"
    );
}
