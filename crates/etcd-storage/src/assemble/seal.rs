//! Turns an assembled file into a database: writes the small buckets that are new, the root bucket, and last the
//! meta pages.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use prost::Message;

use super::events::Appender;
use super::{Assembly, Durable, Error, LeaseReport};
use crate::bolt::format::{HEADER, META, Meta, NO_FREELIST};
use crate::bolt::{self, Bucket, Db, TreeBuilder, bucket_value, root_bucket};
use crate::raftpb::Lease;
use crate::schema::{Overview, bucket};

/// Buckets that are changed all over are filled up to this.
const FILL_PERCENT: usize = 90;

/// What becomes of a bucket of the base, beside `key` and `lease`.
pub(crate) enum Rewrite {
    /// It stays as it is.
    Keep,
    /// It gets this content.
    With(BTreeMap<Vec<u8>, Vec<u8>>),
}

/// A sealed database.
#[derive(Debug)]
pub(crate) struct Rewritten {
    pub(crate) db: Db,
    pub(crate) leases: LeaseReport,
    pub(crate) revision: i64,
}

impl Assembly {
    /// The database that the chain begins with, as it was written.
    pub(crate) fn base(&self) -> &Db {
        &self.base
    }

    /// Raises the revision by an empty record. Not together with a target in the base: it has its leases.
    pub(crate) fn bump(&mut self, amount: i64) -> Result<(), Error> {
        self.appender.bump(amount)?;
        self.revision = self.appender.revision();
        Ok(())
    }

    /// Writes the rest and makes the file a database. `rewrite` says what becomes of each bucket; it is asked for
    /// those of `expected` too when the base has none.
    pub(crate) fn seal(
        self,
        expected: &[&[u8]],
        unknown_lease_ttl: Option<i64>,
        rewrite: &dyn Fn(&[u8], Option<&Bucket>) -> Rewrite,
    ) -> Result<Rewritten, Error> {
        let Self {
            path,
            file,
            base,
            appender,
            revision,
            durable,
            ..
        } = self;
        let Appender {
            mut pages,
            tree,
            leases,
            ..
        } = appender;
        let (new_leases, report) = leases.finish(unknown_lease_ttl);
        let mut values = BTreeMap::new();
        values.insert(
            bucket::KEY.to_vec(),
            bucket_value(tree, 0, &mut pages).map_err(Error::Write)?,
        );
        if !new_leases.is_empty() {
            let value = lease_bucket(&base, &new_leases, &mut pages).map_err(Error::Write)?;
            values.insert(bucket::LEASE.to_vec(), value);
        }
        let found = base.buckets().map_err(Error::Write)?;
        let missing = expected
            .iter()
            .filter(|name| found.iter().all(|bucket| bucket.name() != **name));
        let all = found.iter().map(|bucket| (bucket.name(), Some(bucket)));
        for (name, found) in all.chain(missing.map(|name| (*name, None))) {
            if values.contains_key(name) {
                continue;
            }
            let rewritten = if name == bucket::LEASE {
                Rewrite::Keep
            } else {
                rewrite(name, found)
            };
            let value = match (rewritten, found) {
                (Rewrite::With(content), _) => small_bucket(name, &content, &mut pages)?,
                (Rewrite::Keep, Some(found)) => found.to_value(),
                (Rewrite::Keep, None) => continue,
            };
            values.insert(name.to_vec(), value);
        }
        let root = root_bucket(values.into_iter().collect(), &mut pages).map_err(Error::Write)?;
        let mut meta = *base.meta();
        (meta.root.root, meta.high_water, meta.freelist) = (root, pages.next(), NO_FREELIST);
        commit(&file, pages.into_sink(), meta, durable).map_err(Error::io("write of", &path))?;
        let db = proven(&path, revision)?;
        Ok(Rewritten {
            db,
            leases: report,
            revision,
        })
    }
}

/// Syncs the pages before the meta pages lead to them.
fn commit(file: &File, mut pages: BufWriter<File>, meta: Meta, durable: Durable) -> io::Result<()> {
    // The pages go through a second handle of the file.
    pages.flush()?;
    if durable == Durable::No {
        return write_metas(file, meta);
    }
    file.sync_data()?;
    write_metas(file, meta)?;
    file.sync_all()
}

/// Opens what was written, and sees that it says of itself what it should.
fn proven(path: &Path, revision: i64) -> Result<Db, Error> {
    let db = Db::open(path).map_err(Error::Write)?;
    let found = Overview::read(&db).map_err(Error::Write)?.revision;
    if found == revision {
        Ok(db)
    } else {
        Err(Error::EndsElsewhere {
            object: path.display().to_string(),
            stated: revision,
            found,
        })
    }
}

/// Both meta pages lead to the new tree: the old one must not come back, not even after a torn write.
fn write_metas(file: &File, meta: Meta) -> io::Result<()> {
    for step in 1..=2 {
        let meta = Meta {
            txid: meta.txid + step,
            ..meta
        };
        let mut page = [0; HEADER + META];
        meta.write(&mut page);
        file.write_all_at(&page, (meta.txid % 2) * meta.page_size as u64)?;
    }
    Ok(())
}

fn small_bucket<W: Write>(
    name: &[u8],
    content: &BTreeMap<Vec<u8>, Vec<u8>>,
    pages: &mut bolt::Pages<W>,
) -> Result<Vec<u8>, Error> {
    let mut tree = TreeBuilder::new(name, pages.page_size(), FILL_PERCENT);
    let put = |(key, value): (&Vec<u8>, &Vec<u8>)| tree.push(pages, key, &[value], 0);
    content.iter().try_for_each(put).map_err(Error::Write)?;
    bucket_value(tree, 0, pages).map_err(Error::Write)
}

/// The leases of the base and the new ones, in the order of their ids.
fn lease_bucket<W: Write>(
    base: &Db,
    new: &BTreeMap<i64, i64>,
    pages: &mut bolt::Pages<W>,
) -> Result<Vec<u8>, bolt::Error> {
    let mut tree = TreeBuilder::new(bucket::LEASE, pages.page_size(), FILL_PERCENT);
    let mut new: Vec<([u8; 8], Vec<u8>)> = new
        .iter()
        .map(|(id, ttl)| {
            (
                id.to_be_bytes(),
                Lease {
                    id: *id,
                    ttl: *ttl,
                    remaining_ttl: 0,
                }
                .encode_to_vec(),
            )
        })
        .collect();
    // Bytes and signed numbers sort differently.
    new.sort_unstable();
    let mut new = new.into_iter().peekable();
    if let Some(old) = base.bucket(bucket::LEASE)? {
        let mut cursor = old.cursor(base);
        while let Some(entry) = cursor.next_entry()? {
            while let Some((id, lease)) = new.next_if(|(id, _)| id.as_slice() < entry.key) {
                tree.push(pages, &id, &[&lease], 0)?;
            }
            tree.push(pages, entry.key, &[entry.value], 0)?;
        }
    }
    for (id, lease) in new {
        tree.push(pages, &id, &[&lease], 0)?;
    }
    bucket_value(tree, 0, pages)
}
