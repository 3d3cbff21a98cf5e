use std::io::{self, Read, Write};

use proptest::prelude::*;

use super::{Compression, Decoder, Encoder};

const COMPRESSED: [Compression; 4] = [
    Compression::Gzip,
    Compression::Zlib,
    Compression::Lzw,
    Compression::Zstd,
];

fn encode(compression: Compression, bytes: &[u8], threads: usize) -> Vec<u8> {
    let mut encoder = Encoder::new(compression, Vec::new(), threads).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn decode(compression: Compression, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    Decoder::new(compression, bytes)?.read_to_end(&mut out)?;
    Ok(out)
}

/// Compressible and incompressible stretches in turn, so that every coder sees both.
fn sample(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    (0..len)
        .map(|at| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if at / 4096 % 2 == 0 {
                state.to_be_bytes()[0]
            } else {
                b"abcdefg"[at % 7]
            }
        })
        .collect()
}

#[test]
fn suffixes_and_names_map_both_ways() {
    for one in Compression::ALL {
        assert_eq!(Compression::from_suffix(one.suffix()), Ok(one));
        assert_eq!(one.to_string().parse(), Ok(one));
    }
    assert!(Compression::from_suffix(".xz").is_err());
    assert!(Compression::from_suffix("gz").is_err());
}

/// Over several blocks, and on their borders, the members come out in order whatever the number of threads.
#[test]
fn large_streams_come_back_whole() {
    for len in [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 20] {
        let bytes = sample(len);
        for compression in Compression::ALL {
            for threads in [0, 1, 3] {
                let encoded = encode(compression, &bytes, threads);
                assert!(
                    decode(compression, &encoded).unwrap() == bytes,
                    "{compression} {len} {threads}"
                );
            }
        }
    }
}

/// Members of others and of ours may follow each other in any order, and other readers take ours for what they are.
#[test]
fn members_of_all_kinds_are_one_stream() {
    let bytes = sample(3 << 20);
    let ours = encode(Compression::Gzip, &bytes, 2);
    let mut foreign = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    foreign.write_all(&bytes).unwrap();
    let foreign = foreign.finish().unwrap();
    for parts in [
        &[&ours, &ours][..],
        &[&ours, &foreign],
        &[&foreign, &ours],
        &[&ours, &foreign, &ours],
    ] {
        let stream: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let expected = bytes.repeat(parts.len());
        assert!(decode(Compression::Gzip, &stream).unwrap() == expected);
        let mut elsewhere = Vec::new();
        let mut other = flate2::read::MultiGzDecoder::new(stream.as_slice());
        other.read_to_end(&mut elsewhere).unwrap();
        assert!(elsewhere == expected);
    }
}

/// A member that lies about its length, and one that inflates to more than a block, are damage.
#[test]
fn false_lengths_of_members_are_errors() {
    let whole = encode(Compression::Gzip, &sample(3 << 20), 1);
    for wrong in [-1_i32, 1, 7] {
        let mut bytes = whole.clone();
        let len = u32::from_le_bytes(*bytes[16..].first_chunk().unwrap());
        bytes[16..20].copy_from_slice(&len.checked_add_signed(wrong).unwrap().to_le_bytes());
        assert!(decode(Compression::Gzip, &bytes).is_err(), "{wrong}");
    }
    let bomb = super::member::compress(&vec![0; 5 << 20], 6).unwrap();
    assert!(decode(Compression::Gzip, &bomb).is_err());
}

#[test]
fn an_empty_object_is_no_stream() {
    for compression in COMPRESSED {
        assert!(decode(compression, b"").is_err(), "{compression}");
    }
}

#[test]
fn bytes_behind_the_end_are_an_error() {
    for compression in COMPRESSED {
        let mut encoded = encode(compression, b"some text", 1);
        encoded.extend_from_slice(b"\x07more");
        assert!(decode(compression, &encoded).is_err(), "{compression}");
    }
}

/// A sink that takes so many bytes and then fails, as a full disk or a closed connection does.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An error of the sink must come out of `write` or `finish`: swallowed, a cut object would look uploaded.
#[test]
fn errors_of_the_sink_come_through() {
    let bytes = sample(9 << 20);
    for compression in Compression::ALL {
        let mut encoder = Encoder::new(compression, Full(100), 2).unwrap();
        let error = encoder
            .write_all(&bytes)
            .and_then(|()| encoder.finish().map(drop))
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{compression}");
    }
}

proptest! {
    /// A stream cut anywhere inside its only member, frame or code sequence is an error.
    #[test]
    fn cut_streams_are_errors(len in 1_usize..20_000, cut in 0.0_f64..1.0) {
        let bytes = sample(len);
        for compression in COMPRESSED {
            let encoded = encode(compression, &bytes, 1);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss,
                reason = "any place before the end will do")]
            let keep = (encoded.len() as f64 * cut) as usize;
            prop_assert!(decode(compression, &encoded[..keep]).is_err(), "{} {}", compression, keep);
        }
    }

    #[test]
    fn any_bytes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
        for compression in Compression::ALL {
            prop_assert_eq!(&decode(compression, &encode(compression, &bytes, 2)).unwrap(), &bytes);
        }
    }
}
