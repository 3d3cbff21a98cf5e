//! Chance that can be had again, and what it does to the bytes of a backup.

/// A small generator (xorshift), so that a failure can be had again by its seed.
#[derive(Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.roll() % bound as u64).unwrap()
    }
}

/// Damages the bytes in one of several ways, and tells how.
pub(crate) fn damage(bytes: &mut Vec<u8>, dice: &mut Dice) -> String {
    let at = dice.below(bytes.len());
    match dice.below(5) {
        0 => {
            bytes[at] ^= 1 << dice.below(8);
            format!("bit flipped at {at}")
        }
        1 => {
            bytes.truncate(at);
            format!("cut at {at}")
        }
        2 => {
            let len = (1 + dice.below(40)).min(bytes.len() - at);
            bytes.drain(at..at + len);
            format!("{len} bytes dropped at {at}")
        }
        3 => {
            let len = (1 + dice.below(600)).min(bytes.len() - at);
            bytes[at..at + len].fill(0);
            format!("{len} bytes zeroed at {at}")
        }
        _ => {
            let len = (1 + dice.below(40)).min(bytes.len() - at);
            let again = bytes[at..at + len].to_vec();
            bytes.splice(at..at, again);
            format!("{len} bytes repeated at {at}")
        }
    }
}
