//! What is kept of a page run: as little as a walk over the whole tree needs.

use super::keys::Changes;

/// What was found in a page run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Note {
    Branch(Vec<Child>),
    Leaf {
        /// First and last key; empty when there is none.
        first: Vec<u8>,
        last: Vec<u8>,
        /// Whether all of it are records.
        records: bool,
        /// The highest compact revision in it; 0 for none.
        compacted: i64,
        /// The revision at which a compaction was last ended; 0 for none.
        finished: i64,
        /// What its records mean for the number of keys.
        changes: Changes,
    },
    /// A leaf that holds buckets.
    Directory {
        first: Vec<u8>,
        last: Vec<u8>,
        entries: Vec<Entry>,
        /// Whether there are plain keys too.
        has_plain: bool,
    },
    /// What is wrong with it.
    Fault(u8),
}

/// A child of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) page: u64,
    pub(super) key: Vec<u8>,
}

/// A bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) place: Place,
}

/// Where a bucket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Page(u64),
    Inline(Box<Note>),
}

impl Note {
    /// An empty leaf.
    pub(super) fn leaf() -> Self {
        Self::Leaf {
            first: Vec::new(),
            last: Vec::new(),
            records: true,
            compacted: 0,
            finished: 0,
            changes: Changes::default(),
        }
    }

    /// Adds a bucket to a leaf; `has_plain` says whether plain keys came before.
    pub(super) fn add_bucket(&mut self, entry: Entry, has_plain: bool) {
        match self {
            Self::Directory { entries, .. } => entries.push(entry),
            Self::Leaf { first, .. } => {
                *self = Self::Directory {
                    first: std::mem::take(first),
                    last: Vec::new(),
                    entries: vec![entry],
                    has_plain,
                };
            }
            // Their elements have no such flag.
            Self::Branch(_) | Self::Fault(_) => {}
        }
    }

    /// Adds the note's bytes, and how many pages follow its first one.
    pub(super) fn write(&self, overflow: u32, out: &mut Vec<u8>) {
        out.extend(overflow.to_le_bytes());
        match self {
            Self::Branch(children) => {
                out.push(0);
                let mut before: &[u8] = &[];
                for Child { page, key } in children {
                    put_number(out, *page);
                    // The keys of neighbours begin alike.
                    let shared = before.iter().zip(key).take_while(|(a, b)| a == b).count();
                    put_number(out, shared as u64);
                    put_bytes(out, &key[shared..]);
                    before = key;
                }
            }
            Self::Leaf {
                first,
                last,
                records,
                compacted,
                finished,
                changes,
            } => {
                out.push(1);
                out.push(u8::from(*records));
                put_number(out, compacted.cast_unsigned());
                put_number(out, finished.cast_unsigned());
                changes.write(out);
                put_bytes(out, first);
                put_bytes(out, last);
            }
            Self::Directory {
                first,
                last,
                entries,
                has_plain,
            } => {
                out.push(2);
                out.push(u8::from(*has_plain));
                put_bytes(out, first);
                put_bytes(out, last);
                for Entry { name, place } in entries {
                    put_bytes(out, name);
                    let mut inline = Vec::new();
                    match place {
                        Place::Page(page) => put_number(out, *page),
                        Place::Inline(note) => {
                            put_number(out, 0);
                            note.write(0, &mut inline);
                            put_bytes(out, &inline);
                        }
                    }
                }
            }
            Self::Fault(fault) => out.extend([3, *fault]),
        }
    }

    /// Reads what [`Note::write`] has written.
    pub(super) fn read(bytes: &[u8]) -> Option<(Self, u32)> {
        let (overflow, mut bytes) = bytes
            .split_first_chunk()
            .map(|(head, rest)| (u32::from_le_bytes(*head), rest))?;
        let from = &mut bytes;
        let note = match from.split_off_first()? {
            0 => Self::Branch(children(from)?),
            1 => Self::Leaf {
                records: *from.split_off_first()? != 0,
                compacted: number(from)?.cast_signed(),
                finished: number(from)?.cast_signed(),
                changes: Changes::read(from)?,
                first: text(from)?.to_vec(),
                last: text(from)?.to_vec(),
            },
            2 => Self::Directory {
                has_plain: *from.split_off_first()? != 0,
                first: text(from)?.to_vec(),
                last: text(from)?.to_vec(),
                entries: entries(from)?,
            },
            _ => Self::Fault(*from.split_off_first()?),
        };
        Some((note, overflow))
    }
}

fn children(from: &mut &[u8]) -> Option<Vec<Child>> {
    let mut children: Vec<Child> = Vec::new();
    while !from.is_empty() {
        let page = number(from)?;
        let shared = usize::try_from(number(from)?).ok()?;
        let before = children.last().map_or(&[][..], |child| &child.key);
        let key = [before.get(..shared)?, text(from)?].concat();
        children.push(Child { page, key });
    }
    Some(children)
}

fn entries(from: &mut &[u8]) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    while !from.is_empty() {
        let name = text(from)?.to_vec();
        let place = match number(from)? {
            0 => Place::Inline(Box::new(Note::read(text(from)?)?.0)),
            page => Place::Page(page),
        };
        entries.push(Entry { name, place });
    }
    Some(entries)
}

pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(super) fn number(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *from.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn text<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(number(from)?).ok()?;
    from.split_off(..len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_written() {
        let child = |page, key: &str| Child {
            page,
            key: key.as_bytes().to_vec(),
        };
        let leaf = Note::Leaf {
            first: b"a".to_vec(),
            last: b"b".to_vec(),
            records: true,
            compacted: i64::MAX,
            finished: 7,
            changes: Changes::default(),
        };
        let entry = |name: &str, place| Entry {
            name: name.as_bytes().to_vec(),
            place,
        };
        for note in [
            Note::Branch(vec![child(3, "key-1"), child(u64::MAX, "key-22"), child(0, "x")]),
            Note::leaf(),
            leaf.clone(),
            Note::Directory {
                first: b"key".to_vec(),
                last: b"meta".to_vec(),
                entries: vec![
                    entry("key", Place::Page(7)),
                    entry("meta", Place::Inline(Box::new(leaf))),
                ],
                has_plain: false,
            },
            Note::Fault(9),
        ] {
            let mut bytes = Vec::new();
            note.write(77, &mut bytes);
            assert_eq!(Note::read(&bytes), Some((note, 77)));
        }
    }
}
