//! A pull scanner for JSON over a stream, with what a delta needs: exact integers, base64 straight into its
//! target, and skipping of what isn't known. It holds one buffer, whatever the length of a string.

use std::io::Read;

use base64_simd::STANDARD;
use memchr::memchr2;

use super::{Error, LARGEST_EVENT};
use crate::trailer::Body;

/// Nesting that is followed when a value is skipped.
const MAX_DEPTH: usize = 64;

/// Longest string that is kept as text: names and times.
const MAX_TEXT: usize = 256;

pub(super) struct Scanner<R> {
    body: Body<R>,
    text: Vec<u8>,
    /// Keys and values are checked, but not kept.
    pub(super) without_contents: bool,
    /// Bytes of keys and values of the event so far.
    pub(super) event_len: usize,
}

impl<R: Read> Scanner<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            body: Body::new(source),
            text: Vec::with_capacity(MAX_TEXT),
            without_contents: false,
            event_len: 0,
        }
    }

    pub(super) fn position(&self) -> u64 {
        self.body.position()
    }

    pub(super) fn into_body(self) -> Body<R> {
        self.body
    }

    pub(super) fn malformed<T>(&self, what: &'static str) -> Result<T, Error> {
        Err(Error::Malformed {
            at: self.position(),
            what,
        })
    }

    /// The next byte that isn't white space, without taking it; `None` at the end.
    pub(super) fn peek(&mut self) -> Result<Option<u8>, Error> {
        loop {
            let chunk = self.body.fill()?;
            let blank = chunk
                .iter()
                .take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
                .count();
            let next = chunk.get(blank).copied();
            let end = chunk.is_empty();
            self.body.consume(blank);
            if next.is_some() || end {
                return Ok(next);
            }
        }
    }

    /// Takes `byte` when it is next.
    pub(super) fn take(&mut self, byte: u8) -> Result<bool, Error> {
        let found = self.peek()? == Some(byte);
        if found {
            self.body.consume(1);
        }
        Ok(found)
    }

    pub(super) fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), Error> {
        if self.take(byte)? {
            Ok(())
        } else {
            self.malformed(what)
        }
    }

    /// Steps to the next field of an object whose `{` is taken, and returns its name. `first` starts as true.
    pub(super) fn field(&mut self, first: &mut bool) -> Result<Option<&[u8]>, Error> {
        if self.take(b'}')? {
            return Ok(None);
        }
        if !std::mem::take(first) {
            self.expect(b',', "expected ',' or '}'")?;
        }
        self.string()?;
        self.expect(b':', "expected ':'")?;
        Ok(Some(&self.text))
    }

    /// Reads a short string.
    pub(super) fn string(&mut self) -> Result<&[u8], Error> {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let read = self.pieces(|piece| {
            let fits = text.len() + piece.len() <= MAX_TEXT;
            text.extend_from_slice(&piece[..if fits { piece.len() } else { 0 }]);
            if fits { Ok(()) } else { Err("string too long") }
        });
        self.text = text;
        read.map(|()| &self.text[..])
    }

    /// Reads a string as standard base64 with padding and appends what it stands for, unless contents are left out. All of
    /// one event together get no longer than [`LARGEST_EVENT`].
    pub(super) fn base64(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        let mut groups = Groups::default();
        let (mut is_too_large, discard, mut len) = (false, self.without_contents, self.event_len);
        let read = self.pieces(|piece| {
            let before = out.len();
            groups.push(piece, out)?;
            len += out.len() - before;
            if discard {
                out.clear();
            }
            is_too_large = len > LARGEST_EVENT;
            if is_too_large { Err("too large") } else { Ok(()) }
        });
        if is_too_large {
            return Err(Error::TooLarge { at: self.position() });
        }
        read?;
        self.event_len = len;
        if groups.len == 0 {
            Ok(())
        } else {
            self.malformed("base64 of a length that is no multiple of 4")
        }
    }

    pub(super) fn integer(&mut self) -> Result<i64, Error> {
        let negative = self.take(b'-')?;
        let mut digits = 0_usize;
        // Counted downwards, as the negative range is the larger one.
        let mut value = 0_i64;
        loop {
            let chunk = self.body.fill()?;
            let count = chunk.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let sum = chunk[..count].iter().try_fold(value, |value, digit| {
                value.checked_mul(10)?.checked_sub(i64::from(digit - b'0'))
            });
            let next = chunk.get(count).copied();
            let end = chunk.is_empty();
            match sum {
                Some(sum) => value = sum,
                None => return self.malformed("integer out of the range of 64 bits"),
            }
            self.body.consume(count);
            digits += count;
            match next {
                None if !end => {}
                Some(b'.' | b'e' | b'E') => return self.malformed("expected an integer"),
                _ if digits == 0 => return self.malformed("expected an integer"),
                _ => break,
            }
        }
        match if negative {
            Some(value)
        } else {
            value.checked_neg()
        } {
            Some(value) => Ok(value),
            None => self.malformed("integer out of the range of 64 bits"),
        }
    }

    /// Takes one value of any kind.
    pub(super) fn skip(&mut self) -> Result<(), Error> {
        let mut depth = 0;
        loop {
            match self.peek()? {
                Some(b'"') => self.pieces(|_| Ok(()))?,
                Some(b'{' | b'[') => {
                    self.body.consume(1);
                    depth += 1;
                    if depth > MAX_DEPTH {
                        return self.malformed("value nested too deep");
                    }
                }
                Some(b'}' | b']') if depth > 0 => {
                    self.body.consume(1);
                    depth -= 1;
                }
                Some(b',' | b':') if depth > 0 => self.body.consume(1),
                Some(b'-' | b'0'..=b'9' | b'a'..=b'z') => self.word()?,
                _ => return self.malformed("expected a value"),
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Takes a number, `true`, `false` or `null`.
    fn word(&mut self) -> Result<(), Error> {
        loop {
            let chunk = self.body.fill()?;
            let is_word = |byte: &&u8| matches!(byte, b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'E');
            let count = chunk.iter().take_while(is_word).count();
            let ended = count < chunk.len() || chunk.is_empty();
            self.body.consume(count);
            if ended {
                return Ok(());
            }
        }
    }

    /// Takes a string and hands it over piece by piece, escapes undone.
    fn pieces(&mut self, mut sink: impl FnMut(&[u8]) -> Result<(), &'static str>) -> Result<(), Error> {
        self.expect(b'"', "expected a string")?;
        loop {
            let chunk = self.body.fill()?;
            let stop = memchr2(b'"', b'\\', chunk);
            let count = stop.unwrap_or(chunk.len());
            let quote = stop.is_some_and(|at| chunk[at] == b'"');
            let end = chunk.is_empty();
            let accepted = sink(&chunk[..count]);
            if let Err(what) = accepted {
                return self.malformed(what);
            }
            self.body.consume(count + usize::from(stop.is_some()));
            if quote {
                return Ok(());
            }
            if end {
                return self.malformed("string without end");
            }
            if stop.is_some() {
                let unescaped = self.escape()?;
                if let Err(what) = sink(unescaped.encode_utf8(&mut [0; 4]).as_bytes()) {
                    return self.malformed(what);
                }
            }
        }
    }

    /// Takes the rest of an escape sequence. Surrogates, which no name or base64 holds, become U+FFFD.
    fn escape(&mut self) -> Result<char, Error> {
        Ok(match self.byte()? {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let mut code = 0;
                for _ in 0..4 {
                    let digit = self.byte()?.and_then(|byte| char::from(byte).to_digit(16));
                    let Some(digit) = digit else {
                        return self.malformed("bad escape in a string");
                    };
                    code = code * 16 + digit;
                }
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return self.malformed("bad escape in a string"),
        })
    }

    fn byte(&mut self) -> Result<Option<u8>, Error> {
        let byte = self.body.fill()?.first().copied();
        self.body.consume(usize::from(byte.is_some()));
        Ok(byte)
    }
}

/// Base64 that arrives in pieces of any length.
#[derive(Default)]
struct Groups {
    /// The start of a group of four.
    open: [u8; 4],
    len: usize,
    /// A group with padding was seen: nothing may follow.
    padded: bool,
}

impl Groups {
    fn push(&mut self, mut piece: &[u8], out: &mut Vec<u8>) -> Result<(), &'static str> {
        if self.len > 0 {
            let count = piece.len().min(4 - self.len);
            self.open[self.len..self.len + count].copy_from_slice(&piece[..count]);
            self.len += count;
            piece = &piece[count..];
            if self.len < 4 {
                return Ok(());
            }
            self.len = 0;
            let group = self.open;
            self.decode(&group, out)?;
        }
        let whole = piece.len() / 4 * 4;
        self.decode(&piece[..whole], out)?;
        let rest = &piece[whole..];
        self.open[..rest.len()].copy_from_slice(rest);
        self.len = rest.len();
        Ok(())
    }

    fn decode(&mut self, groups: &[u8], out: &mut Vec<u8>) -> Result<(), &'static str> {
        let Some(last) = groups.last() else { return Ok(()) };
        if self.padded {
            return Err("base64 goes on after its padding");
        }
        self.padded = *last == b'=';
        STANDARD.decode_append(groups, out).map_err(|_| "bad base64")
    }
}
