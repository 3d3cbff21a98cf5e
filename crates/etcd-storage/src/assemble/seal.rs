//! Turns an assembled file into a database: writes the small buckets that are new, the root bucket, and last the
//! meta pages.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use prost::Message;

use super::{Assembly, Error, LeaseReport};
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
        self.appender.bump(amount).map_err(Error::Write)?;
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
            ..
        } = self;
        let mut pages = appender.pages;
        let (new_leases, report) = appender.leases.finish(unknown_lease_ttl);
        let mut values = BTreeMap::new();
        let records = bucket_value(appender.tree, 0, &mut pages).map_err(Error::Write)?;
        values.insert(bucket::KEY.to_vec(), records);
        for found in base.buckets().map_err(Error::Write)? {
            let value = match found.name() {
                bucket::KEY => continue,
                bucket::LEASE if !new_leases.is_empty() => continue,
                bucket::LEASE => found.to_value(),
                name => match rewrite(name, Some(&found)) {
                    Rewrite::Keep => found.to_value(),
                    Rewrite::With(content) => small_bucket(name, &content, &mut pages)?,
                },
            };
            values.insert(found.name().to_vec(), value);
        }
        if !new_leases.is_empty() {
            let value = lease_bucket(&base, &new_leases, &mut pages).map_err(Error::Write)?;
            values.insert(bucket::LEASE.to_vec(), value);
        }
        for name in expected {
            if !values.contains_key(*name)
                && let Rewrite::With(content) = rewrite(name, None)
            {
                values.insert(name.to_vec(), small_bucket(name, &content, &mut pages)?);
            }
        }
        let root = root_bucket(values.into_iter().collect(), &mut pages).map_err(Error::Write)?;
        let mut meta = *base.meta();
        (meta.root.root, meta.high_water, meta.freelist) = (root, pages.next(), NO_FREELIST);
        let io = Error::io("write of", &path);
        // The sink is a second handle of the file.
        pages.into_sink().flush().map_err(&io)?;
        file.sync_data().map_err(&io)?;
        write_metas(&file, meta).map_err(&io)?;
        file.sync_all().map_err(&io)?;

        let db = Db::open(&path).map_err(Error::Write)?;
        let found = Overview::read(&db).map_err(Error::Write)?.revision;
        if found != revision {
            let object = path.display().to_string();
            return Err(Error::EndsElsewhere {
                object,
                stated: revision,
                found,
            });
        }
        Ok(Rewritten {
            db,
            leases: report,
            revision,
        })
    }
}

/// Both meta pages lead to the new tree: the old one must not come back, not even after a torn write.
fn write_metas(file: &std::fs::File, meta: Meta) -> io::Result<()> {
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
