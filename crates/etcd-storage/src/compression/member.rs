//! The gzip members that are written here: each holds a block of limited size and says how long it is itself, in an
//! extra field (RFC 1952, 2.3.1.1) that every reader skips. So the members can be told apart before they are inflated,
//! and several be inflated at once.

use std::io::{self, Read as _, Write as _};

use flate2::{Compression as Level, GzBuilder, bufread::GzDecoder};

use super::pool::Block;

/// Input of one member. Large enough that fresh dictionaries cost well below 1 % of size.
pub(super) const BLOCK: usize = 1 << 20;

/// Length of a member's header: the fixed part, the length of the extra fields, and the only one.
pub(super) const HEADER: usize = 20;

/// What there is for certain: identification, deflate, extra fields follow and nothing else.
const BEGIN: [u8; 4] = [0x1f, 0x8b, 8, 4];

/// The extra field: its length, its id, and the length of what follows: the member's length as a 32-bit number.
const FIELD: [u8; 6] = [8, 0, b'm', b'l', 4, 0];

/// Length of CRC-32 and length at a member's end.
const TRAILER: usize = 8;

/// What can't be compressed grows by a few bytes for every 16 KiB.
const LONGEST: usize = BLOCK + BLOCK / 1024 + HEADER + TRAILER;

/// Makes a member of a block.
pub(super) fn compress(block: &[u8], level: u32) -> Block {
    let out = Vec::with_capacity(block.len() / 2 + 64);
    let field = [&FIELD[2..], &[0; 4]].concat();
    let mut encoder = GzBuilder::new().extra(field).write(out, Level::new(level));
    encoder.write_all(block)?;
    let mut member = encoder.finish()?;
    let len = u32::try_from(member.len()).map_err(io::Error::other)?;
    member[HEADER - 4..HEADER].copy_from_slice(&len.to_le_bytes());
    Ok(member)
}

/// The length of the member that begins with these bytes, if it is one of those that are made here.
pub(super) fn stated_len(header: &[u8; HEADER]) -> Option<usize> {
    let len = header.last_chunk().copied().map(u32::from_le_bytes)?;
    let len = usize::try_from(len).ok()?;
    let ours = header.starts_with(&BEGIN) && header[10..16] == FIELD;
    (ours && (HEADER + TRAILER..=LONGEST).contains(&len)).then_some(len)
}

/// Whether the block of a member is shorter than a block may be, as only the last one is.
pub(super) fn is_short(member: &[u8]) -> bool {
    member
        .last_chunk()
        .is_some_and(|len| u32::from_le_bytes(*len) < BLOCK as u32)
}

/// The block of a member.
pub(super) fn inflate(member: &[u8]) -> Block {
    let mut block = Vec::with_capacity(BLOCK);
    let mut decoder = GzDecoder::new(member);
    let room = BLOCK as u64 + 1;
    decoder.by_ref().take(room).read_to_end(&mut block)?;
    if block.len() > BLOCK || !decoder.into_inner().is_empty() {
        let what = "a gzip member is longer than it says";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(block)
}
