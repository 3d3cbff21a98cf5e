//! Compression of a backup object while it is written. What was written is whole only after
//! [`Encoder::finish`]; an encoder that is dropped leaves a stream that no decoder here accepts as whole.

use std::fmt;
use std::io::{self, Write};

use flate2::write::ZlibEncoder;
use weezl::{BitOrder, LzwStatus};

use super::Compression;
use super::parallel::ParallelGzip;

/// Level 6 is zlib's and Go's own default; gzip members are compressed as well by it, at twice the speed.
const DEFLATE_LEVEL: u8 = 6;

/// Bytes of compressed LZW output that are held at a time.
const LZW_OUTPUT: usize = 64 << 10;

/// Compresses what is written to it into `W`.
#[must_use = "a stream is whole only after finish()"]
pub struct Encoder<W: Write>(Inner<W>);

enum Inner<W: Write> {
    None(W),
    Gzip(ParallelGzip<W>),
    Zlib(Box<ZlibEncoder<W>>),
    Lzw(Box<Lzw<W>>),
    Zstd(zstd::Encoder<'static, W>),
}

impl<W: Write> Encoder<W> {
    /// Compresses into `sink`. `threads` is the most that gzip may use beside the caller's own; 0 and 1 both mean
    /// that the caller's thread does the work. The other compressions always use the caller's thread.
    ///
    /// # Errors
    /// The encoder could not be set up (zstd only: out of memory).
    pub fn new(compression: Compression, sink: W, threads: usize) -> io::Result<Self> {
        Ok(Self(match compression {
            Compression::None => Inner::None(sink),
            Compression::Gzip => Inner::Gzip(ParallelGzip::new(sink, DEFLATE_LEVEL.into(), threads)),
            Compression::Zlib => Inner::Zlib(Box::new(ZlibEncoder::new(
                sink,
                flate2::Compression::new(DEFLATE_LEVEL.into()),
            ))),
            Compression::Lzw => Inner::Lzw(Box::new(Lzw::new(sink))),
            Compression::Zstd => {
                let mut encoder = zstd::Encoder::new(sink, zstd::DEFAULT_COMPRESSION_LEVEL)?;
                encoder.include_checksum(true)?;
                Inner::Zstd(encoder)
            }
        }))
    }

    /// Writes what is still held and the end of the stream, and gives the sink back.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn finish(self) -> io::Result<W> {
        match self.0 {
            Inner::None(mut sink) => {
                sink.flush()?;
                Ok(sink)
            }
            Inner::Gzip(encoder) => encoder.finish(),
            Inner::Zlib(encoder) => encoder.finish(),
            Inner::Lzw(encoder) => encoder.finish(),
            Inner::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl<W: Write> Write for Encoder<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Inner::None(sink) => sink.write(bytes),
            Inner::Gzip(encoder) => encoder.write(bytes),
            Inner::Zlib(encoder) => encoder.write(bytes),
            Inner::Lzw(encoder) => encoder.write(bytes),
            Inner::Zstd(encoder) => encoder.write(bytes),
        }
    }

    /// Flushes the sink. Bytes that a compressor still holds stay there: only [`Encoder::finish`] drains it.
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Inner::None(sink) => sink.flush(),
            Inner::Gzip(encoder) => encoder.flush(),
            Inner::Zlib(encoder) => encoder.get_mut().flush(),
            Inner::Lzw(encoder) => encoder.sink.flush(),
            Inner::Zstd(encoder) => encoder.get_mut().flush(),
        }
    }
}

impl<W: Write> fmt::Debug for Encoder<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compression = match &self.0 {
            Inner::None(_) => Compression::None,
            Inner::Gzip(_) => Compression::Gzip,
            Inner::Zlib(_) => Compression::Zlib,
            Inner::Lzw(_) => Compression::Lzw,
            Inner::Zstd(_) => Compression::Zstd,
        };
        f.debug_tuple("Encoder").field(&compression).finish()
    }
}

struct Lzw<W> {
    sink: W,
    encoder: weezl::encode::Encoder,
    out: Vec<u8>,
}

impl<W: Write> Lzw<W> {
    fn new(sink: W) -> Self {
        let encoder = weezl::encode::Encoder::new(BitOrder::Lsb, 8);
        Self {
            sink,
            encoder,
            out: vec![0; LZW_OUTPUT],
        }
    }

    fn step(&mut self, input: &[u8]) -> io::Result<(usize, LzwStatus)> {
        let step = self.encoder.encode_bytes(input, &mut self.out);
        let status = step
            .status
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        self.sink.write_all(&self.out[..step.consumed_out])?;
        Ok((step.consumed_in, status))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = 0;
        while written < bytes.len() {
            written += self.step(&bytes[written..])?.0;
        }
        Ok(written)
    }

    fn finish(mut self) -> io::Result<W> {
        self.encoder.finish();
        while !matches!(self.step(&[])?.1, LzwStatus::Done) {}
        self.sink.flush()?;
        Ok(self.sink)
    }
}
