//! Checks a stored record (`mvccpb.KeyValue`) while its bytes pass, so that a large value need not be held. It accepts
//! what [`crate::mvcc::KeyValue::parse`] accepts.

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

/// Follows the bytes of one record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecordScan {
    next: Next,
    /// The number that is being read, and how many of its bits there are.
    number: u64,
    bits: u32,
    malformed: bool,
    /// The field that is being read.
    field: u64,
    create_revision: i64,
}

/// Number of the field `create_revision`.
const CREATE_REVISION: u64 = 2;

#[derive(Clone, Copy, Debug, Default)]
enum Next {
    #[default]
    Tag,
    Number,
    Length,
    /// So many bytes that mean nothing here.
    Skip(u64),
}

impl RecordScan {
    /// Takes the next bytes of the record.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while !self.malformed && !bytes.is_empty() {
            if let Next::Skip(left) = self.next {
                let step = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                bytes = &bytes[step..];
                self.skip(left - step as u64);
                continue;
            }
            let byte = bytes[0];
            bytes = &bytes[1..];
            if self.bits >= 64 {
                self.malformed = true;
                return;
            }
            self.number |= u64::from(byte & 0x7f) << self.bits;
            self.bits += 7;
            if byte < 0x80 {
                let number = std::mem::take(&mut self.number);
                self.bits = 0;
                self.step(number);
            }
        }
    }

    fn step(&mut self, number: u64) {
        match self.next {
            Next::Tag => {
                self.field = number >> 3;
                match (self.field, number & 7) {
                    (2..=4 | 6.., VARINT) => self.next = Next::Number,
                    (1 | 5 | 7.., BYTES) => self.next = Next::Length,
                    (7.., FIXED64) => self.skip(8),
                    (7.., FIXED32) => self.skip(4),
                    _ => self.malformed = true,
                }
            }
            Next::Number => {
                if self.field == CREATE_REVISION {
                    self.create_revision = number.cast_signed();
                }
                self.next = Next::Tag;
            }
            Next::Length => self.skip(number),
            Next::Skip(_) => {}
        }
    }

    fn skip(&mut self, left: u64) {
        self.next = if left == 0 { Next::Tag } else { Next::Skip(left) };
    }

    /// The revision in which the record's key was made; 0 if it isn't told.
    pub(super) fn create_revision(self) -> i64 {
        self.create_revision
    }

    /// Whether the bytes so far are a whole record.
    pub(super) fn is_whole(self) -> bool {
        !self.malformed && self.bits == 0 && matches!(self.next, Next::Tag)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::RecordScan;
    use crate::mvcc::KeyValue;

    fn is_whole(bytes: &[u8], step: usize) -> bool {
        let mut scan = RecordScan::default();
        bytes.chunks(step).for_each(|chunk| scan.feed(chunk));
        scan.is_whole()
    }

    proptest! {
        /// Real records, altered or not, and any bytes: the same answer as when the record is read as a whole.
        #[test]
        fn agrees_with_the_reader_of_records(
            key in proptest::collection::vec(any::<u8>(), 0..20), value in proptest::collection::vec(any::<u8>(), 0..300),
            numbers: [i64; 4], changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
            cut in any::<prop::sample::Index>(), any_bytes in proptest::collection::vec(any::<u8>(), 0..40), step in 1_usize..50,
        ) {
            let [create_revision, mod_revision, version, lease] = numbers;
            let record = KeyValue { key: &key, create_revision, mod_revision, version, value: &value, lease };
            let (mut before, mut after) = (Vec::new(), Vec::new());
            record.encode_around_value(&mut before, &mut after);
            let mut bytes = [&before[..], &value, &after].concat();
            prop_assert!(is_whole(&bytes, step));
            let mut scan = RecordScan::default();
            bytes.chunks(step).for_each(|chunk| scan.feed(chunk));
            prop_assert_eq!(scan.create_revision(), create_revision);
            let len = bytes.len();
            for (place, byte) in changes.into_iter().filter(|_| len > 0) {
                bytes[place.index(len)] = byte;
            }
            bytes.truncate(cut.index(bytes.len() + 1));
            for bytes in [&bytes, &any_bytes] {
                prop_assert_eq!(is_whole(bytes, step), KeyValue::parse(bytes).is_some(), "{:?}", bytes);
            }
        }
    }
}
