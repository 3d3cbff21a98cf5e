//! Reads and verifies a whole log, as etcd does when it starts: every record of every file.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};

use prost::Message;

use super::{Error, LogPosition, kind};
use crate::beneath::Beneath;
use crate::cluster::Id;
use crate::raftpb::{Entry, HardState, Metadata, Record, WalSnapshot};

/// The longest record that is read. etcd's grow with the requests that it takes, 1.5 MiB unless it is told otherwise; a
/// file with a hole in it can claim any length.
const MAX_RECORD: u64 = 512 << 20;

/// Torn writes leave whole sectors of zeros.
const SECTOR: u64 = 512;

/// What a verified log holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Id of the member that wrote it.
    pub member_id: Option<Id>,
    /// Id of the cluster that the member is part of.
    pub cluster_id: Option<Id>,
    /// Index of the last entry; 0 for none.
    pub last_index: u64,
    /// Term of the last entry.
    pub last_term: u64,
    /// Highest index known to be committed.
    pub commit: u64,
    /// The snapshots that the log knows of, up to the commit, oldest first.
    pub snapshots: Vec<LogPosition>,
    /// The last record was only partly written, which a crash does and etcd repairs.
    pub torn_tail: bool,
}

/// Reads the log in `dir`.
///
/// # Errors
/// The log can't be read, has holes, or is damaged other than by a torn write at its very end.
pub fn read(dir: &Beneath) -> Result<Contents, Error> {
    let files = files(dir)?;
    let mut reader = Reader::default();
    for (place, path) in files.iter().enumerate() {
        reader.file(path, place + 1 == files.len())?;
    }
    let mut contents = reader.contents;
    contents
        .snapshots
        .retain(|snapshot| snapshot.index <= contents.commit);
    Ok(contents)
}

/// Reads only who wrote the log in `dir`, from the start of its newest file; the names are checked as well.
///
/// # Errors
/// As [`read`], as far as that is looked at.
pub fn read_identity(dir: &Beneath) -> Result<Contents, Error> {
    let mut reader = Reader {
        until_metadata: true,
        ..Reader::default()
    };
    if let Some(newest) = files(dir)?.last() {
        reader.file(newest, false)?;
    }
    Ok(reader.contents)
}

/// The log's files in their order.
fn files(dir: &Beneath) -> Result<Vec<Beneath>, Error> {
    let mut files = BTreeMap::new();
    for name in dir.names()? {
        if let Some(sequence) = name.to_str().and_then(sequence) {
            files.insert(sequence, dir.join(&name));
        }
    }
    let (Some(first), Some(last)) = (files.keys().next(), files.keys().next_back()) else {
        return Err(Error::Empty);
    };
    // Not a count up to the last: a stray name can have any number.
    if let Some((before, _)) = files
        .keys()
        .zip(files.keys().skip(1))
        .find(|(one, next)| *one + 1 != **next)
    {
        return Err(Error::Gap(format!("{:016x}-*.wal", before + 1)));
    }
    debug_assert!(first <= last, "keys are sorted");
    Ok(files.into_values().collect())
}

fn sequence(name: &str) -> Option<u64> {
    let (sequence, index) = name.strip_suffix(".wal")?.split_once('-')?;
    u64::from_str_radix(index, 16).ok()?;
    u64::from_str_radix(sequence, 16).ok()
}

#[derive(Default)]
struct Reader {
    crc: u32,
    metadata: Option<Vec<u8>>,
    contents: Contents,
    frame: Vec<u8>,
    until_metadata: bool,
}

/// What follows in a file.
enum Frame {
    Record { padding: usize },
    End,
    Torn,
    TooLong,
}

impl Reader {
    fn file(&mut self, place: &Beneath, last: bool) -> Result<(), Error> {
        let file = place.open()?;
        let len = file.metadata()?.len();
        let mut source = BufReader::with_capacity(256 << 10, file);
        let mut at = 0;
        let damaged = |at, what| {
            let file = place
                .path()
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            Error::Damaged { file, at, what }
        };
        while !(self.until_metadata && self.metadata.is_some()) {
            let padding = match self.frame(&mut source, at, len)? {
                Frame::Record { padding } => padding,
                Frame::End => return Ok(()),
                Frame::Torn if last => {
                    self.contents.torn_tail = true;
                    return Ok(());
                }
                Frame::TooLong => return Err(damaged(at, "record is longer than any that etcd writes")),
                Frame::Torn => return Err(damaged(at, "record reaches over the end of the file")),
            };
            let record = Record::decode(&self.frame[..self.frame.len() - padding]);
            let checked = match record {
                Ok(record) => self.record(&record),
                Err(_) => Err("record can't be decoded"),
            };
            match checked {
                Ok(()) => at += 8 + self.frame.len() as u64,
                Err(_) if last && is_torn(&self.frame, at + 8) => {
                    self.contents.torn_tail = true;
                    return Ok(());
                }
                Err(what) => return Err(damaged(at, what)),
            }
        }
        Ok(())
    }

    /// Reads the next frame into `self.frame`, padding included.
    fn frame(&mut self, source: &mut impl Read, at: u64, len: u64) -> Result<Frame, Error> {
        if at == len {
            return Ok(Frame::End);
        }
        if len - at < 8 {
            return Ok(Frame::Torn);
        }
        let mut field = [0; 8];
        source.read_exact(&mut field)?;
        let field = u64::from_le_bytes(field);
        if field == 0 {
            return Ok(Frame::End);
        }
        let record = field & (u64::MAX >> 8);
        let padding = if field >> 63 == 1 { field >> 56 & 0x7 } else { 0 };
        if record + padding > len - at - 8 {
            return Ok(Frame::Torn);
        }
        if record > MAX_RECORD {
            return Ok(Frame::TooLong);
        }
        let fits = usize::try_from(record + padding);
        let (Ok(fits), Ok(padding)) = (fits, usize::try_from(padding)) else {
            return Ok(Frame::Torn);
        };
        self.frame.resize(fits, 0);
        source.read_exact(&mut self.frame)?;
        Ok(Frame::Record { padding })
    }

    fn record(&mut self, record: &Record) -> Result<(), &'static str> {
        let data = record.data.as_deref().unwrap_or_default();
        if record.kind == kind::CRC {
            if self.crc != 0 && record.crc != self.crc {
                return Err("checksum does not go on from the file before");
            }
            self.crc = record.crc;
            return Ok(());
        }
        let crc = crc32c::crc32c_append(self.crc, data);
        if record.crc != crc {
            return Err("checksum does not match");
        }
        self.crc = crc;
        let contents = &mut self.contents;
        match record.kind {
            kind::METADATA => {
                if self.metadata.as_deref().is_some_and(|known| known != data) {
                    return Err("metadata differs from that of the files before");
                }
                let metadata = Metadata::decode(data).map_err(|_| "metadata can't be decoded")?;
                self.metadata = Some(data.to_vec());
                contents.member_id = Some(Id(metadata.node_id));
                contents.cluster_id = Some(Id(metadata.cluster_id));
            }
            kind::ENTRY => {
                let entry = Entry::decode(data).map_err(|_| "entry can't be decoded")?;
                (contents.last_index, contents.last_term) = (entry.index, entry.term);
            }
            kind::STATE => {
                contents.commit = HardState::decode(data)
                    .map_err(|_| "state can't be decoded")?
                    .commit;
            }
            kind::SNAPSHOT => {
                let snapshot = WalSnapshot::decode(data).map_err(|_| "snapshot can't be decoded")?;
                contents.snapshots.push(LogPosition {
                    term: snapshot.term,
                    index: snapshot.index,
                });
            }
            _ => return Err("record of an unknown type"),
        }
        Ok(())
    }
}

/// Whether a bad record is one that a crash kept from being written: then a sector of it is still zero.
fn is_torn(frame: &[u8], at: u64) -> bool {
    let mut rest = frame;
    let mut offset = at;
    while !rest.is_empty() {
        let to_border = usize::try_from(SECTOR - offset % SECTOR).unwrap_or(rest.len());
        let (sector, after) = rest.split_at(to_border.min(rest.len()));
        if sector.iter().all(|byte| *byte == 0) {
            return true;
        }
        offset += sector.len() as u64;
        rest = after;
    }
    false
}
