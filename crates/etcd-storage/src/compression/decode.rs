//! Decompression of a backup object while it is read. A stream that ends early or goes on behind its end is
//! an error of kind `UnexpectedEof` or `InvalidData`, never a short read that looks whole.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::ZlibDecoder;
use weezl::{BitOrder, LzwStatus};

use super::Compression;
use super::parallel::ParallelGunzip;

/// Bytes of compressed input that are held at a time.
const INPUT: usize = 256 << 10;

/// Window of zstd that is allocated at the most, as a power of two: 8 MiB, which every regular level does with. By itself
/// the decoder would take 128 MiB.
const LARGEST_WINDOW: u32 = 23;

/// The decompressed bytes of `R`.
pub struct Decoder<R: Read>(Inner<R>);

enum Inner<R: Read> {
    None(BufReader<R>),
    Gzip(Box<ParallelGunzip<R>>),
    Zlib(Box<Ended<ZlibDecoder<BufReader<R>>>>),
    Lzw(Box<Lzw<BufReader<R>>>),
    Zstd(zstd::Decoder<'static, BufReader<R>>),
}

impl<R: Read> Decoder<R> {
    /// Reads `source` as `compression`.
    ///
    /// # Errors
    /// The decoder could not be set up (zstd only: out of memory).
    pub fn new(compression: Compression, source: R) -> io::Result<Self> {
        let source = BufReader::with_capacity(INPUT, source);
        Ok(Self(match compression {
            Compression::None => Inner::None(source),
            Compression::Gzip => Inner::Gzip(Box::new(ParallelGunzip::new(source))),
            Compression::Zlib => Inner::Zlib(Box::new(Ended::new(ZlibDecoder::new(source)))),
            Compression::Lzw => Inner::Lzw(Box::new(Lzw::new(source))),
            Compression::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(source)?;
                decoder.window_log_max(LARGEST_WINDOW)?;
                Inner::Zstd(decoder)
            }
        }))
    }
}

impl<R: Read> Read for Decoder<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Inner::None(reader) => reader.read(out),
            Inner::Gzip(reader) => reader.read(out),
            Inner::Zlib(reader) => reader.read(out),
            Inner::Lzw(reader) => reader.read(out),
            Inner::Zstd(reader) => reader.read(out),
        }
    }
}

impl<R: Read> fmt::Debug for Decoder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compression = match &self.0 {
            Inner::None(_) => Compression::None,
            Inner::Gzip(_) => Compression::Gzip,
            Inner::Zlib(_) => Compression::Zlib,
            Inner::Lzw(_) => Compression::Lzw,
            Inner::Zstd(_) => Compression::Zstd,
        };
        f.debug_tuple("Decoder").field(&compression).finish()
    }
}

/// A zlib stream after which nothing may follow: unlike gzip it has no members, so more bytes are a mix-up.
struct Ended<D> {
    decoder: D,
    done: bool,
}

impl<D> Ended<D> {
    fn new(decoder: D) -> Self {
        Self { decoder, done: false }
    }
}

impl<R: BufRead> Read for Ended<ZlibDecoder<R>> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.decoder.read(out)?;
        if read == 0 && !out.is_empty() && !self.done {
            self.done = true;
            nothing_left(self.decoder.get_mut())?;
        }
        Ok(read)
    }
}

/// LZW has neither checksum nor length: its end code is the only sign that it is whole.
struct Lzw<R> {
    source: R,
    decoder: weezl::decode::Decoder,
    done: bool,
}

impl<R> Lzw<R> {
    fn new(source: R) -> Self {
        Self {
            source,
            decoder: weezl::decode::Decoder::new(BitOrder::Lsb, 8),
            done: false,
        }
    }
}

impl<R: BufRead> Read for Lzw<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() || self.done {
            return Ok(0);
        }
        loop {
            let input = self.source.fill_buf()?;
            let cut = input.is_empty();
            let step = self.decoder.decode_bytes(input, out);
            self.source.consume(step.consumed_in);
            let status = step
                .status
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if matches!(status, LzwStatus::Done) {
                self.done = true;
                nothing_left(&mut self.source)?;
            } else if step.consumed_out == 0 {
                if cut {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "lzw stream has no end code",
                    ));
                }
                continue;
            }
            return Ok(step.consumed_out);
        }
    }
}

fn nothing_left(source: &mut impl BufRead) -> io::Result<()> {
    if source.fill_buf()?.is_empty() {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "bytes follow the end of the compressed stream",
        ))
    }
}
