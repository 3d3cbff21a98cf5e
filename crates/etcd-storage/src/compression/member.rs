//! The gzip members that are written here: each holds a block of limited size and says how long it is itself, in an
//! extra field (RFC 1952, 2.3.1.1) that every reader skips. So the members can be told apart before they are inflated,
//! and several be inflated at once.

use std::io;

use libdeflater::{CompressionLvl, Compressor, Decompressor, crc32};

use super::pool::Block;

/// Input of one member. Large enough that fresh dictionaries cost well below 1 % of size.
pub(super) const BLOCK: usize = 1 << 20;

/// Length of a member's header: the fixed part, the length of the extra fields, and the only one.
pub(super) const HEADER: usize = 20;

/// The fixed part: identification, deflate, extra fields follow and nothing else; no time, no system.
const BEGIN: [u8; 10] = [0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255];

/// Length of all extra fields, then the field's id and the length of what follows: the member's length in 32 bits.
const FIELD: [u8; 6] = [8, 0, b'm', b'l', 4, 0];

/// Length of CRC-32 and input length at a member's end.
const TRAILER: usize = 8;

/// What can't be compressed grows by a few bytes for every 16 KiB.
const LONGEST: usize = BLOCK + BLOCK / 1024 + HEADER + TRAILER;

/// Makes a member of a block.
pub(super) fn compress(block: &[u8], level: i32) -> Block {
    let level = CompressionLvl::new(level).map_err(|_| unusable("no such compression level"))?;
    let mut compressor = Compressor::new(level);
    let mut member = vec![0; HEADER + compressor.deflate_compress_bound(block.len()) + TRAILER];
    let deflated = compressor
        .deflate_compress(block, &mut member[HEADER..])
        .map_err(io::Error::other)?;
    member.truncate(HEADER + deflated);
    member.extend(crc32(block).to_le_bytes());
    member.extend(length(block)?);
    let len = length(&member)?;
    let header = [&BEGIN[..], &FIELD, &len].concat();
    member[..HEADER].copy_from_slice(&header);
    member.shrink_to_fit();
    Ok(member)
}

fn length(bytes: &[u8]) -> io::Result<[u8; 4]> {
    let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    Ok(len.to_le_bytes())
}

/// The length of the member that begins with these bytes, if it is one of those that are made here.
pub(super) fn stated_len(header: &[u8; HEADER]) -> Option<usize> {
    let (begin, field) = header.split_at(BEGIN.len());
    let len = usize::try_from(number(field)).ok()?;
    let ours = begin == BEGIN && field.starts_with(&FIELD);
    (ours && (HEADER + TRAILER..=LONGEST).contains(&len)).then_some(len)
}

/// Whether the block of a member is shorter than a block may be, as only the last one is.
pub(super) fn is_short(member: &[u8]) -> bool {
    usize::try_from(number(member)).is_ok_and(|len| len < BLOCK)
}

/// The block of a member.
pub(super) fn inflate(member: &[u8]) -> Block {
    let (deflated, trailer) = member[HEADER..].split_at(member.len() - HEADER - TRAILER);
    let len = usize::try_from(number(trailer)).unwrap_or(usize::MAX);
    if len > BLOCK {
        return Err(unusable("a gzip member is too long"));
    }
    let mut block = vec![0; len];
    let inflated = Decompressor::new().deflate_decompress(deflated, &mut block);
    let inflated = inflated.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    if inflated != len || trailer[..4] != crc32(&block).to_le_bytes() {
        return Err(unusable("a gzip member is not what its checksum says"));
    }
    Ok(block)
}

/// The number in the last four bytes.
fn number(bytes: &[u8]) -> u32 {
    bytes.last_chunk().copied().map_or(0, u32::from_le_bytes)
}

fn unusable(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
